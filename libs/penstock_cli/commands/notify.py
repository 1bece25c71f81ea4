"""Commands about notifications: ``notify add``, ``list``, ``remove`` and ``test``."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from penstock_cli import render
from penstock_cli.invocation import AnswerOut, Out, bad_input, call
from penstock_cli.value_formats import clock, duration_s, span
from penstock_log.spec import NotifyKind

if TYPE_CHECKING:
    from penstock_log.views import NotificationRuleView

notify_app = typer.Typer(help="Be told what becomes of your jobs.", no_args_is_help=True)
Rule = Annotated[str, typer.Argument(metavar="RULE", help="Id of a rule, as `penstock notify list` shows it.")]
_KINDS: Final = get_args(NotifyKind)
_WAITING: Final = re.compile(r"waiting\s*>\s*(\S+)")
_STDIN: Final = "-"
_DEFAULT: Final = "failed,timed_out"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    notify_app.command()(add)
    notify_app.command("list")(list_)
    notify_app.command()(remove)
    notify_app.command("test")(send_test)
    notify_app.command("ls", hidden=True)(list_)  # as the other commands have it
    notify_app.command("rm", hidden=True)(remove)
    app.add_typer(notify_app, name="notify")


def add(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="As apprise has it: mailto://…, slack://…; - for stdin.")],
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", help=f"Of what, with commas: {', '.join(_KINDS)}, waiting>1h.", show_default="failed,timed_out"
        ),
    ] = None,
    about: Annotated[
        str, typer.Option("--job", "--sweep", metavar="ID", help="Of this job or sweep; else of all of yours.")
    ] = "",
    by_job: Annotated[bool, typer.Option("--by-job", help="Only of what each job's `notify` says.")] = False,
    name: Annotated[str, typer.Option("--name", help="What the address is called in lists.")] = "",
    output: AnswerOut = "text",
) -> None:
    """
    Be told of what becomes of your jobs.

    The URL may hold a token: give it by `-`, on standard input, where others see your command lines.
    """
    if by_job and on:
        bad_input("--on says of what this rule tells, and --by-job leaves that to each job; give one of them")
    if on is not None and not on.strip(" ,"):
        bad_input(f"--on names nothing; expected {', '.join(_KINDS)}, waiting>1h, or --by-job in its place")
    kinds, waiting_s = _events("" if by_job else on or _DEFAULT)
    address = sys.stdin.readline().strip() if url == _STDIN else url
    answer = call(ctx, lambda client: client.notify(address, kinds, waiting_s=waiting_s, about=about, name=name))
    render.show_answer(answer, answer.message, output)


def _events(text: str) -> tuple[list[NotifyKind], float]:
    """
    Return what is typed after ``--on``: kinds, and for how long a job waits before it is told.

    Examples
    --------
    >>> _events("failed,waiting>1h")
    (['failed'], 3600.0)
    """
    kinds: list[NotifyKind] = []
    waiting_s = 0.0
    for word in filter(None, map(str.strip, text.split(","))):
        if (found := _WAITING.fullmatch(word)) is not None:
            waiting_s = duration_s(found[1], "--on waiting>")
        elif word in _KINDS:
            kinds += [kind for kind in _KINDS if kind == word]
        else:
            bad_input(f"--on {word!r} is nothing that is told; expected {', '.join(_KINDS)}, or waiting>1h")
    return kinds, waiting_s


def list_(ctx: typer.Context, output: Out = "table") -> None:
    """List your rules, and what has become of their messages; operators see those of all."""
    found = call(ctx, lambda client: client.notifications())
    if render.as_json(found, output):
        return
    rows = [(one.id, one.user, one.target, _told(one), one.about or "all", _fate(one)) for one in found.rules]
    render.show_table(("RULE", "USER", "TO", "ON", "ABOUT", "MESSAGES"), rows, wide=output == "wide")


def _told(rule: NotificationRuleView) -> str:
    waiting = [f"waiting>{span(rule.waiting_s)}"] if rule.waiting_s else []
    return ",".join([*rule.on, *waiting]) or "as jobs say"


def _fate(rule: NotificationRuleView) -> str:
    sent = f"{rule.messages} sent" + (f", last {clock(rule.tried_s)}" if rule.tried_s and not rule.failures else "")
    left = f", {rule.left} to tell" if rule.left else ""
    failed = f", {render.count(rule.failures, 'failure')}: {rule.error}" if rule.failures else ""
    return sent + left + failed


def remove(ctx: typer.Context, rule: Rule, output: AnswerOut = "text") -> None:
    """Be told no more what a rule says."""
    answer = call(ctx, lambda client: client.remove_notification(rule))
    render.show_answer(answer, answer.message, output)


def send_test(ctx: typer.Context, rule: Rule, output: AnswerOut = "text") -> None:
    """Send a message by a rule, now."""
    answer = call(ctx, lambda client: client.test_notification(rule))
    render.show_answer(answer, answer.message, output)
