"""
Link: one connection to the server, with its answers and errors.

:class:`Link` makes calls with answers and stores messages with acknowledgements, and it carries on when the connection
breaks and comes back. :class:`Replies` is the one inbox for all calls of a connection. :func:`fault` translates the
server's error codes into the errors of the port. :class:`NatsClient` is what the parts of the bus over NATS share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Optional, TypeVar, overload

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from penstock_bus.compat import timeout
from penstock_bus.logger import get_logger
from penstock_bus.nats.handshake import HEADROOM, check_size, denied
from penstock_bus.port import BusError, NoResponders, StorageFull, Timeout, TooLarge, Unauthorized, Unavailable
from penstock_bus.stored_messages import DroppedMessages

TRY_S: Final = 2.0  # after this long without an acknowledgement the same message is sent again
PAUSE_S: Final = 0.1
_CLOSE_S: Final = 2.0
_ENDS_OF_LOGINS: Final = ("maximum subscriptions exceeded", "authentication expired")
"""What the server may say while it takes a login, or its account, from who is connected by it."""

_log = get_logger("penstock.bus")


class Ack(msgspec.Struct, frozen=True):
    """The server's answer to a message that is to be stored."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: Optional[ApiError] = None


class ApiError(msgspec.Struct, frozen=True):
    """The server's refusal."""

    code: int = 0
    err_code: int = 0
    description: str = ""


_decoder_of_acks: Final = msgspec.json.Decoder(Ack)
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError)
T = TypeVar("T")


class LateAnswerClient(Client):
    """
    A client that survives the answer to a ping whose asker has given up, the end of its token, and uvloop.

    It reads headers faster, too.

    nats-py's own ends the reading of its connection at the first: it goes on writing, and hears nothing until its pings
    have been unanswered for some fifteen seconds. At the second it closes for good. And between the loss of a
    connection and its being noticed, uvloop refuses to write with a RuntimeError, which nats-py lets through: here it
    is a ConnectionResetError, as with asyncio's own loop.
    """

    comes_again = False
    """Whether to come again, once, where the server ends the connection as it does with logins that count no more."""
    renew_token: Optional[Callable[[], Awaitable[bool]]] = None
    """Says whether there is a token with which to come again, where it has come with one."""

    async def _process_err(self, err_msg: str) -> None:
        if "authentication expired" in err_msg.lower() and self.renew_token is not None and await self.renew_token():
            await self._process_op_err(nats.errors.StaleConnectionError())
            return
        if self.comes_again and any(text in err_msg.lower() for text in _ENDS_OF_LOGINS):
            self.comes_again = False  # and who is refused then hears what is the matter
            await self._process_op_err(nats.errors.StaleConnectionError())
            return
        await super()._process_err(err_msg)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pongs_received += 1
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Return a message's headers. nats-py looks at each character of each name, which takes nine times as long."""
        headers = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon and name.isascii() and len(words := name.split()) == 1:  # others are no names
                headers[words[0]] = value.strip()
        return headers

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        with _closed_is_reset():
            await super()._send_ping(future)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        with _closed_is_reset():
            return await super()._flush_pending(force_flush)


async def unsubscribe(sub: Subscription) -> None:
    """End a subscription; one whose connection is gone went with it."""
    with suppress(nats.errors.Error, OSError):
        await sub.unsubscribe()


@contextmanager
def _closed_is_reset() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ConnectionResetError(f"the connection is closed: {error}") from error


