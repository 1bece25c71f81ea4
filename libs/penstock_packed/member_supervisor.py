"""
Members at work: turns, checkpoints and crash attribution.

:class:`MemberSupervisor` gives turns, takes requests and saves states, all behind one lock. The members' own code runs
outside of the lock (:mod:`penstock_packed.member_turn`), so requests come in while a turn is under way.
:class:`MemberCheckpoints` saves and loads all members at once.

:class:`CrashAttribution` says who was in its turn when the process died. A segmentation fault ends the process and with
it all members; the next process goes on from the checkpoint, and would die in the same turn again. So each turn is
noted before it begins, in a file mapped into memory, which outlives the process. A member in whose very same step the
process has died twice has failed, also where the next process dies before its checkpoint says so. A process that is
killed from outside dies in some member's turn too, but hardly twice in the same step of the same member. Turns of
models are not noted: the request that caused the crash is gone with the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from penstock_packed.device import TurnDevice
from penstock_packed.device_queue import DeviceQueue, PackedTurn
from penstock_packed.member import FORMAT, LIST, MemberList, PackedMember, SavedMember, Stage, copy, read
from penstock_packed.member_turn import LOG, DeviceLost, MemberObject, TurnResult, carry_out, reason
from penstock_packed.request_queue import MemberEnded, ModelRequest, Overloaded, fail, refuse, wanted

NAP_S: Final = 0.02
"""Where nobody may have a turn now: how soon it is looked at again."""


class MemberSupervisor:
    """
    Members, their jobs, and the queue that says who is next.

    Parameters
    ----------
    device : TurnDevice
    queue : DeviceQueue
    place : Path or None
        The folder of the host's checkpoints; None where none are kept.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    closing : bool
        Whether no more turns are given.
    """

    def __init__(
        self, device: TurnDevice, queue: DeviceQueue[ModelRequest], place: Path | None, clock: Callable[[], float]
    ) -> None:
        self._device, self._queue, self._place, self._clock = device, queue, place, clock
        self._members: dict[str, PackedMember] = {}
        self._jobs: dict[str, MemberObject] = {}
        self._checkpoints = MemberCheckpoints(self._members, self._jobs, place, device.lost)
        self._attribution: CrashAttribution | None = None
        self._changed = threading.Condition()
        self._closing_models: set[str] = set()
        self._running = 0
        self._resting = self.closing = self._stopped = False

    @property
    def members(self) -> list[PackedMember]:
        """All of them, in the order in which they were added."""
        return list(self._members.values())

    def add(self, member: PackedMember, job: MemberObject) -> None:
        """Take in a member, before :meth:`begin`."""
        if member.name in self._members:
            raise ValueError(f"there is a member {member.name!r} already; expected names that differ")
        self._members[member.name], self._jobs[member.name] = member, job
        if member.target_s is not None:
            self._queue.targets.add(member.name, member.target_s)

    def begin(self) -> None:
        """Let all who are not over already onto the device."""
        self._attribution = CrashAttribution(self._place, self._device.lanes) if self._place else None
        with self._changed:
            for member in self._members.values():
                self._queue.join(member, self._clock())
                if self._attribution is not None and self._attribution.accuses(member.name) and not member.over:
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
            step, room_bytes = self._members[go.name].done, self._queue.room_bytes(go.name)
        done: TurnResult | None = None
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
                refuse(self._queue.left(name, self._clock()), _stopped(name))

    def why(self, name: str) -> str:
        """Return in one sentence why a member gets no turn; empty where it does, or is finished."""
        with self._changed:
            if name not in self._queue.members:
                return "the host has not begun"
            return self._queue.why(name, self._clock())

    # --- requests
    def ask(self, name: str, request: ModelRequest) -> None:
        """Take in a request, from any thread."""
        with self._changed:
            why_not = self._refusal(self._members[name])
            if why_not is not None:
                request.answer.set_exception(why_not)
                return
            self._queue.targets.ask(name, request, self._clock())
            self._changed.notify_all()

    def _refusal(self, member: PackedMember) -> Exception | None:
        """Return why a model takes no request now; None where it does."""
        if member.over or member.name in self._closing_models:
            return MemberEnded(f"{member.name} has {member.stage}: {member.reason or 'closed'}")
        if self._stopped:
            return _stopped(member.name)
        waiting, latency = self._queue.targets.pending(member.name), self._jobs[member.name].latency
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
            for name, reason in self._checkpoints.save(folder).items():
                self._jobs[name].end(self._device, 0)
                self._leave(name, "failed", reason)

    def load(self, folder: Path) -> None:
        """Read a checkpoint of all members, before :meth:`begin`."""
        self._checkpoints.load(folder)

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
    def _next(self, until_s: float) -> PackedTurn[ModelRequest] | None:
        while not self.closing:
            self._dismiss()
            go = None if self._resting else self._queue.next(self._clock())
            if go is not None or self.over() or self._clock() >= until_s:
                return go
            self._changed.wait(NAP_S)
        return None

    def _take(
        self, go: PackedTurn[ModelRequest], slot: int, step: int, room_bytes: int
    ) -> tuple[TurnResult, Stage | None]:
        if self._attribution is not None and go.what != "answer":
            self._attribution.begin(slot, go.name, go.what, step)
        begun_s = self._clock()
        done = carry_out(go, self._jobs[go.name], self._device, step, room_bytes)
        self._answer(go, done)
        ended = self._note(go, done, self._clock() - begun_s)
        if ended:
            self._jobs[go.name].end(self._device, go.lane)
        if self._attribution is not None:
            self._attribution.end(slot)
        return done, ended

    def _note(self, go: PackedTurn[ModelRequest], done: TurnResult, took_s: float) -> Stage | None:
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
                self._checkpoints.taken(go.name)
            return "finished" if done.last or (member.steps is not None and member.done >= member.steps) else None

    def _settle(self, name: str, ended: Stage | None, reason: str) -> None:
        if ended:
            self._leave(name, ended, reason)
            return
        self._queue.over(name, self._clock())

    def _answer(self, go: PackedTurn[ModelRequest], done: TurnResult) -> None:
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
        while self._queue.endings:
            name, reason = self._queue.endings.pop()
            self._jobs[name].end(self._device, 0)
            self._leave(name, "failed", f"no room: {reason}")
        for name in [name for name in self._closing_models if self._queue.idle(name)]:
            self._closing_models.discard(name)
            if not self._members[name].over:
                self._jobs[name].end(self._device, 0)
                self._leave(name, "finished", "")

    def _leave(self, name: str, stage: Stage, reason: str) -> None:
        member = self._members[name]
        member.stage, member.reason = stage, reason
        refuse(self._queue.left(name, self._clock()), MemberEnded(f"{name} has {stage}: {reason}"))
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


NOT_THE_MEMBERS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
"""Errors of the file system: the checkpoint as a whole is not written then, and no member is to blame."""


class MemberCheckpoints:
    """
    The members' states, in the host's checkpoint and out of it.

    A trial that has to wait for room after a restart has not loaded its state when the next checkpoint is due, and the
    checkpoint that it has to load may be gone when its turn comes. So a restart first links the folders of all trials
    to a place of its own, on the file system of the checkpoints. From there each is loaded, or goes into the next
    checkpoint.

    Parameters
    ----------
    members, jobs : dict
        The host's own, read when saved and filled when loaded.
    place : Path or None
        The folder of the job's checkpoints.
    lost : callable
        Says whether after an error nothing on the device works any more.
    """

    def __init__(
        self,
        members: dict[str, PackedMember],
        jobs: dict[str, MemberObject],
        place: Path | None,
        lost: Callable[[BaseException], bool],
    ) -> None:
        self._members, self._jobs, self._lost = members, jobs, lost
        self._resume_folder = place / "packed-resume" if place else None

    def save(self, folder: Path) -> dict[str, str]:
        """
        Write a checkpoint; return the members that could not be saved, and why: they have failed.

        Raises
        ------
        OSError
            If the file system takes no more.
        DeviceLost
            If the device works no more: all that are to be saved would fail, and none of them is to blame.
        """
        failed: dict[str, str] = {}
        entries = []
        for number, member in enumerate(self._members.values()):
            try:
                kept = self._save_state(member, folder / f"{number}")
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if isinstance(error, OSError) and error.errno in NOT_THE_MEMBERS:
                    raise
                if self._lost(error):
                    raise DeviceLost(f"{reason(error)} while {member.name} was saved") from error
                failed[member.name] = f"its state could not be saved: {reason(error)}"
                member.stage, member.reason, kept = "failed", failed[member.name], False
            entries.append(
                SavedMember(
                    name=member.name,
                    stage=member.stage,
                    done=member.done,
                    service_s=member.service_s,
                    reason=member.reason if member.stage == "failed" else "",
                    metrics=dict(member.metrics),
                    folder=f"{number}" if kept else "",
                )
            )
        (folder / LIST).write_bytes(msgspec.json.encode(MemberList(format=FORMAT, members=entries)))
        return failed

    def load(self, folder: Path) -> None:
        """Take over where the members were; trials load their states when they are set up."""
        entries = read(folder)
        for saved in entries:
            member = self._members.get(saved.name)
            if member is None:
                LOG.warning("member_gone member=%s: it is in the checkpoint, and not among the members now", saved.name)
                continue
            member.stage = saved.stage if saved.stage in ("finished", "failed") else "new"
            member.done, member.reason, member.metrics = saved.done, saved.reason, dict(saved.metrics)
            member.service_s = saved.service_s
            if member.over:
                self._jobs[saved.name].body = None
        if self._resume_folder is not None:
            shutil.rmtree(self._resume_folder, ignore_errors=True)
            for saved in entries:
                if saved.folder and saved.name in self._jobs:
                    self._jobs[saved.name].resume = self._resume_folder / saved.folder
                    copy(folder / saved.folder, self._resume_folder / saved.folder)

    def taken(self, name: str) -> None:
        """A member has been set up, and has loaded its state."""
        folder, self._jobs[name].resume = self._jobs[name].resume, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _save_state(self, member: PackedMember, folder: Path) -> bool:
        """Write one trial's state; False where there is none."""
        if member.over or not member.trains:
            return False
        job = self._jobs[member.name]
        if member.stage == "running":
            folder.mkdir()
            body: Any = job.body
            body.save(folder)
            return True
        if job.resume is not None:
            copy(job.resume, folder)
            return True
        return False


