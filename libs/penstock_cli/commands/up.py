"""
Commands that run Penstock itself: ``up``, ``down``, ``service`` and ``purge``.

``penstock purge`` says what the store holds, and makes room in it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from penstock_cli import render
from penstock_cli.invocation import Exit, Failure, bad_input, become, check_devices, tell
from penstock_cli.local.data_folder import UpOptions
from penstock_cli.value_formats import pairs, size
from penstock_log.services import LOGINS

if TYPE_CHECKING:
    from penstock_bus.identity.logins import Login
    from penstock_bus.nats.link import Link
    from penstock_bus.nats.streams import StreamUse


T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
DATA = Path("penstock-data")
Data = Annotated[str, typer.Option("--data", help="Data folder: everything that must survive.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (up, down, service, purge):
        app.command()(command)


def up(
    ctx: typer.Context,
    *,
    data: Data = "penstock-data",
    port: Annotated[int, typer.Option("--port", min=-1, max=65535, help="Of NATS; -1 takes a free one.")] = 4222,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for other machines too, with TLS.")
    ] = "127.0.0.1",
    name: Annotated[str, typer.Option("--name", help="This machine's name for others.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="Who may do everything; you, unless told otherwise.")] = "",
    tls_cert: Annotated[str, typer.Option("--tls-cert", help="Certificate; one is made otherwise.")] = "",
    tls_key: Annotated[str, typer.Option("--tls-key", help="Its key.")] = "",
    tls_ca: Annotated[str, typer.Option("--tls-ca", help="Authority for clients to trust; else the system's.")] = "",
    servers: Annotated[
        int,
        typer.Option(
            "--servers", min=0, help="NATS servers that keep the log: 1 or 3; else as many as keep it already."
        ),
    ] = 0,
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            "--emulate",
            help="auto, cuda, cpu, or emulated: fast:2@1.0:16GiB,slow:2@0.4:16GiB (kind:count@speed:memory).",
        ),
    ] = "",
    cpu: Annotated[int, typer.Option("--cpu", min=0, max=1024, help="So many devices of kind cpu besides.")] = 0,
    replicas: Annotated[
        list[str] | None, typer.Option("--replicas", help="SERVICE=N processes of a service; repeatable.")
    ] = None,
    config: Annotated[str, typer.Option("--config", help="Settings file; PENSTOCK_CONFIG, else ./penstock.toml.")] = "",
    max_store: Annotated[
        str, typer.Option("--max-store", help="Most room for the log, such as 10GiB; else 3/4 of what is free.")
    ] = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all are ready.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Keep the services' logs in files only.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is wrong with the settings, all of it.")
    ] = False,
) -> None:
    """
    Run NATS and all services on this machine.

    Until Ctrl-C, or with --detach until `penstock down`. Settings that are wrong are told, and nothing is started.
    """
    from penstock_bus.identity.access import Extensions
    from penstock_bus.identity.token_verifier import OidcSettings
    from penstock_cli.local import supervisor

    _check_configuration(config)
    described = ",".join(filter(None, [devices, *["cpu"] * cpu]))
    check_devices(described)
    options = UpOptions(
        data_dir=data,
        port=port,
        host=host,
        name=name,
        owner=owner,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        servers=servers,
        devices=described,
        replicas=_counts(replicas or []),
        config=config,
        extensions=_settings(Extensions, "extensions", config).names,
        oidc=_settings(OidcSettings, "oidc", config),
        max_store_bytes=size(max_store) if max_store else 0,
        quiet=quiet or detach,
    )
    with _explained():
        options.check_name()
        options.check_servers()
        options.processes()  # or say now what is wrong with them
        supervisor.tls_of(options)
    if check:
        render.say(f"{_settings_file(config)}: nothing is wrong with it; nothing was started")
        return
    if detach:
        record = _supervised(supervisor.detach(options, tell))
        render.say(f"penstock is up at {record.url}; its log is {options.folder / 'penstock.log'}")
        if record.url != ctx.obj["url"]:
            render.say(f"tell your shell: export PENSTOCK_URL={record.url}")
        for line in supervisor.noted(record.notes):
            render.say(line)
        if elsewhere := supervisor.elsewhere_line(options, record.url):
            render.say(elsewhere)
        render.say(supervisor.access_lines(options, record.url))
        render.say(supervisor.jobs_line(options))
        render.say(f"stop it with `penstock down{_data_flag(data)}`")
    else:
        tell(supervisor.beginning(options))
        _supervised(supervisor.up(options, lambda text: render.say_lines(text.splitlines())))


def down(
    ctx: typer.Context,
    data: Annotated[
        str, typer.Option("--data", help="Data folder of the cluster to stop.", show_default="penstock-data")
    ] = "",
) -> None:
    """
    Stop what `penstock up` runs on a data folder.

    The jobs go on at the next start. Where --url, PENSTOCK_URL or a context names another cluster than that of
    ./penstock-data, nothing is stopped unless --data says which.
    """
    from penstock_cli.local import supervisor

    if not data:
        _refuse_another(DATA, ctx.obj["named_url"])
        data = str(DATA)
    if not _supervised(supervisor.down(data)):
        tell(f"nothing runs on {Path(data).absolute()}")
        raise typer.Exit(Exit.NOT_FOUND)
    render.say(f"stopped; `penstock up{_data_flag(data)}` goes on where it was")


def _refuse_another(folder: Path, named: str) -> None:
    """End with a message where a cluster runs on the folder, and another one is named."""
    from penstock_bus.identity import logins
    from penstock_cli.local import data_folder

    record = data_folder.read(folder) if data_folder.holder(folder) is not None else None
    if named and record is not None and not logins.is_same(named, record.url):
        bad_input(
            f"the cluster of ./{folder} is at {record.url}, and you named {named}; to stop that of this folder give "
            f"--data {folder}, to stop the other one give --data with its own folder"
        )


def service(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help=f"{', '.join(LOGINS[:-1])} or {LOGINS[-1]}.")],
    data: Annotated[str, typer.Option("--data", help="Join the `penstock up` of this data folder.")] = "",
) -> None:
    """
    Run one more replica of a service here.

    Settings come from the environment and penstock.toml.
    """
    if name not in LOGINS:
        bad_input(f"there is no service {name!r}; expected one of {', '.join(sorted(LOGINS))}")
    become(name, environment_of(name, Path(data)) if data else login_of(name, DATA, ctx.obj["url"]))


def login_of(name: str, folder: Path, url: str) -> dict[str, str]:
    """Return as whom a service goes to a server: as is set, else by the data folder if that is this server's."""
    from penstock_bus.identity import logins
    from penstock_cli.local import data_folder

    here = {"PENSTOCK_URL": url}
    if os.environ.get("PENSTOCK_USER") or os.environ.get(logins.VARIABLE):
        return here
    try:
        login = data_folder.login(folder, name)
    except PermissionError:
        return here
    return login if login is not None and logins.is_same(login["PENSTOCK_URL"], url) else here


