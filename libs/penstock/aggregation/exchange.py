"""
One rank's side of an aggregation: push a vector, pull the result, whatever becomes of the aggregators meanwhile.

:class:`VectorExchange` talks to all aggregators of its run at once, by one connection each. It keeps each push until no
aggregator can need it again (until its step is *safe*), and does for each part what the part needs next: join it, push
a step, pull a result. What breaks off is begun again; an aggregator counts each push once.

A part *moves* when its aggregator says so: the rank goes on at the one that it was told of. A part that was lost is
*joined* anew: the aggregator says after which step, and the rank pushes the steps since then again. For the parts that
it holds (``part % world_size == rank``) it keeps parameters and optimizer state every few steps, and brings them along.
"""

from __future__ import annotations

import os
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
from penstock.aggregation.frames import JOINED, SHARED_AT, Flag, Frame, FrameError, Kind, Status
from penstock.aggregation.rules import state_size
from penstock.aggregation.shared_vectors import SharedVectors
from penstock.memory.fork_guard import guard_in_forks, release_guard
from penstock_log.aggregation_messages import (
    PART_BYTES,
    AggregatorAddress,
    LostAggregator,
    PartAt,
    PartsAt,
    UpdateRule,
    VectorLayout,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

LOOK_S: Final = (0.05, 1.0)
"""How long an aggregator that cannot be reached is left alone, at first and at most."""
_ELSEWHERE: Final = frozenset({Status.MOVED, Status.STALE, Status.UNKNOWN_PART})
"""The part is not here, or not any more: it is where the agent says next."""
_MOST_REASON: Final = 4096
_FORK_LAYER: Final = 10


class AggregationError(Exception):
    """The exchange cannot go on; the message says why, and what to do."""


class ExchangeStats(NamedTuple):
    """
    What an exchange has done.

    Attributes
    ----------
    steps : int
    waited_s : float
        Seconds in which the caller waited for aggregators and peers.
    moves, rejoins, reconnects : int
        Parts that went to another aggregator with their state, parts that were joined again, connections made again.
    pause_s : float
        Longest wait for one step.
    sent_bytes, received_bytes : int
        Over sockets; what goes by shared memory is not in them.
    parts, shared_parts : int
        All parts, and those whose aggregator shares this rank's memory at present.
    """

    steps: int
    waited_s: float
    moves: int
    rejoins: int
    reconnects: int
    pause_s: float
    sent_bytes: int
    received_bytes: int
    parts: int
    shared_parts: int


class _Held(NamedTuple):
    """Parameters and optimizer state of a part after a step."""

    step: int
    vectors: Vector
    """(1 + state vectors, elements): the parameters first."""


class _Part:
    """One part, as this rank knows it."""

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
        self.step = 0
        """The last step that is complete there, as this rank knows."""
        self.completed = 0
        """The last step whose result this rank has."""
        self.target = 0
        """The last step that this rank pushes."""
        self.safe = 0
        self.held: _Held | None = None
        self.incoming: Vector | None = None
        """Where the next state to be held is received."""
        self.gives_state = False
        """Whether the caller still waits for its state."""

    def restart(self) -> None:
        """Begin the next step's frames anew: what was said is not heard, or its answer does not come."""
        self.joining = self.pushed = self.pulling = False


class _Asked(NamedTuple):
    """A request that is not answered yet."""

    part: _Part
    kind: Kind
    at: PartAt
    step: int
    flags: Flag = Flag.NONE


class VectorExchange:
    """
    One rank's vectors on the aggregators of its run.

    One thread at a time pushes and pulls. :meth:`placed` and :meth:`denied` may be called by any other.

    Parameters
    ----------
    layout : VectorLayout
    rule : UpdateRule
    rank, world_size : int
    on_lost : callable
        Told of an aggregator that cannot be reached.
    snapshot_every : int
        After so many steps the holder of a part takes its state, so that pushes need not be kept longer.
    timeout_s : float
        How long one wait for aggregators and peers may take.
    shares_memory : bool
        Whether aggregators of this host may read pushes from this process's memory; over sockets otherwise.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """

    def __init__(
        self,
        layout: VectorLayout,
        rule: UpdateRule,
        *,
        rank: int,
        world_size: int,
        on_lost: Callable[[LostAggregator], object],
        snapshot_every: int = 4,
        timeout_s: float = 1800.0,
        shares_memory: bool = True,
    ) -> None:
        if not 0 <= rank < world_size or snapshot_every < 1:
            message = (
                f"expected 0 <= rank < world_size and snapshot_every >= 1, not {rank}, {world_size}, {snapshot_every}"
            )
            raise ValueError(message)
        if max(layout.parts) * layout.itemsize > PART_BYTES:
            message = (
                f"a part has {PART_BYTES} bytes at most, and the longest here {max(layout.parts) * layout.itemsize}"
            )
            raise ValueError(message)
        self._layout, self._rule, self._rank, self._world_size = layout, rule, rank, world_size
        self._on_lost, self._every, self._timeout_s = on_lost, snapshot_every, timeout_s
        self._updates = rule.name != "mean"
        self._state_size = state_size(rule)
        self._dtype = np.dtype(layout.dtype)
        ends = np.cumsum(layout.parts).tolist()
        self._elements: int = ends[-1]
        self._parts = [_Part(at, end - size, end) for at, (size, end) in enumerate(zip(layout.parts, ends))]
        most = snapshot_every + 1 if self._updates else 2
        self._memory = SharedVectors(self._elements, layout.dtype, most)
        self._shares_memory = shares_memory and self._memory.descriptor >= 0

        self._using = threading.Lock()
        self._news_lock = threading.Lock()
        self._news: PartsAt | None = None
        self._denied = ""
        self._closed = False
        self._pid = os.getpid()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)

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

        self._begun = False
        self._step = 0
        self._into: Vector | None = None
        self._state_into: Vector | None = None
        self._counts: Counter[str] = Counter()
        self._waited_s = self._longest_s = 0.0
        guard_in_forks(self, layer=_FORK_LAYER)

    # --- what the conversation with the agent says, from another thread
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

    # --- what the training does
    def begin(self, values: Vector, state: Vector | None = None, step: int = 0) -> None:
        """
        Give what the run begins with; to be called by all ranks, with the same, before their first push.

        Parameters
        ----------
        values : (N,) array
            In update mode the parameters; else its contents do not matter.
        state : (S, N) array or None
            The optimizer's state, as :meth:`state` has returned it; zeros if None.
        step : int
            How many steps ``values`` and ``state`` have had.

        Raises
        ------
        ValueError
            If the vectors are not those of the layout and the rule.
        AggregationError
            If the exchange has begun.
        """
        self._check(values)
        if state is not None and (state.shape != (self._state_size, self._elements) or state.dtype != self._dtype):
            expected = f"{self._state_size} x {self._elements} {self._dtype}"
            message = f"expected a state of {expected}, not {state.shape} {state.dtype}"
            raise ValueError(message)
        with self._used():
            if self._begun:
                message = "the exchange has begun already; begin is called once, before the first push"
                raise AggregationError(message)
            self._begun, self._step = True, step
            for part in self._parts:
                part.step = part.completed = part.target = part.safe = step
                if self._updates and part.number % self._world_size == self._rank:
                    held = np.zeros((1 + self._state_size, part.stop - part.start), self._dtype)
                    held[0] = values[part.start : part.stop]
                    if state is not None:
                        held[1:] = state[:, part.start : part.stop]
                    part.held, part.incoming = _Held(step, held), np.empty_like(held)

    def push(self, values: Vector) -> None:
        """
        Push this rank's values of the next step; its result is pulled afterwards.

        The values are copied, so the caller may change them at once.

        Parameters
        ----------
        values : (N,) array

        Raises
        ------
        ValueError
            If they are not of the layout.
        AggregationError
            If the last step's result was not pulled, or there is no aggregation any more.
        """
        self._check(values)
        with self._used():
            self._push(values)
            self._drive(self._is_sent, perf_counter() + self._timeout_s)

    def pull(self, into: Vector) -> None:
        """
        Wait for the result of the step that was pushed: the mean of all ranks' values, or the updated parameters.

        Parameters
        ----------
        into : (N,) array
            Filled with it. What is in it after an error is undefined.

        Raises
        ------
        AggregationError
            If nothing was pushed, if it takes longer than ``timeout_s``, or there is no aggregation any more.
        """
        self._check(into)
        with self._used():
            if all(part.completed == self._step for part in self._parts):
                message = f"the result of step {self._step} was pulled already; push the next step first"
                raise AggregationError(message)
            self._pull(into)

    def exchange(self, values: Vector) -> None:
        """Push a vector and pull the result into it, in place; quicker than both by themselves. Errors are theirs."""
        self._check(values)
        with self._used():
            self._into = values
            try:
                self._push(values)
            except BaseException:
                self._into = None
                raise
            self._pull(values)

    def state(self) -> Vector:
        """
        Return the optimizer's state at the present step, for a checkpoint; any rank may, between a pull and a push.

        Returns
        -------
        (S, N) array
            To be given to :meth:`begin` with the parameters and the step; S is 0 in mean mode and for SGD.

        Raises
        ------
        AggregationError
            If a step is under way, or it cannot be had.
        """
        with self._used():
            if not self._begun or any(part.completed != self._step for part in self._parts):
                message = "the state is asked for between a pull and the next push, once the exchange has begun"
                raise AggregationError(message)
            state = np.zeros((self._state_size, self._elements), self._dtype)
            if self._state_size == 0:
                return state
            self._state_into = state
            for part in self._parts:
                part.gives_state = True
            try:
                self._wait(lambda: not any(part.gives_state for part in self._parts))
            finally:
                self._state_into = None
                for part in self._parts:
                    part.gives_state = False
            return state

    @property
    def step(self) -> int:
        """The last step that was pushed, or that the exchange began with."""
        return self._step

    def stats(self) -> ExchangeStats:
        """Return what was done so far."""
        connections = list(self._connections.values())
        shared = [part for part in self._parts if part.at is not None and self._is_shared(part.at.aggregator)]
        return ExchangeStats(
            steps=self._counts["steps"],
            waited_s=self._waited_s,
            moves=self._counts["moves"],
            rejoins=self._counts["rejoins"],
            reconnects=self._counts["reconnects"],
            pause_s=self._longest_s,
            sent_bytes=self._counts["sent"] + sum(each.sent_bytes for each in connections),
            received_bytes=self._counts["received"] + sum(each.received_bytes for each in connections),
            parts=len(self._parts),
            shared_parts=len(shared),
        )

    def close(self) -> None:
        """Hang up. Who waits in another thread gets an error."""
        self._closed = True
        self._wake()
        with self._using:
            release_guard(self, layer=_FORK_LAYER)
            self._let_go()

    def _let_go(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self._by_fd.clear()
        self._memory.close()
        self._waker.close()
        self._woken.close()

    # --- forks: the child has no part in it
    def before_fork(self) -> None:
        """Nothing is locked: the child only closes what it inherited."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Close the parent's connections, so that they end when the parent does."""
        self._closed = True
        self._let_go()

    # --- checks
    def _check(self, values: Vector) -> None:
        if values.shape != (self._elements,) or values.dtype != self._dtype or not values.flags.c_contiguous:
            message = (
                f"expected a contiguous vector of {self._elements} {self._dtype}, not {values.shape} {values.dtype}"
            )
            raise ValueError(message)

    def _used(self) -> threading.Lock:
        if os.getpid() != self._pid:
            message = f"this exchange belongs to process {self._pid}; a forked child has to open one of its own"
            raise AggregationError(message)
        self._check_open()
        return self._using

    def _check_open(self) -> None:
        if self._closed:
            message = "the exchange is closed"
            raise AggregationError(message)
        if self._problem is not None:
            raise self._problem

    # --- steps
    def _push(self, values: Vector) -> None:
        self._check_open()
        if not self._begun:
            if self._updates:
                message = "begin has to give the parameters before the first push"
                raise AggregationError(message)
            self._begun = True
        if any(part.completed != self._step for part in self._parts):
            message = f"the result of step {self._step} was not pulled; pull it before the next push"
            raise AggregationError(message)
        self._memory.forget(min(part.safe for part in self._parts))
        if self._memory.is_full:
            message = (
                f"the pushes since step {self._memory.oldest} are not safe yet, and there is no room for that of step "
                f"{self._step + 1}"
            )
            raise AggregationError(message)
        self._step += 1
        kept = self._memory.keep(self._step)
        self._take_news()
        for part in self._parts:
            kept[part.start : part.stop] = values[part.start : part.stop]
            part.target = self._step
            self._advance(part)

    def _pull(self, into: Vector) -> None:
        self._into = into
        try:
            self._wait(self._is_complete)
        finally:
            self._into = None
        self._counts["steps"] += 1

    def _is_complete(self) -> bool:
        return all(part.completed == self._step for part in self._parts)

    def _is_sent(self) -> bool:
        return not any(connection.wants_to_send for connection in self._connections.values())

    def _wait(self, done: Callable[[], bool]) -> None:
        begun_s = perf_counter()
        try:
            for part in self._parts:
                self._advance(part)
            self._drive(done, begun_s + self._timeout_s)
        finally:
            took_s = perf_counter() - begun_s
            self._waited_s += took_s
            self._longest_s = max(self._longest_s, took_s)

    # --- the loop
    def _drive(self, done: Callable[[], bool], deadline_s: float) -> None:
        """Let aggregators' answers come in until something is done."""
        while True:
            self._take_news()
            self._check_open()
            if done():
                return
            now_s = perf_counter()
            if now_s >= deadline_s:
                raise AggregationError(self._what_is_waited_for())
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
        except (OSError, FrameError) as error:
            self._lose(connection, error)

    def _watch(self, connection: AggregatorConnection) -> None:
        if self._connections.get(connection.address.aggregator) is connection:
            wanted = select.POLLIN | (select.POLLOUT if connection.wants_to_send else 0)
            self._poll.modify(connection.socket, wanted)

    def _take_news(self) -> None:
        with self._news_lock:
            news, self._news = self._news, None
            denied = self._denied
        if denied and self._problem is None:
            self._problem = AggregationError(f"there is no aggregation for this run any more: {denied}")
        if news is None:
            return
        if len(news.parts) != len(self._parts):
            self._problem = AggregationError(
                f"the agent knows {len(news.parts)} parts, and there are {len(self._parts)}"
            )
            return
        self._addresses = {address.aggregator: address for address in news.aggregators}
        for at in news.parts:
            part = self._parts[at.part]
            if part.placed is None or at.generation > part.placed.generation:
                part.placed = at
        for name in list(self._retry):
            self._retry[name] = (0.0, LOOK_S[0])
        for part in self._parts:
            self._advance(part)

    def _look_again(self) -> None:
        if not self._retry:
            return
        now_s = perf_counter()
        due = [name for name, (again_s, _) in self._retry.items() if again_s <= now_s]
        for name in due:
            parts = [part for part in self._parts if part.at is not None and part.at.aggregator == name]
            if not parts:
                del self._retry[name]
            for part in parts:
                self._advance(part)

    def _what_is_waited_for(self) -> str:
        waited = [part for part in self._parts if part.completed != self._step or part.gives_state]
        unplaced = [part for part in waited if part.at is None or part.left]
        away = [part for part in waited if part.at is not None and part.at.aggregator in self._retry]
        joining = [part for part in waited if part.joining]
        count = f"{len(waited)} of {len(self._parts)} parts"
        said = f"step {self._step} was not complete within {self._timeout_s:g} s: {count}"
        if unplaced:
            return f"{said}; {len(unplaced)} of them have no aggregator, as far as the agent has said"
        if away:
            return f"{said}; aggregator {away[0].at.aggregator if away[0].at else ''} cannot be reached"
        if joining:
            return f"{said}; their aggregators wait for peers that have not joined"
        return f"{said}; peers did not push their values of it"

    # --- one part
    def _advance(self, part: _Part) -> None:
        """Say to a part's aggregator what is to be said next."""
        at = self._settle(part) if self._begun else None
        connection = self._connected(at.aggregator) if at is not None else None
        if at is None or connection is None:
            return
        try:
            if not part.joined:
                self._join(part, at, connection)
            elif part.step < part.target:
                self._next_step(part, at, connection)
            elif part.gives_state and not part.pulling:
                part.pulling = True
                self._ask(connection, _Asked(part, Kind.PULL, at, part.step, Flag.STATE))
        except OSError as error:
            self._lose(connection, error)
        else:
            self._watch(connection)

    def _settle(self, part: _Part) -> PartAt | None:
        """Go where the part is, if it has to be elsewhere; return where, or None while that is not known."""
        placed, at = part.placed, part.at
        if placed is None:
            return None
        if at is not None:
            if placed.generation <= at.generation:
                return None if part.left else at
            if placed.how == "copy" and not part.left and at.aggregator in self._connections:
                return at  # the aggregator that has it says when it moves
            self._counts["moves" if placed.how == "copy" else "rejoins"] += 1
        part.at, part.left, part.joined = placed, False, placed.how == "copy"
        part.restart()
        return placed

    def _join(self, part: _Part, at: PartAt, connection: AggregatorConnection) -> None:
        if part.joining:
            return
        part.joining = True
        oldest = self._memory.oldest
        fields = JOINED.pack(part.target + 1 if oldest is None else oldest, part.held.step if part.held else 0)
        vectors = [part.held.vectors] if part.held else []
        self._ask(connection, _Asked(part, Kind.JOIN, at, part.completed), fields, *vectors)

    def _next_step(self, part: _Part, at: PartAt, connection: AggregatorConnection) -> None:
        step, itemsize = part.step + 1, self._layout.itemsize
        if not part.pushed:
            part.pushed = True
            if connection.shares:
                place = SHARED_AT.pack(self._memory.push_at(step) + part.start * itemsize)
                self._ask(connection, _Asked(part, Kind.PUSH, at, step, Flag.SHARED), place)
            else:
                values = self._memory.push_of(step)[part.start : part.stop]
                self._ask(connection, _Asked(part, Kind.PUSH, at, step), values)
        if part.pulling or (step > part.completed and self._into is None):
            return
        part.pulling = True
        if part.held is not None and step % self._every == 0 and step > part.held.step:
            self._ask(connection, _Asked(part, Kind.PULL, at, step, Flag.STATE))
        elif step <= part.completed:
            self._ask(connection, _Asked(part, Kind.PULL, at, step, Flag.NO_VALUES))
        elif connection.shares:
            place = SHARED_AT.pack(self._memory.results_at + part.start * itemsize)
            self._ask(connection, _Asked(part, Kind.PULL, at, step, Flag.SHARED), place)
        else:
            self._ask(connection, _Asked(part, Kind.PULL, at, step))

    def _ask(self, connection: AggregatorConnection, asked: _Asked, *payload: Any) -> None:
        part = asked.part
        views = [memoryview(piece).cast("B") for piece in payload]
        frame = Frame(
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
        connection.send(frame, *views)

    def _next_request(self) -> int:
        self._request = (self._request + 1) & 0xFFFFFFFF
        return self._request

    # --- answers
    def _place_for(self, frame: Frame) -> Sequence[memoryview]:
        """Say where the payload of an answer goes."""
        asked = self._asked.get(frame.request)
        if frame.status != Status.OK or asked is None or not self._is_awaited(asked) or frame.kind != Kind.PULL:
            if frame.length > PART_BYTES * 3:
                message = f"a payload of {frame.length} bytes is none of an aggregator's"
                raise FrameError(Status.TOO_LONG, message)
            self._reasons[frame.request] = reason = bytearray(frame.length)
            return [memoryview(reason)]
        part = asked.part
        views = self._place_of(asked)
        expected = sum(len(view) for view in views)
        if frame.length != expected:
            message = f"part {part.number} has {expected} bytes, and the answer {frame.length}"
            raise FrameError(Status.WRONG_SHAPE, message)
        return views

    def _place_of(self, asked: _Asked) -> Sequence[memoryview]:
        part, result = asked.part, self._into
        if asked.flags & Flag.STATE:
            if self._state_into is not None and _is_callers(asked):
                scratch = np.empty(part.stop - part.start, self._dtype)
                rows = [scratch, *(row[part.start : part.stop] for row in self._state_into)]
                return [row.data.cast("B") for row in rows]
            return [part.incoming.data.cast("B")] if part.incoming is not None else []
        if asked.flags or result is None:
            return []
        return [result[part.start : part.stop].data.cast("B")]

    def _is_awaited(self, asked: _Asked) -> bool:
        part = asked.part
        return asked.at is part.at and not part.left and asked.step >= part.step

    def _answered(self, frame: Frame) -> None:
        asked = self._asked.pop(frame.request, None)
        reason = self._reasons.pop(frame.request, b"")[:_MOST_REASON].decode(errors="replace")
        if frame.kind == Kind.SHARE and frame.status != Status.OK:
            self._unshared.add(self._sharing.get(frame.request, ""))
        if asked is None or not self._is_awaited(asked):
            return
        part, status = asked.part, status_of(frame)
        if status == Status.OK:
            part.safe = max(part.safe, frame.safe_step)
            if asked.kind == Kind.JOIN:
                part.joined, part.joining, part.step = True, False, frame.step
            elif asked.kind == Kind.PULL:
                self._take_result(asked)
            else:
                return
        elif status == Status.COUNTED and asked.kind == Kind.PUSH:
            return
        elif status in _ELSEWHERE:
            part.left = True
        else:
            what = f"part {part.number}, step {asked.step}: {status.name}: {reason}"
            self._problem = AggregationError(f"aggregator {asked.at.aggregator} refused {asked.kind.name} of {what}")
            return
        self._advance(part)

    def _take_result(self, asked: _Asked) -> None:
        part, step, result = asked.part, asked.step, self._into
        part.pulling = False
        if _is_callers(asked):
            part.gives_state = False
            return
        place = slice(part.start, part.stop)
        if asked.flags & Flag.STATE and part.held is not None and part.incoming is not None:
            if step > part.completed and result is not None:
                result[place] = part.incoming[0]
            part.held, part.incoming = _Held(step, part.incoming), part.held.vectors
        elif asked.flags & Flag.SHARED and result is not None:
            result[place] = self._memory.results[place]
        part.pushed = False
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
        except (OSError, FrameError) as error:
            self._unreached(name, wait_s, str(error) or type(error).__name__)
            return None
        self._retry.pop(name, None)
        self._counts["connections"] += 1
        self._connections[name] = connection
        self._by_fd[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.POLLIN)
        if connection.socket.family == socket.AF_UNIX and self._shares_memory and name not in self._unshared:
            frame = Frame(Kind.SHARE, request=self._next_request())
            self._sharing[frame.request] = name
            try:
                connection.share(frame, self._memory.descriptor)
            except OSError as error:
                self._lose(connection, error)
                return None
        return connection

    def _is_shared(self, name: str) -> bool:
        connection = self._connections.get(name)
        return connection is not None and connection.shares

    def _unreached(self, name: str, wait_s: float, reason: str) -> None:
        self._retry[name] = (perf_counter() + wait_s, min(2 * wait_s, LOOK_S[1]))
        address = self._addresses.get(name)
        key = (name, address.lease if address else "")
        if key not in self._reported:
            self._reported.add(key)
            generation = max(
                (part.at.generation for part in self._parts if part.at and part.at.aggregator == name), default=0
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
        self._counts["sent"] += connection.sent_bytes
        self._counts["received"] += connection.received_bytes
        self._counts["reconnects"] += 1
        del error
        self._asked = {number: asked for number, asked in self._asked.items() if asked.at.aggregator != name}
        parts = [part for part in self._parts if part.at is not None and part.at.aggregator == name]
        for part in parts:
            part.restart()
            newer = part.placed is not None and part.at is not None and part.placed.generation > part.at.generation
            part.left = part.left or newer
        self._retry[name] = (perf_counter() + LOOK_S[0], LOOK_S[0])


def _is_callers(asked: _Asked) -> bool:
    """Say whether a pull is for the caller's copy of the state: it is of the step that is complete."""
    return asked.part.gives_state and asked.step == asked.part.step and bool(asked.flags & Flag.STATE)
