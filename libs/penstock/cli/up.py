"""`penstock up`, `down` and `service`: running Penstock itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from penstock.cli import render
from penstock.cli.errors import Exit, Failure, bad_input, tell
from penstock.cli.typed import size

T = TypeVar("T")
DATA = Path("penstock-data")
Data = Annotated[str, typer.Option("--data", help="Data folder: everything that must survive.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (up, down, service):
        app.command()(command)


def up(
    ctx: typer.Context,
    *,
    data: Data = "penstock-data",
    port: Annotated[int, typer.Option("--port", min=-1, max=65535, help="Of NATS; -1 takes a free one.")] = 4222,
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
) -> None:
    """
    Run NATS and all services on this machine.

    Until Ctrl-C, or with --detach until `penstock down`.
    """
    from penstock import supervisor

    described = ",".join(filter(None, [devices, *["cpu"] * cpu]))
    _check_devices(described)
    options = supervisor.Options(
        data_dir=data,
        port=port,
        devices=described,
        replicas=_counts(replicas or []),
        config=config,
        max_store_bytes=size(max_store) if max_store else 0,
        quiet=quiet or detach,
    )
    with _told():
        options.processes()  # or say now what is wrong with them
    if detach:
        record = _supervised(supervisor.detach(options, tell))
        render.say(f"penstock is up at {record.url}; its log is {options.folder / 'penstock.log'}")
        if record.url != ctx.obj["url"]:
            render.say(f"tell your shell: export PENSTOCK_URL={record.url}")
        for line in supervisor.noted(record.notes):
            render.say(line)
        render.say(supervisor.access(options, record.url))
        render.say(f"stop it with `penstock down{_data_flag(data)}`")
    else:
        tell(supervisor.beginning(options))
        _supervised(supervisor.up(options, lambda text: render.say_lines(text.splitlines())))


def down(data: Data = "penstock-data") -> None:
    """
    Stop what `penstock up` runs on a data folder.

    The jobs go on at the next start.
    """
    from penstock import supervisor

    if not _supervised(supervisor.down(data)):
        tell(f"nothing runs on {Path(data).absolute()}")
        raise typer.Exit(Exit.NOT_FOUND)
    render.say(f"stopped; `penstock up{_data_flag(data)}` goes on where it was")


def service(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(help="gateway, profiler, ranker, autoscaler, matcher, tuner, executor or shadow.")
    ],
    data: Annotated[str, typer.Option("--data", help="Join the `penstock up` of this data folder.")] = "",
) -> None:
    """
    Run one more replica of a service here.

    Settings come from the environment and penstock.toml.
    """
    from penstock_bus import permissions

    known = sorted(permissions.LOGINS)
    if name not in known:
        bad_input(f"there is no service {name!r}; expected one of {', '.join(known)}")
    become(name, environment_of(name, Path(data)) if data else login_of(name, DATA, ctx.obj["url"]))


def login_of(name: str, folder: Path, url: str) -> dict[str, str]:
    """Return as whom a service goes to a server: as is set, else by the data folder if that is this server's."""
    from penstock.upkeep import folder as folders
    from penstock_bus import credentials

    here = {"PENSTOCK_URL": url}
    if os.environ.get("PENSTOCK_USER") or os.environ.get(credentials.VARIABLE):
        return here
    try:
        record, password = folders.read(folder), credentials.read(folder / "nats" / "passwords.json").get(name)
    except PermissionError:
        return here
    if record is None or password is None or not credentials.is_same(record.url, url):
        return here
    return {**here, "PENSTOCK_USER": name, "PENSTOCK_PASSWORD": password}


def environment_of(
    name: str, folder: Path, otherwise: str = "expected one, or set PENSTOCK_URL without --data"
) -> dict[str, str]:
    """Return where the server of a data folder is, and as whom a service goes there; else say what to do."""
    from penstock.upkeep import folder as folders
    from penstock_bus import credentials

    record = folders.read(folder)
    password = credentials.read(folder / "nats" / "passwords.json").get(name)
    if record is None or password is None:
        bad_input(f"{folder} is no data folder of `penstock up`; {otherwise}")
    return {"PENSTOCK_URL": record.url, "PENSTOCK_USER": name, "PENSTOCK_PASSWORD": password}


def become(name: str, environment: dict[str, str]) -> NoReturn:
    """Go on as a service."""
    env = {**os.environ, **environment}
    os.execve(sys.executable, [sys.executable, "-m", f"penstock_{name}"], env)  # noqa: S606 - it is to be this process


def _supervised(work: Coroutine[Any, Any, T]) -> T:
    with _told():
        return asyncio.run(work)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the supervisor says of its end into a message."""
    from penstock.supervisor import UpError
    from penstock_bus.port import BusError

    try:
        yield
    except (UpError, BusError) as error:
        raise Failure(str(error)) from error


def _check_devices(described: str) -> None:
    """Say now what the executor would only say to its log."""
    from penstock_devices.inventory import backends_of
    from penstock_devices.port import DeviceError

    try:
        backends_of(described or "auto")
    except DeviceError as error:
        bad_input(f"--devices: {error}")


def _counts(words: list[str]) -> dict[str, int]:
    from penstock.cli.typed import pairs

    found = pairs(words, "--replicas")
    for name, count in found.items():
        if not count.isdigit():
            bad_input(f"--replicas {name}={count}: expected a whole number")
    return {name: int(count) for name, count in found.items()}


def _data_flag(data: str) -> str:
    return "" if data == "penstock-data" else f" --data {data}"
