"""
Invocation: what every command shares, from the connection to the exit code.

:func:`call` connects to the server and runs a command's coroutine; options of many commands are here as types.
:class:`Failure` and :func:`explain` turn what goes wrong into one line on standard error and an exit code that scripts
can tell apart. :func:`read` reads the live log from its beginning to where it ends now. :func:`become` turns a command
into a service.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import NODEFAULT

from penstock_cli import render
from penstock_cli.parameters import Argument, Context, Declaration, Option, declared
from penstock_cli.render import seen

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.gateway_client import GatewayClient
    from penstock_bus import Delivery
    from penstock_log import JobSpec, views


T = TypeVar("T")
C = TypeVar("C")
Output = Literal["table", "wide", "json"]
Out = Annotated[Output, Option("-o", "--output", help="table, wide (all columns, nothing cut) or json.")]
AnswerOutput = Literal["text", "json"]
AnswerOut = Annotated[AnswerOutput, Option("-o", "--output", help="text, or json: the answers, one a line.")]
At = Annotated[
    str | None,
    Option("--at", help="As of a stream sequence, a span ago (10m), or a time (2026-01-31T09:30:00Z)."),
]
LogFile = Annotated[
    Path | None,
    Option("--log", help="Ask a log in a file, as `events -f -o json` or `sim --log` write it, not the server."),
]
JobId = Annotated[str, Argument(metavar="JOB", help="Job id, or a unique beginning of it.")]
JobIds = Annotated[list[str], Argument(metavar="JOB...", help="Job ids, or unique beginnings of them.")]


class CommandOptions(msgspec.Struct, frozen=True):
    """
    Options of a command, as :func:`flattened` gives them to it; each field is annotated as Typer has it.

    Examples
    --------
    >>> class Weather(CommandOptions, frozen=True):
    ...     place: Annotated[str, Argument()]
    ...     days: Annotated[int, Option("--days", "-d")] = 1
    ...     kinds: Annotated[list[str] | None, Option("--kind")] = None
    ...     wind: Annotated[bool | None, Option("--wind/--no-wind")] = None
    >>> list(Weather("here").words()), list(Weather("here", 2, ["rain", "snow"], False).words())
    (['here'], ['here', '--days', '2', '--kind', 'rain', '--kind', 'snow', '--no-wind'])
    """

    def words(self) -> Iterator[str]:
        """Yield the arguments that ask for this again; whatever has its default was not typed."""
        hints = get_type_hints(type(self), include_extras=True)
        for name, default in self.defaults().items():
            value, info = getattr(self, name), get_args(hints[name])[-1]
            first = next(iter(info.names), "") if isinstance(info, Declaration) else info.default  # or Typer's own
            names = first if isinstance(first, str) and first else f"--{name.replace('_', '-')}"
            yes, _, no = names.partition("/")
            if default is NODEFAULT and type(info).__name__ in {"Argument", "ArgumentInfo"}:  # ours or Typer's
                yield str(value)
            elif isinstance(value, bool):
                yield from [yes if value else no] if value is not default else []
            elif isinstance(value, list | tuple):
                yield from (word for item in value for word in (yes, str(item)))
            elif value != default:
                yield from (yes, f"{value:g}" if isinstance(value, float) else str(value))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return each field with its default, in their order; ``NODEFAULT`` where it must be given."""
        given = cls.__struct_defaults__
        required = len(cls.__struct_fields__) - len(given)
        return dict(zip(cls.__struct_fields__, (*[NODEFAULT] * required, *given), strict=True))


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has, for each parameter of :class:`CommandOptions`, its fields as parameters."""
    groups: dict[str, type[CommandOptions]] = {}
    flat: dict[str, tuple[Any, Any]] = {}
    for name, annotation, default in declared(command):
        if isinstance(annotation, type) and issubclass(annotation, CommandOptions):
            groups[name] = annotation
            hints = get_type_hints(annotation, include_extras=True)
            flat |= {one: (hints[one], default) for one, default in annotation.defaults().items()}
        else:
            flat[name] = annotation, default

    @wraps(command)
    def run(*args: Any, **given: Any) -> None:
        made = {
            name: kind(**{one: given.pop(one) for one in kind.__struct_fields__ if one in given})
            for name, kind in groups.items()
        }
        command(*args, **given, **made)

    run.flat_parameters = flat  # type: ignore[attr-defined] # what declared() reads
    return run


def call(ctx: Context, use: Callable[[Client], Awaitable[T]]) -> T:
    """
    Connect, run ``use`` with the client, and disconnect; its errors are explained by the root of all commands.

    ``ctx.obj["client"]``, a function of the address, may stand in for the client: tests give one on another bus.
    """
    import asyncio
    import gc

    gc.enable()  # this may go on for long
    options: dict[str, Any] = ctx.obj
    make = options.get("client") or _client

    async def connected() -> T:
        async with make(options["url"]) as client:
            return await use(client)

    from penstock_bus.logger import heard_by

    try:
        with heard_by(ConnectionNotes().tell_of):
            return asyncio.run(connected())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def ask(ctx: Context, use: Callable[[GatewayClient], Coroutine[Any, Any, T]]) -> T:
    """
    Run ``use`` with a client that asks one thing after another, as :func:`call` does, and sooner.

    It waits for nothing but the client's answers: there is no event loop, unless the login or the address needs one.
    """
    if ctx.obj.get("client") is None:
        from penstock import blocking

        if (found := blocking.search(ctx.obj["url"])) is not None:
            with blocking.connected(ctx.obj["url"], found) as client:
                return blocking.result(use(client))
    return call(ctx, use)


class ConnectionNotes:
    """What people are told, in sentences, of a connection that is lost and comes back while a command waits."""

    def __init__(self) -> None:
        self._is_lost = False

    def tell_of(self, event: str, fields: Mapping[str, Any]) -> bool:
        """Say what an event of the bus means; false where it is none of the connection."""
        match event:
            case "server_lost":
                self._is_lost = True
                tell(f"lost the server at {fields['address']}; trying again")
            case "server_found_again":
                if self._is_lost:  # or a login was renewed
                    tell(f"connected to {fields['address']} again")
                self._is_lost = False
            case "bus_error":
                return str(fields["error"]).startswith(_ENDS_OF_CONNECTIONS)  # and server_lost follows
            case _:
                return False
        return True


_ENDS_OF_CONNECTIONS: Final = ("nats: unexpected EOF", "nats: stale connection", "[Errno ")


def _client(url: str) -> Client:
    from penstock.client import Client

    return Client(url)


def act(
    ctx: Context,
    targets: Sequence[T],
    command: Callable[[GatewayClient, T], Awaitable[views.ActAnswer]],
    output: str,
) -> None:
    """
    Give a command about each target, such as a job's id, and say what became of it.

    All are tried, and the first error ends it badly.
    """
    _end(ask(ctx, lambda client: _each(client, targets, command, output, ctx.obj["url"])))


def act_patiently(
    ctx: Context, ids: Sequence[str], command: Callable[[Client, str], Awaitable[views.ActAnswer]], output: str
) -> None:
    """Do as :func:`act` does, by a command that waits for more than an answer."""
    _end(call(ctx, lambda client: _each(client, ids, command, output, ctx.obj["url"])))


async def _each(
    client: C, targets: Sequence[T], command: Callable[[C, T], Awaitable[views.ActAnswer]], output: str, url: str
) -> Failure | None:
    first = None
    for target in targets:
        try:
            answer = await command(client, target)
        except Exception as error:
            failure = explain(error, url)
            if failure is None or failure.code is Exit.UNREACHABLE:
                raise
            tell(str(failure))
            first = first or failure
            continue
        render.show_answer(answer, answer.message, output)
    return first


def _end(failed: Failure | None) -> None:
    if failed is not None:
        raise SystemExit(failed.code)


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


def ended_badly(error: BaseException, url: str) -> int | None:
    """Say in one line what ended a command, and return the exit code; None for a defect: it deserves its traceback."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _silence()
        return Exit.OK
    failure = explain(error, url) if isinstance(error, Exception) else None
    if failure is None:
        return None
    if isinstance(error, OSError):
        _silence()
    tell(str(failure))
    return failure.code


