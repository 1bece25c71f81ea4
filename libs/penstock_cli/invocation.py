"""
Invocation: what every command shares, from the connection to the exit code.

:func:`call` connects to the server and runs a command's coroutine; options of many commands are here as types.
:class:`Failure` and :func:`explain` turn what goes wrong into one line on standard error and an exit code that scripts
can tell apart. :func:`read` reads the live log from its beginning to where it ends now.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from penstock_cli import render
from penstock_cli.render import seen

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_bus import Delivery
    from penstock_log import JobSpec, views


T = TypeVar("T")
Output = Literal["table", "wide", "json"]
Out = Annotated[Output, typer.Option("-o", "--output", help="table, wide (all columns, nothing cut) or json.")]
AnswerOutput = Literal["text", "json"]
AnswerOut = Annotated[AnswerOutput, typer.Option("-o", "--output", help="text, or json: the answers, one a line.")]
At = Annotated[
    str | None,
    typer.Option("--at", help="As of a stream sequence, a span ago (10m), or a time (2026-01-31T09:30:00Z)."),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log", help="Ask a log in a file, as `events -f -o json` or `sim --log` write it, not the server."),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job id, or a unique beginning of it.")]
JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", help="Job ids, or unique beginnings of them.")]


@dataclass(frozen=True)
class CommandOptions:
    """
    Options of a command, as :func:`flattened` gives them to it; each field is annotated as Typer has it.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Weather(CommandOptions):
    ...     place: Annotated[str, typer.Argument()]
    ...     days: Annotated[int, typer.Option("--days", "-d")] = 1
    ...     kinds: Annotated[list[str] | None, typer.Option("--kind")] = None
    ...     wind: Annotated[bool | None, typer.Option("--wind/--no-wind")] = None
    >>> list(Weather("here").words()), list(Weather("here", 2, ["rain", "snow"], False).words())
    (['here'], ['here', '--days', '2', '--kind', 'rain', '--kind', 'snow', '--no-wind'])
    """

    def words(self) -> Iterator[str]:
        """Yield the arguments that ask for this again; whatever has its default was not typed."""
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            value, info = getattr(self, field.name), get_args(hints[field.name])[-1]
            names = info.default if isinstance(info.default, str) else f"--{field.name.replace('_', '-')}"
            yes, _, no = names.partition("/")
            if field.default is MISSING and isinstance(info, typer.models.ArgumentInfo):
                yield str(value)
            elif isinstance(value, bool):
                yield from [yes if value else no] if value is not field.default else []
            elif isinstance(value, list | tuple):
                yield from (word for item in value for word in (yes, str(item)))
            elif value != field.default:
                yield from (yes, f"{value:g}" if isinstance(value, float) else str(value))


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer that has, for each parameter of :class:`CommandOptions`, its fields as parameters."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, type[CommandOptions]] = {
        one.name: one.annotation
        for one in parameters
        if inspect.isclass(one.annotation) and issubclass(one.annotation, CommandOptions)
    }

    @wraps(command)
    def run(**given: Any) -> None:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    flat: list[inspect.Parameter] = []
    for one in parameters:
        found = inspect.signature(groups[one.name], eval_str=True).parameters.values() if one.name in groups else [one]
        flat += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in found]
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined] # what Typer reads
    return run


def call(ctx: typer.Context, use: Callable[[Client], Awaitable[T]]) -> T:
    """
    Connect, run ``use`` with the client, and disconnect; its errors are explained by the root of all commands.

    ``ctx.obj["client"]``, a function of the address, may stand in for the client: tests give one on another bus.
    """
    options: dict[str, Any] = ctx.obj
    make = options.get("client") or _client

    async def connected() -> T:
        async with make(options["url"]) as client:
            return await use(client)

    try:
        return asyncio.run(connected())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _client(url: str) -> Client:
    from penstock.client import Client

    return Client(url)


def act(
    ctx: typer.Context,
    targets: Sequence[T],
    command: Callable[[Client, T], Awaitable[views.ActAnswer]],
    output: AnswerOutput,
) -> None:
    """
    Give a command about each target, such as a job's id, and say what became of it.

    All are tried, and the first error ends it badly.
    """

    async def each(client: Client) -> Failure | None:
        first = None
        for target in targets:
            try:
                answer = await command(client, target)
            except Exception as error:
                failure = explain(error, ctx.obj["url"])
                if failure is None or failure.code is Exit.UNREACHABLE:
                    raise
                tell(str(failure))
                first = first or failure
                continue
            render.show_answer(answer, answer.message, output)
        return first

    failed = call(ctx, each)
    if failed:
        raise typer.Exit(failed.code)


class Exit(IntEnum):
    """Exit codes of ``penstock``; with ``--wait`` and ``run`` the job's own exit code comes back instead."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    INTERRUPTED = 130


