"""
Requests alone, over a socket: what a command that asks one thing and ends needs of NATS.

:class:`PlainConnection` connects, sends requests and receives answers; it blocks, and keeps no event loop. It does not
import ``nats``, which takes longer to load than such a command may last. What follows, reads or serves uses
:func:`penstock_bus.nats.connect`.

References
----------
NATS client protocol, https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Final, Optional, Union
from urllib.parse import SplitResult, urlsplit

import msgspec

from penstock_bus.errors import BusError, NoResponders, ServiceError, Unauthorized, Unavailable
from penstock_bus.identity.logins import Login
from penstock_bus.nats import handshake
from penstock_log import subjects

if TYPE_CHECKING:
    import ssl

_PORT: Final = 4222
_RETRY_S: Final = 0.1
_LEAST_S: Final = 1.0
_READ_BYTES: Final = 1 << 18
_ERROR: Final = "Nats-Service-Error"
_ERROR_CODE: Final = "Nats-Service-Error-Code"
_SCHEMES: Final = ("nats", "tls")


class ServerInfo(msgspec.Struct, frozen=True):
    """What a server says of itself, as far as it matters here."""

    max_payload: int = 1 << 20
    nonce: str = ""
    headers: bool = False
    tls_required: bool = False


class PlainAnswer(msgspec.Struct, frozen=True):
    """An answer: of which request, and its body or the error."""

    token: int
    body: bytes = b""
    error: Optional[BusError] = None


def is_plain(url: str) -> bool:
    """Say whether all servers of an address are reached by a plain socket or TLS, and not by a WebSocket."""
    return all(urlsplit(one).scheme in _SCHEMES for one in handshake.servers_of(url))


class _Asked(msgspec.Struct, frozen=True):
    """A request under way: its subject, and until when an answer to it is waited for that has begun."""

    subject: str
    end_s: Optional[float]


class _LoginFailed(Unavailable):
    """The server ended the login by an error, and refused nobody."""


class PlainConnection:
    """
    A connection of one thread; one that was lost is made again by the next request.

    Parameters
    ----------
    url : str
        ``nats://HOST:PORT``; several of a cluster with commas between them.
    login : Login or None
        Who comes there: by a claim or a password. None is nobody, or whom the address names.
    name : str
        Shown by the server's monitoring.
    connect_timeout_s : float
        How long to look for the server; of several, each is given a second at least.

    Raises
    ------
    Unavailable
        If no server answers at the address.
    Unauthorized
        If it refuses the user.
    """

    def __init__(self, url: str, login: Optional[Login], *, name: str, connect_timeout_s: float) -> None:
        self._servers = handshake.servers_of(url)
        self._address = ", ".join(map(handshake.shown, self._servers))
        self._login, self._name = login, name
        self._connect_timeout_s = max(connect_timeout_s, _LEAST_S * len(self._servers))
        prefix = subjects.inbox(subjects.person(login.user)) if login is not None and login.user_jwt else "_INBOX"
        self._inbox = f"{prefix}.{os.urandom(11).hex()}"
        self._asked: dict[int, _Asked] = {}
        self._last_token = 0
        self._info = ServerInfo()
        self._socket: Optional[socket.socket] = None
        self._buffer = bytearray()
        self._connect()

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the server takes beside our headers."""
        return self._info.max_payload - handshake.HEADROOM

    def send(self, subject: str, body: bytes, patience_s: Optional[float] = None) -> int:
        """
        Send a request, and return its token, which its answer has too.

        Parameters
        ----------
        patience_s : float, optional
            How long the request may take over all: a server that stops in the midst of it, or of its answer, is left
            then. None: for ever.

        Raises
        ------
        TooLarge, Unavailable, Unauthorized
        """
        end_s = None if patience_s is None else time.monotonic() + patience_s  # noqa: TID251 - this is I/O
        if self._socket is None:
            self._connect()
        handshake.check_size(subject, body, self.max_body_bytes)
        self._last_token += 1
        reply = f"{self._inbox}.{self._last_token}"
        self._write(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n", end_s)
        self._asked[self._last_token] = _Asked(subject, end_s)
        return self._last_token

    def receive(self, timeout_s: Optional[float]) -> Optional[PlainAnswer]:
        """
        Return the next answer to a request that is not forgotten; None if none comes in time.

        Raises
        ------
        Unavailable
            If the connection was lost, or the server stopped in the midst of an answer: no request before it is
            answered any more.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s  # noqa: TID251 - this is I/O
        while True:
            line = self._line(end_s)
            if line is None:
                return None
            answer = self._heard(line)
            if answer is not None and self._asked.pop(answer.token, None) is not None:
                return answer

    def forget(self, token: int) -> None:
        """Take no answer to a request any more."""
        self._asked.pop(token, None)

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._buffer.clear()
        self._asked.clear()

    # --- connecting
    def _connect(self) -> None:
        """Connect to the first server that answers, trying all in turn until the time is over."""
        began_s = time.monotonic()  # noqa: TID251 - this is I/O
        end_s, count, last = began_s + self._connect_timeout_s, 0, None
        each_s = max(_LEAST_S, self._connect_timeout_s / len(self._servers))
        while True:
            for server in self._servers:
                now_s = time.monotonic()  # noqa: TID251 - this is I/O
                if count and now_s >= end_s:
                    if isinstance(last, _LoginFailed):
                        raise last
                    raise handshake.absent(self._address, last, count, self._connect_timeout_s)
                try:
                    return self._greet(urlsplit(server), min(now_s + each_s, max(end_s, now_s + _RETRY_S)))
                except (OSError, Unavailable, msgspec.MsgspecError) as error:
                    self.close()
                    last, count = error, count + 1
            time.sleep(_RETRY_S)

    def _greet(self, server: SplitResult, end_s: float) -> None:
        """Say who we are to a server, and listen for answers."""
        host = server.hostname or ""
        name = host.encode() if host.isascii() else host  # as text it would load the encodings of other alphabets
        self._socket = socket.create_connection((name, server.port or _PORT), _left_s(end_s))  # type: ignore[arg-type]
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = self._line(end_s)
        if hello is None or not hello.startswith(b"INFO "):
            raise Unavailable("is it a NATS server?" if hello else "no answer")
        self._info = msgspec.json.decode(hello[5:], type=ServerInfo)
        if self._info.tls_required or server.scheme == "tls" or (self._login is not None and self._login.ca):
            if self._buffer:
                raise Unavailable("it went on in the clear, where encryption was to begin")
            self._socket.settimeout(_left_s(end_s))
            self._socket = self._tls().wrap_socket(self._socket, server_hostname=host)
        options = msgspec.json.encode(self._options(server))
        self._write(b"CONNECT " + options + b"\r\nSUB " + self._inbox.encode() + b".* 1\r\nPING\r\n", end_s)
        while (line := self._line(end_s)) != b"PONG":
            if line is None:
                raise Unavailable("no answer to the login")
            if line.startswith(b"-ERR"):
                self.close()
                said = line[4:].decode(errors="replace").strip(" '")
                if handshake.is_refusal(said):
                    raise handshake.refused(self._address, self._login, server.username or "")
                raise _LoginFailed(f"the NATS server at {self._address} ended the login: {said}; try again later")

    def _tls(self) -> ssl.SSLContext:
        import ssl  # noqa: PLC0415 - most clusters of one machine do without

        return ssl.create_default_context(cadata=(self._login.ca or None) if self._login is not None else None)

    def _options(self, server: SplitResult) -> dict[str, Any]:
        more = {"headers": True, "no_responders": True} if self._info.headers else {}
        return {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "penstock",
            "protocol": 1,
            "name": self._name,
            **more,
            **self._proof(server),
        }

    def _proof(self, server: SplitResult) -> dict[str, str]:
        login = self._login
        if login is None or not (login.user_jwt or login.user or login.password):
            if server.username is None:
                return {}
            if server.password is None:
                return {"auth_token": server.username}
            return {"user": server.username, "pass": server.password}
        if not login.user_jwt:
            return {"user": login.user, "pass": login.password}
        from penstock_bus.identity import nonce  # noqa: PLC0415 - needs PyNaCl, which others need not load

        try:
            signature = nonce.answer(login.user_seed, self._info.nonce)
        except ValueError as error:
            raise Unauthorized(f"the login of {login.user!r} is damaged: {error}; get it anew") from error
        return {"jwt": login.user_jwt, "sig": signature}

    # --- the protocol
    def _heard(self, line: bytes) -> Optional[PlainAnswer]:
        """Deal with a line of the server's; return the answer that it begins, if it begins one."""
        verb, _, rest = line.partition(b" ")
        if verb == b"MSG":
            subject, _, *_, size = rest.split()
            return self._answer(subject, b"", self._payload(int(size)))
        if verb == b"HMSG":
            subject, _, *_, header_size, size = rest.split()
            payload = self._payload(int(size))
            return self._answer(subject, payload[: int(header_size)], payload[int(header_size) :])
        if verb == b"PING":
            self._write(b"PONG\r\n", self._patience_ends_s())
        elif verb == b"-ERR":
            return self._error(rest.decode(errors="replace").strip("' "))
        elif verb == b"INFO":
            self._info = msgspec.json.decode(rest, type=ServerInfo)
        return None

    def _answer(self, subject: bytes, header: bytes, body: bytes) -> Optional[PlainAnswer]:
        """Return the answer that a message is; None for one that was not sent to us."""
        inbox, _, number = subject.rpartition(b".")
        if inbox.decode(errors="replace") != self._inbox or not number.isdigit():
            return None
        token = int(number)
        if not header:
            return PlainAnswer(token, body)
        first, *lines = header.decode(errors="replace").split("\r\n")
        if first.partition(" ")[2].startswith("503"):
            asked = self._asked.get(token)
            what = asked.subject if asked is not None else "that"
            return PlainAnswer(token, error=NoResponders(f"nobody serves {what}; is it running?"))
        fields = {name: text.strip() for name, _, text in (one.partition(":") for one in lines)}
        if _ERROR not in fields and _ERROR_CODE not in fields:
            return PlainAnswer(token, body)
        code = fields.get(_ERROR_CODE, "500")
        status = int(code) if code.isascii() and code.isdigit() else 500
        return PlainAnswer(token, error=ServiceError(status, fields.get(_ERROR, ""), body))

    def _error(self, text: str) -> Optional[PlainAnswer]:
        """Return an error of the server's as the answer to the request that it is about."""
        lowered = text.lower()
        if "permissions violation for publish to" not in lowered:
            raise self._lost(text)
        wanted = lowered.rpartition(' to "')[2].partition('"')[0]
        about = next((token for token, asked in self._asked.items() if asked.subject.lower() == wanted), None)
        return PlainAnswer(about, error=handshake.denied(self._asked[about].subject)) if about is not None else None

    # --- bytes
    def _line(self, end_s: Optional[float]) -> Optional[bytes]:
        """Return the next line without its end; None if it does not come in time."""
        while (at := self._buffer.find(b"\r\n")) < 0:
            if not self._read(end_s):
                return None
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 2]
        return line

    def _payload(self, size: int) -> bytes:
        """Return so many bytes and drop the line end behind them; what was begun is waited for, with patience."""
        while len(self._buffer) < size + 2:
            if not self._read(self._patience_ends_s()):
                raise self._lost("the server stopped in the midst of an answer")
        found = bytes(self._buffer[:size])
        del self._buffer[: size + 2]
        return found

    def _read(self, end_s: Optional[float]) -> bool:
        """Read what there is; False if nothing comes in time."""
        if self._socket is None:
            raise self._lost("it is closed")
        wait_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)  # noqa: TID251 - this is I/O
        try:
            pending = getattr(self._socket, "pending", None)  # what TLS has read already, select does not see
            if not (pending is not None and pending()) and not select.select([self._socket], [], [], wait_s)[0]:
                return False
            self._socket.settimeout(_left_s(end_s))
            data = self._socket.recv(_READ_BYTES)
        except socket.timeout:  # under TLS: a part of a record has come, and it goes on there
            return False
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost("the server has closed it")
        self._buffer += data
        return True

    def _write(self, data: bytes, end_s: Optional[float]) -> None:
        try:
            assert self._socket is not None  # noqa: S101 - :meth:`send` has connected
            self._socket.settimeout(_left_s(end_s))
            self._socket.sendall(data)
        except socket.timeout as error:
            raise self._lost("the server takes nothing more") from error
        except OSError as error:
            raise self._lost(error) from error

    def _patience_ends_s(self) -> Optional[float]:
        """Return when the last of the requests under way is given up; None where one never is, or none is under way."""
        ends_s = [asked.end_s for asked in self._asked.values() if asked.end_s is not None]
        return max(ends_s) if ends_s and len(ends_s) == len(self._asked) else None

    def _lost(self, why: Union[str, OSError]) -> Unavailable:
        self.close()
        advice = "look what became of it, and try again"
        return Unavailable(f"the connection to {self._address} was lost before it answered: {why}; {advice}")


def _left_s(end_s: Optional[float]) -> Optional[float]:
    """Return the time that is left, for a socket: a little at least, since none at all would mean not to wait."""
    return None if end_s is None else max(end_s - time.monotonic(), _RETRY_S)  # noqa: TID251 - this is I/O
