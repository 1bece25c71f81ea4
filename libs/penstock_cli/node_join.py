"""
Commands that add machines: ``node token`` and ``node join``.

A token is the server's address, the authority to trust and a login that ends soon, in one word. With it a machine asks
the issuer for a login of its own, keeps that, and runs an executor.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock_cli import render
from penstock_cli.invocation import Exit, Failure, bad_input, call, tell
from penstock_cli.value_formats import duration_s

if TYPE_CHECKING:
    from penstock_bus.logins import Login

_MARK: Final = "penstock-node-"
_FOLDER: Final = Path("penstock-node")
_LOGIN: Final = "executor.json"


def register(app: typer.Typer) -> None:
    """Add the commands to those about nodes."""
    app.command()(token)
    app.command()(join)


def token(
    ctx: typer.Context,
    valid: Annotated[str, typer.Option("--valid", help="How long machines can join with it: 30m, 12h, 7d.")] = "1h",
) -> None:
    """Print a token with which machines join as nodes, for a while; for admins. It is a secret."""
    valid_s = duration_s(valid, "--valid")
    made = call(ctx, lambda client: client.node_token(valid_s))
    if "127.0.0.1" in made.url:
        tell("this server listens to its own machine only; others reach one that was started with `penstock up --host`")
    render.say(written(made))


def join(
    text: Annotated[str, typer.Argument(metavar="TOKEN", help="Of `penstock node token`.")],
    data: Annotated[Path, typer.Option("--data", help="Folder for the login and what jobs print.")] = _FOLDER,
    devices: Annotated[str, typer.Option("--devices", help="As for `penstock up`; auto unless told otherwise.")] = "",
    node_id: Annotated[str, typer.Option("--name", help="Of the node; the machine's name unless told otherwise.")] = "",
    start: Annotated[bool, typer.Option("--start/--no-start", help="Run the executor now, until Ctrl-C.")] = True,
) -> None:
    """
    Make this machine a node of a cluster, and run its executor.

    The login stays in the data folder: `penstock node join` is needed once.
    """
    from penstock_bus import logins
    from penstock_cli.commands.up import become

    own = asyncio.run(_asked(parsed(text)))
    folder = data.absolute()
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        logins.write_login(folder / _LOGIN, own)
    except OSError as error:
        raise Failure(
            f"the login cannot be kept in {folder}: {error.strerror}; name another folder with --data"
        ) from error
    env = {
        "PENSTOCK_URL": own.url,
        logins.VARIABLE: str(folder / _LOGIN),
        "PENSTOCK_EXECUTOR_DATA_DIR": str(folder / "executor"),
        **({"PENSTOCK_EXECUTOR_DEVICES": devices} if devices else {}),
        **({"PENSTOCK_EXECUTOR_NODE_ID": node_id} if node_id else {}),
    }
    again = " ".join(f"{name}={value}" for name, value in env.items())
    tell(f"this machine may join {own.url}; its login is {folder / _LOGIN}. To start its executor again:")
    tell(f"    {again} penstock service executor")
    if start:
        become("executor", env)


def written(login: Login) -> str:
    """Return a login as one word."""
    packed = zlib.compress(msgspec.json.encode(login), 9)
    return _MARK + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def parsed(text: str) -> Login:
    """Return the login that a token holds; refuse what is none."""
    from penstock_bus.logins import Login

    try:
        if not text.startswith(_MARK):
            raise ValueError("it begins otherwise")
        packed = text.removeprefix(_MARK)
        whole = zlib.decompressobj().decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), 1 << 16)
        return msgspec.json.decode(whole, type=Login)
    except (ValueError, zlib.error, RecursionError) as error:
        bad_input(f"this is no token: {error}; expected the word that `penstock node token` printed, whole")


async def _asked(token_login: Login) -> Login:
    """Return the login of this machine's executor."""
    from penstock_bus import Unauthorized
    from penstock_bus.logins import Login
    from penstock_bus.nats import connect
    from penstock_bus.port import BusError
    from penstock_log import subjects

    about = f"{socket.gethostname()} uid {os.getuid()}".encode()
    try:
        async with connect(token_login.url, login=token_login, name="node join", as_client=True) as bus:
            return msgspec.json.decode(
                await bus.request(subjects.command("join", "issuer"), about, timeout_s=10.0), type=Login
            )
    except Unauthorized as error:
        raise Failure(f"{token_login.url} takes this token no more: it has ended; get another one") from error
    except BusError as error:
        raise Failure(str(error), Exit.UNREACHABLE) from error
