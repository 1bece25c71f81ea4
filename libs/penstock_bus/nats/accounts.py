"""Accounts of a server in operator mode: told to it while it runs, by who has its system account's login."""

from __future__ import annotations

from typing import Any, Final, Protocol

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


class AccountPort(Protocol):
    """The accounts that the servers know."""

    async def update(self, token: str) -> None:
        """
        Tell the servers of an account's claims; connections that these do not allow any more are closed.

        Raises
        ------
        BusError
            If the server does not take them.
        """

    async def delete(self, token: str) -> None:
        """Have the servers forget the accounts that a token of the operator names; their connections are closed."""

    async def listed(self) -> list[str]:
        """Return the public keys of all accounts that the server knows."""


class NatsAccountClient(AccountPort):
    """The accounts, over a connection of the system account."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def update(self, token: str) -> None:
        await self._ask(_UPDATE, token)

    async def delete(self, token: str) -> None:
        await self._ask(_DELETE, token)

    async def listed(self) -> list[str]:
        msg = await self._link.patiently(_LIST, b"")
        try:
            return msgspec.json.decode(msg.data, type=_Listed).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BusError(f"what answered {_LIST} is no list of accounts: {error}") from error

    async def _ask(self, subject: str, token: str) -> None:
        msg = await self._link.patiently(subject, token.encode())
        try:
            answer = msgspec.json.decode(msg.data, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BusError(f"what answered {subject} is not the server: {error}") from error
        if answer.error:
            raise BusError(f"the server refused an account: {answer.error.get('description', answer.error)}")
