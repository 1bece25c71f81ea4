"""
Signing in: keys for one use, and the sessions that browsers hold.

Both are texts that :class:`TokenSigner` signs, so that no replica has to remember them. A key opens a session within
:data:`KEY_S` seconds, once at each replica, from a form that the same browser was shown. Replicas that share the file
of :func:`secret_of` know each other's keys and sessions, and sessions outlive a restart. The secret is nowhere in NATS,
where extensions read too. :class:`EndedSessions` has those that were signed out before their time was over.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from penstock_bus.settings import SettingsError
from penstock_dashboard.gateway_port import Visitor

_log = structlog.get_logger("penstock.dashboard")

KEY_S: Final = 60.0
_SECRET_BYTES: Final = 32
_FIELD: Final = "csrf"
_SIGN_IN: Final = "sign-in"
MOST_ENDED: Final = 100_000
"""Ended sessions that are remembered; beyond that, those go that would have ended first."""


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What a signed text says: what it is for, whose it is, from when until when it counts, and an id of its own."""

    use: Literal["key", "session"]
    user: str
    made_s: float
    until_s: float
    id: str


class TokenSigner:
    """
    Signs keys and sessions, and knows them again.

    Parameters
    ----------
    secret : bytes
    now_s : callable
        Seconds since the epoch.
    session_s : float
        How long a session lasts, in seconds.
    ended : EndedSessions, optional
        The sessions that count no more; by default this process remembers them.

    Examples
    --------
    >>> signer = TokenSigner(b"s" * 32, lambda: 1000.0, session_s=60.0)
    >>> session = signer.open_session(signer.new_key("alice"))
    >>> signer.visitor(session).name, signer.visitor("forged")
    ('alice', None)
    """

    def __init__(
        self, secret: bytes, now_s: Callable[[], float], session_s: float, ended: EndedSessions | None = None
    ) -> None:
        self._secret, self._now_s, self._session_s = secret, now_s, session_s
        self._ended = ended or EndedSessions("", now_s)
        self._used: dict[str, float] = {}

    def new_key(self, user: str) -> str:
        """Return a key with which a browser signs in as a person."""
        return self._signed("key", user, KEY_S)

    def open_session(self, key: str) -> str | None:
        """
        Return the text of a new session; None for a key that is forged, too old or used.

        The session counts from when its key was made: logins that were revoked since open none.
        """
        ticket = self._read(key, "key")
        now_s = self._now_s()
        self._used = {used: until_s for used, until_s in self._used.items() if until_s > now_s}
        if ticket is None or ticket.id in self._used:
            return None
        self._used[ticket.id] = ticket.until_s
        return self._signed("session", ticket.user, self._session_s, made_s=ticket.made_s)

    def visitor(self, session: str) -> Visitor | None:
        """Return whose session a text is; None where it is none, or over."""
        ticket = self._read(session, "session")
        if ticket is not None and ticket.id in self._ended:
            return None
        return Visitor(name=ticket.user, session=ticket.id, began_s=ticket.made_s) if ticket is not None else None

    def end_session(self, session: str) -> None:
        """
        Have a session count no more, whoever has its text.

        Raises
        ------
        OSError
            If the list of ended sessions cannot be written; here it counts no more all the same.
        """
        if (ticket := self._read(session, "session")) is not None:
            self._ended.add(ticket.id, ticket.until_s)

    def is_ended(self, session_id: str) -> bool:
        """Say whether a session was ended before its time was over."""
        return session_id in self._ended

    def person_of_key(self, key: str) -> str | None:
        """Return as whom a key signs in; None for one that is forged or too old."""
        ticket = self._read(key, "key")
        return ticket.user if ticket is not None else None

    def sign_in_token(self, browser: str) -> str:
        """Return what the form of a key carries, which this server showed to a browser with that cookie."""
        return hmac.new(self._secret, f"{_SIGN_IN} {browser}".encode(), hashlib.sha256).hexdigest()

    def is_shown_form(self, browser: str, token: str) -> bool:
        """Say whether the form of a key comes from a page that this browser was shown."""
        return bool(browser) and hmac.compare_digest(self.sign_in_token(browser).encode(), token.encode())

    def form_token(self, visitor: Visitor) -> str:
        """Return what a form of this session carries, so that no other site can send it."""
        return hmac.new(self._secret, f"{_FIELD} {visitor.session}".encode(), hashlib.sha256).hexdigest()

    def is_own_form(self, visitor: Visitor, token: str) -> bool:
        """Say whether a form comes from a page of this session."""
        return visitor.signed_in and hmac.compare_digest(self.form_token(visitor).encode(), token.encode())

    def _signed(self, use: Literal["key", "session"], user: str, lasts_s: float, made_s: float | None = None) -> str:
        now_s = self._now_s()
        began_s = now_s if made_s is None else made_s
        body = msgspec.json.encode(Ticket(use, user, began_s, now_s + lasts_s, secrets.token_urlsafe(12)))
        return f"{_text(body)}.{_text(self._mac(body))}"

    def _read(self, text: str, use: Literal["key", "session"]) -> Ticket | None:
        try:
            body, mac = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split(".", 1))
            if not hmac.compare_digest(self._mac(body), mac):
                return None
            ticket = msgspec.json.decode(body, type=Ticket)
        except ValueError:  # of another form
            return None
        return ticket if ticket.use == use and ticket.until_s > self._now_s() else None

    def _mac(self, body: bytes) -> bytes:
        return hmac.new(self._secret, body, hashlib.sha256).digest()


