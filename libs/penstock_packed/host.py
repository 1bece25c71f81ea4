"""
One process, many small jobs: the shell around :class:`~penstock_packed.floor.Floor`, with clock, threads and session.

Turns are taken on the calling thread where the device has one lane, else on a thread for each lane.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

from penstock import Session, session
from penstock_events import MemoryNeed
from penstock_events.spec import Param
from penstock_packed import cuda
from penstock_packed.device import CpuDevice, Device
from penstock_packed.endpoint import Endpoint, MemberEnded, Request
from penstock_packed.floor import Floor, Go
from penstock_packed.keeping import Keeping
from penstock_packed.latency import Latency
from penstock_packed.member import Member, Stage
from penstock_packed.roles import Model, Trial
from penstock_packed.targets import Asked
from penstock_packed.work import LOG, Done, Job, carry_out
from penstock_policies.lanes import Rules
from penstock_policies.lanes.turns import Standing

Q = TypeVar("Q")
A = TypeVar("A")
FOREVER: Final = range(2**53)
ROUND_S: Final = 0.2
"""Longest time without a boundary of the session, at which the host can be asked to stop."""
NAP_S: Final = 0.02
"""Where nobody may have a turn now: how soon it is looked at again."""
TELL_S: Final = 0.25


class Outcome(NamedTuple):
    """How a member ended: ``finished`` or ``failed``, after how many steps, why it failed, and its last metrics."""

    stage: Stage
    steps: int
    reason: str
    metrics: dict[str, float]


class Host:
    """
    A process that holds many members, and gives them turns.

    Parameters
    ----------
    device : Device or None
        None: the first GPU if torch has been imported and sees one; else the processor.
    rules : Rules or None
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
    endpoints : dict of str to Endpoint
        Of the models, by name.

    Examples
    --------
    >>> class Count:
    ...     def setup(self): self.n = 0
    ...     def step(self, turn): self.n += 1; turn.report(n=self.n)
    ...     def teardown(self): pass
    ...     def save(self, folder): (folder / "n").write_text(str(self.n))
    ...     def load(self, folder): self.n = int((folder / "n").read_text())
    >>> host = Host()
    >>> host.train("a", Count(), steps=3)
    >>> host.run()["a"]
    Outcome(stage='finished', steps=3, reason='', metrics={'n': 3.0})
    """

    def __init__(
        self,
        device: Device | None = None,
        *,
        rules: Rules | None = None,
        assumed: MemoryNeed | None = None,
        quiet_s: float = 1.0,
        within: Session | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._device = device or (cuda.here() if "torch" in sys.modules else None) or CpuDevice()
        self._session = within or session()
        self._clock = clock
        capacity_bytes, reserve_bytes = self._device.capacity_bytes, self._device.reserve_bytes
        self._assumed = assumed or MemoryNeed(0, 0, (capacity_bytes - reserve_bytes) // 8)
        rules = replace(rules or Rules(), most_lanes=self._device.lanes)
        self._floor: Floor[Request] = Floor(capacity_bytes, reserve_bytes, rules, quiet_s)
        self.endpoints: dict[str, Endpoint[Any, Any]] = {}
        self._jobs: dict[str, Job] = {}
        self._members: dict[str, Member] = {}
        self._changed = threading.Condition()
        self._running = 0
        self._resting = self._closing = False
        self._broken: BaseException | None = None
        self._keeping = Keeping(self._members, self._jobs, self._session.checkpoint_dir)
        self._told_s = -math.inf

    @property
    def params(self) -> dict[str, Param]:
        """The hyper-parameters of the host's own job."""
        return self._session.params

    def train(
        self, name: str, trial: Trial, *, steps: int | None = None, memory: MemoryNeed | None = None, priority: int = 0
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
        self._add(Member(name, self._standing(name, priority), memory or self._assumed, steps), Job(name, trial))

    def serve(
        self, name: str, model: Model[Q, A], *, target_s: float, batch: int = 1, memory: MemoryNeed | None = None
    ) -> Endpoint[Q, A]:
        """
        Take in a model; before :meth:`run`, which then lasts until its endpoint is closed.

        Parameters
        ----------
        target_s : float, seconds
            In which a request is to be answered, from when it is handed in.
        batch : int
            Most requests that one step gets, all that are there.

        Raises
        ------
        ValueError
            If the name is taken, or a number is not positive.
        """
        if not target_s > 0 or batch < 1:
            raise ValueError(f"target_s={target_s}, batch={batch} of {name}; expected more than 0, and 1 or more")
        member = Member(name, self._standing(name, 0), memory or self._assumed, None, target_s, batch)
        self._add(member, Job(name, model, Latency(target_s)))
        self._floor.targets.add(name, target_s)
        self.endpoints[name] = endpoint = Endpoint[Q, A](name, self._ask, self._close)
        return endpoint

    def run(self) -> dict[str, Outcome]:
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
            entered.on_checkpoint(self._save, self._keeping.load)
            with self._changed:
                for member in self._members.values():
                    self._floor.join(member, self._clock())
            with self._crew():
                for _ in entered.iterations(FOREVER):
                    over = self._round()
                    if over or self._clock() >= self._told_s + TELL_S:
                        entered.report(**self._metrics())
                    if over:
                        break
        return {m.name: Outcome(m.stage, m.done, m.reason, dict(m.metrics)) for m in self._members.values()}

    def why(self, name: str) -> str:
        """Return in one sentence why a member gets no turn; empty where it does, or is finished."""
        with self._changed:
            return self._floor.why(name, self._clock())

    # --- the crew
    @contextmanager
    def _crew(self) -> Iterator[None]:
        """Have a thread for each lane, where there are several."""
        threads = [
            threading.Thread(target=self._work, name=f"penstock-lane-{number}", daemon=True)
            for number in range(self._device.lanes if self._device.lanes > 1 else 0)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        try:
            while not self._closing:
                self._take_turn(ROUND_S)
        except BaseException as error:
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _round(self) -> bool:
        """Take a turn, or let the crew take turns for a while; return whether all are over."""
        if self._device.lanes == 1:
            self._take_turn(ROUND_S)
        with self._changed:
            if self._device.lanes > 1:
                self._changed.wait_for(lambda: self._broken or self._all_over(), ROUND_S)
            if self._broken is not None:
                raise self._broken
            return self._all_over()

    def _take_turn(self, wait_s: float) -> None:
        with self._changed:
            go = self._next(self._clock() + wait_s)
            if go is None:
                return
            self._running += 1
            step, room_bytes = self._members[go.name].done, self._floor.room_bytes(go.name)
        begun_s = self._clock()
        done = carry_out(go, self._jobs[go.name], self._device, step, room_bytes)
        self._answer(go, done)
        ended = self._note(go, done, self._clock() - begun_s)
        if ended:
            self._jobs[go.name].end(self._device, go.lane)
        with self._changed:
            self._running -= 1
            self._settle(go.name, ended, done.error)
            self._changed.notify_all()

    def _next(self, until_s: float) -> Go[Request] | None:
        while not self._closing:
            self._dismiss()
            go = None if self._resting else self._floor.next(self._clock())
            if go is not None or self._all_over() or self._clock() >= until_s:
                return go
            self._changed.wait(NAP_S)
        return None

    def _note(self, go: Go[Request], done: Done, took_s: float) -> Stage | None:
        """Take in what a turn has shown; return how its member has ended, if it has."""
        with self._changed:
            member = self._members[go.name]
            if go.what == "step" and not done.error:
                member.done += 1
                member.metrics.update(done.metrics)
            member.ran(took_s)
            member.grew(done.reading.grew_bytes, done.reading.peak_bytes)
            if done.error:
                return "failed"
            if go.what == "setup":
                member.stage = "running"
                self._keeping.taken(go.name)
            return "finished" if done.last or (member.steps is not None and member.done >= member.steps) else None

    def _settle(self, name: str, ended: Stage | None, reason: str) -> None:
        if ended:
            self._leave(name, ended, reason)
            return
        self._floor.over(name, self._clock())
        if not self._members[name].trains:
            self._floor.serving(name)

    def _answer(self, go: Go[Request], done: Done) -> None:
        if done.error:
            refuse(go.requests, MemberEnded(f"{go.name} has failed: {done.error}"))
            return
        now_s, latency = self._clock(), self._jobs[go.name].latency
        for asked, answer in zip(go.requests, done.answers, strict=True) if go.requests else ():
            if latency is not None:
                latency.see(now_s - asked.came_s)
            future = asked.request.answer
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _dismiss(self) -> None:
        """End those for whom the device has no room, and models that are closed and have answered all."""
        while self._floor.endings:
            name, reason = self._floor.endings.pop()
            self._jobs[name].end(self._device, 0)
            self._leave(name, "failed", f"no room: {reason}")
        for name, job in self._jobs.items():
            if job.closed and not self._members[name].over and self._floor.idle(name):
                job.end(self._device, 0)
                self._leave(name, "finished", "")

    def _leave(self, name: str, stage: Stage, reason: str) -> None:
        member = self._members[name]
        member.stage, member.reason = stage, reason
        refuse(self._floor.left(name, self._clock()), MemberEnded(f"{name} has {stage}: {reason}"))
        if stage == "failed":
            LOG.warning("member_ended member=%s stage=failed steps=%s reason=%s", name, member.done, reason)

    # --- requests
    def _ask(self, name: str, request: Request) -> None:
        with self._changed:
            member = self._members[name]
            if member.over or self._jobs[name].closed:
                request.answer.set_exception(MemberEnded(f"{name} has {member.stage}: {member.reason or 'closed'}"))
                return
            self._floor.targets.ask(name, request, self._clock())
            self._changed.notify_all()

    def _close(self, name: str) -> None:
        with self._changed:
            self._jobs[name].closed = True
            self._changed.notify_all()

    # --- checkpoints and metrics
    def _save(self, folder: Path) -> None:
        with self._rest():
            failed = self._keeping.save(folder)
            for name, reason in failed.items():
                self._jobs[name].end(self._device, 0)
                self._leave(name, "failed", reason)

    @contextmanager
    def _rest(self) -> Iterator[None]:
        """Let turns that are under way end, and none begin."""
        with self._changed:
            self._resting = True
            self._changed.wait_for(lambda: not self._running)
            try:
                yield
            finally:
                self._resting = False
                self._changed.notify_all()

    def _metrics(self) -> dict[str, float]:
        """Return each member's metrics under its name, and how many are in which stage."""
        self._told_s = self._clock()
        with self._changed:
            for name, job in self._jobs.items():
                if job.latency is not None:
                    self._members[name].metrics.update(job.latency.metrics())
            members = self._members.values()
            stages = {
                f"members/{stage}": float(sum(m.stage == stage for m in members)) for stage in ("finished", "failed")
            }
            return stages | {f"{m.name}/{metric}": value for m in members for metric, value in m.metrics.items()}

    def _all_over(self) -> bool:
        return all(member.over for member in self._members.values())

    def _standing(self, name: str, priority: int) -> Standing:
        return Standing(name, len(self._members), priority=priority)

    def _add(self, member: Member, job: Job) -> None:
        if member.name in self._members:
            raise ValueError(f"there is a member {member.name!r} already; expected names that differ")
        self._members[member.name], self._jobs[member.name] = member, job


def refuse(requests: list[Asked[Any]], error: MemberEnded) -> None:
    """Answer requests with an error."""
    for asked in requests:
        if asked.request.answer.set_running_or_notify_cancel():
            asked.request.answer.set_exception(error)
