"""The socket for the processes of runs on this node: what their lines mean."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from penstock_bus.local_clients import LocalConnection, LocalListener
from penstock_log.aggregation_messages import (
    AggregationDenied,
    AggregationFromClient,
    AskAggregation,
    LeaveAggregation,
    LostAggregator,
)

_decoder: Final[msgspec.json.Decoder[AggregationFromClient]] = msgspec.json.Decoder(AggregationFromClient)


class RankHandler(Protocol):
    """The handler of what processes of runs ask for."""

    async def admit(self, rank: LocalRank, asked: AskAggregation) -> str:
        """Take a process in that has said who it is; return why not, empty where it is welcome."""

    def note_lost(self, rank: LocalRank, lost: LostAggregator) -> str:
        """Take note that a process cannot reach an aggregator; return why to hang up, empty where not."""

    def note_gone(self, rank: LocalRank) -> None:
        """Take note that a process needs no aggregation any more, or is gone; it may be told both."""

    def note_denied(self, reason: str) -> None:
        """Take note of why a process was sent away."""


class LocalRank(LocalConnection):
    """
    One rank of a run: a process on this node.

    Attributes
    ----------
    asked : AskAggregation or None
        What it said first.
    generation : int
        Of the assignment that it was told last; 0 before the first.
    pending : str
        What it was told last of why there is none.
    """

    def __init__(
        self, connection: socket.socket, handler: RankHandler, *, pid: int, uid: int, ticking: Callable[[], float]
    ) -> None:
        super().__init__(connection, pid=pid, uid=uid, ticking=ticking)
        self.asked: AskAggregation | None = None
        self.generation, self.pending = 0, ""
        self._handler = handler

    def refusal(self, reason: str) -> AggregationDenied:
        """Return the message that says why the process is hung up on."""
        self._handler.note_denied(reason)
        return AggregationDenied(reason=reason)

    async def greet(self, line: bytes) -> str:
        """Take the first line; return why to hang up, empty where the process is welcome."""
        message = _decoded(line)
        if isinstance(message, str):
            return message
        if not isinstance(message, AskAggregation):
            return "message: expected what the process aggregates first"
        self.asked = message
        return await self._handler.admit(self, message)

    async def handle(self, line: bytes) -> str:
        """Handle a message; return why to hang up, empty where not."""
        match message := _decoded(line):
            case LostAggregator():
                return self._handler.note_lost(self, message)
            case LeaveAggregation():
                self._handler.note_gone(self)
            case AskAggregation():
                return "message: a second request for aggregation on one connection"
            case str():
                return message
        return ""


class RankListener(LocalListener[LocalRank]):
    """The listening socket, and the processes that came in."""

    def __init__(self, path: Path, handler: RankHandler, ticking: Callable[[], float]) -> None:
        def make(connection: socket.socket, pid: int, uid: int) -> LocalRank:
            return LocalRank(connection, handler, pid=pid, uid=uid, ticking=ticking)

        super().__init__(path, make, handler.note_gone)


def _decoded(line: bytes) -> AggregationFromClient | str:
    """Return a message, or what is wrong with it."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return f"message: a line that is no message: {error}"
