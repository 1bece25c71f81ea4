"""
The servers of one data folder: one alone, or three that keep each stream together.

:class:`ServerGroup` starts and stops them. A log that was kept by one server becomes that of three when it is started
with three: its store is set aside, and copied to them stream by stream before any service begins. (A server that finds
streams on its disk which its cluster does not know deletes them, so they are never where it looks.) The way back is
closed: a server alone does not see the streams of a cluster.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from penstock_bus.identity import access
from penstock_bus.identity.callout import admitting
from penstock_bus.identity.issuer import Issuer, issuing
from penstock_bus.identity.logins import Login, bracketed
from penstock_bus.logger import get_logger
from penstock_bus.nats import NatsBus, StreamLimits, connect, streams
from penstock_bus.nats.replication import move_streams
from penstock_bus.port import BusError, Unavailable
from penstock_bus.servers.cluster_member import ClusterMember, members_on_loopback
from penstock_bus.servers.server import CREDENTIALS, Server, ServerError, ServerSettings
from penstock_log import subjects

COUNTS: Final = (1, 3)
"""Two keep a log no better than one: a majority of them is both."""
SETTLED_S: Final = 60.0
"""So long servers that start may take to find each other and elect a leader."""
_STORE: Final = "jetstream"
_OF_SEVERAL: Final = "*/_js_/_meta_"
"""What a server of a cluster has in its store besides."""
_ASIDE: Final = f"{CREDENTIALS}-alone"
_LOOK_S: Final = 0.2
_RESERVE: Final = 16  # the part of a store that a full one is given besides
_LEAST_RESERVE_BYTES: Final = 16 << 20
_log = get_logger("penstock.servers")


class ServerGroup:
    """
    The servers of a data folder; each can be killed and started again.

    Parameters
    ----------
    settings : ServerSettings
        Of the first. The others listen on the ports behind its own, and have stores beside its store.
    count : int
        One of :data:`COUNTS`.
    here : ClusterMember, optional
        The one member that runs here, where the others run elsewhere; without it all run here, on loopback.
    members : sequence of ClusterMember, optional
        Of several that run here, what they are to each other; by default they have ports that are free.
    """

    def __init__(
        self,
        settings: ServerSettings,
        count: int = 1,
        here: ClusterMember | None = None,
        *,
        members: Sequence[ClusterMember] = (),
    ) -> None:
        if count not in COUNTS:
            raise ServerError(
                f"{count} servers cannot keep a log together; expected one of {', '.join(map(str, COUNTS))}"
            )
        self.settings = settings
        self.replicas = count
        """On how many servers each stream is kept."""
        if here is not None:
            self.servers = [Server(msgspec.structs.replace(settings, member=here))]
        elif count > 1:
            members = members or members_on_loopback(count)
            self.servers = [Server(_of_member(settings, member, count)) for member in members]
        else:
            self.servers = [Server(settings)]

    @property
    def url(self) -> str:
        """Where clients find them, without credentials."""
        return ",".join(server.url for server in self.servers)

    @property
    def logins(self) -> dict[str, Login]:
        """The logins of services and of the owner, good for all of the servers."""
        return {name: msgspec.structs.replace(one, url=self.url) for name, one in self.servers[0].logins.items()}

    @property
    def store_bytes(self) -> int:
        """How much all streams may hold, on each server."""
        return min(server.store_bytes for server in self.servers)

    @property
    def limits(self) -> StreamLimits:
        """The limits of the streams."""
        return StreamLimits.of_store(self.store_bytes, self.replicas)

    async def start(self) -> None:
        """
        Start all servers, and move the log of one that was alone before.

        Raises
        ------
        ServerError
            If one does not start, or the folder was written by another number of servers.
        """
        folder = self.settings.data_dir
        before = count_of(folder)
        if before > self.replicas:
            raise ServerError(
                f"the log in {folder} is kept by {before} servers, and one alone would not see it; start it with "
                f"--servers {before}; for one server, `penstock backup` it and restore that into another folder"
            )
        if len(self.servers) > 1:
            self._check_majority()
        if before == 1 < self.replicas:
            self._set_aside()
        await self._start_all()
        if _aside(folder).exists():
            await self._move_in()

    async def stop(self) -> None:
        """End all in good order."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def kill(self) -> None:
        """End all as a crash would."""
        await asyncio.gather(*(server.kill() for server in self.servers))

    async def widen_if_full(self) -> str:
        """
        Start all anew with a reserve if their store is full; return what people should know, empty where there is room.

        A full store takes not even what says that it is full.
        """
        async with self.connect() as bus:
            found, limit = await streams.streams(bus.link), self.store_bytes
            used = sum(one.bytes for one in found) if self.replicas > 1 else await streams.used_bytes(bus.link)
        reserve = max(limit // _RESERVE, _LEAST_RESERVE_BYTES)
        if used + reserve // 2 <= limit:
            return ""
        await self.stop()
        for server in self.servers:
            server.least_bytes = used + reserve
        await self._start_all()
        largest = [one for one in found if one.name != subjects.EVT][:1]
        of = "".join(f", {one.bytes >> 20} MiB of it in {one.name}" for one in largest if one.bytes >> 20)
        purge = f"`penstock purge --data {self.settings.data_dir}`"
        _log.error("store_full", used_bytes=used, limit_bytes=limit, reserve_bytes=reserve, advice=purge)
        return f"is full: {used >> 20} of {limit >> 20} MiB{of}; {purge} says what can go, `--max-store` gives more"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[NatsBus]:
        """Connect as the administrator once the servers have a leader, and make no streams."""
        async with self._connected(self.url) as bus:
            if self.replicas > 1:
                await _settled(bus)
            yield bus

    @asynccontextmanager
    async def _connected(self, url: str) -> AsyncIterator[NatsBus]:
        admin = self.logins[access.ADMIN]
        async with connect(url, login=admin, name="servers", as_client=True, timeout_s=SETTLED_S) as bus:
            yield bus

    def advertised(self, host: str) -> str:
        """Return where people elsewhere find the servers, by this machine's name."""
        return ",".join(f"tls://{bracketed(host)}:{one.url.rpartition(':')[2]}" for one in self.servers)

    @asynccontextmanager
    async def issuing(self, advertised: str = "", hosts: Sequence[str] = ()) -> AsyncIterator[None]:
        """
        Make accounts and logins for people and nodes, and let in those with tokens, while the context is open.

        Logins of the owner that are to be left somewhere are complete once it is: see :attr:`Server.owner_unknown`.

        Parameters
        ----------
        advertised : str
            Where people find the servers, if not at :attr:`url` or at the first of the hosts.
        hosts : sequence of str
            Names and addresses of this machine for people elsewhere, at the servers' own ports, the likeliest first.
        """
        others = hosts if advertised else hosts[1:]
        advertised = self.advertised(hosts[0]) if hosts and not advertised else advertised
        first, now_s = self.servers[0], time.time  # noqa: TID251 - servers compare it with this machine's clock
        if first.keyring is None:
            yield
            return
        admin, oidc = self.logins[access.ADMIN], self.settings.oidc
        async with AsyncExitStack() as stack:
            issuer = await stack.enter_async_context(
                issuing(
                    self.url,
                    first.keyring,
                    admin,
                    owner=first.owner,
                    advertised=advertised or self.url,
                    now_s=now_s,
                    services_account=first.services_account,
                    revoked=first.refused,
                    hosts=others,
                )
            )
            if oidc.issuer:
                extensions = self.settings.extensions
                await stack.enter_async_context(
                    admitting(self.url, first.keyring, admin, issuer, oidc, extensions=extensions, now_s=now_s)
                )
            if first.owner_unknown:
                await self._renew_owner_login(issuer)
            yield

    async def _renew_owner_login(self, issuer: Issuer) -> None:
        """Make the owner's login anew: what it has to be signed with stands in the log alone."""
        try:
            async with asyncio.timeout(SETTLED_S):
                login = await issuer.owner_login()
        except TimeoutError:
            advice = "their login is refused until the log can be read, and the servers are started anew"
            _log.error("owner_not_known", owner=self.servers[0].owner, waited_s=SETTLED_S, advice=advice)
            return
        for server in self.servers:
            server.logins[access.CLIENT] = msgspec.structs.replace(login, url=server.url)

    async def _start_all(self) -> None:
        first, *others = self.servers
        try:
            await first.start()  # which makes the keys that all use
            await asyncio.gather(*(server.start() for server in others))
            if self.replicas > 1:
                for server in self.servers:  # which knows an account only once somebody has come with it
                    async with self._connected(server.url):
                        pass
        except BaseException:
            await self.kill()
            raise

    def _check_majority(self) -> None:
        """Refuse to start with one store of several: empty ones would be most, and the log as empty as they are."""
        folder = self.settings.data_dir
        stores = [folder / server.settings.store / _STORE for server in self.servers]
        full = [store for store in stores if any(store.glob(_OF_SEVERAL)) and any(store.glob("*/streams/*"))]
        if len(full) == 1 and not _aside(folder).exists():
            missing = " and ".join(str(store) for store in stores if store not in full)
            raise ServerError(
                f"of the stores of {self.replicas} servers only {full[0]} holds the log: {missing} would outvote it, "
                "and the log be lost; put one of them back, or restore a backup into another folder"
            )

    def _set_aside(self) -> None:
        """Move the store of one server away from where the first of several will have its own."""
        home, aside = self.settings.data_dir / CREDENTIALS, _aside(self.settings.data_dir)
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        (home / _STORE).rename(aside)
        _log.warning("log_moves_to_several_servers", servers=self.replicas, store=str(aside))

    async def _move_in(self) -> None:
        """Copy the streams of the server that was alone; its store is deleted once all have them."""
        folder = self.settings.data_dir
        alone = Server(msgspec.structs.replace(self.settings, port=-1, store=_ASIDE))
        await alone.start()
        try:
            async with self._connected(alone.url) as old, self.connect() as new:
                moved = await move_streams(old.link, new.link, self.replicas)
                for name, end in moved.items():
                    _log.info("stream_moved", stream=name, messages=end.messages, last_seq=end.last_seq)
                await _copied(new, moved)
        except BusError as error:
            await self.kill()
            begins = f"its store is still in {_aside(folder)}, and the next start begins anew"
            raise ServerError(f"the log did not move to {self.replicas} servers: {error}; {begins}") from error
        finally:
            await alone.stop()
        done = _aside(folder).with_name("moved")
        _aside(folder).rename(done)  # from here on it is not begun again
        shutil.rmtree(done.parent)


async def _settled(bus: NatsBus) -> None:
    """Wait until the servers have found each other, have a leader, and all know the services' account."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + SETTLED_S
    while True:
        try:
            await bus.link.api("STREAM.NAMES")
            return
        except Unavailable:
            if clock() >= end_s:
                raise
        await asyncio.sleep(_LOOK_S)


async def _copied(bus: NatsBus, names: Container[str]) -> None:
    """Wait until every server has all of these streams."""
    while True:
        found = [one for one in await bus.replication() if one.name in names]
        if all(one.leader and all(peer.current for peer in one.copies) for one in found):
            return
        await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def running(
    settings: ServerSettings, count: int = 1, here: ClusterMember | None = None
) -> AsyncIterator[ServerGroup]:
    """Run servers while the context is open; see :class:`ServerGroup`."""
    servers = ServerGroup(settings, count, here)
    await servers.start()
    try:
        yield servers
    finally:
        await servers.stop()


def count_of(data_dir: Path) -> int:
    """Return by how many servers the log of a data folder is kept; 0 for a folder without one."""
    store = data_dir / CREDENTIALS / _STORE
    stores = [data_dir / _store(number) / _STORE for number in range(1, max(COUNTS) + 1)]
    if _aside(data_dir).exists() or any(any(one.glob(_OF_SEVERAL)) for one in stores):
        return max(COUNTS)
    return 1 if store.exists() else 0


def _of_member(settings: ServerSettings, member: ClusterMember, count: int) -> ServerSettings:
    return msgspec.structs.replace(
        settings,
        member=member,
        port=settings.port + member.number - 1 if settings.port > 0 else settings.port,
        store=_store(member.number),
        max_store_bytes=settings.max_store_bytes // count,
        disk_part=1 / count,
    )


def _store(number: int) -> str:
    return CREDENTIALS if number == 1 else f"{CREDENTIALS}-{number}"


def _aside(data_dir: Path) -> Path:
    return data_dir / _ASIDE / _STORE
