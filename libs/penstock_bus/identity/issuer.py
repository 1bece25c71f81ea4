"""
The issuer: it tells the servers which people there are, and makes their logins.

It runs beside each server, with the keyring. Who may use the cluster are facts of the log, which the gateway writes;
:class:`Issuer` follows them and gives each person an account, whose rights to read follow the role, or takes it away.
An admin asks it for logins (``penstock.cmd.issuer.login``). Those of nodes :mod:`penstock_bus.identity.node_issuer`
makes.
Several issuers share the requests, and tell the servers the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import msgspec
import structlog

from penstock_bus.follower import background
from penstock_bus.identity.issuer_requests import (
    CONFLICT,
    NOT_FOUND,
    UNAVAILABLE,
    RefusedRequest,
    answering,
    check_admin,
    decoded,
)
from penstock_bus.identity.keyring import NOBODY, Keyring
from penstock_bus.identity.logins import Login
from penstock_bus.identity.node_issuer import NodeIssuer
from penstock_bus.nats import connect
from penstock_bus.nats.accounts import AccountPort, NatsAccountClient
from penstock_bus.port import BusError, Endpoint, LogReader, Reply, Request, RequestPort
from penstock_log import subjects
from penstock_log.request_bodies import LoginRequest
from penstock_log.services import ISSUER as NAME
from penstock_log.users import UserRecord, Users, has_rights_of

_VERSION: Final = "1.0.0"
_RETRY_S: Final = 1.0
_REACH_S: Final = 5.0
_TOLD_AT_ONCE: Final = 64
_log = structlog.get_logger("penstock.issuer")


class IssuerLog(LogReader, RequestPort, Protocol):
    """What the issuer needs of the bus: the log, and to answer requests."""


class Issuer:
    """
    Accounts and logins for people.

    Parameters
    ----------
    bus : IssuerLog
        As the admin of the services' account.
    server : AccountPort
        The accounts that the server knows.
    owner : str
        The person who may do everything, whatever the log says.
    url, ca : str
        Where people find the server, and its certificate authority, for their logins.
    hosts : sequence of str
        Other names and addresses of the server's machine, for who does not reach it by the one in ``url``.
    now_s : callable
        Seconds since the epoch: when logins were made, and when they end. Which of them count, no clock decides.
    reach_s : float
        How long a request for a login waits for what it builds on, in seconds.
    """

    def __init__(
        self,
        bus: IssuerLog,
        server: AccountPort,
        keyring: Keyring,
        *,
        owner: str,
        url: str,
        now_s: Callable[[], float],
        ca: str = "",
        hosts: Sequence[str] = (),
        reach_s: float = _REACH_S,
    ) -> None:
        self._bus, self._server, self._keyring = bus, server, keyring
        self.owner, self._url, self._ca, self._now_s, self._reach_s = owner, url, ca, now_s, reach_s
        self._users, self._hosts = Users(), tuple(hosts)
        self._seq = 0
        self._untold: dict[str, int] = {owner: 1}
        """Person of whom the server is to be told → how often the log has said something of them since."""
        self._problems: dict[str, str] = {}
        self._telling: set[str] = set()
        self._slots = asyncio.Semaphore(_TOLD_AT_ONCE)
        self._has_begun = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Follow the log and answer while the context is open."""
        answer = answering(self.answer)
        login = Endpoint(name="login", subject=subjects.command("login", NAME), handler=answer, concurrent=True)
        async with (
            self._bus.serve(f"penstock-{NAME}", _VERSION, [login]),
            background(self._begin(), self._follow(), self._tell_all()),
        ):
            yield

    async def owner_login(self) -> Login:
        """Return a login of the owner that counts, once the log is read and the server knows what it says of them."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_begun and self.owner not in self._untold)
        valid_from_s = self._users.valid_from_s(self.owner)
        return self._keyring.person_login(self._url, self.owner, self._now_s(), valid_from_s=valid_from_s, ca=self._ca)

    async def answer(self, request: Request) -> Reply:
        """Answer a :class:`LoginRequest` with a login; raise RefusedRequest where there is none."""
        asked = decoded(request, LoginRequest, "a login")
        user = asked.user or request.user
        try:
            await check_admin(request, self.is_admin, "logins are made")
            await self._reached(max(asked.after_seq, await self._last_of(user)), user)
        except TimeoutError as error:
            raise RefusedRequest(UNAVAILABLE, self._why_not_reached(user)) from error
        except BusError as error:
            raise RefusedRequest(UNAVAILABLE, f"the log cannot be read: {error}; ask again") from error
        return self._made(asked, user, request.user)

    def _made(self, asked: LoginRequest, user: str, by: str) -> Reply:
        if user not in self._users.by_name and user != self.owner:
            raise RefusedRequest(NOT_FOUND, f"no user {user!r}; add them first with `penstock user add {user}`")
        now_s, valid_from_s = self._now_s(), self._users.valid_from_s(user)
        if asked.revocation_s is not None:
            if asked.revocation_s <= valid_from_s:
                raise RefusedRequest(CONFLICT, f"the logins of {user} were revoked meanwhile; rotate them again")
            valid_from_s = asked.revocation_s
        expires_s = now_s + asked.valid_s if asked.valid_s else 0.0
        login = self._keyring.person_login(
            self._url, user, now_s, valid_from_s=valid_from_s, expires_s=expires_s, ca=self._ca
        )
        login = msgspec.structs.replace(login, hosts=self._hosts)
        _log.info("login_issued", user=user, by=by, expires_s=expires_s)
        return Reply(body=msgspec.json.encode(login))

    async def users_knowing(self, name: str, after_seq: int = 0) -> Users:
        """
        Return who there is, once the server has been told what the log says of a person.

        Raises
        ------
        BusError
            If the log cannot be read, or the server does not take the account.
        """
        try:
            await self._reached(max(after_seq, await self._last_of(name)), name)
        except TimeoutError as error:
            raise BusError(self._why_not_reached(name)) from error
        return self._users

    async def is_admin(self, name: str) -> bool:
        """Say whether a person is an admin by now."""
        record = await self._record(name)
        return name == self.owner or (record is not None and record.role == "admin")

    async def _record(self, name: str) -> UserRecord | None:
        """Return what the log says of a person by now, whatever has been followed."""
        users = Users()
        for delivery in await self._bus.read(subjects.user(name)) if name else ():
            for fact in delivery.commit.known:
                users.apply(fact)
        return users.by_name.get(name)

    async def _last_of(self, name: str) -> int:
        """Return the sequence of what the log said last of a person; 0 for nothing."""
        newest = await self._bus.last(subjects.user(name)) if name else None
        return newest.seq if newest is not None else 0

    async def _follow(self) -> None:
        """Follow the log; the server is told of people once all is read, and never of what they were before."""
        changed: list[str] = []
        async for delivery in self._bus.follow(subjects=[subjects.USERS]):
            changed += [name for fact in delivery.commit.known if (name := self._users.apply(fact)) is not None]
            if delivery.pending:
                continue
            self._mark(changed)
            self._seq, self._has_begun = delivery.seq, True
            changed = []
            async with self._changed:
                self._changed.notify_all()

    async def _begin(self) -> None:
        """Tell the server of its owner, and have it forget strangers, once it is known who there is: maybe nobody."""
        while not self._has_begun:
            try:
                nobody = not await self._bus.read(subjects.USERS)
            except BusError as error:
                _log.warning("users_not_read", error=str(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
                continue
            async with self._changed:
                self._has_begun = self._has_begun or nobody  # of others, following the log tells
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self._has_begun)
        while True:
            try:
                await self._forget_strangers()
                return
            except BusError as error:
                _log.warning("accounts_not_checked", error=str(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)

    async def _tell_all(self) -> None:
        """Tell the server of those who have changed, side by side: one whom it does not take delays nobody else."""
        async with asyncio.TaskGroup() as group:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._has_begun and self._untold.keys() - self._telling)
                for name in sorted(self._untold.keys() - self._telling):
                    self._telling.add(name)
                    group.create_task(self._tell_until_taken(name))

    async def _tell_until_taken(self, name: str) -> None:
        while (wanted := self._untold.get(name)) is not None:
            try:
                async with self._slots:
                    await self._tell(name)
            except (BusError, ValueError) as error:  # what is no answer is the second
                self._problems[name] = str(error)
                _log.warning("account_not_told", user=name, error=str(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
                continue
            async with self._changed:
                if self._untold[name] == wanted:
                    del self._untold[name]
                    self._problems.pop(name, None)
                    self._telling.discard(name)
                    self._changed.notify_all()

    async def _tell(self, name: str) -> None:
        if name not in self._users.by_name and name != self.owner:
            await self._server.delete(self._keyring.removal([name], self._now_s()))
        else:
            await self._server.update(self._token(name))

    async def _forget_strangers(self) -> None:
        """Have the server forget accounts of nobody in the log, such as a former owner's."""
        listed = set(await self._server.listed())  # before it is seen who there is: who comes meanwhile is no stranger
        people = {*self._users.by_name, self.owner}
        strangers = listed - {self._keyring.person(name) for name in people} - self._keyring.own
        if not strangers:
            return
        await self._server.delete(self._keyring.removal_of(sorted(strangers), self._now_s()))
        _log.warning("accounts_forgotten", accounts=len(strangers), reason="the log knows nobody of theirs")
        returned = [one for one in self._users.by_name.keys() - people if self._keyring.person(one) in strangers]
        self._mark(returned)
        async with self._changed:
            self._changed.notify_all()

    def _mark(self, names: Iterable[str]) -> None:
        """Mark people of whom the server is to be told."""
        for name in names:
            self._untold[name] = self._untold.get(name, 0) + 1

    def _token(self, name: str) -> str:
        record = self._users.by_name.get(name)
        reads_all = name == self.owner or (record is not None and has_rights_of(record.role, "operator"))
        valid_from_s = self._users.valid_from_s(name)
        return self._keyring.person_account(name, self._now_s(), reads_all=reads_all, valid_from_s=valid_from_s)

    async def _reached(self, seq: int, user: str) -> None:
        """Wait until the log is read so far, and the server knows what it says of a person."""
        async with asyncio.timeout(self._reach_s), self._changed:
            await self._changed.wait_for(lambda: self._has_begun and self._seq >= seq and user not in self._untold)

    def _why_not_reached(self, user: str) -> str:
        if problem := self._problems.get(user):
            return f"the server does not take the account of {user}: {problem}; it is told again, so ask again"
        return f"the log was not read up to what it says of {user} within {self._reach_s:g} s; ask again"


