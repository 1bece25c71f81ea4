"""
One process, many small jobs: the shell around :class:`~penstock_packed.device_queue.DeviceQueue`, with clock, threads
and session.

Turns are taken on the calling thread where the device has one lane, else on a thread for each lane.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

from penstock import Session, session
from penstock_log import MemoryNeed
from penstock_log.spec import Param
from penstock_packed import device as cuda_device
from penstock_packed.device import CpuDevice, TurnDevice
from penstock_packed.device_queue import DeviceQueue
from penstock_packed.member import MOST_WAITING, PackedMember, Stage
from penstock_packed.member_supervisor import MemberSupervisor
from penstock_packed.member_turn import MemberObject, Model, TrialProgram
from penstock_packed.request_queue import Latency, ModelEndpoint, ModelRequest
from penstock_sharing.lanes import LaneRules

Q = TypeVar("Q")
A = TypeVar("A")
FOREVER: Final = range(2**53)
ROUND_S: Final = 0.2
"""Longest time without a boundary of the session, at which the host can be asked to stop."""
REPORT_S: Final = 1.0
"""Between two reports of all metrics, in which no turn is given."""


class MemberOutcome(NamedTuple):
    """How a member ended: ``finished`` or ``failed``, after how many steps, why it failed, and its last metrics."""

    stage: Stage
    steps: int
    reason: str
    metrics: dict[str, float]


class PackedHost:
    """
    A process that holds many members, and gives them turns.

    Parameters
    ----------
    device : TurnDevice or None
        None: the first GPU if torch has been imported and sees one; else the processor.
    rules : LaneRules or None
        The in-lane policy and its patience; how many lanes there are says the device.
    assumed : MemoryNeed or None
        The need of members that declare none, until it is measured; None: nothing that is held, and an eighth of the
        device in a turn.
    quiet_s : float
        A model that nobody has asked for so long keeps no trial from a turn that is too long for its target.
    within : Session or None
        The session of this process, not entered yet; None: a new one.

    Attributes
    ----------
    endpoints : dict of str to ModelEndpoint
        Of the models, by name.

    Examples
    --------
    >>> class Count:
    ...     def setup(self): self.n = 0
    ...     def step(self, turn): self.n += 1; turn.report(n=self.n)
    ...     def teardown(self): pass
    ...     def save(self, folder): (folder / "n").write_text(str(self.n))
    ...     def load(self, folder): self.n = int((folder / "n").read_text())
    >>> host = PackedHost()
    >>> host.train("a", Count(), steps=3)
    >>> host.run()["a"]
    MemberOutcome(stage='finished', steps=3, reason='', metrics={'n': 3.0})
    """

    def __init__(
        self,
        device: TurnDevice | None = None,
        *,
        rules: LaneRules | None = None,
        assumed: MemoryNeed | None = None,
        quiet_s: float = 1.0,
        within: Session | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._device = device or (cuda_device.here() if "torch" in sys.modules else None) or CpuDevice()
        self._session = within or session()
        self._clock = clock
        capacity_bytes, reserve_bytes = self._device.capacity_bytes, self._device.reserve_bytes
        self._assumed = assumed or MemoryNeed(0, 0, (capacity_bytes - reserve_bytes) // 8)
        rules = replace(rules or LaneRules(), most_lanes=self._device.lanes)
        queue: DeviceQueue[ModelRequest] = DeviceQueue(capacity_bytes, reserve_bytes, rules, quiet_s)
        self._supervisor = MemberSupervisor(self._device, queue, self._session.checkpoint_dir, clock)
        self.endpoints: dict[str, ModelEndpoint[Any, Any]] = {}
        self._broken: BaseException | None = None
        self._reported_s = -math.inf

    @property
    def names(self) -> list[str]:
        """The members' names, in the order in which they were added."""
        return [member.name for member in self._supervisor.members]

    @property
    def params(self) -> dict[str, Param]:
        """The hyper-parameters of the host's own job."""
        return self._session.params

    def train(
        self,
        name: str,
        trial: TrialProgram,
        *,
        steps: int | None = None,
        memory: MemoryNeed | None = None,
        priority: int = 0,
    ) -> None:
        """
        Take in a trial; before :meth:`run`.

        Parameters
        ----------
        name : str
            Unique among the members, and the same after a restart.
        steps : int or None
            After which it is finished; None: when it says ``turn.finish()``.
        memory : MemoryNeed or None
            What is known of its need; more that is measured counts.
        priority : int
            For the in-lane policy ``priority``.

        Raises
        ------
        ValueError
            If the name is taken, or there are no steps to do.
        """
        if steps is not None and steps < 1:
            raise ValueError(f"steps of {name} is {steps}; expected 1 or more, or None until the trial says finish()")
        member = PackedMember(name, memory or self._assumed, steps, priority=priority)
        self._supervisor.add(member, MemberObject(name, trial))

    def serve(
        self,
        name: str,
        model: Model[Q, A],
        *,
        target_s: float,
        batch: int = 1,
        most_waiting: int = MOST_WAITING,
        memory: MemoryNeed | None = None,
    ) -> ModelEndpoint[Q, A]:
        """
        Take in a model; before :meth:`run`, which then lasts until its endpoint is closed.

        Parameters
        ----------
        target_s : float, seconds
            In which a request is to be answered, from when it is handed in.
        batch : int
            Most requests that one step gets, all that are there.
        most_waiting : int
            Most requests that wait; one more is refused with :class:`Overloaded`.

        Raises
        ------
        ValueError
            If the name is taken, or a number is not positive.
        """
        if not target_s > 0 or batch < 1 or most_waiting < 1:
            given = f"target_s={target_s}, batch={batch}, most_waiting={most_waiting}"
            raise ValueError(f"{given} of {name}; expected more than 0, and 1 or more of both others")
        member = PackedMember(name, memory or self._assumed, None, target_s, batch, most_waiting)
        self._supervisor.add(member, MemberObject(name, model, Latency(target_s)))
        self.endpoints[name] = endpoint = ModelEndpoint[Q, A](name, self._supervisor.ask, self._supervisor.close_model)
        return endpoint

    def run(self) -> dict[str, MemberOutcome]:
        """
        Give turns until all trials are over and all models are closed; return how each ended.

        Raises
        ------
        DeviceLost
            If the device works no more; a new process goes on from the last checkpoint.
        SystemExit
            Where the host's job has been asked to stop, and its checkpoint is complete.
        """
        with self._session as entered:
            entered.on_checkpoint(self._supervisor.save, self._supervisor.load)
            self._supervisor.begin()
            with self._workers(), quick_collections():
                for _ in entered.iterations(FOREVER):
                    over = self._round()
                    if over or self._clock() >= self._reported_s + REPORT_S:
                        self._reported_s = self._clock()
                        entered.report(**self._supervisor.metrics())
                    if over:
                        break
        return {m.name: MemberOutcome(m.stage, m.done, m.reason, dict(m.metrics)) for m in self._supervisor.members}

    def why(self, name: str) -> str:
        """Return in one sentence why a member gets no turn; empty where it does, or is finished."""
        return self._supervisor.why(name)

    def _round(self) -> bool:
        """Take a turn, or let the threads take turns for a while; return whether all are over."""
        if self._device.lanes == 1:
            self._supervisor.take_turn(0, ROUND_S)
        else:
            self._supervisor.wait_over(ROUND_S, lambda: self._broken is not None)
        if self._broken is not None:
            raise self._broken
        return self._supervisor.over()

    @contextmanager
    def _workers(self) -> Iterator[None]:
        """Have a thread for each lane, where there are several."""
        slots = range(self._device.lanes if self._device.lanes > 1 else 0)
        threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"lane-{slot}", daemon=True) for slot in slots
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._supervisor.close()
            for thread in threads:
                thread.join()
            self._supervisor.stop()

    def _work(self, slot: int) -> None:
        try:
            while not (self._supervisor.closing or self._broken):
                self._supervisor.take_turn(slot, ROUND_S)
        except BaseException as error:  # told to the main thread, which raises it
            self._broken = error


@contextmanager
def quick_collections() -> Iterator[None]:
    """
    Leave all objects that are there now out of garbage collections.

    There is one at the end of each member, to free what it has left in circles; with all of a process's modules to look
    through it takes some 30 ms, in which no request is answered.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