def environment_of(
    name: str, folder: Path, otherwise: str = "expected one, or set PENSTOCK_URL without --data"
) -> dict[str, str]:
    """Return where the server of a data folder is, and as whom a service goes there; else say what to do."""
    from penstock_cli.local import data_folder

    login = data_folder.login(folder, name)
    if login is None:
        bad_input(f"{folder} is no data folder of `penstock up`; {otherwise}")
    return login


def _supervised(work: Coroutine[Any, Any, T]) -> T:
    with _explained():
        return asyncio.run(work)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what the supervisor says of its end into a message."""
    from penstock_bus.port import BusError
    from penstock_cli.local.data_folder import UpError

    try:
        yield
    except (UpError, BusError) as error:
        raise Failure(str(error)) from error


def _check_configuration(config: str) -> None:
    """End with everything that is wrong with the settings, a line each."""
    from penstock_cli.local import configuration_check

    found = configuration_check.mistakes(_environment(config))
    for text in found:
        tell(text)
    if found:
        bad_input(f"{render.count(len(found), 'setting')} cannot be used, as said above; nothing was started")


def _settings_file(config: str) -> str:
    """Return what the settings are called: the file, or the environment alone."""
    from penstock_bus.settings import CONFIG_VARIABLE, DEFAULT_FILE

    file = _environment(config).get(CONFIG_VARIABLE, DEFAULT_FILE)
    return file if Path(file).exists() else "the environment (there is no penstock.toml)"


def _environment(config: str) -> dict[str, str]:
    from penstock_bus.settings import CONFIG_VARIABLE

    return {**os.environ, **({CONFIG_VARIABLE: config} if config else {})}


def _settings(kind: type[S], section: str, config: str) -> S:
    """Return a table of the settings file, or of the environment."""
    from penstock_bus.settings import SettingsError, load

    try:
        return load(kind, section, environ=_environment(config))
    except SettingsError as error:
        raise Failure(str(error)) from error


def _counts(words: list[str]) -> dict[str, int]:

    found = pairs(words, "--replicas")
    for name, count in found.items():
        if not count.isdigit():
            bad_input(f"--replicas {name}={count}: expected a whole number")
    return {name: int(count) for name, count in found.items()}


def _data_flag(data: str) -> str:
    return "" if data == "penstock-data" else f" --data {data}"


WHAT: Final = {
    "output": ("LOG", "what jobs printed"),
    "series": ("SERIES", "jobs' metrics as series"),
    "submissions": ("INBOX", "submissions that no gateway has taken yet"),
    "rejected": ("REJECTED", "what was refused, and why"),
    "snapshots": ("STATE", "what makes services start fast; they read the log instead"),
    "node-snapshots": ("NODES", "the same of services on nodes"),
    "shadows": ("SHADOW", "what shadows would have done"),
}
"""What may be purged → its stream, and what that is."""

_KEPT: Final = {
    "EVT": ("EVT", "the log itself: never purged"),
    "CODE": ("CODE", "what jobs' folders hold; the gateway removes what none needs"),
    "KV_penstock-leases": ("KV_penstock-leases", "who leads"),
}
_NAMED: Final = 5


def purge(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="[WHAT]", help="output, series, submissions, rejected, snapshots, node-snapshots or shadows."
        ),
    ] = "",
    *,
    job: Annotated[str, typer.Option("--job", help="Of output or series: this job's alone (the whole id).")] = "",
    data: Annotated[Path, typer.Option("--data", help="Data folder of `penstock up`: it takes its administrator.")] = (
        Path("penstock-data")
    ),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """
    Make room in the store; without WHAT say what it holds.

    The log itself, which everything else comes from, is never purged.
    """
    from penstock_log import subjects

    if what and what not in WHAT:
        bad_input(f"{what!r} cannot be purged; expected one of {', '.join(WHAT)}")
    of_job = {"output": subjects.all_output, "series": subjects.all_series}
    if job and what not in of_job:
        bad_input("--job is for `penstock purge output` and `penstock purge series`")
    if not what:
        _show(administrator(data, ctx.obj["url"]))
        return
    from penstock_bus.nats import streams

    name, _ = WHAT[what]
    if job and not subjects.is_token(job):
        bad_input(f"{job!r} is no job id; `penstock ps` lists them")
    pattern = of_job[what](job) if job else ">"
    login = administrator(data, ctx.obj["url"])
    found = as_administrator(login, lambda link: streams.stream(link, name, pattern))
    count = sum(found.subjects.values())
    if not count:
        render.say(f"there is nothing to purge: no {what}{f' of {job}' if job else ''}")
        return
    render.say(_about(what, found, count, job))
    if not yes and not _agreed():
        tell("nothing was purged")
        raise typer.Exit(1)
    purged = as_administrator(login, lambda link: streams.purge(link, name, pattern if job else ""))
    render.say(f"purged {render.count(purged, 'message')}")


def _show(login: Login) -> None:
    from penstock_bus.nats import streams

    found = as_administrator(login, streams.streams)
    kept = {stream: (what, meaning) for what, (stream, meaning) in WHAT.items()} | _KEPT
    rows = []
    for one in found:
        what, meaning = kept.get(one.name, (one.name, ""))
        limit = render.size(one.max_bytes) if one.max_bytes else "none"
        rows.append((what, str(one.messages), render.size(one.bytes), limit, meaning))
    render.show_table(("WHAT", "MESSAGES", "SIZE", "LIMIT", "IS"), rows, wide=True)


def _about(what: str, found: StreamUse, count: int, job: str) -> str:
    """Return what would go."""
    most = sorted(found.subjects.items(), key=lambda pair: -pair[1])
    named = ", ".join(f"{number} on {subject}" for subject, number in most[:_NAMED])
    more = f", and more on {render.count(len(most) - _NAMED, 'other subject')}" if len(most) > _NAMED else ""
    size = "" if job else f" of {render.size(found.bytes)}"
    return f"{what} ({WHAT[what][1]}): {render.count(count, 'message')}{size} would go: {named}{more}"


def _agreed() -> bool:
    if not sys.stdin.isatty():
        tell("give --yes where nobody can be asked")
        return False
    return typer.confirm("Purge them?")


def administrator(data: Path, url: str) -> Login:
    """
    Return the administrator's login: as is set, else that of the data folder, which has to be this server's.

    The folder of a server that runs by itself, as in a container, does not tell its address: it is at the one that is
    set, or else on this machine.
    """
    from penstock_bus.identity import logins
    from penstock_bus.settings import LOCAL, BusAddress, load
    from penstock_cli.local import data_folder

    given = next(iter(load(BusAddress, "").logins("client", url).logins), None)
    if given is not None and given.user == "admin":
        return msgspec.structs.replace(given, url=url)
    file = data_folder.login_file(data, "admin")
    if file.exists() and data_folder.read(data) is None:
        return msgspec.structs.replace(logins.read_login(file), url=url)
    otherwise = f"name it with --data, or set {logins.VARIABLE} to a copy of nats/logins/admin.json there"
    here = environment_of("admin", data, otherwise)["PENSTOCK_URL"]
    if url != LOCAL and not logins.is_same(url, here):
        bad_input(f"{data} is the folder of {here} and not of {url}; {otherwise}")
    return msgspec.structs.replace(logins.read_login(file), url=here)


def as_administrator(login: Login, use: Callable[[Link], Awaitable[T]]) -> T:
    """Run something as the administrator."""
    from penstock_bus.nats import connect

    async def asked() -> T:
        async with connect(
            login.url,
            login=login,
            name="penstock",
            as_client=True,  # what is there is changed, nothing is made
        ) as bus:
            return await use(bus.link)

    return asyncio.run(asked())
