"""
What a rank says to aggregators: each part's next request, the answers, and the connections.

:class:`AggregatorTalk` has one connection to each aggregator of its run and waits for all of them at once. It does for
each part what the part needs next: join it, push a step, pull a result. What breaks off is begun again; an aggregator
counts each push once, so nothing is lost and nothing is counted twice.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Callable, Final, NamedTuple

import numpy as np

from penstock.aggregation.aggregator_connection import AggregatorConnection, dial, status_of
from penstock.aggregation.frames import (
    JOINED,
    SHARED_AT,
    PartFlag,
    PartFrame,
    PartFrameError,
    PartRequest,
    PartStatus,
)
from penstock.aggregation.shared_vectors import SharedVectors, map_result
from penstock.sessions.setup import SessionError
from penstock_log.aggregation_messages import (
    PART_BYTES,
    AggregatorAddress,
    LostAggregator,
    PartAt,
    PartsAt,
    VectorLayout,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

LOOK_S: Final = (0.05, 1.0)
"""How long an aggregator that cannot be reached is left alone, at first and at most."""
MOST_MAPPED: Final = 256
"""Parts whose results are read from an aggregator's memory, since each takes a descriptor; others come over sockets."""
_ELSEWHERE: Final = frozenset({PartStatus.MOVED, PartStatus.STALE, PartStatus.UNKNOWN_PART})
"""The part is not here, or not any more: it is where the agent says next."""
_MOST_REASON: Final = 4096


class AggregationError(SessionError):
    """The exchange cannot go on; the message says why, and what to do."""


class HeldState(NamedTuple):
    """Parameters and optimizer state of a part after a step."""

    step: int
    vectors: Vector
    """(1 + state vectors, elements): the parameters first."""


class RankPart:
    """One part, as its rank knows it."""

    def __init__(self, number: int, start: int, stop: int) -> None:
        self.number, self.start, self.stop = number, start, stop
        self.placed: PartAt | None = None
        """Where the agent says that it is."""
        self.at: PartAt | None = None
        """Where this rank uses it: the same, or the one before."""
        self.left = False
        """Whether it is there no more."""
        self.joined = False
        self.joining = self.pushed = self.pulling = False
        """What has been sent about the next step, over the connection that there is."""
        self.mapped: Vector | None = None
        """Its result in the memory of its aggregator, if that shares it."""
        self.push_request = 0
        """The request by which the next step was pushed."""
        self.step = 0
        """The last step that is complete there, as this rank knows."""
        self.completed = 0
        """The last step whose result this rank has."""
        self.target = 0
        """The last step that this rank pushes."""
        self.safe = 0
        self.held: HeldState | None = None
        self.incoming: Vector | None = None
        """Where the next state to be held is received."""
        self.gives_state = False
        """Whether the caller still waits for its state."""

    def restart(self) -> None:
        """Begin the next step's frames anew: what was said is not heard, or its answer does not come."""
        self.joining = self.pushed = self.pulling = False


class _Asked(NamedTuple):
    """A request that is not answered yet."""

    part: RankPart
    kind: PartRequest
    at: PartAt
    step: int
    flags: PartFlag = PartFlag.NONE


