"""
A NATS server for Penstock by itself, for containers: ``python -m penstock_bus.standalone``.

It makes the streams, and for each login a folder of its own in the credentials folder, so that a container can be given
one and no other: ``SERVICE/SERVICE.json``, for the server's owner ``client/client.json``, and for foreign services
``extension/extension.json`` (``PENSTOCK_CREDENTIALS``). An extension that is configured
(``PENSTOCK_EXTENSIONS_NAMES``) gets ``extension-NAME/extension-NAME.json``.

Several of them keep one log together where they share a folder (``--shared``) that nobody else sees. The second and the
third say in it that they are there, and wait for the keys. The first, which begins when they have said so, puts the
keys there, and does all that has to be done once. Where nobody has said anything, the first is alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock_bus.identity import access
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import Login, file_name, write_login
from penstock_bus.identity.token_verifier import OidcSettings
from penstock_bus.logger import get_logger
from penstock_bus.nats import connect
from penstock_bus.port import BusError
from penstock_bus.servers.cluster_folder import FIRST, ClusterFolder
from penstock_bus.servers.cluster_member import ClusterMember
from penstock_bus.servers.server import CREDENTIALS, Server, ServerError, ServerSettings, wait_for_disk_space
from penstock_bus.servers.server_group import COUNTS, ServerGroup, count_of, running
from penstock_bus.settings import load
from penstock_bus.shell import handle_signals
from penstock_log.services import LOGINS


async def serve(
    settings: ServerSettings,
    shared: Path,
    url: str,
    stopping: asyncio.Event,
    *,
    here: ClusterMember | None = None,
    cluster: ClusterFolder | None = None,
) -> int:
    """
    Run the server until ``stopping`` is set.

    Returns 1 if it ends before that, or has to be started anew because its disk was full.

    Parameters
    ----------
    shared : Path
        Existing folder for one folder a login, named after it.
    url : str
        Where people find the server: the address in their credentials.
    here : ClusterMember, optional
        Which of several servers it is.
    cluster : ClusterFolder, optional
        What these servers share.
    """
    if cluster is not None:
        settings = msgspec.structs.replace(settings, revoked=cluster.revoked_file)
    async with running(settings, 1 if here is None else max(COUNTS), here) as servers:
        if here is not None and here.number != FIRST and cluster is not None:
            return await _beside_the_first(servers, settings, stopping, cluster)
        await servers.widen_if_full()
        admin, (server,) = servers.logins[access.ADMIN], servers.servers
        async with connect(servers.url, login=admin, name="penstock server", limits=servers.limits):
            pass  # the first connection of an admin makes the streams
        if cluster is not None:
            cluster.open_log(url)
        async with servers.issuing(url):
            _write_logins(server.logins, settings.extensions, shared, url)
            return await _until_stopped(server, settings, stopping)


async def _beside_the_first(
    servers: ServerGroup, settings: ServerSettings, stopping: asyncio.Event, cluster: ClusterFolder
) -> int:
    """
    Run another server than the first until it ends, with an issuer from when the first has made the streams.

    So logins are made and revoked while the first is down. An issuer that fails, as without a majority of the servers,
    ends nothing: it is begun again.
    """
    ending = asyncio.ensure_future(_until_stopped(servers.servers[0], settings, stopping))
    try:
        while not ending.done():
            try:
                if url := cluster.opened_at():
                    async with servers.issuing(url):
                        return await ending
            except (BusError, BaseExceptionGroup) as error:
                _log.warning("issuer_failed", error=str(error), retry_s=_ISSUE_AGAIN_S)
            await asyncio.wait({ending}, timeout=_ISSUE_AGAIN_S)
        return ending.result()
    finally:
        ending.cancel()


async def _until_stopped(server: Server, settings: ServerSettings, stopping: asyncio.Event) -> int:
    ends: list[Coroutine[Any, Any, Any]] = [stopping.wait(), server.wait(), wait_for_disk_space(settings.data_dir)]
    tasks = [asyncio.ensure_future(end) for end in ends]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return 0 if stopping.is_set() else 1


def _write_logins(logins: Mapping[str, Login], extensions: Sequence[str], shared: Path, url: str) -> None:
    for role, user in {**{name: name for name in LOGINS}, **access.users_of_roles(extensions)}.items():
        login = msgspec.structs.replace(logins[user], url=url, description="Penstock")
        write_login(shared / role / file_name(role), login)


ROUTES: Final = 6222
"""The port where the servers of a cluster meet."""
_LOOK_S: Final = 0.2
_ISSUE_AGAIN_S: Final = 2.0
_log = get_logger("penstock.servers")


def _make_keys(keys: Path) -> None:
    """Make the keys that the first server would make when it starts: the others need them before."""
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        Keyring.kept_in(keys)
    except (OSError, ValueError) as error:
        raise ServerError(f"the server's keys cannot be read: {error}") from error


class MemberPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where the servers of a cluster are, and which of them this is.

    Attributes
    ----------
    number : int
        From 1.
    places : tuple of str
        ``HOST:PORT`` of all, in their order.
    """

    number: int
    places: tuple[str, ...]
    listen: str

    def member(self, secret: str) -> ClusterMember:
        """Return this server's place among them."""
        others = tuple(place for number, place in enumerate(self.places, FIRST) if number != self.number)
        return ClusterMember(number=self.number, listen=self.listen, others=others, secret=secret)


