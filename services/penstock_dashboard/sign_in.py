"""
Signing in: keys for one use, and the sessions that browsers hold.

Both are texts that :class:`TokenSigner` signs, so that no replica has to remember them. A key opens a session within
:data:`KEY_S` seconds, once at each replica. Replicas that share the file of :func:`secret_of` know each other's keys
and sessions, and sessions outlive a restart. The secret is nowhere in NATS, where extensions read too.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock_bus.settings import SettingsError
from penstock_dashboard.gateway_port import Visitor

KEY_S: Final = 60.0
_SECRET_BYTES: Final = 32
_FIELD: Final = "csrf"


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

    Examples
    --------
    >>> signer = TokenSigner(b"s" * 32, lambda: 1000.0, session_s=60.0)
    >>> session = signer.open_session(signer.new_key("alice"))
    >>> signer.visitor(session).name, signer.visitor("forged")
    ('alice', None)
    """

    def __init__(self, secret: bytes, now_s: Callable[[], float], session_s: float) -> None:
        self._secret, self._now_s, self._session_s = secret, now_s, session_s
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
        return Visitor(name=ticket.user, session=ticket.id, began_s=ticket.made_s) if ticket is not None else None

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
