"""
The members of a host at work: turns are taken, requests come in, states are saved, all behind one lock.

The members' own code runs outside of it (:mod:`penstock_packed.work`), so requests come in while a turn is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock_packed.blame import Blame
from penstock_packed.device import Device
from penstock_packed.endpoint import MemberEnded, Overloaded, Request, fail, refuse, wanted
from penstock_packed.floor import Floor, Go
from penstock_packed.keeping import Keeping
from penstock_packed.member import Member, Stage
from penstock_packed.work import LOG, Done, Job, carry_out

NAP_S: Final = 0.02
"""Where nobody may have a turn now: how soon it is looked at again."""


class Desk:
    """
    Members, their jobs, and the floor that says who is next.

    Parameters
    ----------
    device : Device
    floor : Floor
    place : Path or None
        The folder of the host's checkpoints; None where none are kept.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    closing : bool
        Whether no more turns are given.
    """

    def __init__(self, device: Device, floor: Floor[Request], place: Path | None, clock: Callable[[], float]) -> None:
        self._device, self._floor, self._place, self._clock = device, floor, place, clock
        self._members: dict[str, Member] = {}
        self._jobs: dict[str, Job] = {}
        self._keeping = Keeping(self._members, self._jobs, place, device.lost)
        self._blame: Blame | None = None
        self._changed = threading.Condition()
        self._closing_models: set[str] = set()
        self._running = 0
        self._resting = self.closing = self._stopped = False

    @property
    def members(self) -> list[Member]:
        """All of them, in the order in which they were added."""
        return list(self._members.values())

    def add(self, member: Member, job: Job) -> None:
        """Take in a member, before :meth:`begin`."""
        if member.name in self._members:
            raise ValueError(f"there is a member {member.name!r} already; expected names that differ")
        self._members[member.name], self._jobs[member.name] = member, job
        if member.target_s is not None:
            self._floor.targets.add(member.name, member.target_s)

    def begin(self) -> None:
        """Let all who are not over already onto the floor."""
        self._blame = Blame(self._place, self._device.lanes) if self._place else None
        with self._changed:
            for member in self._members.values():
                self._floor.join(member, self._clock())
                if self._blame is not None and self._blame.accuses(member.name) and not member.over:
                    self._leave(member.name, "failed", "the process has died twice in the same step of it")

    def take_turn(self, slot: int, wait_s: float) -> None:
        """
        Take one turn, or wait so long for one.

        Parameters
        ----------
        slot : int
            Number of the calling thread among those that take turns, from 0.
        """
        with self._changed:
            go = self._next(self._clock() + wait_s)
            if go is None:
                return
            self._running += 1
            go = go._replace(requests=[asked for asked in go.requests if wanted(asked)])
            step, room_bytes = self._members[go.name].done, self._floor.room_bytes(go.name)
        done: Done | None = None
        ended: Stage | None = None
        try:
            done, ended = self._take(go, slot, step, room_bytes)
        finally:
            with self._changed:
                self._running -= 1
                if done is not None:
                    self._settle(go.name, ended, done.error)
                else:
                    fail(go.requests, _stopped(go.name))
                self._changed.notify_all()

    def wait_over(self, wait_s: float, broken: Callable[[], bool]) -> None:
        """Wait until all are over or something is broken, but no longer than so."""
        with self._changed:
            self._changed.wait_for(lambda: broken() or self.over(), wait_s)

    def over(self) -> bool:
        """Say whether nobody gets a turn any more."""
        return all(member.over for member in self._members.values())

    def close(self) -> None:
        """Give no more turns."""
        with self._changed:
            self.closing = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Refuse all requests from now on, and those that wait; turns are over, and none is given any more."""
        with self._changed:
            self._stopped = True
            for name in [member.name for member in self._members.values() if not (member.trains or member.over)]:
                refuse(self._floor.left(name, self._clock()), _stopped(name))

    def why(self, name: str) -> str:
        """Return in one sentence why a member gets no turn; empty where it does, or is finished."""
        with self._changed:
            if name not in self._floor.members:
                return "the host has not begun"
            return self._floor.why(name, self._clock())

    # --- requests
    def ask(self, name: str, request: Request) -> None:
        """Take in a request, from any thread."""
        with self._changed:
            why_not = self._refusal(self._members[name])
            if why_not is not None:
                request.answer.set_exception(why_not)
                return
            self._floor.targets.ask(name, request, self._clock())
            self._changed.notify_all()

    def _refusal(self, member: Member) -> Exception | None:
        """Return why a model takes no request now; None where it does."""
        if member.over or member.name in self._closing_models:
            return MemberEnded(f"{member.name} has {member.stage}: {member.reason or 'closed'}")
        if self._stopped:
            return _stopped(member.name)
        waiting, latency = self._floor.targets.pending(member.name), self._jobs[member.name].latency
        if waiting < member.most_waiting:
            return None
        if latency is not None:
            latency.refused += 1
        return Overloaded(f"{waiting} requests to {member.name} wait already; expected fewer than that: ask later")

    def close_model(self, name: str) -> None:
        """Take no more requests to a model, from any thread."""
        with self._changed:
            self._closing_models.add(name)
            self._changed.notify_all()

    # --- checkpoints and metrics
    def save(self, folder: Path) -> None:
        """Write a checkpoint of all members, between turns."""
        with self._rest():
            for name, reason in self._keeping.save(folder).items():
                self._jobs[name].end(self._device, 0)
                self._leave(name, "failed", reason)

    def load(self, folder: Path) -> None:
        """Read a checkpoint of all members, before :meth:`begin`."""
        self._keeping.load(folder)

    def metrics(self) -> dict[str, float]:
        """Return each member's metrics under its name, and how many have ended in which way."""
        with self._changed:
            for name, job in self._jobs.items():
                if job.latency is not None:
                    self._members[name].metrics.update(job.latency.metrics())
            members = self._members.values()
            ended = {f"members/{end}": float(sum(m.stage == end for m in members)) for end in ("finished", "failed")}
            return ended | {f"{m.name}/{metric}": value for m in members for metric, value in m.metrics.items()}

    # --- a turn
    def _next(self, until_s: float) -> Go[Request] | None:
        while not self.closing:
            self._dismiss()
            go = None if self._resting else self._floor.next(self._clock())
            if go is not None or self.over() or self._clock() >= until_s:
                return go
            self._changed.wait(NAP_S)
        return None

    def _take(self, go: Go[Request], slot: int, step: int, room_bytes: int) -> tuple[Done, Stage | None]:
        if self._blame is not None and go.what != "answer":
            self._blame.begin(slot, go.name, go.what, step)
        begun_s = self._clock()
        done = carry_out(go, self._jobs[go.name], self._device, step, room_bytes)
        self._answer(go, done)
        ended = self._note(go, done, self._clock() - begun_s)
        if ended:
            self._jobs[go.name].end(self._device, go.lane)
        if self._blame is not None:
            self._blame.end(slot)
        return done, ended

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
            fail(go.requests, MemberEnded(f"{go.name} has failed: {done.error}"))
            return
        latency = self._jobs[go.name].latency
        if latency is not None:
            with self._changed:  # another thread may be reading it
                for asked in go.requests:
                    latency.see(self._clock() - asked.came_s)
        for asked, answer in zip(go.requests, done.answers, strict=True):
            future = asked.request.answer
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
        for name in [name for name in self._closing_models if self._floor.idle(name)]:
            self._closing_models.discard(name)
            if not self._members[name].over:
                self._jobs[name].end(self._device, 0)
                self._leave(name, "finished", "")

    def _leave(self, name: str, stage: Stage, reason: str) -> None:
        member = self._members[name]
        member.stage, member.reason = stage, reason
        refuse(self._floor.left(name, self._clock()), MemberEnded(f"{name} has {stage}: {reason}"))
        if stage == "failed":
            LOG.warning("member_ended member=%s stage=failed steps=%s reason=%s", name, member.done, reason)

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


def _stopped(name: str) -> MemberEnded:
    return MemberEnded(f"{name} answers no more: its host has stopped")