TURNS: Final = "packed-turns"
SUSPECTS: Final = "packed-suspects.json"
SLOT: Final = 512
"""Bytes for each thread's turn."""
NAME: Final = 400
"""Bytes of a name that are compared."""


class SuspectTurn(NamedTuple):
    """A turn in which the process has died."""

    name: str
    what: str
    step: int


class CrashAttribution:
    """
    The turns of one host, on disk.

    Parameters
    ----------
    place : Path
        The folder of the job's checkpoints; made where it is not there.
    slots : int
        Turns at a time.
    """

    def __init__(self, place: Path, slots: int) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._turns, self._suspects = place / TURNS, place / SUSPECTS
        died_in = self._left_over()
        deaths = Counter([*self._suspected(), *died_in])
        self.guilty: set[str] = {suspect.name for suspect, times in deaths.items() if times > 1}
        if died_in:
            self._suspects.write_bytes(msgspec.json.encode(sorted(deaths.elements())))
        self._turns.write_bytes(bytes(SLOT * slots))
        with self._turns.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SLOT * slots)

    def begin(self, slot: int, name: str, what: str, step: int) -> None:
        """Note that a turn begins."""
        line = f"{what} {step} {_short(name)}\n".encode()
        self._map[SLOT * slot : SLOT * slot + len(line)] = line

    def end(self, slot: int) -> None:
        """Note that it is over, and the process lives."""
        self._map[SLOT * slot] = 0

    def accuses(self, name: str) -> bool:
        """Say whether the process has died twice in the same step of a member."""
        return _short(name) in self.guilty

    def _left_over(self) -> list[SuspectTurn]:
        try:
            data = self._turns.read_bytes()
        except OSError:
            return []
        noted = (data[start : start + SLOT].split(b"\n")[0] for start in range(0, len(data), SLOT))
        suspects = (_suspect(line.decode(errors="replace")) for line in noted if line[:1] not in (b"", b"\0"))
        return [suspect for suspect in suspects if suspect is not None]

    def _suspected(self) -> list[SuspectTurn]:
        try:
            return msgspec.json.decode(self._suspects.read_bytes(), type=list[SuspectTurn])
        except (OSError, msgspec.MsgspecError):
            return []


def _suspect(line: str) -> SuspectTurn | None:
    """Return whom a line names; None where it was torn when the process was killed, or the machine."""
    what, _, rest = line.partition(" ")
    step, _, name = rest.partition(" ")
    return SuspectTurn(name, what, int(step)) if step.isascii() and step.isdigit() and name else None


def _short(name: str) -> str:
    return os.fsencode(name.replace("\n", " "))[:NAME].decode(errors="ignore")
