"""
The socket for the clients of this node: what their lines mean.

One whose connection ends has given everything back.
"""

from __future__ import annotations

import asyncio
import pwd
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from penstock_bus.local_clients import LocalConnection, LocalListener
from penstock_log.memory_messages import (
    VERSION,
    AgentWelcome,
    BorrowSlab,
    ClientHello,
    ClientRefused,
    FindCopy,
    FromClient,
    KeepCopies,
    NoCopies,
    PlaceCopies,
    ReturnSlab,
    SlabRefused,
    SlabUse,
    ToClient,
)

MOST_BORROWING: Final = 64
"""Slabs that one client waits for at a time."""
_decoder: Final[msgspec.json.Decoder[FromClient]] = msgspec.json.Decoder(FromClient)
_NAMES: Final = ThreadPoolExecutor(2, "account-names")
"""A directory of accounts that does not answer holds up new clients, and no memory."""
_log = structlog.get_logger("penstock.memory")


class ClientHandler(Protocol):
    """The handler of what clients ask for."""

    def welcome(self) -> AgentWelcome:
        """Return what a client is told at first."""

    def borrow(self, client: LocalClient, asked: BorrowSlab) -> Coroutine[Any, Any, ToClient]:
        """Note that a client asks for a slab, and return what finds one."""

    async def answer_copies(self, client: LocalClient, asked: PlaceCopies | KeepCopies | FindCopy) -> ToClient:
        """Answer a client about copies of a checkpoint."""

    def give_back(self, client: LocalClient, slab: int) -> None:
        """Take note that a client uses a slab no more."""

    def note_use(self, client: LocalClient, use: SlabUse) -> None:
        """Take note of how a client uses its slabs."""

    def give_back_all(self, client: LocalClient) -> None:
        """Take note that a client is gone."""


class LocalClient(LocalConnection):
    """
    One client.

    Attributes
    ----------
    user : str
        The account's name, or its number where it has none.
    hello : ClientHello or None
        What it said first.
    """

    def __init__(
        self,
        connection: socket.socket,
        handler: ClientHandler,
        *,
        pid: int,
        uid: int,
        ticking: Callable[[], float],
    ) -> None:
        super().__init__(connection, pid=pid, uid=uid, ticking=ticking)
        self.user = str(uid)
        self.hello: ClientHello | None = None
        self._handler = handler
        self._borrowing: set[asyncio.Task[None]] = set()

    def refusal(self, reason: str) -> ClientRefused:
        """Return the message that says why the client is hung up on."""
        return ClientRefused(reason=reason)

    async def greet(self, line: bytes) -> str:
        """Take the hello; return why to hang up, empty where the client is welcome."""
        message = _decoded(line)
        if isinstance(message, str):
            return message
        if not isinstance(message, ClientHello):
            return "expected a hello first"
        if message.version != VERSION:
            return f"this agent speaks version {VERSION}, and the client {message.version}; update one"
        self.hello = message
        self.user = await asyncio.get_running_loop().run_in_executor(_NAMES, _account, self.uid)
        self.send(self._handler.welcome())
        return ""

    async def handle(self, line: bytes) -> str:
        """Handle a message; return why to hang up, empty where not."""
        match message := _decoded(line):
            case BorrowSlab():
                if len(self._borrowing) >= MOST_BORROWING:
                    return f"more than {MOST_BORROWING} slabs asked for at a time; wait for answers"
                found = self._handler.borrow(self, message)
                task = self._begin(self._answer(message, found))
                task.add_done_callback(lambda _: found.close())  # a task that was cancelled early has not begun it
            case PlaceCopies() | KeepCopies() | FindCopy():
                if self._borrowing:
                    return "copies were asked about before the last answer; wait for it"
                self._begin(self._answer_copies(message))
            case ReturnSlab():
                self._handler.give_back(self, message.slab)
            case SlabUse():
                self._handler.note_use(self, message)
            case ClientHello():
                return "a second hello"
            case str():
                return message
        return ""

    async def leave(self) -> None:
        """End what is under way for a client that is gone."""
        for task in list(self._borrowing):
            task.cancel()
        await asyncio.gather(*self._borrowing, return_exceptions=True)

    def _begin(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(answering)
        self._borrowing.add(task)
        task.add_done_callback(self._borrowing.discard)
        return task

    async def _answer_copies(self, asked: PlaceCopies | KeepCopies | FindCopy) -> None:
        try:
            answer = await self._handler.answer_copies(self, asked)
        except Exception:  # the client waits for an answer, whatever went wrong
            _log.exception("copies_not_answered", pid=self.pid)
            answer = NoCopies(reason="the agent failed; its log says how")
        self.send(answer)

    async def _answer(self, asked: BorrowSlab, found: Coroutine[Any, Any, ToClient]) -> None:
        try:
            answer = await found
        except Exception:  # the client waits for an answer, whatever went wrong
            _log.exception("slab_not_borrowed", pid=self.pid)
            answer = SlabRefused(slab=asked.slab, reason="the agent failed; its log says how")
        self.send(answer)


class ClientListener(LocalListener[LocalClient]):
    """The listening socket, and the clients that came in."""

    def __init__(self, path: Path, handler: ClientHandler, ticking: Callable[[], float]) -> None:
        def make(connection: socket.socket, pid: int, uid: int) -> LocalClient:
            return LocalClient(connection, handler, pid=pid, uid=uid, ticking=ticking)

        super().__init__(path, make, handler.give_back_all)


def _decoded(line: bytes) -> FromClient | str:
    """Return a message, or what is wrong with it."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return f"a line that is no message: {error}"


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
