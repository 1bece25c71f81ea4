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
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any, Callable, Final, NamedTuple

try:
    import numpy as np
except ImportError as missing:
    message = "aggregation needs NumPy: pip install 'penstock-sdk[aggregation]'"
    raise ImportError(message) from missing

from penstock.aggregation.aggregator_talk import AggregationError, AggregatorTalk, HeldState
from penstock.aggregation.rules import state_size
from penstock.aggregation.shared_vectors import SharedVectors
from penstock.memory.fork_guard import guard_in_forks, release_guard
from penstock_log.aggregation_messages import PART_BYTES, LostAggregator, PartsAt, UpdateRule, VectorLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

__all__ = ["AggregationError", "ExchangeStats", "VectorExchange"]

_FORK_LAYER: Final = 10


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
        self._timeout_s = timeout_s
        self._updates = rule.name != "mean"
        self._state_size = state_size(rule)
        self._dtype = np.dtype(layout.dtype)
        self._elements = sum(layout.parts)
        self._memory = SharedVectors(self._elements, layout.dtype, snapshot_every + 1 if self._updates else 2)
        self._talk = AggregatorTalk(
            layout, self._memory, on_lost, snapshot_every=snapshot_every, shares_memory=shares_memory
        )
        self._parts = self._talk.parts
        self._using = threading.Lock()
        self._pid = os.getpid()
        self._step = self._steps = 0
        self._waited_s = self._longest_s = 0.0
        guard_in_forks(self, layer=_FORK_LAYER)

    # --- what the conversation with the agent says, from another thread
    def placed(self, where: PartsAt) -> None:
        """Say where the parts are from now on."""
        self._talk.placed(where)

    def denied(self, reason: str) -> None:
        """Say that there is no aggregation any more; whoever waits gets the reason."""
        self._talk.denied(reason)

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
            if self._talk.begun:
                message = "the exchange has begun already; begin is called once, before the first push"
                raise AggregationError(message)
            self._talk.begun, self._step = True, step
            for part in self._parts:
                part.step = part.completed = part.target = part.safe = step
                if self._updates and part.number % self._world_size == self._rank:
                    held = np.zeros((1 + self._state_size, part.stop - part.start), self._dtype)
                    held[0] = values[part.start : part.stop]
                    if state is not None:
                        held[1:] = state[:, part.start : part.stop]
                    part.held, part.incoming = HeldState(step, held), np.empty_like(held)

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
            self._talk.drive(self._is_sent, self._timeout_s)

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
            self._talk.into = values
            try:
                self._push(values)
            except BaseException:
                self._talk.into = None
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
            if not self._talk.begun or any(part.completed != self._step for part in self._parts):
                message = "the state is asked for between a pull and the next push, once the exchange has begun"
                raise AggregationError(message)
            state = np.zeros((self._state_size, self._elements), self._dtype)
            if self._state_size == 0:
                return state
            self._talk.state_into = state
            for part in self._parts:
                part.gives_state = True
            try:
                self._wait(lambda: not any(part.gives_state for part in self._parts))
            finally:
                self._talk.state_into = None
                for part in self._parts:
                    part.gives_state = False
            return state

    @property
    def step(self) -> int:
        """The last step that was pushed, or that the exchange began with."""
        return self._step

    def stats(self) -> ExchangeStats:
        """Return what was done so far."""
        counts, connections = self._talk.counts, self._talk.connections
        return ExchangeStats(
            steps=self._steps,
            waited_s=self._waited_s,
            moves=counts["moves"],
            rejoins=counts["rejoins"],
            reconnects=counts["reconnects"],
            pause_s=self._longest_s,
            sent_bytes=counts["sent"] + sum(each.sent_bytes for each in connections),
            received_bytes=counts["received"] + sum(each.received_bytes for each in connections),
            parts=len(self._parts),
            shared_parts=sum(self._talk.shares(part) for part in self._parts),
        )

    def leave(self) -> None:
        """Say that this rank has ended well, so that nobody waits for its next push; :meth:`close` comes after it."""
        if os.getpid() == self._pid and self._using.acquire(blocking=False):  # a thread that waits has not ended well
            try:
                self._talk.leave()
            finally:
                self._using.release()

    def close(self) -> None:
        """Hang up. Who waits in another thread gets an error."""
        self._talk.end()
        with self._using:
            release_guard(self, layer=_FORK_LAYER)
            self._let_go()

    def _let_go(self) -> None:
        self._talk.close()
        self._memory.close()

    # --- forks: the child has no part in it
    def before_fork(self) -> None:
        """Nothing is locked: the child only closes what it inherited."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Close the parent's connections, so that they end when the parent does."""
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
        self._talk.check_open()
        return self._using

    # --- steps
    def _push(self, values: Vector) -> None:
        self._talk.check_open()
        if not self._talk.begun:
            if self._updates:
                message = "begin has to give the parameters before the first push"
                raise AggregationError(message)
            self._talk.begun = True
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
        self._talk.take_news()
        for part in self._parts:
            kept[part.start : part.stop] = values[part.start : part.stop]
            part.target = self._step
            self._talk.advance(part)

    def _pull(self, into: Vector) -> None:
        self._talk.into = into
        try:
            self._wait(self._is_complete)
        finally:
            self._talk.into = None
        self._steps += 1

    def _is_complete(self) -> bool:
        return all(part.completed == self._step for part in self._parts)

    def _is_sent(self) -> bool:
        return not any(connection.wants_to_send for connection in self._talk.connections)

    def _wait(self, done: Callable[[], bool]) -> None:
        begun_s = perf_counter()
        try:
            for part in self._parts:
                self._talk.advance(part)
            self._talk.drive(done, self._timeout_s)
        finally:
            took_s = perf_counter() - begun_s
            self._waited_s += took_s
            self._longest_s = max(self._longest_s, took_s)
