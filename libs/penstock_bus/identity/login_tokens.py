"""
The token of a login, as a client shows it: read where it is kept, and renewed before it ends.

:class:`LoginToken` is what a connection asks whenever it is made. ``penstock login`` keeps tokens in a file of their
own beside the context (:func:`keep_tokens`), so that all programs of a person renew the same: a provider may take a
refresh token once only. The token file of a CI system, or one that is mounted, is read anew each time, never written.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Optional

import msgspec

from penstock_bus.identity.logins import Login, Tokens, contexts_in, file_name, tokens_in, write_private
from penstock_bus.logger import get_logger
from penstock_bus.port import Unauthorized, Unavailable

_EARLY_S: Final = 120.0  # before its end a token is renewed, or at half of its life if that is later
_AGAIN_S: Final = 20.0  # between two attempts to renew it
_SLACK_S: Final = 60.0  # by which clocks may differ
_log = get_logger("penstock.login")


class LoginToken:
    """
    The token of a login.

    Parameters
    ----------
    login : Login
        With a ``token`` or a ``token_file``.
    now_s : callable
        Seconds since the epoch.
    """

    def __init__(self, login: Login, now_s: Callable[[], float]) -> None:
        self._login, self._now_s = login, now_s

    def current(self) -> str:
        """
        Return the token as it is now.

        Raises
        ------
        Unauthorized
            If its file cannot be read.
        """
        return self._read().id_token

    async def renew(self) -> bool:
        """
        Renew a token that ends soon; return whether the one that is there then has not ended.

        Raises
        ------
        Unauthorized
            If it has ended, and there is no other without a person who logs in.
        """
        tokens = self._read()
        problem: Exception | None = None
        if self._wait_s(tokens.id_token) <= 0 and tokens.refresh_token and self._login.provider is not None:
            try:
                tokens = await self._renewed()
            except (Unauthorized, Unavailable) as error:
                problem = error
                _log.warning("token_not_renewed", error=str(error))
        _, ends_s = _times(tokens.id_token)
        late_s = self._now_s() - ends_s
        if late_s > _SLACK_S:
            why = str(problem) if problem is not None else "get a new one"
            raise Unauthorized(f"the token of {described(tokens.id_token)} ended {late_s:.0f} s ago; {why}")
        return late_s < 0

    async def keep_fresh(self) -> None:
        """Renew it before it ends, again and again; return at once for one that cannot be renewed from here."""
        wait_s = 0.0
        while self._login.provider is not None and self._login.token_file:
            await asyncio.sleep(wait_s)
            try:
                await self.renew()
                wait_s = max(self._wait_s(self.current()), _AGAIN_S)
            except Unauthorized as error:
                _log.warning("token_ended", error=str(error))
                wait_s = _AGAIN_S

    def _wait_s(self, token: str) -> float:
        """Return in how many seconds a token is to be renewed."""
        issued_s, ends_s = _times(token)
        return max(ends_s - _EARLY_S, (issued_s + ends_s) / 2) - self._now_s()

    def _read(self) -> Tokens:
        if not self._login.token_file:
            return Tokens(self._login.token)
        return read_tokens(Path(self._login.token_file))

    async def _renewed(self) -> Tokens:
        """Return new tokens, which another program of this person may have got in the meantime."""
        from penstock_bus.identity.identity_provider import refreshed_tokens  # noqa: PLC0415 - few programs come here

        path, provider = Path(self._login.token_file), self._login.provider
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
            tokens = read_tokens(path)
            if self._wait_s(tokens.id_token) > 0 or provider is None:
                return tokens
            tokens = await refreshed_tokens(provider, tokens)
            keep_tokens(path, tokens)
            return tokens
        finally:
            os.close(descriptor)


def read_tokens(path: Path) -> Tokens:
    """
    Return what a file holds: a token as it is, or what :func:`keep_tokens` has written.

    Raises
    ------
    Unauthorized
        If it cannot be read, or holds neither.
    """
    try:
        body = path.read_bytes().strip()
        return msgspec.json.decode(body, type=Tokens) if body.startswith(b"{") else Tokens(body.decode("ascii"))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unauthorized(
            f"the token in {path} cannot be read: {error}; log in again with `penstock login`"
        ) from error


def keep_tokens(path: Path, tokens: Tokens) -> None:
    """Write tokens for their owner's eyes only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, msgspec.json.encode(tokens) + b"\n")


def kept_for(login: Login, context: str, tokens: Tokens, environ: Mapping[str, str]) -> Login:
    """
    Keep the tokens of a login for a context; return the login that finds them there.

    Raises
    ------
    OSError
        If they cannot be written, or this user has no home.
    """
    folder = contexts_in(environ)
    if folder is None:
        raise OSError("this user has no home folder to keep a token in")
    file = tokens_in(folder) / file_name(context)
    keep_tokens(file, tokens)
    return msgspec.structs.replace(login, token="", token_file=str(file))


def is_by_token(login: Optional[Login]) -> bool:
    """Say whether a login is a token of an identity provider."""
    return login is not None and bool(login.token or login.token_file)


def described(token: str) -> str:
    """Return whose a token is by its own words, which nobody has checked, for people to read."""
    found = _claims(token)
    who = person_of(token) or "nobody"
    return f"{who} from {found.get('iss', 'nowhere')!s:.200} for {found.get('aud', 'nobody')!s:.200}"


def person_of(token: str) -> str:
    """Return the name that most providers would call a person by, for people to read; the server decides itself."""
    found = _claims(token)
    return f"{found.get('preferred_username') or found.get('email') or found.get('sub') or ''!s:.100}"


def _times(token: str) -> tuple[float, float]:
    """Return when a token was made and when it ends, as it says, seconds since the epoch."""
    found = _claims(token)
    ends_s = found.get("exp")
    ends_s = float(ends_s) if isinstance(ends_s, (int, float)) else float("inf")
    issued_s = found.get("iat")
    return (float(issued_s) if isinstance(issued_s, (int, float)) else ends_s), ends_s


def _claims(token: str) -> dict[str, Any]:
    from penstock_bus.identity.claims import decoded  # noqa: PLC0415 - needs PyNaCl, which others need not load

    try:
        return decoded(token)
    except ValueError:
        return {}
