"""
What happens between two steps: progress, checkpoints, a stop that the executor asks for, the end of a sample.

This is the shell of the session: it reads a clock to see what is due, and it may end the process.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, SupportsFloat, TypeVar

import msgspec

from penstock.sessions import torch_support
from penstock.sessions.agent_client import AgentClient, make_current
from penstock.sessions.checkpoint import Checkpoints, Manifest, Superseded
from penstock.sessions.heartbeat_fence import HeartbeatFence
from penstock.sessions.loop_position import LoopCourse, SamplerPosition
from penstock.sessions.memory_tier import MemoryTier, SavedCheckpoint
from penstock.sessions.pace import pace
from penstock.sessions.parking import ParkRule, of_next_run
from penstock.sessions.sampler_state import RunSize, SamplerState
from penstock.sessions.setup import ProcessSetup
from penstock.sessions.torch_support import AllocatorLimit
from penstock_log.agent_protocol import (
    EXIT_PREEMPTED,
    VERSION,
    CheckpointSaved,
    Hello,
    SaveFailed,
    SessionDone,
    StepProgress,
    TimeLeft,
)

if TYPE_CHECKING:
    from penstock_sharing.token.lane_client import LaneClient

PROGRESS_S: Final = 0.25
"""Least seconds between two lines of progress."""
ReportT = TypeVar("ReportT", StepProgress, SessionDone)

_log = logging.getLogger("penstock.session")


class Boundary:
    """
    The boundary of a session's steps.

    Attributes
    ----------
    metrics : dict
        The last value of each reported metric; read when sent.
    pace : Pace
        Of the loop.
    save : callable or None
        How the script's state is saved, once the script has given it.
    turns : LaneClient or None
        By which it takes turns with other jobs on its devices; None where it has them to itself.
    at_rest : bool
        Whether it takes turns and is between two steps: it begins none before it has looked whether it is to leave.
    on_time_warning : callable or None
        What the script does when its time is short, once it has given it.
    time_is_short : bool
        Whether the job was warned that its time is nearly over.
    skew : float
        Share of the model's largest tensor, once the script has described it; 0 before.
    parking : ParkRule
        Whether the process may be parked, and what the script does around that.
    """

    def __init__(self, setup: ProcessSetup, course: LoopCourse, sampling: SamplerState, sizing: RunSize) -> None:
        self.metrics: dict[str, SupportsFloat] = {}
        self.pace = pace(setup.emulated_speed, sample=setup.sample_iterations > 0)
        self.save: Callable[[Path], object] | None = None
        self.skew = 0.0
        self.checkpoints: Checkpoints | None = None
        self._tier: MemoryTier | None = None
        self.parking = ParkRule(setup.backend)
        self._setup, self._sampling, self._sizing = setup, sampling, sizing
        self._open_checkpoints()
        self._limit = AllocatorLimit(setup.memory_fraction)
        self._course = course
        self.turns: LaneClient | None = None
        self.at_rest = False
        self._agent: AgentClient | None = None
        self._progress_due = self._checkpoint_due = self._fence_due = self._due = math.inf
        self._fence: HeartbeatFence | None = None
        self.on_time_warning: Callable[[float], object] | None = None
        self.time_is_short = self._warning_due = False
        self._ends_at: float | None = None
        self._leaving = False
        self._pid = os.getpid()

    def _open_checkpoints(self) -> None:
        setup = self._setup
        if setup.checkpoint_dir is not None:
            self.checkpoints = Checkpoints(setup.checkpoint_dir, setup.epoch, beside=setup.checkpoint_memory)
            self._tier = _memory_tier(setup, self.checkpoints)

    def connect(self) -> None:
        """Connect to the executor and to the lanes, where there are any."""
        self._limit.apply()
        self._connect_agent()
        if self._setup.lanes:
            self.turns = _lane_client(self._setup)
        if self._setup.heard:
            self._fence = HeartbeatFence(self._setup.heard, self._setup.hold_s)
            self._fence_due = self._due = 0.0

    def _connect_agent(self) -> None:
        if self._setup.socket:
            self._agent = AgentClient(
                self._setup.socket,
                self._hello,
                step=lambda: self._course.step,
                held=lambda: self.at_rest,
                on_message=self._interrupt,
                on_limit=self._limit.change,
                on_time=self._note_time,
            )
            make_current(self._agent)
            self._progress_due = self._due = 0.0

    def begin(self) -> None:
        """A loop begins; a boundary that a ``break`` left out is made up for."""
        self.at_rest = self.turns is not None
        if self._agent is not None:
            self._agent.begin_loop()
        self.catch_up()

    def catch_up(self) -> None:
        """Make up for a boundary that was left out: by a ``break``, or for the end of a loop."""
        if self._course.unattended or self._course.put_off:
            self._course.unattended = self._course.put_off = False
            self._do_what_is_due(perf_counter())

    def cross(self) -> None:
        """A step is done. This is the path that has to be short: about 0.2 microseconds where nothing is due."""
        course, agent = self._course, self._agent
        course.step += 1
        course.loop_steps += 1
        now = self.pace.lap()
        if (
            now >= self._due
            or (agent is not None and agent.attention)
            or course.loop_steps == self._setup.sample_iterations
        ):
            self._do_what_is_due(now)
            self.pace.resume()

    def cross_last(self) -> None:
        """
        The last step of an epoch's loop is done: what is due is put off until what stands behind it was done as well.

        A checkpoint taken before would have that done after a resume, with nothing of the loop's in hand. Where the
        process is to stop, one is taken at once nevertheless: it might not come so far in the time that it is given.
        """
        course, agent = self._course, self._agent
        if course.loop_steps + 1 == self._setup.sample_iterations or os.getpid() != self._pid:
            self.cross()
            return
        course.step += 1
        course.loop_steps += 1
        now = self.pace.lap()
        self._keep_in_time(now)
        self._send_due_progress(now)
        leaves = agent is not None and agent.attention and agent.verdict(course.step) == "leave"
        if leaves and not self._setup.rank:
            self._checkpoint(leaving=False)
        course.put_off = leaves or now >= self._checkpoint_due
        self._due = min(self._progress_due, self._checkpoint_due, self._fence_due)
        self.pace.resume()

    def enter(self, turns: LaneClient) -> None:
        """
        Begin a step as soon as it is this process's turn.

        While it waits, the step before is complete and nothing but what is kept is held: a process that is to stop
        leaves from here, without a turn. The next step's item has been fetched then; a resumed run fetches it again.
        """
        while True:
            if turns.enter(self._leave_if_agreed):
                self._course.waited_s += self.pace.resume()
            self.at_rest = False  # before the look: whoever asks looks in the other order
            if self._agent is None or not self._agent.attention or not self._leave_if_agreed():
                return
            self.at_rest = True

    def rest(self, turns: LaneClient) -> None:
        """A step is over, in all that concerns this process."""
        self.at_rest = True  # before anybody hears of it
        turns.exit()

    def pause(self) -> None:
        """Give the turn on: a loop has ended, in whatever way."""
        if self.turns is not None:
            self.turns.rest()

    def checkpoint_comes(self) -> bool:
        """Return whether the step that is running ends with a checkpoint."""
        if self.save is None or self.checkpoints is None or self._setup.rank:
            return False
        stop_at = self._agent.stop_at if self._agent else None
        return (stop_at is not None and self._course.step + 1 >= stop_at) or perf_counter() >= self._checkpoint_due

    def claim_checkpoints(self) -> None:
        """Make the checkpoints this run's, if this rank writes them; a run that was given up ends here."""
        if self.checkpoints is None or self._setup.rank:
            return
        try:
            self.checkpoints.claim()
            if self._tier is not None:
                self._tier.claim()
        except Superseded as error:
            _log.warning("run_superseded: %s", error)
            self._exit(EXIT_PREEMPTED)
        except OSError as error:
            _log.warning("checkpoints_not_writable error=%r; training goes on without", error)

    def load(self, load: Callable[[Path], object]) -> Manifest | None:
        """Go on from this job's last checkpoint, or else from that of the job from which it is to begin."""
        if self.checkpoints is None:
            return None
        return self.checkpoints.load(load, alone=self.alone, at_most=self._setup.resume_step) or self.inherit(load)

    def inherit(self, load: Callable[[Path], object]) -> Manifest | None:
        """Begin from the last checkpoint of the job that this one goes on from, if it is to; its last loop is open."""
        if self._setup.begin_dir is None:
            return None
        found = Checkpoints(self._setup.begin_dir).load(load, alone=self.alone, at_most=self._setup.begin_step)
        if found is None:
            _log.warning("nothing_to_begin_from folder=%s; training starts from the beginning", self._setup.begin_dir)
            return None
        return msgspec.structs.replace(found, history=found.history.reopened())

    @property
    def alone(self) -> bool:
        """Whether this process is its whole gang."""
        return self._setup.world_size == 1

    @property
    def samples(self) -> int:
        """Samples that are done, over all runs and epochs."""
        position = self._position()
        return position.done if position else 0

    def _position(self) -> SamplerPosition | None:
        return self._sampling.place(self._course.step)

    def put_off_checkpoint(self) -> None:
        """Let the next periodic checkpoint be due a period from now; rank 0 alone takes them."""
        if self._setup.checkpoint_s and not self._setup.rank:
            self._checkpoint_due = perf_counter() + self._setup.checkpoint_s
            self._due = min(self._progress_due, self._checkpoint_due, self._fence_due)

    def send_progress(self) -> None:
        """Send the script's progress."""
        self._limit.apply()  # a script may import torch after it has opened the session
        self._send(self._report(StepProgress))

    def disconnect(self, error: BaseException | None) -> None:
        """Give the token back, send how the session ended, and disconnect."""
        if self.turns is not None:
            self.turns.close()
        self._save_last(error)
        if self._course.unattended and not _ended_well(error):  # the step that raised was not done
            self._course.uncount()
        if self._fence is not None:
            self._fence.close()
            self._fence = None
        if self._agent is None:
            return
        try:
            if not self._leaving:
                self._send_end(self._agent, error)
        finally:
            self._agent.close()
            make_current(None)

    def _do_what_is_due(self, now: float) -> None:
        """Do what is due."""
        if os.getpid() != self._pid:
            return
        if self._setup.sample_iterations and self._course.loop_steps >= self._setup.sample_iterations:
            self._end_sample()
        self._keep_in_time(now)
        self._send_due_progress(now)
        if self._warning_due:
            self._warn()
        if self._agent is not None and self._agent.attention and self._agent.verdict(self._course.step) == "leave":
            self._leave(self._agent)
        elif now >= self._checkpoint_due:
            self._checkpoint(leaving=False)
        self._due = min(self._progress_due, self._checkpoint_due, self._fence_due)

    @property
    def time_left_s(self) -> float | None:
        """How long the job may still run, in seconds; None where it has no limit, or nobody has said."""
        return None if self._ends_at is None else max(0.0, self._ends_at - perf_counter())

    def _note_time(self, left: TimeLeft) -> None:
        """Note how long the job may still run; called by the thread that listens."""
        self._ends_at = None if left.left_s is None else perf_counter() + left.left_s
        if left.warning:
            self._warning_due = True
            self._due = 0.0  # last: the loop looks at what is due, and then at why
        self.time_is_short = left.warning

    def _warn(self) -> None:
        """Tell the script that its time is short, and save what there is: it may not come to it later."""
        self._warning_due = False
        if self.on_time_warning is not None:
            self.on_time_warning(self.time_left_s or 0.0)
        if self.save is not None and not self._setup.rank:
            self._checkpoint_due = 0.0

    def _keep_in_time(self, now: float) -> None:
        """Wait while the matcher may have given this run up: another may do the next step by now."""
        if now >= self._fence_due and self._fence is not None:
            left_s = self._fence.wait()
            self._fence_due = perf_counter() + left_s

    def _send_due_progress(self, now: float) -> None:
        if now >= self._progress_due:
            self.send_progress()
            if self.turns is not None:
                self.turns.look()
            self._progress_due = now + PROGRESS_S

    def _interrupt(self) -> None:
        """Have a wait for the turn look at a message that has come."""
        if self.turns is not None:
            self.turns.interrupt()

    def _leave_if_agreed(self) -> bool:
        """Leave from between two steps if that has been agreed; return whether it was to leave and could not."""
        agent, turns = self._agent, self.turns
        if agent is None or turns is None or not agent.attention or os.getpid() != self._pid:
            return False
        # alone, nobody else has to stop after the same step
        if not (agent.asked if self.alone else agent.verdict(self._course.step) == "leave"):
            return False
        turns.close()  # nobody is to wait for the checkpoint
        self._leave(agent)
        return True

    def _end_sample(self) -> None:
        self.pace.settle()
        if self._agent is not None:
            self._agent.send_last(self._report(SessionDone))
        self._exit(0)

    def _leave(self, agent: AgentClient) -> None:
        """
        Leave as agreed, with a checkpoint where this rank writes one.

        Where that fails, a lone process goes on; a gang cannot, since the others are leaving.
        """
        self.pace.settle()
        self.send_progress()  # the last word on how many steps this run did, and in which time
        if self.save is None or self.checkpoints is None or self._setup.rank:
            self._exit(EXIT_PREEMPTED)
        if not (self._checkpoint(leaving=True) or not self.alone):
            agent.forget_stop()
        elif not self._park(agent):
            self._exit(EXIT_PREEMPTED)

    def _park(self, agent: AgentClient) -> bool:
        """Be parked, where that may be, and go on as another run; return whether so."""
        parking = self.parking
        if not (agent.may_park and parking.allows and self.alone and self.turns is None):
            return False
        if not parking.leave_device():
            return False
        try:
            epoch = agent.park(self._course.step)
        except ConnectionResetError:  # as it is ended where it is parked; the checkpoint is there
            parking.give_up(EXIT_PREEMPTED)
            return False
        if epoch is None:
            parking.stay()
            return False
        agent.close()
        self._begin_next_run(epoch)
        return True

    def _begin_next_run(self, epoch: int) -> None:
        """Be the run of another epoch, which begins after the step that is done: nothing has to be loaded."""
        course, setup = self._course, self._setup
        self._setup = of_next_run(setup, epoch, course.step)
        course.loop_steps, course.waited_s = 0, 0.0
        self.pace = pace(setup.emulated_speed)
        self.time_is_short = self._warning_due = False
        self._ends_at = None
        self._fence_due = 0.0 if self._fence is not None else math.inf
        try:
            self._open_checkpoints()
            self._connect_agent()
            self.claim_checkpoints()
        finally:  # what the script does at its end finds its state where it was
            if self.parking.back is not None:
                self.parking.back()
        if self._agent is not None:
            self._agent.begin_loop()
        self.put_off_checkpoint()
        self.send_progress()
        self.pace.resume()

    def _exit(self, code: int) -> None:
        self._leaving = True
        raise SystemExit(code)

    def _checkpoint(self, *, leaving: bool, last: bool = False) -> bool:
        """Save a checkpoint and report it; return whether it is complete. The ``last`` one goes to the disk."""
        if self.save is None or self.checkpoints is None:
            return False
        step = self._course.step
        self._keep_in_time(perf_counter())
        try:
            saved = self._save(self.save, self.checkpoints, None if last else self._tier)
        except Superseded as error:
            _log.warning("run_superseded step=%s: %s", step, error)
            self._exit(EXIT_PREEMPTED)
        except Exception as error:  # whatever the user's function raises, training goes on
            _log.warning("checkpoint_failed step=%s error=%r; the one before is untouched", step, error)
            self._send(SaveFailed(step=step, error=f"{type(error).__name__}: {error}"))
            return False
        finally:
            self.put_off_checkpoint()
        self._send(CheckpointSaved(step=step, leaving=leaving, samples=self.samples, **saved._asdict()))
        return True

    def _save(
        self, write: Callable[[Path], object], checkpoints: Checkpoints, tier: MemoryTier | None
    ) -> SavedCheckpoint:
        what = (self._course.step, self._course.history(), write, self._position())
        batch_size, world_size = self._sizing.used, self._setup.world_size
        if tier is None:
            return SavedCheckpoint(checkpoints.save(*what, batch_size=batch_size, world_size=world_size))
        return tier.save(*what, batch_size=batch_size, world_size=world_size)

    def _save_last(self, error: BaseException | None) -> None:
        """Save what another job will go on from."""
        wanted = self._setup.save_at_end and not self._setup.rank and not self._setup.sample_iterations
        if wanted and _ended_well(error) and not self._leaving:
            self._checkpoint(leaving=False, last=True)

    def _send_end(self, agent: AgentClient, error: BaseException | None) -> None:
        if _ended_well(error):
            self.pace.settle()
            agent.send_last(self._report(SessionDone))
            return
        self.send_progress()

    def _hello(self) -> Hello:
        setup, step = self._setup, self._course.step
        return Hello(version=VERSION, job_id=setup.job_id, epoch=setup.epoch, rank=setup.rank, pid=self._pid, step=step)

    def _send(self, message: StepProgress | CheckpointSaved | SaveFailed) -> None:
        if self._agent is not None:
            self._agent.send(message)

    def _report(self, kind: type[ReportT]) -> ReportT:
        course, timing = self._course, self.pace.measured(self._course.loop_steps)
        return kind(
            step=course.step,
            loop_steps=course.loop_steps,
            loop_s=self.pace.loop_s,
            waited_s=course.waited_s,
            saves=self.save is not None,
            metrics=self._finite(),
            diverged=self._diverged(),
            skew=self.skew,
            memory=torch_support.measure(),
            batch_size=self._sizing.used,
            samples=self.samples,
            iteration_s=timing.iteration_s,
            error_s=timing.error_s,
        )

    def _finite(self) -> dict[str, float]:
        numbers = {name: float(value) for name, value in self.metrics.items()}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def _diverged(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.metrics.items() if not math.isfinite(float(value)))


def _ended_well(error: BaseException | None) -> bool:
    return error is None or (isinstance(error, SystemExit) and not error.code)


def _memory_tier(setup: ProcessSetup, checkpoints: Checkpoints) -> MemoryTier | None:
    if setup.checkpoint_memory is None:
        return None
    return MemoryTier(
        checkpoints,
        setup.checkpoint_memory,
        setup.checkpoint_most,
        agent=setup.memory_socket,
        job_id=setup.job_id,
        epoch=setup.epoch,
    )


def _lane_client(setup: ProcessSetup) -> LaneClient:
    from penstock_sharing.token import LaneClient, LaneClientId  # noqa: PLC0415 - a process that has its devices to itself does not pay for it

    return LaneClient(
        setup.lanes,
        LaneClientId(setup.job_id, setup.epoch, setup.rank),
        settle=torch_support.settle,
        works_on=torch_support.works_on,
    )
