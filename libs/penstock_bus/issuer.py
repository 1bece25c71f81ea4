"""
The issuer: it tells the server which people there are, and makes their logins.

It runs beside the server, with the keyring. Who may use the cluster are facts of the log, which the gateway writes;
:class:`Issuer` follows them and gives each person an account, whose rights to read follow the role, or takes it away.
An admin asks it for logins (``penstock.cmd.issuer.login``) and for tokens with which machines join.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog

from penstock_bus import access
from penstock_bus.follower import background
from penstock_bus.keyring import Keyring
from penstock_bus.logins import Login
from penstock_bus.nats import NatsBus, accounts, connect
from penstock_bus.port import BusError, Endpoint, Reply, Request
from penstock_log import subjects
from penstock_log.request_bodies import LoginRequest, TokenRequest
from penstock_log.users import UserRecord, Users, has_rights_of

NAME: Final = access.ISSUER
_VERSION: Final = "1.0.0"
_RETRY_S: Final = 1.0
_REACH_S: Final = 5.0
_log = structlog.get_logger("penstock.issuer")


class Issuer:
    """
    Accounts and logins for people.

    Parameters
    ----------
    bus : NatsBus
        As the admin of the services' account.
    system : NatsBus
        As the system account.
    owner : str
        The person who may do everything, whatever the log says.
    url, ca : str
        Where people find the server, and its certificate authority, for their logins.
    now_s : callable
        Seconds since the epoch.
    """

    def __init__(
        self,
        bus: NatsBus,
        system: NatsBus,
        keyring: Keyring,
        *,
        owner: str,
        url: str,
        now_s: Callable[[], float],
        ca: str = "",
    ) -> None:
        self._bus, self._system, self._keyring = bus, system, keyring
        self._owner, self._url, self._ca, self._now_s = owner, url, ca, now_s
        self._users = Users()
        self._seq = 0
        self._untold: set[str] = set()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Follow the log and answer while the context is open."""
        handlers = {"login": self.answer, "token": self.answer_token, access.JOIN: self.answer_join}
        endpoints = [
            Endpoint(name=name, subject=subjects.command(name, NAME), handler=handler)
            for name, handler in handlers.items()
        ]
        async with (
            self._bus.serve(f"penstock-{NAME}", _VERSION, endpoints),
            background(self._follow(), self._try_again()),
        ):
            yield

    async def answer(self, request: Request) -> Reply:
        """Answer a :class:`LoginRequest` with a login."""
        try:
            asked = msgspec.json.decode(request.body or b"{}", type=LoginRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Reply(code=400, error=f"not a request for a login: {error}")
        try:
            await self._reached(asked.after_seq)
        except TimeoutError:
            return Reply(code=503, error=f"the log was not read up to {asked.after_seq} in time; ask again")
        if request.user and not await self._is_admin(request.user):
            return Reply(code=403, error=f"logins are made by admins, and {request.user} is none")
        user = asked.user or request.user
        record = await self._record(user)
        if record is None and user != self._owner:
            return Reply(code=404, error=f"no user {user!r}; add them first with `penstock user add {user}`")
        valid_from_s = record.valid_from_s if record is not None else 0.0
        issued_s = max(self._now_s(), int(valid_from_s) + 1)
        expires_s = issued_s + asked.valid_s if asked.valid_s else 0.0
        login = self._keyring.person_login(self._url, user, issued_s, expires_s=expires_s, ca=self._ca)
        _log.info("login_issued", user=user, by=request.user, expires_s=expires_s)
        return Reply(body=msgspec.json.encode(login))

    async def answer_token(self, request: Request) -> Reply:
        """Answer a :class:`TokenRequest` with the login by which a new node asks for its own."""
        try:
            asked = msgspec.json.decode(request.body or b"{}", type=TokenRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Reply(code=400, error=f"not a request for a token: {error}")
        if request.user and not await self._is_admin(request.user):
            return Reply(code=403, error=f"nodes are added by admins, and {request.user} is none")
        now_s = self._now_s()
        login = self._keyring.join_login(self._url, now_s, now_s + asked.valid_s, self._ca)
        _log.info("node_token_issued", by=request.user, valid_s=asked.valid_s)
        return Reply(body=msgspec.json.encode(login))

    async def answer_join(self, request: Request) -> Reply:
        """Answer a new node, which only one with a token can ask, or an admin, with the login of an executor."""
        if request.user and not await self._is_admin(request.user):
            return Reply(code=403, error=f"nodes join with a token, and {request.user} is a person")
        _log.info("node_login_issued", by=request.user or "token", about=request.body[:200].decode(errors="replace"))
        return Reply(body=msgspec.json.encode(self._keyring.node_login(self._url, self._now_s(), self._ca)))

    async def _is_admin(self, name: str) -> bool:
        record = await self._record(name)
        return name == self._owner or (record is not None and record.role == "admin")

    async def _record(self, name: str) -> UserRecord | None:
        """Return what the log says of a person by now, whatever has been followed."""
        users = Users()
        for delivery in await self._bus.read(subjects.user(name)) if name else ():
            for fact in delivery.commit.known:
                users.apply(fact)
        return users.by_name.get(name)

    async def _follow(self) -> None:
        """Follow the log; the server is told of people once all is read, and never of what they were before."""
        changed: set[str] = {self._owner}
        first = True
        async for delivery in self._bus.follow(subjects=[subjects.USERS]):
            changed |= {name for fact in delivery.commit.known if (name := self._users.apply(fact)) is not None}
            if delivery.pending:
                continue
            self._untold |= changed
            await self._tell_all()
            if first:
                await self._forget_strangers()
            first, changed = False, set()
            async with self._changed:
                self._seq = delivery.seq
                self._changed.notify_all()

    async def _try_again(self) -> None:
        """Tell the server again of those whom it would not take; others do not wait for them."""
        while True:
            await asyncio.sleep(_RETRY_S)
            if self._untold:
                await self._tell_all()
                async with self._changed:
                    self._changed.notify_all()

    async def _tell_all(self) -> None:
        for name in sorted(self._untold):
            try:
                await self._tell(name)
                self._untold.discard(name)
            except (BusError, ValueError) as error:  # what is no answer is the second
                _log.warning("account_not_told", user=name, error=str(error), retry_s=_RETRY_S)

    async def _tell(self, name: str) -> None:
        record = self._users.by_name.get(name)
        if record is None and name != self._owner:
            await accounts.delete(self._system.link, self._keyring.removal([name], self._now_s()))
        else:
            await accounts.update(self._system.link, self._token(name))

    async def _forget_strangers(self) -> None:
        """Have the server forget accounts of nobody in the log, such as a former owner's."""
        known = {self._keyring.person(name) for name in (*self._users.by_name, self._owner)}
        try:
            strangers = set(await accounts.listed(self._system.link)) - known - self._keyring.own
            if strangers:
                token = self._keyring.removal_of(sorted(strangers), self._now_s())
                await accounts.delete(self._system.link, token)
        except (BusError, ValueError) as error:
            _log.warning("accounts_not_checked", error=str(error))

    def _token(self, name: str) -> str:
        record = self._users.by_name.get(name)
        reads_all = name == self._owner or (record is not None and has_rights_of(record.role, "operator"))
        valid_from_s = record.valid_from_s if record is not None else 0.0
        return self._keyring.person_account(name, self._now_s(), reads_all=reads_all, valid_from_s=valid_from_s)

    async def _reached(self, seq: int) -> None:
        async with asyncio.timeout(_REACH_S), self._changed:
            await self._changed.wait_for(lambda: self._seq >= seq and not self._untold)


@asynccontextmanager
async def issuing(
    url: str, keyring: Keyring, admin: Login, *, owner: str, advertised: str, now_s: Callable[[], float]
) -> AsyncIterator[Issuer]:
    """
    Run an issuer while the context is open.

    Parameters
    ----------
    url : str
        Where it finds the server.
    advertised : str
        Where people find it.
    """
    system = keyring.system_login(url, now_s(), admin.ca)
    async with (
        connect(url, login=admin, name=NAME) as bus,
        connect(url, login=system, name=NAME, as_client=True) as accounts_bus,
    ):
        issuer = Issuer(bus, accounts_bus, keyring, owner=owner, url=advertised, now_s=now_s, ca=admin.ca)
        async with issuer.serving():
            yield issuer