def tell(message: str) -> None:
    """Say something on standard error, in one line after the program's name."""
    render.echo(seen(f"penstock: {message}"), err=True)


def explain(error: Exception, url: str) -> Failure | None:
    """Return what to tell people about an error; None for one that is a defect and deserves its traceback."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, ValueError) and _is_bad_input(error):
        return Failure(str(error), Exit.USAGE)
    if isinstance(error, OSError) and error.strerror:
        return _explain_system(error)
    if "penstock_bus.errors" in sys.modules:
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
    from penstock_cli.sbatch.options import SbatchError
    from penstock_log import validation

    return isinstance(error, spec_file.SpecError | SbatchError | validation.BadInput | settings.SettingsError)


def _explain_bus(error: Exception, url: str) -> Failure | None:
    from penstock_bus import errors

    code, message = Exit.UNREACHABLE, str(error)
    match error:
        case errors.ServiceError():
            code = _EXIT_OF.get(error.code, Exit.FAILED)
        case errors.TooLarge():
            code = Exit.USAGE
        case errors.NoResponders():
            message = f"no gateway answers at {url}; start one with `penstock up`, or look with `penstock doctor`"
        case errors.Timeout() if not isinstance(error, errors.Unanswered):
            message = f"{error}; is {url} overloaded? See `penstock doctor`, then try again"
        case errors.Unauthorized():
            message = f"{error}{_came_as()}"
        case errors.Unavailable():
            message += _cluster_here() if url == LOCAL else ""
        case errors.BusError():
            code = Exit.FAILED
        case _:
            return None
    return Failure(message, code)


def _cluster_here() -> str:
    """Return how to reach the cluster of the data folder in this directory, if it runs, and elsewhere than asked."""
    from penstock_cli.local import data_folder

    folder = Path("penstock-data")
    try:
        record = data_folder.read(folder) if data_folder.holder(folder) is not None else None
    except OSError:  # the folder is another user's
        return ""
    if record is None or record.url == LOCAL:
        return ""
    return f". The cluster of ./{folder} runs at another address: set PENSTOCK_URL={record.url}"


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
    from penstock.submission import line_ends_warning, missing_script, start_problem

    if spec.image:  # which may have both
        return
    if problem := start_problem(spec, verb):
        bad_input(problem)
    if missing := missing_script(spec):
        bad_input(f"there is no script {missing}; check the path, or give --no-check if only the nodes have it")
    if warning := line_ends_warning(spec):
        tell(warning)


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


LOCAL: Final = "nats://127.0.0.1:4222"


def server_url(typed: str) -> str:
    """Return the address of the server: what was typed, or set, or the local one."""
    return named_url(typed) or LOCAL


def named_url(typed: str) -> str:
    """Return the address of the server that was typed or set; empty where there is none."""
    return typed or os.environ.get("PENSTOCK_URL") or _configured()


def _has_context() -> bool:
    """Say whether a context may have been chosen; who has none need not load what reads it."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return (Path(home) / "penstock" / "context").exists()


def _configured() -> str:
    """Return the address in the settings file, the login or the context; empty where there is none of them."""
    said = any(os.environ.get(f"PENSTOCK_{name}") for name in ("CONFIG", "CREDENTIALS", "CONTEXT"))
    if not (said or Path("penstock.toml").exists() or _has_context()):
        return ""
    from penstock_bus.settings import BusAddress, load

    return load(BusAddress, "").server(os.environ)


def check_devices(described: str) -> None:
    """Say now what the executor would only say to its log."""
    from penstock_cluster.device_backend import DeviceError
    from penstock_cluster.inventory import backends_of

    try:
        backends_of(described or "auto")
    except DeviceError as error:
        bad_input(f"--devices: {error}")


def become(name: str, environment: dict[str, str]) -> NoReturn:
    """Replace this process by a service's program; the environment is added to this one's."""
    from penstock_bus.child_processes import module_command

    env = {**os.environ, **environment}
    os.execve(sys.executable, module_command(f"penstock_{name}"), env)  # noqa: S606 - it is to be this process