async def member_here(
    settings: ServerSettings, where: MemberPlaces, shared: ClusterFolder, stopping: asyncio.Event
) -> ClusterMember | None:
    """Return this server's place in the cluster once it has the keys for it; None where the first one is alone."""
    keys = settings.data_dir / CREDENTIALS
    if where.number == FIRST:
        others = [number for number in range(FIRST + 1, len(where.places) + 1) if shared.is_announced(number)]
        if not others and count_of(settings.data_dir) <= 1:
            return None
        _make_keys(keys)
        shared.give_keys(keys)
        shared.announce(FIRST)
    else:
        shared.announce(where.number)
        _log.info("waiting_for_keys", advice="the first server gives them when it starts")
        while not shared.is_announced(FIRST):
            if stopping.is_set():
                return None
            await asyncio.sleep(_LOOK_S)
        shared.take_keys(keys)
    return where.member(shared.secret())


async def _main(settings: ServerSettings, args: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    handle_signals(stopping)
    try:
        here, url, cluster = None, args.url, None
        if args.members:
            places = tuple(args.members.split(","))
            where = MemberPlaces(number=args.member, places=places, listen=f"{args.host}:{ROUTES}")
            shared = ClusterFolder(args.shared)
            here = await member_here(settings, where, shared, stopping)
        if here is not None:
            cluster, url = shared, ",".join([args.url, *filter(None, args.other_urls.split(","))])
        return (
            0
            if stopping.is_set()
            else await serve(settings, args.credentials, url, stopping, here=here, cluster=cluster)
        )
    except BusError as error:
        sys.stderr.write(f"penstock server: {error}\n")
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m penstock_bus.standalone", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the streams")
    parser.add_argument("--credentials", type=Path, required=True, help="folder for everybody's credentials")
    parser.add_argument("--url", default="nats://127.0.0.1:4222", help="where people find it, for their credentials")
    parser.add_argument("--plain", action="store_true", help="no TLS: the network is this project's alone")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 a container's own
    parser.add_argument("--port", type=int, default=4222)
    parser.add_argument("--members", default="", help="HOST:PORT of all servers that may keep the log, with commas")
    parser.add_argument("--member", type=int, default=FIRST, help="which of them this one is, from 1")
    parser.add_argument("--shared", type=Path, help="folder that all servers see and nobody else")
    parser.add_argument("--other-urls", default="", help="where people find the others, if there are any")
    return parser.parse_args()


if __name__ == "__main__":
    args = _arguments()
    args.credentials.mkdir(parents=True, exist_ok=True)
    extensions = load(access.Extensions, "extensions").names
    owner = os.environ.get("PENSTOCK_OWNER", "")
    settings = ServerSettings(
        data_dir=args.data,
        host=args.host,
        port=args.port,
        extensions=extensions,
        oidc=load(OidcSettings, "oidc"),
        owner=owner,
        plain=args.plain,
    )
    sys.exit(asyncio.run(_main(settings, args)))