class EndedSessions:
    """
    Sessions that were ended before their time was over, by id, until it is.

    Parameters
    ----------
    secret_file : str
        Beside it is the file of ended sessions, for all replicas that share it; empty: they are in memory, which ends
        with the secret itself.
    now_s : callable
        Seconds since the epoch.
    """

    def __init__(self, secret_file: str, now_s: Callable[[], float]) -> None:
        self._path = Path(f"{secret_file}.ended") if secret_file else None
        self._now_s = now_s
        self._own: dict[str, float] = {}
        self._shared: dict[str, float] = {}
        self._read_as: tuple[int, int, int] | None = None
        self._unread = ""

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._own or session_id in self._of_file()

    def add(self, session_id: str, until_s: float) -> None:
        """
        End a session, which would have counted until a time.

        Raises
        ------
        OSError
            If the file cannot be written: then other replicas, and this one after a restart, do not know of it.
        """
        self._own[session_id] = until_s
        self._own = self._lasting(self._own)
        if self._path is None:
            return
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            known = self._lasting({**_parsed(file.read()), **self._own})
            file.seek(0)
            file.write("".join(f"{one} {until_s!r}\n" for one, until_s in known.items()))
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def _of_file(self) -> dict[str, float]:
        """Return what the file has, which is read again once it has changed."""
        if self._path is None:
            return {}
        try:
            found = self._path.stat()
            if (as_ := (found.st_ino, found.st_mtime_ns, found.st_size)) != self._read_as:
                with self._path.open() as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
                    self._shared = _parsed(file.read())
                self._read_as = as_
        except FileNotFoundError:
            self._shared, self._read_as = {}, None
        except (OSError, ValueError) as error:  # what was read before still counts
            if str(error) != self._unread:
                self._unread = str(error)
                advice = "sessions that other replicas end still count here; mend it, or remove it"
                _log.warning("ended_sessions_not_read", file=str(self._path), error=self._unread, advice=advice)
        return self._shared

    def _lasting(self, known: dict[str, float]) -> dict[str, float]:
        now_s = self._now_s()
        found = sorted((pair for pair in known.items() if pair[1] > now_s), key=lambda pair: pair[1])
        return dict(found[-MOST_ENDED:])


def _parsed(text: str) -> dict[str, float]:
    """Return ended sessions with until when they would have counted; a line that was not written whole is left out."""
    found = {}
    for line in text.splitlines():
        session_id, _, until = line.partition(" ")
        with contextlib.suppress(ValueError):
            found[session_id] = float(until)
    return found


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def secret_of(file: str) -> bytes:
    """
    Return the secret of a file, which is made where it is not there; without a file, one that ends with this process.

    Raises
    ------
    SettingsError
        If the file cannot be read or made, if others than its owner may read it, or if it is too short.
    """
    if not file:
        return secrets.token_bytes(_SECRET_BYTES)
    path = Path(file)
    try:
        if not path.exists():
            _make_secret(path)
        return _read_secret(path)
    except OSError as error:
        raise SettingsError(
            f"[dashboard] secret_file = {file!r}: {error.strerror}; expected a file that this user may read, or a "
            "folder to make it in"
        ) from error


def _make_secret(path: Path) -> None:
    """Make the file, whole also after a power cut; of several dashboards that do at once, the first one's stays."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as made:
            made.write(secrets.token_bytes(_SECRET_BYTES))
            made.flush()
            os.fsync(made.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        new.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_secret(path: Path) -> bytes:
    mode = path.stat().st_mode & 0o077
    secret = path.read_bytes()
    if mode:
        raise SettingsError(f"[dashboard] secret_file: {path} is open to others; expected mode 0600: chmod 600 {path}")
    if len(secret) < _SECRET_BYTES:
        raise SettingsError(
            f"[dashboard] secret_file: {path} has {len(secret)} bytes, expected {_SECRET_BYTES} or more; delete it, "
            "and a new one is made"
        )
    return secret