class Link:
    """
    A connection that comes back by itself.

    Parameters
    ----------
    timeout_s : float
        How long a call goes on trying over disconnects and elections.
    """

    def __init__(self, client: Client, address: str, timeout_s: float) -> None:
        self.client = client
        self.address = address
        self.timeout_s = timeout_s
        self.replies = Replies(client)
        self.on_lost: set[Callable[[], None]] = set()
        self.served: dict[str, bool] = {}
        """Subject that is served here → whether the server lets us hear what is asked there."""
        self.has_new_token = False
        """Whether the connection ends because its token did, and comes back with another."""
        self._online = asyncio.Event()
        self._ended = ""
        self._refused = False

    async def start(self) -> None:
        """Begin to take answers."""
        self._online.set()
        await self.replies.start()

    # --- called by the client
    async def disconnected(self) -> None:
        """End the calls that wait: their answers will not come on the next connection."""
        if self.has_new_token:
            _log.info("token_ended", address=self.address, advice="the next one is shown")
        elif self._online.is_set() and not self._ended:
            _log.warning("server_lost", address=self.address)
        self.has_new_token = False
        self._online.clear()
        advice = "look what became of it, and try again"
        self.replies.fail(ConnectionLost(f"the connection to {self.address} was lost before it answered; {advice}"))
        for callback in list(self.on_lost):
            callback()

    async def reconnected(self) -> None:
        """Go on, unless the link has been ended."""
        if self._ended:
            await self.client.close()
            return
        _log.info("server_found_again", address=self.address)
        self._online.set()

    async def closed(self) -> None:
        """End all calls, once: the connection is closed for good."""
        reason = f"the server at {self.address} closed the connection: {self.client.last_error}"
        if "authentication revoked" in str(self.client.last_error):
            self.end_refused(f"{reason}; get another login")
        else:
            self.end(reason)
        await self.disconnected()

    async def failed(self, error: Exception) -> None:
        """Give an error to the calls that it belongs to, or keep one that belongs to none."""
        text = str(error)
        if "permissions violation for publish to" in text:
            subject = text.rpartition(' to "')[2].partition('"')[0]
            self.replies.fail(denied(subject), subject)
        elif "permissions violation for subscription to" in text:
            self._unheard(text.partition(' to "')[2].partition('"')[0], text)
        elif self._online.is_set() and not self._ended:
            _log.warning("bus_error", error=text or repr(error))

    def _unheard(self, subject: str, text: str) -> None:
        if subject in self.served:
            self.served[subject] = False
        else:
            _log.warning("bus_error", error=text)

    def end(self, reason: str) -> None:
        """Fail all calls from now on, those that wait for the server at once."""
        self._ended = self._ended or reason
        self._online.set()

    def end_refused(self, reason: str) -> None:
        """Fail all calls as :meth:`end` does, because the server does not take the login any more."""
        self._refused = self._refused or not self._ended
        self.end(reason)

    # --- calls
    @property
    def is_online(self) -> bool:
        """Whether messages reach the server right now."""
        return self._online.is_set() and self.client.is_connected

    async def online(self, timeout_s: float | None = None) -> None:
        """
        Wait until messages reach the server.

        Raises
        ------
        Unavailable
            If the connection is closed, or does not come back in time.
        """
        while not self.is_online:
            if self._refused:
                raise Unauthorized(self._ended)
            if self._ended:
                raise Unavailable(f"{self._ended}; connect again")
            try:
                async with timeout(timeout_s):
                    await self._online.wait()
                    await asyncio.sleep(0 if self.client.is_connected else PAUSE_S)
            except TimeoutError:
                raise Unavailable(
                    f"lost the NATS server at {self.address} and waited {timeout_s:.1f} s for it; "
                    "is it running? The call may be tried again"
                ) from None

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the server takes beside our headers."""
        return self.client.max_payload - HEADROOM

    def check_size(self, what: str, body: bytes) -> None:
        """Raise TooLarge for a body over the server's limit."""
        check_size(what, body, self.max_body_bytes)

    async def close(self) -> None:
        """Flush and disconnect."""
        if self.client.is_closed:
            return
        self.end("this bus is closed")
        self.client.options["max_reconnect_attempts"] = 1  # a reconnecting client may swallow its cancellation
        closing = asyncio.ensure_future(self._disconnect())  # the client may end it by a cancellation of its own
        await asyncio.wait({closing}, timeout=_CLOSE_S)
        if not closing.done():
            closing.cancel()
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            _log.info("connection_ended_badly", address=self.address, error=str(error) or repr(error))

    async def _disconnect(self) -> None:
        if self.is_online:
            await self.client.flush()
        await self.client.close()

    def new_token(self) -> str:
        """Return a word that nobody else uses."""
        return str(self.client.new_inbox().rpartition(".")[2])

    async def flush(self) -> None:
        """Wait until the server has read what was sent; raise ConnectionLost where it has not."""
        try:
            await self.client.flush()
        except (nats.errors.Error, OSError) as error:
            raise ConnectionLost(f"lost {self.address} before it had read everything: {error}") from error

    async def send(self, call: SingleReply | ReplyRow, body: bytes, headers: dict[str, str] | None = None) -> None:
        """
        Publish a call with its own reply subject.

        It never publishes while the server is away: the client library would keep the message and send it after those
        that are sent again.
        """
        await self.publish(call.subject, body, headers, reply=self.replies.inbox(call))

    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None = None, reply: str = "") -> None:
        """Publish; raise ConnectionLost where it surely did not reach the server."""
        if not self.is_online:
            raise ConnectionLost(f"the connection to {self.address} is lost")
        try:
            await self.client.publish(subject, body, reply=reply, headers=headers)
        except nats.errors.MaxPayloadError:
            self.check_size(subject, body)
        except (nats.errors.Error, OSError) as error:
            raise ConnectionLost(f"could not send to {self.address}: {error}") from error

    async def ask(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None, timeout_s: float = TRY_S
    ) -> Msg:
        """
        Return the first answer.

        Raises
        ------
        ConnectionLost, Timeout, NoResponders, Unauthorized
        """
        call = self.replies.open(SingleReply, subject)
        try:
            await self.send(call, body, headers)
            async with timeout(timeout_s):
                msg = await call.future
        except TimeoutError:
            raise Timeout(f"no answer on {subject} within {timeout_s:.1f} s; ask again or wait longer") from None
        finally:
            self.replies.close(call)
        if msg.headers is not None and msg.headers.get("Status") == "503":
            raise NoResponders(f"nobody serves {subject}; is it running?")
        return msg

    @overload
    async def api(self, verb: str, request: Any = None) -> Any: ...

    @overload
    async def api(self, verb: str, request: Any = None, *, answer: type[T]) -> T: ...

    async def api(self, verb: str, request: Any = None, *, answer: Any = Any) -> Any:
        """
        Call JetStream's API, trying again while the server is away; return its answer as ``answer``.

        Servers of a cluster that have not found each other yet, or elect a leader, are asked again too.

        Raises
        ------
        ServerRefusal, Unavailable, StorageFull, Unauthorized
        """
        body = b"" if request is None else msgspec.json.encode(request)
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.timeout_s
        while True:
            try:
                return await self._api(verb, body, answer)
            except NotSettled:
                if clock() >= end_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _api(self, verb: str, body: bytes, answer: Any) -> Any:
        msg = await self.patiently(f"$JS.API.{verb}", body)
        try:
            found = msgspec.json.decode(msg.data, type=dict[str, Any])
            error = msgspec.convert(found["error"], ApiError) if "error" in found else None
            whole = msgspec.convert(found, answer) if error is None else None
        except _MALFORMED as malformed:
            raise ConnectionLost(f"what answered {verb} is not JetStream: {malformed}") from malformed
        if error is not None:
            raise fault(verb, error)
        return whole

    async def store(self, subject: str, body: bytes, headers: dict[str, str]) -> Ack:
        """
        Publish to a stream and return its acknowledgement, which may be a refusal.

        The same message is sent again after a disconnect, so it needs a message id or an expected sequence.
        """
        self.check_size(subject, body)
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.timeout_s
        while True:
            try:
                ack = decode_ack(await self.patiently(subject, body, headers))
            except ConnectionLost:
                if clock() >= end_s:
                    raise
                continue
            if ack.error is None or ack.error.err_code not in NOT_YET or clock() >= end_s:
                return ack
            await asyncio.sleep(PAUSE_S)

    async def patiently(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> Msg:
        """Ask again and again until an answer comes or ``timeout_s`` is over."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.timeout_s
        while True:
            if not self.is_online:
                await self.online(max(end_s - clock(), 0.0))
            try:
                return await self.ask(subject, body, headers)
            except Unavailable as error:
                if clock() >= end_s:
                    raise _gave_up(subject, self.timeout_s, error) from error
                if isinstance(error, NoResponders):
                    await asyncio.sleep(PAUSE_S)


def decode_ack(msg: Msg) -> Ack:
    """
    Return the acknowledgement in a message; without one (status 503) a refusal.

    Raises
    ------
    ConnectionLost
        If the message is no answer of the server: whether anything was stored is then unknown.
    """
    if not msg.data:
        return Ack(error=ApiError(code=503, description="no stream answered"))
    try:
        return _decoder_of_acks.decode(msg.data)
    except _MALFORMED as error:
        raise ConnectionLost(f"what answered is no acknowledgement: {error}") from error


def _gave_up(subject: str, timeout_s: float, last: Unavailable) -> Unavailable:
    if isinstance(last, NoResponders):
        return Unavailable(
            f"no stream took {subject} within {timeout_s:.1f} s: is JetStream enabled and the stream there? "
            "'penstock up' makes the streams; or connect as a user who may"
        )
    return Unavailable(f"gave {subject} up after {timeout_s:.1f} s: {last}; the call may be tried again")


class SingleReply:
    """A call that expects one answer."""

    __slots__ = ("future", "subject", "token")

    def __init__(self, subject: str, token: str) -> None:
        self.subject = subject
        self.token = token
        self.future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    def put(self, msg: Msg) -> None:
        """Take the answer."""
        if not self.future.done():
            self.future.set_result(msg)

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # mark as seen: the caller may have left


class ReplyRow:
    """A call that expects a row of answers."""

    __slots__ = ("_error", "_messages", "_wake", "subject", "token")

    def __init__(self, subject: str, token: str) -> None:
        self.subject = subject
        self.token = token
        self._messages: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._error: Exception | None = None

    def put(self, msg: Msg) -> None:
        """Take one answer."""
        self._messages.append(msg)
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """End the row with an error."""
        self._error = error
        self._wake.set()

    async def next(self, timeout_s: float) -> Msg:
        """Return the next answer; raise the error of :meth:`fail`, or TimeoutError."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            async with timeout(timeout_s):
                await self._wake.wait()
        return self._messages.popleft()


R = TypeVar("R", SingleReply, ReplyRow)


class Replies:
    """All calls that wait on one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = ""
        self._waiting: dict[str, SingleReply | ReplyRow] = {}
        self._last_token = 0

    async def start(self) -> None:
        """Listen on the inbox, without limits: each message was asked for."""
        self._prefix = self._client.new_inbox() + "."
        await self._client.subscribe(self._prefix + "*", cb=self._received, pending_msgs_limit=0, pending_bytes_limit=0)

    def open(self, kind: type[R], subject: str) -> R:
        """Open a call with one answer, or with a row of answers."""
        self._last_token += 1
        call = kind(subject, str(self._last_token))
        self._waiting[call.token] = call
        return call

    def inbox(self, call: SingleReply | ReplyRow) -> str:
        """Return the reply subject of a call."""
        return self._prefix + call.token

    def close(self, call: SingleReply | ReplyRow) -> None:
        """Forget a call."""
        self._waiting.pop(call.token, None)

    def fail(self, error: Exception, subject: str = "") -> None:
        """End all calls, or those to one subject (in lower case), with an error."""
        for call in list(self._waiting.values()):
            if not subject or call.subject.lower() == subject:
                call.fail(error)

    async def _received(self, msg: Msg) -> None:
        call = self._waiting.get(msg.subject[len(self._prefix) :])
        if call is not None:
            call.put(msg)


WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
NOT_YET: Final = frozenset({10158, 10163})  # a cluster still stores the same id, or the subject's last message
NOT_FOUND: Final = frozenset({10014, 10037, 10059})  # consumer, message, stream

_FULL: Final = frozenset({10002, 10023, 10028, 10047, 10077})
_TOO_LARGE: Final = frozenset({10054, 10097})
_NOT_SETTLED: Final = frozenset({10005, 10008})  # too few servers, no leader of all
_ONE_SERVER: Final = 10074
_UNAVAILABLE: Final = 500  # HTTP-like; above it the server itself is in trouble


class ServerRefusal(BusError):
    """A refusal of the server that the caller in this package handles."""

    def __init__(self, what: str, error: ApiError) -> None:
        super().__init__(f"{what}: the server refused: {error.description} (code {error.err_code})")
        self.err_code = error.err_code


class NotSettled(Unavailable):
    """The servers of a cluster have not found each other yet, or have no leader; nothing was done."""


class ConnectionLost(Unavailable):
    """The connection broke before the answer; whether the call was carried out is unknown."""


def fault(what: str, error: ApiError) -> BusError:
    """Return the exception for a refusal; ``what`` says what was tried."""
    if error.err_code in _FULL:
        return StorageFull(
            f"{what}: the server has no room left ({error.description}); nothing was stored, and nothing stored before "
            "is lost. `penstock purge` says what can go; or free space under its store_dir or raise its limit "
            "(`--max-store`), then try again"
        )
    if error.err_code in _TOO_LARGE:
        return TooLarge(f"{what}: {error.description}; send less, or raise the server's max_payload")
    if error.err_code in _NOT_SETTLED:
        return NotSettled(
            f"{what}: too few of the cluster's servers are there ({error.description}); start them all, and look with "
            "`penstock doctor`"
        )
    if error.err_code == _ONE_SERVER:
        return ServerRefusal(what, error)
    if error.code >= _UNAVAILABLE:
        return Unavailable(f"{what}: the server cannot do it now ({error.description}); try again")
    return ServerRefusal(what, error)


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a client is used.

    Attributes
    ----------
    ack_wait_s : float
        How long a worker may keep a message before another gets it.
    max_deliver : int
        How often a message of the work queue is delivered before it goes to REJECTED.
    as_client : bool
        Whether it may read by direct gets alone.
    """

    ack_wait_s: float
    max_deliver: int
    as_client: bool


class NatsClient:
    """One connected client; made by :func:`penstock_bus.nats.connect`."""

    def __init__(self, link: Link, options: ClientOptions) -> None:
        self.link = link
        self.options = options
        self.dropped = DroppedMessages()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def max_body_bytes(self) -> int:
        return self.link.max_body_bytes

    def new_id(self) -> str:
        """Return an id for a message that has none of its own."""
        return self.link.new_token()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that its caller does not wait for; :meth:`close` does."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        if self._background and self.link.is_online:
            await asyncio.wait(self._background, timeout=1.0)
        for task in self._background:
            task.cancel()
        await self.link.close()