class AggregatorTalk:
    """
    The parts of one rank's vectors, and its connections to their aggregators.

    One thread at a time drives it; :meth:`placed` and :meth:`denied` may be called by any other.

    Parameters
    ----------
    layout : VectorLayout
    memory : SharedVectors
        The pushes that are kept.
    on_lost : callable
        Told of an aggregator that cannot be reached.
    snapshot_every : int
        After so many steps the holder of a part takes its state.
    shares_memory : bool
        Whether aggregators of this host are given the memory.

    Attributes
    ----------
    parts : list of RankPart
    into : (N,) array or None
        Where results go; None while nobody pulls.
    state_into : (S, N) array or None
        Where the optimizer's state goes, of parts that say so.
    begun : bool
        Whether anything may be said: the vectors that the run begins with are there.
    counts : Counter
        ``moves``, ``rejoins``, ``reconnects``, and bytes ``sent`` and ``received`` over connections that are closed.
    """

    def __init__(
        self,
        layout: VectorLayout,
        memory: SharedVectors,
        on_lost: Callable[[LostAggregator], object],
        *,
        snapshot_every: int,
        shares_memory: bool,
    ) -> None:
        self._layout, self._memory, self._on_lost, self._every = layout, memory, on_lost, snapshot_every
        self._dtype = np.dtype(layout.dtype)
        self._shares_memory = shares_memory and memory.descriptor >= 0
        ends = np.cumsum(layout.parts).tolist()
        sizes = enumerate(zip(layout.parts, ends))
        self.parts = [RankPart(number, end - size, end) for number, (size, end) in sizes]
        self.into: Vector | None = None
        self.state_into: Vector | None = None
        self.begun = False
        self.counts: Counter[str] = Counter()
        self._closed = False

        self._news_lock = threading.Lock()
        self._news: PartsAt | None = None
        self._denied = ""
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)

        self._generation = 0
        self._addresses: dict[str, AggregatorAddress] = {}
        self._connections: dict[str, AggregatorConnection] = {}
        self._by_fd: dict[int, AggregatorConnection] = {}
        self._retry: dict[str, tuple[float, float]] = {}
        """Aggregator → when it is looked for again, and how long after that."""
        self._reported: set[tuple[str, str]] = set()
        self._unshared: set[str] = set()
        """Aggregators that do not take this rank's memory."""
        self._sharing: dict[int, str] = {}
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._asked: dict[int, _Asked] = {}
        self._request = 0
        self._reasons: dict[int, bytearray] = {}
        self._problem: AggregationError | None = None

    # --- what other threads say
    def placed(self, where: PartsAt) -> None:
        """Say where the parts are from now on."""
        with self._news_lock:
            self._news = where
        self._wake()

    def denied(self, reason: str) -> None:
        """Say that there is no aggregation any more; whoever waits gets the reason."""
        with self._news_lock:
            self._denied = reason or "no reason was given"
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it wakes up anyway
            self._waker.send(b"!")

    def leave(self) -> None:
        """Tell the aggregators that this rank pushes nothing any more, as far as that goes without waiting."""
        for part in self.parts:
            connection = self._connections.get(part.at.aggregator) if part.at is not None else None
            if part.at is not None and connection is not None and part.joined and not part.left:
                with suppress(OSError):
                    self._ask(connection, _Asked(part, PartRequest.LEAVE, part.at, part.step))
                    connection.send_more()

    def end(self) -> None:
        """Have whoever drives it get an error."""
        self._closed = True
        self._wake()

    def close(self) -> None:
        """Hang up; nobody drives it any more."""
        self._closed = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self._by_fd.clear()
        self._waker.close()
        self._woken.close()

    # --- what the exchange asks for
    @property
    def connections(self) -> list[AggregatorConnection]:
        """Those that are open."""
        return list(self._connections.values())

    def shares(self, part: RankPart) -> bool:
        """Say whether a part's aggregator has this rank's memory."""
        connection = self._connections.get(part.at.aggregator) if part.at is not None else None
        return connection is not None and connection.shares

    def check_open(self) -> None:
        """Raise AggregationError if it is closed, or cannot go on."""
        if self._closed:
            message = "the exchange is closed"
            raise AggregationError(message)
        if self._problem is not None:
            raise self._problem

    def drive(self, done: Callable[[], bool], timeout_s: float) -> None:
        """
        Let answers come in until something is done.

        Raises
        ------
        AggregationError
            If it takes longer, or there is no aggregation any more.
        """
        deadline_s = perf_counter() + timeout_s
        while True:
            self.take_news()
            self.check_open()
            if done():
                return
            now_s = perf_counter()
            if now_s >= deadline_s:
                raise AggregationError(self._what_is_waited_for(timeout_s))
            until_s = min([deadline_s, *(again_s for again_s, _ in self._retry.values())])
            for fd, events in self._poll.poll(max(0.0, until_s - now_s) * 1000 + 1):
                self._handle_events(fd, events)
            self._look_again()

    def _handle_events(self, fd: int, events: int) -> None:
        connection = self._by_fd.get(fd)
        if connection is None:
            with suppress(OSError):
                self._woken.recv(4096)
            return
        try:
            if events & select.POLLOUT:
                connection.send_more()
            if events & ~select.POLLOUT:
                connection.receive_more()
            self._watch(connection)
        except (OSError, PartFrameError) as error:
            self._lose(connection, error)

    def _watch(self, connection: AggregatorConnection) -> None:
        if self._connections.get(connection.address.aggregator) is connection:
            wanted = select.POLLIN | (select.POLLOUT if connection.wants_to_send else 0)
            self._poll.modify(connection.socket, wanted)

    def take_news(self) -> None:
        """Take in what the agent has said meanwhile."""
        with self._news_lock:
            news, self._news = self._news, None
            denied = self._denied
        if denied and self._problem is None:
            self._problem = AggregationError(f"there is no aggregation for this run: {denied}")
        if news is None:
            return
        if len(news.parts) != len(self.parts):
            self._problem = AggregationError(
                f"the agent knows {len(news.parts)} parts, and there are {len(self.parts)}"
            )
            return
        if news.generation < self._generation:
            return
        self._generation = news.generation
        self._addresses = {address.aggregator: address for address in news.aggregators}
        for at in news.parts:
            part = self.parts[at.part]
            if part.placed is None or at.generation > part.placed.generation:
                part.placed = at
        for name in list(self._retry):
            self._retry[name] = (0.0, LOOK_S[0])
        for part in self.parts:
            self.advance(part)

    def _look_again(self) -> None:
        if not self._retry:
            return
        now_s = perf_counter()
        due = [name for name, (again_s, _) in self._retry.items() if again_s <= now_s]
        for name in due:
            parts = [part for part in self.parts if part.at is not None and part.at.aggregator == name]
            if not parts:
                del self._retry[name]
            for part in parts:
                self.advance(part)

    def _what_is_waited_for(self, timeout_s: float) -> str:
        waited = [part for part in self.parts if part.completed != part.target or part.gives_state]
        lost = [part.at.aggregator for part in waited if part.at is not None and part.at.aggregator in self._retry]
        step = max(part.target for part in self.parts)
        said = f"step {step} was not complete within {timeout_s:g} s: {len(waited)} of {len(self.parts)} parts"
        if lost:
            return f"{said}; aggregator {lost[0]} cannot be reached, and the agent named no other"
        if any(part.at is None or part.left for part in waited):
            return f"{said}; some of them have no aggregator, as far as the agent has said"
        if any(part.joining for part in waited):
            return f"{said}; their aggregators wait for peers that have not joined"
        return f"{said}; peers did not push their values of it"

    # --- one part
    def advance(self, part: RankPart) -> None:
        """Say to a part's aggregator what is to be said next."""
        at = self._settle(part) if self.begun else None
        connection = self._connected(at.aggregator) if at is not None else None
        if at is None or connection is None:
            return
        try:
            if not part.joined:
                self._join(part, at, connection)
            elif part.step < part.target:
                self._next_step(part, at, connection)
            elif part.completed < part.step:
                self._missed_result(part, at, connection)
            elif part.gives_state and not part.pulling:
                part.pulling = True
                self._ask(connection, _Asked(part, PartRequest.PULL, at, part.step, PartFlag.STATE))
            connection.send_more()
        except OSError as error:
            self._lose(connection, error)
        else:
            self._watch(connection)

    def _settle(self, part: RankPart) -> PartAt | None:
        """Go where the part is, if it has to be elsewhere; return where, or None while that is not known."""
        placed, at = part.placed, part.at
        if placed is None:
            return None
        if at is not None:
            if placed.generation <= at.generation:
                return None if part.left else at
            if placed.how == "copy" and not part.left and at.aggregator in self._connections:
                return at  # the aggregator that has it says when it moves
            self.counts["moves" if placed.how == "copy" else "rejoins"] += 1
        part.at, part.left, part.joined = placed, False, placed.how == "copy"
        part.restart()
        return placed

    def _join(self, part: RankPart, at: PartAt, connection: AggregatorConnection) -> None:
        if part.joining:
            return
        part.joining = True
        oldest = self._memory.oldest
        fields = JOINED.pack(part.target + 1 if oldest is None else oldest, part.held.step if part.held else 0)
        vectors = [part.held.vectors] if part.held else []
        self._ask(connection, _Asked(part, PartRequest.JOIN, at, part.completed), fields, *vectors)

    def _next_step(self, part: RankPart, at: PartAt, connection: AggregatorConnection) -> None:
        step, itemsize = part.step + 1, self._layout.itemsize
        if not part.pushed:
            part.pushed = True
            if connection.shares:
                place = SHARED_AT.pack(self._memory.push_at(step) + part.start * itemsize)
                self._ask(connection, _Asked(part, PartRequest.PUSH, at, step, PartFlag.SHARED), place)
            else:
                values = self._memory.push_of(step)[part.start : part.stop]
                self._ask(connection, _Asked(part, PartRequest.PUSH, at, step), values)
        if part.pulling or (step > part.completed and self.into is None):
            return
        if part.held is not None and step % self._every == 0 and step > part.held.step:
            part.pulling = True
            self._ask(connection, _Asked(part, PartRequest.PULL, at, step, PartFlag.STATE))
        elif step <= part.completed:
            part.pulling = True
            self._ask(connection, _Asked(part, PartRequest.PULL, at, step, PartFlag.NO_VALUES))
        else:
            self._pull_values(part, at, step, connection)

    def _missed_result(self, part: RankPart, at: PartAt, connection: AggregatorConnection) -> None:
        """Pull what the part was joined with, if this rank has not got it before its aggregator was lost."""
        if self.into is not None and not part.pulling:
            self._pull_values(part, at, part.step, connection)

    def _pull_values(self, part: RankPart, at: PartAt, step: int, connection: AggregatorConnection) -> None:
        part.pulling = True
        flags = PartFlag.SHARED if connection.shares and part.number < MOST_MAPPED else PartFlag.NONE
        self._ask(connection, _Asked(part, PartRequest.PULL, at, step, flags))

    def _ask(self, connection: AggregatorConnection, asked: _Asked, *payload: Any) -> None:
        part = asked.part
        views = [memoryview(piece).cast("B") for piece in payload]
        frame = PartFrame(
            asked.kind,
            request=self._next_request(),
            part=part.number,
            generation=asked.at.generation,
            step=asked.step,
            safe_step=part.held.step if part.held is not None else 0,
            length=sum(len(view) for view in views),
            flags=asked.flags,
            dtype=self._layout.itemsize,
        )
        self._asked[frame.request] = asked
        if asked.kind == PartRequest.PUSH:
            part.push_request = frame.request
        connection.send(frame, *views)

    def _next_request(self) -> int:
        self._request = (self._request + 1) & 0xFFFFFFFF
        return self._request

    # --- answers
    def _place_for(self, frame: PartFrame) -> Sequence[memoryview]:
        """Say where the payload of an answer goes."""
        asked = self._asked.get(frame.request)
        if (
            frame.status != PartStatus.OK
            or asked is None
            or not self._is_awaited(asked)
            or frame.kind != PartRequest.PULL
        ):
            if frame.length > PART_BYTES * 3:
                message = f"a payload of {frame.length} bytes is none of an aggregator's"
                raise PartFrameError(PartStatus.TOO_LONG, message)
            self._reasons[frame.request] = reason = bytearray(frame.length)
            return [memoryview(reason)]
        part = asked.part
        views = self._place_of(asked)
        expected = sum(len(view) for view in views)
        if frame.length != expected:
            message = f"part {part.number} has {expected} bytes, and the answer {frame.length}"
            raise PartFrameError(PartStatus.WRONG_SHAPE, message)
        return views

    def _place_of(self, asked: _Asked) -> Sequence[memoryview]:
        part, result = asked.part, self.into
        if asked.flags & PartFlag.STATE:
            if self.state_into is not None and _is_callers(asked):
                scratch = np.empty(part.stop - part.start, self._dtype)
                rows = [scratch, *(row[part.start : part.stop] for row in self.state_into)]
                return [row.data.cast("B") for row in rows]
            return [part.incoming.data.cast("B")] if part.incoming is not None else []
        if asked.flags & PartFlag.NO_VALUES or result is None:
            return []
        return [result[part.start : part.stop].data.cast("B")]

    def _is_awaited(self, asked: _Asked) -> bool:
        part = asked.part
        return asked.at is part.at and not part.left and asked.step >= part.step

    def _answered(self, frame: PartFrame, descriptor: int) -> None:
        asked = self._asked.pop(frame.request, None)
        reason = self._reasons.pop(frame.request, b"")[:_MOST_REASON].decode(errors="replace")
        if frame.kind == PartRequest.SHARE and frame.status != PartStatus.OK:
            self._unshared.add(self._sharing.get(frame.request, ""))
        if asked is None or not self._is_awaited(asked):
            return
        part, status = asked.part, status_of(frame)
        if status == PartStatus.OK:
            part.safe = max(part.safe, frame.safe_step)
            if asked.kind == PartRequest.JOIN:
                part.joined, part.joining, part.step = True, False, frame.step
            elif asked.kind == PartRequest.PULL:
                if descriptor >= 0:
                    part.mapped = map_result(descriptor, part.stop - part.start, self._layout.dtype)
                self._take_result(asked, frame)
            else:
                return
        elif status == PartStatus.COUNTED and asked.kind == PartRequest.PUSH:
            return
        elif status in _ELSEWHERE:
            part.left = True
        else:
            what = f"part {part.number}, step {asked.step}: {status.name}: {reason}"
            self._problem = AggregationError(f"aggregator {asked.at.aggregator} refused {asked.kind.name} of {what}")
            return
        self.advance(part)

    def _take_result(self, asked: _Asked, frame: PartFrame) -> None:
        part, step, result = asked.part, asked.step, self.into
        part.pulling = False
        if _is_callers(asked):
            part.gives_state = False
            return
        place = slice(part.start, part.stop)
        if asked.flags & PartFlag.STATE and part.held is not None and part.incoming is not None:
            if step > part.completed and result is not None:
                result[place] = part.incoming[0]
            part.held, part.incoming = HeldState(step, part.incoming), part.held.vectors
        elif frame.flags & PartFlag.SHARED and result is not None:
            if part.mapped is None:
                message = f"part {part.number}'s result is in memory that cannot be read"
                raise PartFrameError(PartStatus.BAD_FRAME, message)
            result[place] = part.mapped
        part.pushed = False
        self._asked.pop(part.push_request, None)  # that it was counted is not said
        part.step = step
        part.completed = max(part.completed, step)

    # --- connections
    def _connected(self, name: str) -> AggregatorConnection | None:
        """Return the connection to an aggregator, made now if there is none; None while it cannot be reached."""
        connection = self._connections.get(name)
        if connection is not None:
            return connection
        again_s, wait_s = self._retry.get(name, (0.0, LOOK_S[0]))
        if perf_counter() < again_s:
            return None
        address = self._addresses.get(name)
        if address is None:
            self._unreached(name, wait_s, "its address is unknown")
            return None
        try:
            connection = AggregatorConnection(address, dial(address), self._place_for, self._answered)
        except (OSError, PartFrameError) as error:
            self._unreached(name, wait_s, str(error) or type(error).__name__)
            return None
        self._retry.pop(name, None)
        self.counts["connections"] += 1
        self._connections[name] = connection
        self._by_fd[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.POLLIN)
        if connection.socket.family == socket.AF_UNIX and self._shares_memory and name not in self._unshared:
            frame = PartFrame(PartRequest.SHARE, request=self._next_request())
            self._sharing[frame.request] = name
            try:
                connection.share(frame, self._memory.descriptor)
            except OSError as error:
                self._lose(connection, error)
                return None
        return connection

    def _unreached(self, name: str, wait_s: float, reason: str) -> None:
        self._retry[name] = (perf_counter() + wait_s, min(2 * wait_s, LOOK_S[1]))
        address = self._addresses.get(name)
        key = (name, address.lease if address else "")
        if key not in self._reported:
            self._reported.add(key)
            generation = max(
                (part.at.generation for part in self.parts if part.at and part.at.aggregator == name), default=0
            )
            self._on_lost(LostAggregator(aggregator=name, generation=generation, reason=reason[:1000]))

    def _lose(self, connection: AggregatorConnection, error: Exception) -> None:
        """Hang up on an aggregator, and begin anew with its parts where they are then."""
        name = connection.address.aggregator
        if self._connections.get(name) is not connection:
            return
        del self._connections[name]
        self._by_fd = {fd: each for fd, each in self._by_fd.items() if each is not connection}
        self._poll.unregister(connection.socket)
        connection.close()
        self.counts["sent"] += connection.sent_bytes
        self.counts["received"] += connection.received_bytes
        self.counts["reconnects"] += 1
        del error
        self._asked = {number: asked for number, asked in self._asked.items() if asked.at.aggregator != name}
        parts = [part for part in self.parts if part.at is not None and part.at.aggregator == name]
        for part in parts:
            part.restart()
            newer = part.placed is not None and part.at is not None and part.placed.generation > part.at.generation
            part.left = part.left or newer
        self._retry[name] = (perf_counter() + LOOK_S[0], LOOK_S[0])


def _is_callers(asked: _Asked) -> bool:
    """Say whether a pull is for the caller's copy of the state: it is of the step that is complete."""
    return asked.part.gives_state and asked.step == asked.part.step and bool(asked.flags & PartFlag.STATE)
