"""
A NATS server for Penstock by itself, for containers: ``python -m penstock_bus.standalone``.

It makes the streams, and for each login a folder of its own in the credentials folder, so that a container can be given
one and no other: ``SERVICE/SERVICE.json``, for the server's owner ``client/client.json``, and for foreign services
``extension/extension.json`` (``PENSTOCK_CREDENTIALS``). An extension that is configured
(``PENSTOCK_EXTENSIONS_NAMES``) gets ``extension-NAME/extension-NAME.json``.

Several of them keep one log together where they share a folder (``--shared``) that nobody else sees. The second and the
third say in it that they are there, and wait for the keys. The first, which begins when they have said so, puts the
keys there, and does all that has to be done once. Where nobody has said anything, the first is alone.

Where the keys are given (``--keys``), as in Kubernetes, servers share no folder, and write no logins: both were made
by :mod:`penstock_bus.made_keys`. All members are there then that ``--members`` names, and none waits for another.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock_bus.identity import access
from penstock_bus.identity.certificates import BadCertificate, TlsFiles, ensured, given
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import Login, file_name, write_login
from penstock_bus.identity.token_verifier import OidcSettings
from penstock_bus.logger import get_logger
from penstock_bus.made_keys import take_authority, take_keys, take_secret
from penstock_bus.nats import connect, streams
from penstock_bus.port import BusError
from penstock_bus.servers.cluster_folder import FIRST, ClusterFolder
from penstock_bus.servers.cluster_member import ClusterMember
from penstock_bus.servers.server import (
    CREDENTIALS,
    START_S,
    Server,
    ServerError,
    ServerSettings,
    wait_for_disk_space,
)
from penstock_bus.servers.server_group import COUNTS, ServerGroup, count_of, running
from penstock_bus.settings import SettingsError, load
from penstock_bus.shell import EX_CONFIG, handle_signals
from penstock_log import subjects
from penstock_log.services import LOGINS


async def serve(
    settings: ServerSettings,
    shared: Path | None,
    url: str,
    stopping: asyncio.Event,
    *,
    here: ClusterMember | None = None,
    cluster: ClusterFolder | None = None,
    hosts: Sequence[str] = (),
) -> int:
    """
    Run the server until ``stopping`` is set.

    Returns 1 if it ends before that, or has to be started anew because its disk was full.

    Parameters
    ----------
    shared : Path, optional
        Existing folder for one folder a login, named after it; without one no logins are written.
    url : str
        Where people find the server: the address in their credentials.
    here : ClusterMember, optional
        Which of several servers it is.
    cluster : ClusterFolder, optional
        What these servers share, if they share a folder.
    hosts : sequence of str
        Other hosts by which people find the server, for their logins.
    """
    if cluster is not None:
        settings = msgspec.structs.replace(settings, revoked=cluster.revoked_file)
    async with running(settings, 1 if here is None else max(COUNTS), here) as servers:
        if here is not None and here.number != FIRST:

            async def opened_at() -> str:
                return cluster.opened_at() if cluster is not None else url if await _has_log(servers) else ""

            return await _beside_the_first(servers, settings, stopping, opened_at, hosts)
        await servers.widen_if_full()
        admin, (server,) = servers.logins[access.ADMIN], servers.servers
        async with connect(servers.url, login=admin, name="penstock server", limits=servers.limits):
            pass  # the first connection of an admin makes the streams
        if cluster is not None:
            cluster.open_log(url)
        async with servers.issuing(url, hosts):
            if shared is not None:
                _write_logins(server.logins, settings.extensions, shared, url)
            return await _until_stopped(server, settings, stopping)


async def _has_log(servers: ServerGroup) -> bool:
    """Say whether the first server has made the streams, by which the others know that there is a log to follow."""
    async with servers.connect() as bus:
        return set(subjects.STREAM_SUBJECTS) <= {one.name for one in await streams.streams(bus.link)}


async def _beside_the_first(
    servers: ServerGroup,
    settings: ServerSettings,
    stopping: asyncio.Event,
    opened_at: Callable[[], Awaitable[str]],
    hosts: Sequence[str],
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
                if url := await opened_at():
                    async with servers.issuing(url, hosts):
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
_LOOPBACK: Final = ("localhost", "127.0.0.1")
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


def _tls(args: argparse.Namespace, settings: ServerSettings) -> TlsFiles | None:
    """Return the certificate that is given, or one by the authority that came with the keys; None for no TLS."""
    try:
        if args.tls_cert is not None:
            return given(args.tls_cert, args.tls_key, args.tls_ca)
        if args.plain or args.keys is None:
            return None
        folder = settings.data_dir / CREDENTIALS / "tls"
        take_authority(args.keys, folder)
        return ensured(folder, [*args.names, *_LOOPBACK])
    except BadCertificate as error:
        raise ServerError(str(error)) from error


def _member_with_keys(args: argparse.Namespace, where: MemberPlaces, count: int) -> ClusterMember | None:
    """Return this server's place where the keys are given: all that are named are there, and one alone has no place."""
    if len(where.places) not in COUNTS or not FIRST <= where.number <= len(where.places):
        raise ServerError(
            f"--members names {len(where.places)} servers, and --member is {where.number}; expected one or three, and "
            "a number of one of them"
        )
    if len(where.places) < count:
        raise ServerError(
            f"the log here is kept by {count} servers, and one alone would not see it; start {count} of them, or make "
            "a backup and restore that into a new volume"
        )
    return where.member(take_secret(args.keys)) if len(where.places) > 1 else None


