"""`penstock purge`: what the store holds, and making room in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from penstock.cli import render
from penstock.cli.errors import bad_input, tell

if TYPE_CHECKING:
    from penstock_bus.nats.link import Link
    from penstock_bus.nats.store import StreamUse

T = TypeVar("T")

WHAT: Final = {
    "output": ("LOG", "what jobs printed"),
    "submissions": ("INBOX", "submissions that no gateway has taken yet"),
    "rejected": ("REJECTED", "what was refused, and why"),
    "snapshots": ("STATE", "what makes services start fast; they read the log instead"),
    "shadows": ("SHADOW", "what shadows would have done"),
}
"""What may be purged → its stream, and what that is."""

_KEPT: Final = {"EVT": "the log itself: never purged", "KV_penstock-leases": "who leads"}
_NAMED: Final = 5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(purge)


def purge(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="[WHAT]", help="output, submissions, rejected, snapshots or shadows.")
    ] = "",
    *,
    job: Annotated[str, typer.Option("--job", help="Of output: this job's alone (the whole id).")] = "",
    data: Annotated[Path, typer.Option("--data", help="Data folder of `penstock up`: it takes its administrator.")] = (
        Path("penstock-data")
    ),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """
    Make room in the store; without WHAT say what it holds.

    The log itself, which everything else comes from, is never purged.
    """
    if what and what not in WHAT:
        bad_input(f"{what!r} cannot be purged; expected one of {', '.join(WHAT)}")
    if job and what != "output":
        bad_input("--job is for `penstock purge output`")
    if not what:
        _show(_login(data, ctx.obj["url"]))
        return
    from penstock_bus.nats import store
    from penstock_events import subjects

    name, _ = WHAT[what]
    if job and not subjects.is_token(job):
        bad_input(f"{job!r} is no job id; `penstock ps` lists them")
    pattern = subjects.logs(job) if job else ">"
    login = _login(data, ctx.obj["url"])
    found = _asked(login, lambda link: store.stream(link, name, pattern))
    count = sum(found.subjects.values())
    if not count:
        render.say(f"there is nothing to purge: no {what}{f' of {job}' if job else ''}")
        return
    render.say(_about(what, found, count, job))
    if not yes and not _agreed():
        tell("nothing was purged")
        raise typer.Exit(1)
    purged = _asked(login, lambda link: store.purge(link, name, pattern if job else ""))
    render.say(f"purged {render.count(purged, 'message')}")


def _show(login: dict[str, str]) -> None:
    from penstock_bus.nats import store

    found = _asked(login, store.streams)
    rows = [(_name(one), str(one.messages), render.size(one.bytes), _limit(one), _meaning(one)) for one in found]
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


def _name(one: StreamUse) -> str:
    return next((what for what, (name, _) in WHAT.items() if name == one.name), one.name)


def _meaning(one: StreamUse) -> str:
    return next((about for name, about in WHAT.values() if name == one.name), _KEPT.get(one.name, ""))


def _limit(one: StreamUse) -> str:
    return render.size(one.max_bytes) if one.max_bytes else "none"


def _login(data: Path, url: str) -> dict[str, str]:
    """
    Return the administrator's login: as is set, else that of the data folder, which has to be this server's.

    The folder of a server that runs by itself, as in a container, does not tell its address: it is at the one that is
    set, or else on this machine.
    """
    from penstock.cli.up import environment_of
    from penstock.upkeep import folder as folders
    from penstock_bus import credentials
    from penstock_bus.settings import LOCAL, Connection, load

    connection = load(Connection, "")
    if connection.user == "admin":
        return {"PENSTOCK_URL": url, "PENSTOCK_USER": connection.user, "PENSTOCK_PASSWORD": connection.secret()}
    password = credentials.read(data / "nats" / "passwords.json").get("admin")
    if password is not None and folders.read(data) is None:
        return {"PENSTOCK_URL": url, "PENSTOCK_USER": "admin", "PENSTOCK_PASSWORD": password}
    otherwise = "name it with --data, or set PENSTOCK_USER to admin and PENSTOCK_PASSWORD"
    login = environment_of("admin", data, otherwise)
    if url != LOCAL and not credentials.is_same(url, login["PENSTOCK_URL"]):
        bad_input(f"{data} is the folder of {login['PENSTOCK_URL']} and not of {url}; {otherwise}")
    return login


def _asked(login: dict[str, str], use: Callable[[Link], Awaitable[T]]) -> T:
    """Run something as the administrator."""
    from penstock_bus.nats import connect

    async def asked() -> T:
        async with connect(
            login["PENSTOCK_URL"],
            user=login["PENSTOCK_USER"],
            password=login["PENSTOCK_PASSWORD"],
            name="penstock purge",
            as_client=True,  # what is there is changed, nothing is made
        ) as bus:
            return await use(bus.link)

    return asyncio.run(asked())
