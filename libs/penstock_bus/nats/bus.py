"""
The bus over NATS: the port put together, and the connection to the server.

:func:`connect` finds the server, makes the streams that are missing, and gives a :class:`NatsBus`. Where no server
answers, or it refuses the user, the error says what to do.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import nats.errors

from penstock_bus.identity.login_tokens import LoginToken, described, is_by_token
from penstock_bus.identity.logins import Login
from penstock_bus.nats.code import NatsCodeClient
from penstock_bus.nats.handshake import absent, servers_of
from penstock_bus.nats.handshake import refused as refused_login
from penstock_bus.nats.handshake import shown as shown_address
from penstock_bus.nats.link import ClientOptions, LateAnswerClient, Link
from penstock_bus.nats.relay import MayRead, relaying
from penstock_bus.nats.replication import NatsReplicationClient
from penstock_bus.nats.requests import NatsRequestClient
from penstock_bus.nats.snapshots_and_leases import NatsLeaseClient, NatsStateClient
from penstock_bus.nats.streams import StreamLimits, ensure
from penstock_bus.nats.work import NatsWorkClient
from penstock_bus.port import Unauthorized, Unavailable
from penstock_log import subjects


class NatsBus(
    NatsWorkClient, NatsStateClient, NatsLeaseClient, NatsRequestClient, NatsReplicationClient, NatsCodeClient
):
    """All ports over one connection; made by :func:`connect`."""

    def relaying(self, may_read: MayRead) -> AbstractAsyncContextManager[None]:
        return relaying(self.link, may_read)


@asynccontextmanager
async def connect(
    url: str,
    *,
    login: Login | None = None,
    name: str = "penstock",
    timeout_s: float = 10.0,
    connect_timeout_s: float = 4.0,
    ack_wait_s: float = 15.0,
    max_deliver: int = 10,
    limits: StreamLimits | None = None,
    as_client: bool = False,
) -> AsyncIterator[NatsBus]:
    """
    Connect to a server and make the streams that are missing.

    Parameters
    ----------
    url : str
        ``nats://HOST:PORT``; several of a cluster with commas between them.
    login : Login, optional
        Who comes there; its address is not looked at. None is nobody, or whom the address names.
    name : str
        Shown by the server's monitoring.
    timeout_s : float
        How long a call goes on trying over disconnects and elections.
    connect_timeout_s : float
        How long to look for the server; of several, each is given a second at least.
    ack_wait_s, max_deliver
        How long a worker may keep a message of the work queue, and how often it is delivered at most.
    limits : StreamLimits, optional
        Limits of new streams; existing streams stay as they are. By default each stream is kept on as many servers as
        are named, three at most.
    as_client : bool
        Make no streams and no consumers: read by direct gets alone, as people may.

    Raises
    ------
    Unavailable
        If no server answers at the address.
    Unauthorized
        If it refuses the user.
    """
    servers = servers_of(url)
    if len(servers) > 1:
        connect_timeout_s = max(connect_timeout_s, _LEAST_S * (len(servers) + 1))  # each in turn, also behind dead ones
    client = LateAnswerClient()
    client.comes_again = as_client
    link = Link(client, ", ".join(map(shown_address, servers)), timeout_s)
    named = next((urlsplit(one).username or "" for one in servers), "")
    attempts = _Attempts(link, login, named, gives_up=as_client)
    shown: dict[str, Any] = {}
    renewing: asyncio.Future[None] | None = None
    if login is not None and is_by_token(login):
        token = LoginToken(login, time.time)  # noqa: TID251 - compared with the end that stands in it
        await token.renew()
        attempts.token = token
        client.renew_token = attempts.renewed
        shown = {"token": token.current}
        connect_timeout_s = max(connect_timeout_s, _ASKED_S)
        renewing = asyncio.ensure_future(token.keep_fresh())
    connecting = asyncio.ensure_future(
        link.client.connect(
            servers,
            name=name,
            **(_proof(login) if login is not None else {}),
            **shown,
            error_cb=attempts.failed,
            disconnected_cb=link.disconnected,
            reconnected_cb=link.reconnected,
            closed_cb=link.closed,
            connect_timeout=max(_LEAST_S, int(connect_timeout_s) // len(servers)),
            reconnect_time_wait=cast(
                "int", _RETRY_S if not shown else _ASK_AGAIN_S
            ),  # declared as int, slept as seconds
            max_reconnect_attempts=-1,
            ping_interval=_PING_S if len(servers) == 1 else _PING_ONE_OF_MANY_S,
        )
    )
    try:
        await _connected(connecting, attempts, login, connect_timeout_s)
        attempts.was_let_in = True
        await link.start()
        if not as_client:
            await ensure(link, limits or StreamLimits(replicas=_REPLICAS if len(servers) >= _REPLICAS else 1))
        bus = NatsBus(link, ClientOptions(ack_wait_s=ack_wait_s, max_deliver=max_deliver, as_client=as_client))
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        if renewing is not None:
            renewing.cancel()
        await link.close()


def _proof(login: Login) -> dict[str, Any]:
    """Return what the client is told of a login."""
    found: dict[str, Any] = {}
    if login.ca:
        found["tls"] = ssl.create_default_context(cadata=login.ca)
    logging.getLogger("asyncio").addFilter(_is_worth_saying)
    if is_by_token(login):
        return found
    if not login.user_jwt:
        return found | {"user": login.user or None, "password": login.password or None}
    from penstock_bus.identity.claims import SigningKey  # noqa: PLC0415 - needs PyNaCl, which others need not load

    try:
        key = SigningKey(login.user_seed)
    except ValueError as error:
        raise Unauthorized(f"the login of {login.user!r} is damaged: {error}; get it anew") from error
    return found | {
        "inbox_prefix": subjects.inbox(subjects.person(login.user)),  # the one where a service of this name may listen
        "user_jwt_cb": login.user_jwt.encode,
        "signature_cb": key.answer,
    }


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Leave out what asyncio says whenever the client library closes a connection with TLS; nothing is wrong then."""
    return "eof_received() has no effect when using ssl" not in record.getMessage()


