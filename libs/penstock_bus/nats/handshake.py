"""
The words between a client and a server before there is a connection: addresses, and why there is none.

Both ways to connect use them, :mod:`penstock_bus.nats.bus` and :mod:`penstock_bus.nats.plain_connection`.
"""

from __future__ import annotations

import time
from typing import Final, Optional
from urllib.parse import urlsplit

from penstock_bus.errors import TooLarge, Unauthorized, Unavailable
from penstock_bus.identity.logins import Login, why_refused

HEADROOM: Final = 1024  # for our headers, which the server counts too
_SCHEMES: Final = ("nats", "tls", "ws", "wss")


def servers_of(url: str) -> list[str]:
    """Return the addresses of an address of several servers, each with its scheme; Unavailable if one is none."""
    return [_server(one.strip()) for one in url.split(",") if one.strip()] or [_server(url)]


def _server(url: str) -> str:
    """Return the address with its scheme; raise Unavailable if it is none."""
    whole = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(whole)
        if parts.scheme in _SCHEMES and parts.hostname and parts.port != 0:
            return whole
        reason = "no such scheme or no host"
    except ValueError as error:
        reason = str(error)
    raise Unavailable(
        f"cannot connect to {shown(whole)}: {reason}; expected nats://HOST:PORT, or several with commas between them"
    )


def shown(url: str) -> str:
    """Return the address without credentials."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def absent(address: str, last: Optional[Exception], count: int, waited_s: float) -> Unavailable:
    """Return the exception for servers of which none answers; ``count`` attempts met the ``last`` error."""
    why = str(last) or repr(last) if last is not None else "no answer"
    return Unavailable(
        f"no NATS server at {address}: tried {max(count, 1)} times in {waited_s:.1f} s, last: {why}. "
        "Start one with 'penstock up', or set PENSTOCK_URL to the address of yours"
    )


def is_refusal(said: str) -> bool:
    """
    Say whether a server's error at the login is about who comes, and not about what it has room or time for.

    Examples
    --------
    >>> is_refusal("Authorization Violation"), is_refusal("User Authentication Expired")
    (True, True)
    >>> is_refusal("maximum connections exceeded"), is_refusal("Authentication Timeout")
    (False, False)
    """
    lowered = said.lower()
    return "authorization violation" in lowered or ("authentication" in lowered and "timeout" not in lowered)


def refused(address: str, login: Optional[Login], named: str) -> Unauthorized:
    """Return the exception for a login that a server does not take; ``named`` is the user in the address."""
    user = login.user if login is not None else ""
    if named and not user:
        return Unauthorized(f"the NATS server at {address} refused user {named!r}; check the password in the address")
    if login is not None and login.user_jwt:
        now_s = time.time()  # noqa: TID251 - only to say what may have been the reason
        return Unauthorized(f"the NATS server at {address} refused user {user!r}{why_refused(login, address, now_s)}")
    who, do = (f"user {user!r}", "check") if user else ("a client without a user", "set")
    return Unauthorized(f"the NATS server at {address} refused {who}; {do} PENSTOCK_USER and PENSTOCK_PASSWORD")


def denied(subject: str, what: str = "publish to") -> Unauthorized:
    """Return the exception for a subject that the user may not use."""
    return Unauthorized(f"the server does not let this user {what} {subject}; log in as a user with that permission")


def check_size(what: str, body: bytes, most_bytes: int) -> None:
    """Raise TooLarge for a body over the server's limit."""
    if len(body) > most_bytes:
        raise TooLarge(
            f"the body for {what} has {len(body)} bytes and the server takes {most_bytes}; "
            "send less, or raise max_payload in the server's configuration"
        )