async def _main(settings: ServerSettings, args: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    handle_signals(stopping)
    try:
        here, url, cluster = None, args.url, None
        if args.keys is not None:
            take_keys(args.keys, settings.data_dir / CREDENTIALS)
        settings = msgspec.structs.replace(settings, tls=_tls(args, settings))
        places = tuple(args.members.split(",")) if args.members else ()
        where = MemberPlaces(number=args.member, places=places, listen=_joined(args.host, ROUTES))
        if places and args.keys is not None:
            here = _member_with_keys(args, where, count_of(settings.data_dir))
        elif places:
            cluster = ClusterFolder(args.shared)
            here = await member_here(settings, where, cluster, stopping)
            if here is not None:
                url = ",".join([args.url, *filter(None, args.other_urls.split(","))])
            else:
                cluster = None
        if stopping.is_set():
            return 0
        return await serve(settings, args.credentials, url, stopping, here=here, cluster=cluster, hosts=args.hosts)
    except BusError as error:
        sys.stderr.write(f"penstock server: {error}\n")
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m penstock_bus.standalone", description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="folder of the streams")
    parser.add_argument("--credentials", type=Path, help="folder for everybody's credentials")
    parser.add_argument("--keys", type=Path, help="folder of the keys, where they are given; it is only read")
    parser.add_argument("--url", default="nats://127.0.0.1:4222", help="where people find it, for their credentials")
    parser.add_argument("--plain", action="store_true", help="no TLS: the network is this project's alone")
    parser.add_argument("--hosts", type=_listed, default=(), help="other hosts where people find it, with commas")
    parser.add_argument("--names", type=_listed, default=(), help="names in its certificate by --keys, with commas")
    parser.add_argument("--tls-cert", type=Path, help="certificate with its chain, as PEM")
    parser.add_argument("--tls-key", type=Path, help="its key")
    parser.add_argument("--tls-ca", type=Path, help="authorities by which clients check it; else the system's count")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 a container's own
    parser.add_argument("--port", type=int, default=4222)
    parser.add_argument(
        "--start-s",
        type=float,
        default=START_S,
        help="within how many seconds it has to listen: it reads its log before",
    )
    parser.add_argument("--members", default="", help="HOST:PORT of all servers that may keep the log, with commas")
    parser.add_argument("--member", type=int, default=FIRST, help="which of them this one is, from 1")
    parser.add_argument("--shared", type=Path, help="folder that all servers see and nobody else")
    parser.add_argument("--other-urls", default="", help="where people find the others, if there are any")
    args = parser.parse_args()
    if args.keys is None and args.credentials is None:
        parser.error("--credentials says where logins are to be written; without it, --keys has to give the keys")
    if (args.tls_cert is None) != (args.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together")
    if args.plain and args.tls_cert is not None:
        parser.error("--plain is without TLS, and --tls-cert is for TLS; give one of them")
    return args


def _joined(host: str, port: int) -> str:
    """
    Return an address to listen at, as nats-server reads it.

    Examples
    --------
    >>> _joined("::", 6222), _joined("0.0.0.0", 6222)
    ('[::]:6222', '0.0.0.0:6222')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


if __name__ == "__main__":
    args = _arguments()
    if args.credentials is not None:
        args.credentials.mkdir(parents=True, exist_ok=True)
    try:
        extensions, oidc = load(access.Extensions, "extensions").names, load(OidcSettings, "oidc")
    except SettingsError as error:
        sys.stderr.write(f"penstock server: {error}\n")
        sys.exit(EX_CONFIG)
    settings = ServerSettings(
        data_dir=args.data,
        host=args.host,
        port=args.port,
        extensions=extensions,
        oidc=oidc,
        owner=os.environ.get("PENSTOCK_OWNER", ""),
        plain=args.plain,
        start_s=args.start_s,
        name="localhost" if args.tls_cert is not None else "",
    )
    sys.exit(asyncio.run(_main(settings, args)))
