"""
The command ``penstock sbatch``: scripts of Slurm's, with sbatch's own options, as scripts and habits have them.

``penstock submit job.sbatch`` does the same with Penstock's flags (:mod:`penstock_cli.commands.submit`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_cli import render
from penstock_cli.invocation import ask, bad_input, call, tell
from penstock_cli.parameters import COMMAND, Context
from penstock_cli.sbatch import script as scripts
from penstock_cli.sbatch import submission
from penstock_cli.sbatch.options import read_environment, read_words
from penstock_cli.sbatch.submission import BatchSubmission

if TYPE_CHECKING:
    import typer

    from penstock_log import views

_PLACE = "the command line"


def register(app: typer.Typer) -> None:
    """Add the command."""
    from penstock_cli.typer_commands import RawCommand

    app.command("sbatch", cls=RawCommand)(sbatch)


def sbatch(ctx: Context) -> None:
    """
    Submit a script as Slurm's sbatch does, with its options.

    For example: penstock sbatch --gres=gpu:1 train.sbatch --lr 0.1. Options stand before the script, and its arguments
    behind it. What becomes of each option: docs/sbatch.md; --without NAMES leaves some out.
    """
    words = list(ctx.meta.get(COMMAND, ()))
    if words[:1] == ["--requeue-of"] and len(words) in (2, 3):
        is_singleton = words[2:] == ["--singleton"]
        answers = ask(ctx, lambda client: submission.submit_anew(client, words[1], is_singleton=is_singleton))
        render.say(answers[0].id)
        return
    without, words = take_without(words)
    given, rest = read_words(words, _PLACE)
    wrapped = next((one.value for one in reversed(given) if one.name == "wrap"), None)
    if wrapped is not None and rest:
        bad_input(f"--wrap is the script; {shlex.join(rest)!r} is one too much")
    script = scripts.of_command(wrapped) if wrapped is not None else scripts.read(rest[0] if rest else "-")
    more = [*read_environment(os.environ), *given]
    found = submission.prepare(script, rest[1:], more, overrides={}, without=without)
    show_submission(ctx, found, strict=False, is_slurm=True)


def take_without(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the names of ``--without``, and the other words."""
    rest = list(words)
    for at, word in enumerate(rest):
        if word == "--without" and at + 1 < len(rest):
            return rest[at + 1], rest[:at] + rest[at + 2 :]
        if word.startswith("--without="):
            return word.partition("=")[2], rest[:at] + rest[at + 1 :]
        if not word.startswith("-") and read_words(rest[: at + 1], _PLACE)[1]:
            break  # the script, and no option's value
    return "", rest


def show_submission(
    ctx: Context,
    found: BatchSubmission,
    *,
    strict: bool,
    is_slurm: bool = False,
    output: str = "text",
    wait: bool = False,
    dry_run: bool = False,
) -> None:
    """
    Submit a script and print its number, and what people should know of its options.

    Parameters
    ----------
    is_slurm : bool
        Print the number as sbatch does, in a sentence, unless the script or the command line says ``--parsable``.
    """
    from penstock_cli.commands import submit as submits

    job = found.job
    for line in () if job.quiet else (*job.notes, *(job.became if job.verbose else ())):
        tell(line)
    if dry_run or job.test_only:
        submits.show_dry_run(ctx, found.spec, output)
        return

    async def submitted(client: Any) -> Sequence[views.SubmitAnswer]:
        answers = await submission.submit(client, found, strict=strict)
        if not job.quiet:
            submits.tell_once_each(warning for answer in answers for warning in answer.warnings)
        number = submission.number_of(answers, found.indices)
        if output == "json":
            for answer in answers:
                render.show_answer(answer, answer.id, output)
        else:
            render.say(f"Submitted batch job {number}" if is_slurm and not job.parsable else number)
        return answers

    if not (wait or job.wait):
        ask(ctx, submitted)
        return

    async def waited_for(client: Any) -> list[views.JobView]:
        return await submits.wait_all(client, await submitted(client))

    submits.exit_as(call(ctx, waited_for))