_RETRY_S: Final = 0.1
_ASKED_S: Final = 6.0
"""So long who shows a token may have to wait: the server asks about it, and gives that 5 s."""
_ASK_AGAIN_S: Final = 1.0
_REFUSED_S: Final = 60.0
"""Who was let in before and is refused for so long gives up: until then what checks tokens may be starting again."""
_CERTAIN_S: Final = 1.0
"""A person who was let in before and is refused for so long gives up: a server whose settings change refuses nobody."""
_PING_S: Final = 5
_PING_ONE_OF_MANY_S: Final = 2
"""Three pings without an answer are the sign to go to another server: one that hangs keeps its connections open."""
_LEAST_S: Final = 1
_REPLICAS: Final = 3


class _Attempts:
    """The errors of a connection that is being made; later errors go to the link."""

    def __init__(self, link: Link, login: Login | None, named: str, *, gives_up: bool) -> None:
        self.link = link
        self.named = named  # the user in the address
        self._login, self._gives_up = login, gives_up
        self.count = 0
        self.last: Exception | None = None
        self.refused = asyncio.Event()
        self.token: LoginToken | None = None
        self.was_let_in = False
        self._first_refused_s = self._last_refused_s = float("-inf")

    async def failed(self, error: Exception) -> None:
        """Take an error from the client."""
        self.count += 1
        self.last = error
        text = str(error).lower()
        # one whose login came too late over a slow network is asked for it again; that says nothing against the login
        if ("authorization" in text or "authentication" in text) and "timeout" not in text:
            self.refused.set()
            if self.was_let_in and not self.link.is_online:
                await self._refused_again()
        await self.link.failed(error)

    async def renewed(self) -> bool:
        """Say whether there is a token with which to come again, after the last one has ended."""
        if self.token is None:
            return False
        try:
            self.link.has_new_token = await self.token.renew()
            return self.link.has_new_token
        except Unauthorized as ended:
            self.link.end_refused(str(ended))
            return False

    async def _refused_again(self) -> None:
        """Give up after a while where somebody was let in before and is refused now; renew a token meanwhile."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._last_refused_s > _REFUSED_S / 2:
            self._first_refused_s = now_s
        self._last_refused_s = now_s
        if self.token is None:
            if self._gives_up and now_s - self._first_refused_s >= _CERTAIN_S:
                self._give_up(refused_login(self.link.address, self._login, self.named))
            return
        try:
            await self.token.renew()
        except Unauthorized as ended:
            self._give_up(ended)
            return
        if now_s - self._first_refused_s >= _REFUSED_S:
            self._give_up(_token_refused(self.link.address, self.token.current()))

    def _give_up(self, reason: Unauthorized) -> None:
        self.link.end_refused(str(reason))
        self.link.client.options["max_reconnect_attempts"] = 1  # which ends them


async def _connected(
    connecting: asyncio.Future[None], attempts: _Attempts, login: Login | None, connect_timeout_s: float
) -> None:
    address = attempts.link.address
    refused = asyncio.ensure_future(attempts.refused.wait())
    try:
        both: set[asyncio.Future[Any]] = {connecting, refused}
        await asyncio.wait(both, timeout=connect_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise (
                _token_refused(address, attempts.token.current())
                if refused.done() and attempts.token is not None
                else refused_login(address, login, attempts.named)
                if refused.done()
                else absent(address, attempts.last, attempts.count, connect_timeout_s)
            )
        connecting.result()
    except (nats.errors.Error, OSError) as error:
        raise Unavailable(f"cannot connect to {address}: {error}; is it a NATS server?") from error
    finally:
        refused.cancel()
        await _end(connecting)


async def _end(connecting: asyncio.Future[None]) -> None:
    """Cancel the client's attempts, again if one of them swallows it: they would go on for ever."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=_RETRY_S)


def _token_refused(address: str, token: str) -> Unauthorized:
    return Unauthorized(
        f"the NATS server at {address} refused the token of {described(token)}; are they a user (`penstock user ls`), "
        "and is the server set up for this issuer and audience ([oidc])? Its log says why (token_refused)"
    )