class Failure(Exception):
    """An error that people are told in one line: what was wrong, what was expected, what to do."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        """Keep the exit code."""
        super().__init__(message)
        self.code = code


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
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            _silence()
            raise typer.Exit(Exit.OK) from None
        except Exception as error:
            failure = explain(error, (ctx.find_object(dict) or {}).get("url", ""))
            if failure is None:
                raise
            if isinstance(error, OSError):
                _silence()
            tell(str(failure))
            raise typer.Exit(failure.code) from error


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


def tell(message: str) -> None:
    """Say something on standard error, in one line after the program's name."""
    typer.echo(seen(f"penstock: {message}"), err=True)


def explain(error: Exception, url: str) -> Failure | None:
    """Return what to tell people about an error; None for one that is a defect and deserves its traceback."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, ValueError) and _is_bad_input(error):
        return Failure(str(error), Exit.USAGE)
    if isinstance(error, OSError) and error.strerror:
        return _explain_system(error)
    if "penstock_bus.port" in sys.modules:
        return _explain_bus(error, url)
    return None


def _explain_system(error: OSError) -> Failure:
    if isinstance(error, FileNotFoundError) and error.filename:
        return Failure(_missing(Path(os.fsdecode(error.filename))), Exit.USAGE)
    if isinstance(error, PermissionError) and error.filename:
        return Failure(_closed(Path(os.fsdecode(error.filename)).absolute()))
    remedy = "; make room there" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    return Failure(f"cannot use {error.filename or 'standard output'}: {error.strerror}{remedy}")


def _closed(path: Path) -> str:
    """Return what keeps this user from a path: the folder that may not be entered, or the path itself."""
    folders = [*reversed(path.parents)]
    closed = next((folder for folder in folders if not os.access(folder, os.X_OK)), None)
    if closed is None:
        return f"{path} may not be used by this user; name another, or have its owner open it"
    return f"the folder {closed} may not be entered by this user; name another, or have its owner open it"


def _missing(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it first, or name another"
    return f"there is no file {path}; check the path"


def _is_bad_input(error: ValueError) -> bool:
    from penstock_bus import settings
    from penstock_cli import spec_file
    from penstock_log import validation

    return isinstance(error, spec_file.SpecError | validation.BadInput | settings.SettingsError)


def _explain_bus(error: Exception, url: str) -> Failure | None:
    from penstock_bus import port

    code, message = Exit.UNREACHABLE, str(error)
    match error:
        case port.ServiceError():
            code = _EXIT_OF.get(error.code, Exit.FAILED)
        case port.TooLarge():
            code = Exit.USAGE
        case port.NoResponders():
            message = f"no gateway answers at {url}; start one with `penstock up`, or look with `penstock doctor`"
        case port.Timeout() if not isinstance(error, port.Unanswered):
            message = f"{error}; is {url} overloaded? See `penstock doctor`, then try again"
        case port.Unauthorized():
            message = f"{error}{_came_as()}"
        case port.Unavailable():
            pass
        case port.BusError():
            code = Exit.FAILED
        case _:
            return None
    return Failure(message, code)


def _came_as() -> str:
    from penstock_bus.settings import BusAddress, came_as, load

    connection = load(BusAddress, "")
    return f"; you came as {came_as(connection)}" if connection.user else ""


_EXIT_OF: Final = {
    400: Exit.USAGE,
    413: Exit.USAGE,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    503: Exit.UNREACHABLE,
}
"""Code of a service's error → exit code; 1 for any other."""


def bad_input(message: str) -> NoReturn:
    """Raise a :class:`Failure` about what was typed: exit code 2."""
    raise Failure(message, Exit.USAGE)


def require_script(spec: JobSpec, verb: str = "submit") -> None:
    """End with a message if the script that a job's command names is not there, or its program cannot be started."""
    from penstock.submission import missing_script, start_problem

    if problem := start_problem(spec, verb):
        bad_input(problem)
    if missing := missing_script(spec):
        bad_input(f"there is no script {missing}; check the path, or give --no-check if only the nodes have it")


def _silence() -> None:
    """Let the interpreter flush into nothing at exit: nobody takes our output any more."""
    with suppress(OSError, AttributeError):  # what stands in for standard output may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def read(client: Client, add: Callable[[Delivery], None]) -> None:
    """Give every commit of the log so far to ``add``, in its order."""
    last = await client.bus.last_seq()
    if not last:
        return
    async for delivery in client.bus.follow():
        add(delivery)
        if delivery.seq >= last or not delivery.pending:
            return