@asynccontextmanager
async def issuing(
    url: str,
    keyring: Keyring,
    admin: Login,
    *,
    owner: str,
    advertised: str,
    now_s: Callable[[], float],
    services_account: Callable[[Mapping[str, int]], str],
    revoked: Mapping[str, int] = NOBODY,
    hosts: Sequence[str] = (),
) -> AsyncIterator[Issuer]:
    """
    Run an issuer of people's logins, and one of nodes' logins, while the context is open.

    Parameters
    ----------
    url : str
        Where it finds the server.
    advertised : str
        Where people find it.
    services_account, revoked
        As for :class:`penstock_bus.identity.node_issuer.NodeIssuer`.
    hosts : sequence of str
        Other names and addresses of its machine.
    """
    system = keyring.system_login(url, now_s(), admin.ca)
    async with (
        connect(url, login=admin, name=NAME) as bus,
        connect(url, login=system, name=NAME, as_client=True) as accounts_bus,
    ):
        server = NatsAccountClient(accounts_bus.link)
        issuer = Issuer(bus, server, keyring, owner=owner, url=advertised, now_s=now_s, ca=admin.ca, hosts=hosts)
        nodes = NodeIssuer(
            bus,
            server,
            keyring,
            url=advertised,
            ca=admin.ca,
            hosts=hosts,
            now_s=now_s,
            is_admin=issuer.is_admin,
            services_account=services_account,
            revoked=revoked,
        )
        async with nodes.serving(), issuer.serving():
            yield issuer
