"""Accounts of a server in operator mode: told to it while it runs, by who has its system account's login."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock_bus.nats.link import Link
from penstock_bus.port import BusError

_UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
_DELETE: Final = "$SYS.REQ.CLAIMS.DELETE"
_LIST: Final = "$SYS.REQ.CLAIMS.LIST"


class _Answer(msgspec.Struct, frozen=True):
    """The server's answer: what it did, or why not."""

    data: dict[str, Any] = {}
    error: dict[str, Any] = {}


class _Listed(msgspec.Struct, frozen=True):
    """The server's answer: keys of accounts."""

    data: list[str] = []


async def update(link: Link, token: str) -> None:
    """
    Tell the servers of an account's claims; connections that these do not allow any more are closed.

    Raises
    ------
    BusError
        If the server does not take them.
    """
    await _ask(link, _UPDATE, token)


async def delete(link: Link, token: str) -> None:
    """Have the servers forget the accounts that a token of the operator names; their connections are closed."""
    await _ask(link, _DELETE, token)


async def listed(link: Link) -> list[str]:
    """Return the public keys of all accounts that the server knows."""
    msg = await link.patiently(_LIST, b"")
    return msgspec.json.decode(msg.data, type=_Listed).data


async def _ask(link: Link, subject: str, token: str) -> None:
    msg = await link.patiently(subject, token.encode())
    answer = msgspec.json.decode(msg.data, type=_Answer)
    if answer.error:
        raise BusError(f"the server refused an account: {answer.error.get('description', answer.error)}")
