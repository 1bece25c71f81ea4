"""
The server's question who somebody is that shows no login of its own ("auth callout", NATS' ADR-26), and the answer.

The server asks on a subject of the account whose claims name who answers. Nobody else may publish there: all others
that come to this account are asked about, and let into none or into another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from nats.aio.msg import Msg

from penstock_bus.identity.claims import decoded
from penstock_bus.logger import get_logger
from penstock_bus.nats.link import Link, unsubscribe

_SUBJECT: Final = "$SYS.REQ.USER.AUTH"
_GROUP: Final = "callout"
_log = get_logger("penstock.callout")


class CalloutQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """
    A connection of which the server does not know whose it is.

    Attributes
    ----------
    server : str
        Public key of the server.
    public : str
        The public key that it has made up for the connection.
    token : str
        What the client has shown; empty for nothing.
    host : str
        The address from which it comes.
    """

    server: str
    public: str
    token: str
    host: str


class _Server(msgspec.Struct, frozen=True):
    """The ``server_id`` of a question."""

    id: str


class _Client(msgspec.Struct, frozen=True):
    """The ``client_info`` of a question."""

    host: str = ""


class _Shown(msgspec.Struct, frozen=True):
    """The ``connect_opts`` of a question: what the client has sent."""

    auth_token: str = ""


class _Question(msgspec.Struct, frozen=True):
    """The claims of a question."""

    server_id: _Server
    user_nkey: str
    client_info: _Client = _Client()
    connect_opts: _Shown = _Shown()


@asynccontextmanager
async def answering(link: Link, answer: Callable[[CalloutQuestion], Awaitable[str]]) -> AsyncIterator[None]:
    """
    Answer the server while the context is open, several questions side by side.

    Parameters
    ----------
    answer : callable
        Returns signed claims: :func:`penstock_bus.identity.claims.callout_answer`.
    """
    running: set[asyncio.Task[None]] = set()

    async def take(msg: Msg) -> None:
        task = asyncio.create_task(_answer(msg, answer))
        running.add(task)
        task.add_done_callback(running.discard)

    await link.online(link.timeout_s)
    sub = await link.client.subscribe(_SUBJECT, _GROUP, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
    await asyncio.sleep(0)  # the flush must come behind the subscription
    await link.flush()
    try:
        yield
    finally:
        await unsubscribe(sub)
        for task in running:
            task.cancel()


async def _answer(msg: Msg, answer: Callable[[CalloutQuestion], Awaitable[str]]) -> None:
    try:
        asked = msgspec.convert(decoded(msg.data.decode())["nats"], _Question)
        question = CalloutQuestion(
            server=asked.server_id.id,
            public=asked.user_nkey,
            token=asked.connect_opts.auth_token,
            host=asked.client_info.host,
        )
        await msg.respond((await answer(question)).encode())
    except Exception as error:  # the server refuses who is not answered for, and the next are to be answered
        _log.error("callout_not_answered", error=repr(error))
