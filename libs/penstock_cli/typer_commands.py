"""
Commands as Typer has them: their root, their classes, and parameters that were declared without Typer.

:class:`CommandGroup` turns expected errors into one line and an exit code. :func:`typed` gives Typer a command whose
parameters are declared by :mod:`penstock_cli.parameters`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, get_args, get_origin

import typer
from msgspec import NODEFAULT
from typer.core import TyperCommand, TyperGroup

from penstock_cli.invocation import bad_input, ended_badly
from penstock_cli.parameters import COMMAND, Argument, Context, Declaration, Option, declared
from penstock_cli.render import seen


class CommandGroup(TyperGroup):
    """The root of all commands: turns expected errors into one line and an exit code."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read what was typed before the command's name."""
        with _harmless_usage():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an expected error becomes one line on standard error and an exit code."""
        try:
            with _harmless_usage():
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            code = ended_badly(error, (ctx.find_object(dict) or {}).get("url", ""))
            if code is None:
                raise
            raise typer.Exit(code) from error


@contextmanager
def _harmless_usage() -> Iterator[None]:
    """Escape what was mistyped where Click shows it: names of files come from others, by a shell's patterns."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # an error of Click, which some versions of Typer bring along
            error.message = "\n".join(map(seen, error.message.split("\n")))  # type: ignore[attr-defined]
        raise


class PolicyCommand(TyperCommand):
    """A command that takes queue policies: its help lists them, as they are registered."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what each queue policy does behind the options."""
        from penstock_policies.queue_policies import QUEUE_POLICIES

        super().format_epilog(ctx, formatter)
        with formatter.section("Queue policies"):
            formatter.write_dl([(name, policy.says) for name, policy in QUEUE_POLICIES.items()])


class DashedCommand(TyperCommand):
    """A command that leaves everything behind ``--`` to the user's program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Cut the arguments at ``--``."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND], args = tuple(args[at + 1 :]), args[:at]
        return super().parse_args(ctx, args)


class RawCommand(TyperCommand):
    """A command that reads all of its words itself, but for ``--help``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave all words to the command."""
        if args[:1] in (["--help"], ["-h"]):
            return super().parse_args(ctx, args)
        ctx.meta[COMMAND] = tuple(args)
        return super().parse_args(ctx, [])


class ExecCommand(DashedCommand):
    """``exec``, which says where a command belongs that stands without ``--`` behind the job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a second word before ``--``, and show the line as it is meant."""
        before = args[: args.index("--")] if "--" in args else args
        loose = [at for at, word in enumerate(before) if word[:1] != "-" and (not at or before[at - 1] != "--rank")]
        if len(loose) > 1:
            command = [*before[loose[1] :], *args[len(before) + 1 :]]
            meant = shlex.join(["penstock", "exec", *before[: loose[1]], "--", *command])
            bad_input(f"the command stands behind --; write: {meant}")
        return super().parse_args(ctx, args)


def adapt(app: typer.Typer) -> None:
    """Have Typer understand the parameters of all commands of an application, and of its groups."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = typed(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            adapt(group.typer_instance)


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command whose parameters are declared as Typer has them."""
    plain = list(declared(function))
    filled = dict(_filled(plain)) if hasattr(function, "flat_parameters") else {}
    annotations = {name: _typed_annotation(annotation) for name, annotation, _ in plain}
    if not hasattr(function, "flat_parameters") and all(annotations[name] is before for name, before, _ in plain):
        return function

    @wraps(function)
    def run(*args: Any, **given: Any) -> Any:
        for name, option in filled.items():
            if "" in (given[name] if isinstance(given[name], list) else [given[name]]) and _is_typed(
                given["ctx"], name
            ):
                bad_input(f"{option} is empty; give it a value (is a variable of the shell not set?), or leave it out")
        return function(*args, **given)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # what Typer reads
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotations[name],
                default=inspect.Parameter.empty if default is NODEFAULT else default,
            )
            for name, _, default in plain
        ]
    )
    run.__annotations__ = annotations
    return run


def _filled(parameters: list[tuple[str, Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the options that take no empty value, each with its name on the command line."""
    for name, annotation, _ in parameters:
        for one in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
            if isinstance(one, Option) and not one.takes_empty:
                yield name, one.names[0]


def _is_typed(ctx: typer.Context, name: str) -> bool:
    """Return whether a parameter was typed, and not left out."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _typed_annotation(annotation: Any) -> Any:
    if annotation is Context:
        return typer.Context
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *found = get_args(annotation)
    if not any(isinstance(one, Declaration) for one in found):
        return annotation
    return Annotated[(kind, *map(_of_typer, found))]


def _of_typer(declared: Any) -> Any:
    match declared:
        case Option():
            return typer.Option(*declared.names, **declared.more)
        case Argument():
            return typer.Argument(**declared.more)
        case _:
            return declared
