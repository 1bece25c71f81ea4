"""This node's runs and what can be done to them: start, ask, end, find again, remove. Synchronous; owns no loop."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from penstock_cluster import DeviceError
from penstock_cluster.host_limits import limits_of
from penstock_cluster.nodes import Cluster
from penstock_executor import gang, job_folders, run_folders
from penstock_executor.agent_listener import AgentConnection
from penstock_executor.checkpoint_folder import CheckpointFolder, HeldCheckpoint
from penstock_executor.checkpoint_tier import prepare
from penstock_executor.checkpoint_transfer import Resume, RunFactFields
from penstock_executor.code_cache import WorkFolders
from penstock_executor.gang import Rendezvous
from penstock_executor.launchers import containers, environment, process_launcher
from penstock_executor.launchers.containers import Container, ImageRefused
from penstock_executor.launchers.fork_server import COLD
from penstock_executor.launchers.launcher import OUTPUT_BYTES, LaunchedProcess, Launcher, OutputLimits, WarmRequest
from penstock_executor.machine import TellTime
from penstock_executor.memory_limits import MemoryLimits
from penstock_executor.output_store import OutputStore
from penstock_executor.parked_run import ParkedRun
from penstock_executor.run_credentials import Credentials, SecretRefused, SecretValues, remove_files
from penstock_executor.run_identity import IdentityRefused, IdentityRule, RunIdentity
from penstock_executor.run_state import HOLD, Ending, Key, LocalRun, RunProcess, is_stopping_signal, sharing_of
from penstock_executor.series_store import SeriesStore
from penstock_log import AnyEvent, Job, RunCheckpointed, RunRewound, RunWarned
from penstock_log.agent_protocol import (
    EXIT_PREEMPTED,
    LONGEST_METRIC,
    MOST_METRICS,
    AgentEnv,
    CheckpointSaved,
    FromJob,
    Hello,
    HoldMemory,
    MemoryReport,
    ReadyToPark,
    SaveFailed,
    SessionDone,
    StepProgress,
    StopAtStep,
    StopRequest,
    TimeLeft,
    ToJob,
)
from penstock_sharing.token import LaneClientId

Place = tuple[Key, int]
"""A run and a rank."""
LONGEST_ERROR: Final = 1000
"""Characters of what a job says of its errors."""
_EXHAUSTED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""What a node lacks for a while, and has again when other runs end."""
_ADVICE: Final = {
    errno.EMFILE: "raise the limit of open files of the executor (LimitNOFILE, ulimit -n)",
    errno.ENFILE: "raise the limit of open files of the machine (fs.file-max)",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EAGAIN: "raise the limit of processes of the executor (TasksMax, ulimit -u), or give the node fewer devices",
    errno.ENOMEM: "end what holds the node's memory",
    errno.E2BIG: "give it a shorter command or environment",
}
_log = structlog.get_logger("penstock.executor")


class _Start(NamedTuple):
    """How all processes of a run start: where they meet, from what they go on, as whom, with which secrets, in what."""

    rendezvous: dict[str, str]
    resume: Resume | None
    account: RunIdentity
    secrets: SecretValues
    container: Container | None


_UNKNOWN: Final = _Start({}, None, RunIdentity(name="", uid=-1, gid=-1), SecretValues(), None)


class NodeExhausted(Exception):
    """The node has no room, descriptor, process or memory for a run now: it can only be started later."""


class ProcessHost:
    """
    The runs of one node.

    Parameters
    ----------
    clock : callable
        Seconds since the epoch.
    watch : callable
        ``watch(place, process)``: report when that process ends.
    report : callable
        ``report(fact)``: a fact that a run's process brought about.
    wake : callable
        Called when something has changed.
    on_memory : callable
        ``on_memory(place, memory, iterations)``: called when a process reports its memory, with its iterations so far.
    on_ready : callable
        ``on_ready(place, step)``: called when a process has saved its checkpoint after a step, and may be parked.
    limits : MemoryLimits
        The memory limits of runs.
    outputs : OutputStore
        The store of the processes' output; by default it is beside the run folders.
    output_bytes : int
        The most bytes of each output file.
    launcher : Launcher
        What starts and ends the processes.
    checkpoint_most : int
        The largest checkpoint in memory, in bytes.
    rule : IdentityRule
        As whom processes run; by default, all as the executor.
    beside : callable
        ``beside(act)``: has something done that nobody waits for, and that a disk may keep for long; by default, it is
        done at once.

    Attributes
    ----------
    connections : dict of Place to AgentConnection
        Open connections.
    unpublished : set of str
        Jobs whose progress has changed since it was last published.
    series : SeriesStore
        The metrics of runs whose first process is here.
    """

    def __init__(
        self,
        site: environment.LaunchSite,
        runs_dir: Path,
        *,
        clock: Callable[[], float],
        watch: Callable[[Place, LaunchedProcess], None],
        report: Callable[[AnyEvent], None],
        wake: Callable[[], None],
        on_memory: Callable[[Place, MemoryReport, int], object] = lambda *_: None,
        on_ready: Callable[[Place, int], object] = lambda *_: None,
        limits: MemoryLimits | None = None,
        outputs: OutputStore | None = None,
        output_bytes: int = OUTPUT_BYTES,
        launcher: Launcher[Any] = process_launcher,
        rule: IdentityRule | None = None,
        checkpoint_most: int = 0,
        beside: Callable[[Callable[[], None]], None] = lambda act: act(),
    ) -> None:
        self._checkpoint_most, self._beside = checkpoint_most, beside
        self.work = WorkFolders(site.work) if site.work is not None else None
        self.site, self.runs_dir = site, runs_dir
        self._rule = rule or IdentityRule(run_as="executor")
        self.limits = limits or MemoryLimits(site.devices)
        self.outputs = outputs or OutputStore(runs_dir.parent / "output", site.node_id)
        self._output_bytes, self.launcher = output_bytes, launcher
        self._on_memory, self._on_ready = on_memory, on_ready
        self.runs: dict[Key, LocalRun] = {}
        self.connections: dict[Place, AgentConnection] = {}
        self.unpublished: set[Key] = set()
        self.series = SeriesStore(runs_dir)
        self._processes: dict[Place, LaunchedProcess] = {}
        self._parked_homes: set[Key] = set()
        self._rendezvous = Rendezvous()
        self.checkpoints = CheckpointFolder(site.checkpoints, site.node_id, passable=self._rule.switches)
        self.memory: CheckpointFolder | None = None
        if site.checkpoint_memory is not None:
            self.memory = CheckpointFolder(site.checkpoint_memory, site.node_id, passable=self._rule.switches)
        self._clock, self._watch, self._report, self._wake = clock, watch, report, wake

    @property
    def switches(self) -> bool:
        """Whether processes may run as other users than the executor."""
        return self._rule.switches

    # --- beginning
    def start(
        self,
        job: Job,
        cluster: Cluster,
        resume: Resume | None = None,
        credentials: Credentials | None = None,
        container: Container | ImageRefused | None = None,
    ) -> LocalRun:
        """
        Start a job's processes on this node; if that is impossible, the run has a reason and no process.

        Parameters
        ----------
        resume : Resume, optional
            What they go on from; None if the log knows of nothing.
        credentials : Credentials, optional
            As whom they run, and with which secrets; None: as the executor, with none.
        container : Container or ImageRefused, optional
            What they start in; None: a job without an image.

        Raises
        ------
        NodeExhausted
            If the node lacks something for the run now; then nothing was started.
        """
        gang = environment.members(environment.placement_of(job), job.spec.processes)
        mine = [member for member in gang if member.node_id == self.site.node_id]
        source = resume.source if resume is not None else HeldCheckpoint(step=0)
        account, secrets = credentials or Credentials(RunIdentity(name="", uid=os.geteuid(), gid=os.getegid()))
        problems = (str(one) for one in (account, secrets, container) if isinstance(one, Exception))
        refused = next(problems, "")
        run = LocalRun(
            job_id=job.id,
            epoch=job.epoch,
            devices=tuple(index for member in mine for index in member.devices),
            world_size=len(gang),
            started_s=self._clock(),
            refused=refused or self._problem(job, mine[0]),
            refuses_user=isinstance(account, IdentityRefused),
            uid=None if isinstance(account, IdentityRefused) else account.uid,
            hold_s=HOLD * environment.placement_of(job).patience_s if self.site.heard else 0.0,
            sharing=sharing_of(job),
            resumed_step=source.step,
            resumed_generation=source.generation,
            resumed_digest=source.digest,
            begun_from=resume.begun_from if resume is not None and resume.begun is not None else "",
            copied_from=resume.copied_from if resume is not None else "",
        )
        self.runs[run.key] = run
        self.limits.set_fraction(job, run.devices)
        self.limits.set_host(job)
        run.cap_bytes = self.limits.least_bytes(run.key)
        if not (
            run.refused
            or isinstance(account, IdentityRefused)
            or isinstance(secrets, SecretRefused)
            or isinstance(container, ImageRefused)
        ):
            run.ranks = {member.rank: RunProcess() for member in mine}
            meet = self._rendezvous.arrange(run.key, gang, cluster)
            self._spawn_all(run, job, mine, _Start(meet, resume, account, secrets or SecretValues(), container))
        return run

    def _problem(self, job: Job, member: environment.GangMember) -> str:
        cwd = self._cwd(job)
        if job.sample and (problem := environment.opaque(job.spec.command, cwd)):
            return problem
        if job.spec.image not in {"", self.site.image}:
            return ""  # what is in an image shows when it is entered
        return self.launcher.problem(job.spec.command, cwd, self._environment(job, member).get("PATH", ""))

    def _environment(self, job: Job, member: environment.GangMember, how: _Start = _UNKNOWN) -> dict[str, str]:
        container = how.container
        own = environment.environment_of(job, member, self.site, how.rendezvous, how.resume)
        base = self.launcher.base_environment(self.site.pass_env) | how.account.environment()
        if container is not None:
            base = containers.variables(container, base, self.site.pass_env)
        return base | how.secrets.environment(self._secret_files((job.id, job.epoch))) | own

    def _cwd(self, job: Job) -> str:
        """Return the working directory: of a job whose code was uploaded, within its run's own folder."""
        if job.spec.code and self.work is not None:
            return os.path.normpath(self.work.path((job.id, job.epoch)) / job.spec.cwd)
        return os.path.join(self.site.cwd, job.spec.cwd)

    def _spawn_all(
        self,
        run: LocalRun,
        job: Job,
        mine: list[environment.GangMember],
        how: _Start,
    ) -> None:
        account, secrets, container = how.account, how.secrets, how.container
        secret_files = self._secret_files(run.key)
        try:
            run_folders.create(self.runs_dir, run)
            tmp = self._give_folders(run, account, container)
            self._give_memory(run, job, account)
            secrets.write_files(secret_files, account)
            for member in mine:
                env = self._environment(job, member, how)
                env |= self._memory_environment(run, job, member)
                if (in_memory := environment.memory_folder_of(job, self.site)) is not None:
                    most = str(self._checkpoint_most)
                    env |= {AgentEnv.CHECKPOINT_MEMORY: str(in_memory), AgentEnv.CHECKPOINT_MOST: most}
                where = run_folders.rank_path(self.runs_dir, run.key, member.rank)
                command = self.limits.command(run.key, member.rank, member.devices, job.spec.command)
                keep = OutputLimits(self.outputs.create(run.key, member.rank), self._output_bytes)
                group = self.limits.group(run.key, member.rank, member.devices)
                confined = environment.confinement_of(
                    job,
                    member,
                    account,
                    self.site,
                    cwd=self._cwd(job),
                    tmp=tmp,
                    cgroup=group,
                    container=container,
                    passed=(str(secret_files),) if secrets.files else (),
                )
                if confined.namespace:  # where there may be no shell to set them
                    rest, data_bytes = limits_of(command)
                    command = list(rest)
                    confined = confined._replace(data_bytes=data_bytes)
                self.launcher.confine(where, confined)
                fence = self.site.fence(job.placement)
                process = self.launcher.start(
                    where, command, env, self._cwd(job), keep, fence=fence, warm=_warm(run, job, secrets)
                )
                self._note_start(run, job, self.launcher.how(where))
                self._track((run.key, member.rank), process)
        except job_folders.FolderNotOurs as error:
            run.refused = str(error)
            self._abort(run)
        except DeviceError as error:
            run.refused = f"its memory cap could not be set: {error}"
            self._abort(run)
        except OSError as error:
            problem = _start_problem(error, self.runs_dir)
            if error.errno in _EXHAUSTED and not any((run.key, member.rank) in self._processes for member in mine):
                self.limits.forget_host(run.key, run.ranks)
                self._remove_folders(run.key)  # before the next try
                self._forget(run.key)
                raise NodeExhausted(problem) from error
            run.refused = problem
            self._abort(run)

    @staticmethod
    def _note_start(run: LocalRun, job: Job, how: str) -> None:
        """Note how a process began; a cold one says more than a warm one, and matters to those who asked for that."""
        if how == "warm":
            run.start = run.start or how
        elif job.spec.preload:
            run.start = how

    def _give_folders(self, run: LocalRun, account: RunIdentity, container: Container | None) -> Path | None:
        """Make the folders that are the run's own; return its temporary one, where it has one."""
        with contextlib.suppress(OSError):  # jobs that save are warned when they cannot
            if account.switches:
                self.checkpoints.give(run.job_id, account.uid, account.gid)
            else:
                self.site.checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
                if container is not None or self.site.sandbox != "none":  # what is attached has to be there
                    (self.site.checkpoints / run.job_id).mkdir(mode=0o700, exist_ok=True)
        shares = container is not None and not container.namespace  # or what enters it would have another /tmp
        if self.site.temporary is None or not (self.site.keeps_apart or shares):
            return None
        job_folders.make_passable(self.site.temporary)
        tmp = self._temporary(run.key, self.site.temporary)
        job_folders.make_owned(tmp, account.uid, account.gid)
        return tmp

    def _give_memory(self, run: LocalRun, job: Job, account: RunIdentity) -> None:
        """Make the folder for the job's checkpoints in memory, if it asks for one; warn if there is none."""
        if job.spec.checkpoint_tier != "memory" or job.sample:
            return
        problem = "this node keeps no checkpoints in memory (checkpoint_memory_bytes, checkpoint_memory_dir)"
        if self.memory is not None:
            try:
                prepare(self.memory.root)
                self.memory.give(job.id, account.uid, account.gid)
            except (OSError, job_folders.FolderNotOurs) as error:
                problem = str(error)
            else:
                return
        self._warn_of_tier(run, problem)

    def _warn_of_tier(self, run: LocalRun, problem: str) -> None:
        """Warn, once in a run, that checkpoints are on the disk although memory was asked for."""
        if "tier" not in run.reported:
            run.reported.add("tier")
            self.warn(run.key, f"its checkpoints are saved to the disk, and not in memory: {problem}")

    def _secret_files(self, key: Key) -> Path:
        """Return the folder for a run's secrets that are files."""
        return self.runs_dir.parent / "secrets" / f"{key[0]}-{key[1]}"

    @staticmethod
    def _temporary(key: Key, folder: Path) -> Path:
        return folder / f"{key[0]}-{key[1]}"

    def _memory_environment(self, run: LocalRun, job: Job, member: environment.GangMember) -> dict[str, str]:
        need = job.need or job.spec.memory
        return self.limits.environment(run.key, member.devices, need.framework_bytes if need else 0)

    def _abort(self, run: LocalRun) -> None:
        """Undo a start that succeeded for some processes only: the others count as ended."""
        for index, rank in run.ranks.items():
            if (run.key, index) not in self._processes:
                rank.ended_s = self._clock()
        self.kill(run.key)

    def _track(self, place: Place, process: LaunchedProcess) -> None:
        self._processes[place] = process
        self._watch(place, process)

    def adopt(self) -> Iterator[Place]:
        """Adopt the runs of an earlier executor; yield those processes that ended meanwhile."""
        runs = list(run_folders.scan(self.runs_dir))
        self._end_parked({(run.job_id, run.home) for run in runs})
        for run in runs:
            self.runs[run.key] = run
            if run.home:
                self.limits.set_home(run.key, run.home)
            self.series.adopt_run(run.key, self._clock())
            for index in run.ranks:
                folder = self.rank_dir((run.key, index))
                process = self.launcher.adopt(folder)
                if process is None:
                    self.launcher.clean_up(folder)
                    yield run.key, index
                else:
                    self._track((run.key, index), process)
                    _log.info("process_adopted", job_id=run.job_id, epoch=run.epoch, rank=index, pid=process.pid)
        if self.site.temporary is not None:
            kept = {self._temporary(home, self.site.temporary) for home in self.homes()}
            for left in {*self.site.temporary.glob("*")} - kept:
                job_folders.remove_soon(left)

    def _end_parked(self, homes: Collection[Key]) -> None:
        """End parked processes of an earlier executor: they end with it, but may not have come to that."""
        for home in run_folders.parked(self.runs_dir):
            if home in homes:
                continue
            folder = run_folders.rank_path(self.runs_dir, home, 0)
            if (process := self.launcher.adopt(folder)) is not None:
                self.launcher.kill(process)
            self.launcher.clean_up(folder)
            self._remove_folders(home)

    # --- parking
    def process(self, place: Place) -> LaunchedProcess:
        """Return a process that lives."""
        return self._processes[place]

    def begin_parking(self, place: Place, parked: ParkedRun) -> LaunchedProcess:
        """Note that a run is about to end as parked; return its process, which is stopped."""
        self.runs[place[0]].parking = True
        self.connections.pop(place, None)
        self._parked_homes.add((parked.job_id, parked.home))
        return self._processes.pop(place)

    def end_as_parked(self, place: Place, held_bytes: int) -> None:
        """Note that a run has ended, with all of its output published; its process is kept where it holds memory."""
        key, index = place
        run = self.runs[key]
        run.parked, run.parked_bytes = bool(held_bytes), held_bytes
        rank = run.ranks[index]
        rank.exit_code, rank.ended_s = EXIT_PREEMPTED, self._clock()
        self._wake()

    def start_parked(self, job: Job, parked: ParkedRun, process: LaunchedProcess) -> LocalRun:
        """
        Begin a run with the process of a parked one, which is not let go on yet.

        Raises
        ------
        NodeExhausted
            If the node lacks something for the run now; then nothing has begun.
        """
        checkpoint, placement = job.checkpoint, environment.placement_of(job)
        run = LocalRun(
            job_id=job.id,
            epoch=job.epoch,
            devices=tuple(index for slot in placement.slots for index in slot.devices),
            ranks={0: RunProcess()},
            started_s=self._clock(),
            uid=parked.uid,
            hold_s=parked.hold_s,
            resumed_step=parked.step,
            resumed_generation=parked.epoch,
            resumed_digest=checkpoint.digest if checkpoint is not None else "",
            start="parked",
            home=parked.home,
        )
        try:
            run_folders.create(self.runs_dir, run)
            folder = self.outputs.create(run.key, 0)
            for name in ("stdout", "stderr"):
                os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        except OSError as error:
            run_folders.remove(self.runs_dir, run.key)
            raise NodeExhausted(_start_problem(error, self.runs_dir)) from error
        # a process that ends before it goes on has left as it was asked to, also for the next executor
        run_folders.note_stopping(self.runs_dir, msgspec.structs.replace(run, ending="preempted"))
        self.runs[run.key] = run
        self._parked_homes.discard((parked.job_id, parked.home))
        self.limits.set_home(run.key, parked.home)
        self.limits.set_host(job)
        self._track((run.key, 0), process)
        return run

    def note_going(self, run: LocalRun) -> None:
        """Note that the process of a run that was parked goes on."""
        run_folders.note_stopping(self.runs_dir, run)

    def remove_parked(self, parked: ParkedRun, process: LaunchedProcess) -> None:
        """Remove what is left of a parked run whose process has ended."""
        home = parked.job_id, parked.home
        place = home, 0
        if self.launcher.reap(process, run_folders.rank_path(self.runs_dir, *place)) is None:
            self.limits.end(*place)
        self._parked_homes.discard(home)
        if (parked.job_id, parked.epoch) not in self.runs:  # else that goes when its end is in the log
            self._remove_folders(home)

    # --- ending
    def ask(self, key: Key, ending: Ending, why: str = "", *, park: bool = False) -> None:
        """Ask all processes of a run for their steps, so that they can agree on where to stop, and ``park`` there."""
        run = self.runs[key]
        run.ending, run.why, run.asked_s, run.may_park = ending, why, self._clock(), park
        run_folders.note_stopping(self.runs_dir, run)
        self._send_all(run, StopRequest())

    def tell_time(self, told: TellTime) -> None:
        """Tell a run's processes how long the job may run; where that is short, with the signal that it asks for."""
        run = self.runs[told.key]
        run.warned = told.is_short or (run.warned and run.told_due_s is None)  # one of an earlier executor's
        run.told_due_s = told.due_s
        self._send_all(run, self._time_left(run, warning=told.is_short))
        if not told.is_short:
            return
        run_folders.note_mark(self.runs_dir, run, min(run.ranks), "warned")
        if told.warning:
            self.warn(told.key, told.warning)
        for process in self._running(run) if told.signal else ():
            self.launcher.signal_group(process, signal.Signals[f"SIG{told.signal}"])

    def _time_left(self, run: LocalRun, *, warning: bool = False) -> TimeLeft:
        left_s = None if run.told_due_s is None else max(0.0, run.told_due_s - self._clock())
        return TimeLeft(left_s=left_s, warning=warning)

    def terminate(self, key: Key, ending: Ending) -> None:
        """Send TERM to all process groups of a run."""
        run = self.runs[key]
        run.ending, run.termed_s = ending, self._clock()
        for process in self._running(run):
            self.launcher.signal_group(process, signal.SIGTERM)

    def end(self, key: Key, ending: Ending, why: str) -> None:
        """Kill a run, with the reason."""
        run = self.runs[key]
        if not run.killed_s:
            run.ending, run.why = ending, why
            self.kill(key)

    def kill(self, key: Key) -> None:
        """End all processes of a run, also those that have left its process groups."""
        run = self.runs[key]
        run.killed_s = self._clock()
        for process in self._running(run):
            self.launcher.kill(process)

    def _running(self, run: LocalRun) -> list[LaunchedProcess]:
        """Note how far the run's end has come; return the processes that are still alive."""
        run_folders.note_stopping(self.runs_dir, run)
        places = [(run.key, index) for index, rank in run.ranks.items() if rank.alive]
        return [self._processes[place] for place in places if place in self._processes]

    def reap(self, place: Place) -> int | None:
        """Return the exit status of a process that has ended, after ending what it left behind."""
        process = self._processes.get(place)
        where = self.rank_dir(place)
        code = self.launcher.exit_code(where) if process is None else self.launcher.reap(process, where)
        self._note_late_start(place[0], self.launcher.how(where))
        if code is None:
            self.limits.end(*place)  # the shim, which would have ended all, was killed itself
        return 128 + signal.SIGKILL if code is None and self.runs[place[0]].killed_s else code

    def _note_late_start(self, key: Key, how: str) -> None:
        """Tell once what came out about a start after it: that its modules cannot be imported, for example."""
        run = self.runs[key]
        if run.home:
            return  # its processes were started for an earlier run
        if run.start and how.startswith(COLD) and how != run.start:
            run.start = how
            self.warn(key, f"it did not start warm: {how.removeprefix(COLD)}")

    def may_be_stopped(self, place: Place, code: int | None) -> bool:
        """Say whether a process that ended may have got the signal with which its node is stopped: it got no other."""
        run = self.runs[place[0]]
        return is_stopping_signal(code) and not (run.ending or run.termed_s or run.killed_s)

    def note_stopped(self, place: Place) -> None:
        """Note that a process has ended as its node was being stopped."""
        key, index = place
        self.runs[key].ranks[index].stopped = True
        run_folders.note_mark(self.runs_dir, self.runs[key], index, "stopped")

    def ended(self, place: Place, code: int | None, unfit: str = "") -> None:
        """
        Note that a process is gone and that all of its output is published.

        Parameters
        ----------
        unfit : str
            Why one of its devices is unfit; empty where none is.
        """
        key, index = place
        self._processes.pop(place, None)
        rank = self.runs[key].ranks[index]
        rank.exit_code, rank.ended_s = code, self._clock()
        rank.last_line = run_folders.last_line(self.outputs.rank_path(*place) / "stderr")
        self._note_host_memory(self.runs[key], index)
        if rank.failed and unfit:
            self.runs[key].unfit = unfit
        _log.info("process_ended", job_id=key[0], epoch=key[1], rank=index, exit_code=code)
        if rank.unflushed:
            left = f"rank {index} left with exit code {code} after all of its steps were done: the end of its output"
            self.warn(key, f"{left} found no room, which counts as success")
        self.settle(self.runs[key])
        self._wake()

    def _note_host_memory(self, run: LocalRun, index: int) -> None:
        """Note it if a process was ended for its use of the host's memory."""
        rank = run.ranks[index]
        if rank.failed and not run.ending:
            devices = len(run.devices_of[index])
            if why := self.limits.killed_on_host(run.key, index, devices, rank.last_line):
                run.ending, run.why = "host_memory", why

    def least_hold_s(self) -> float:
        """Return after how many seconds without an answered heartbeat the first run is stopped; infinite if none is."""
        return min((run.hold_s for run in self.runs.values() if run.alive and run.hold_s), default=math.inf)

    def places(self) -> dict[Place, tuple[int, int]]:
        """Return the session and the number of devices of each process that runs."""
        return {
            (run.key, index): (self.leader((run.key, index)), len(run.devices_of[index]))
            for run in self.runs.values()
            for index, rank in run.ranks.items()
            if rank.alive and not run.killed_s
        }

    def end_over_memory(self, over: Mapping[Key, str]) -> None:
        """End the runs that exceed their part of the host's memory, where the kernel does not do it."""
        for key, why in over.items():
            if key in self.runs and self.runs[key].alive:  # it may have ended while it was looked at
                _log.warning("run_over_host_memory", job_id=key[0], epoch=key[1], reason=why)
                self.end(key, "host_memory", why)

    def clean(self, key: Key) -> None:
        """
        Remove a run whose end is in the log, but for what its processes have where they are parked.

        Its folders go when the disk comes to it.
        """
        home = self.home(key)
        if home in self._parked_homes:
            self.limits.leave_host(key)
            run_folders.leave_parked(self.runs_dir, home)
        else:
            self.limits.forget_host(key, self.runs[key].ranks if key in self.runs else ())
            self._beside(partial(self._remove_folders, home))
        if home != key:
            self._beside(partial(run_folders.remove, self.runs_dir, key))
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._rendezvous.release(key)
        self.runs.pop(key, None)
        self.unpublished.discard(key)
        self.series.forget_run(key)

    def _remove_folders(self, home: Key) -> None:
        """Remove the folders of processes that have ended."""
        run_folders.remove(self.runs_dir, home)
        remove_files(self._secret_files(home))
        if self.site.temporary is not None:
            job_folders.remove_soon(self._temporary(home, self.site.temporary))
        if self.work is not None:
            self.work.end(home)

    def home(self, key: Key) -> Key:
        """Return the run in which the processes of a run were started, whose folders they have."""
        run = self.runs.get(key)
        return (key[0], run.home) if run is not None and run.home else key

    def homes(self) -> set[Key]:
        """Return the runs whose folders processes have: those that are here or parked."""
        return {*map(self.home, self.runs), *self._parked_homes}

    def remove_checkpoints(self, job_id: str) -> None:
        """Remove the checkpoints of a job that is over."""
        self.checkpoints.remove(job_id)

    def rank_dir(self, place: Place) -> Path:
        """Return the folder of one process."""
        return run_folders.rank_path(self.runs_dir, self.home(place[0]), place[1])

    def marks_dir(self, place: Place) -> Path:
        """Return the folder of what is noted of a process in one run of its job."""
        return run_folders.rank_path(self.runs_dir, *place)

    def may_take_turns(self, uid: int, who: LaneClientId | None) -> bool:
        """Return whether a user's processes may speak for one that shares a lane, or for any at all."""
        return self.may_speak(uid) if who is None else self.may_speak(uid, who.job_id, who.epoch)

    def is_of(self, who: LaneClientId, pid: int) -> bool:
        """Return whether a process is, or descends from, the one that was started as that rank."""
        process = self._processes.get(((who.job_id, who.epoch), who.rank))
        return process is not None and self.launcher.belongs_to(pid, process)

    def leader(self, place: Place) -> int:
        """Return the session of a process; 0 if it is gone."""
        process = self._processes.get(place)
        return 0 if process is None else process.session

    def limited(self, place: Place, argv: Sequence[str]) -> list[str]:
        """Return the command line that holds a command to the limits of the process beside which it is to run."""
        key, index = place
        return self.limits.beside(key, index, self.runs[key].devices_of[index], argv)

    def exit_code(self, place: Place) -> int | None:
        """Return the exit status of a process that has just ended, if it left one."""
        return self.launcher.exit_code(self.rank_dir(place))

    # --- listening (AgentHandler)
    def may_speak(self, uid: int, job_id: str = "", epoch: int = 0) -> bool:
        """Return whether a user's processes may speak for a run, being its user's or root's; or for any at all."""
        runs = [self.runs.get((job_id, epoch))] if job_id else [*self.runs.values()]
        own = os.geteuid()
        users = {run.uid if run.uid is not None else own for run in runs if run is not None}
        return uid in (0, own) or uid in users

    def accept(self, connection: AgentConnection, hello: Hello) -> bool:
        """Accept a process if it is, or descends from, the one that was started as that rank."""
        place = ((hello.job_id, hello.epoch), hello.rank)
        run, process = self.runs.get(place[0]), self._processes.get(place)
        if run is None or process is None or not self.launcher.belongs_to(connection.pid, process):
            return False
        self.connections[place] = connection
        gang.note_message(run, hello.rank, hello)
        run_folders.note_mark(self.runs_dir, run, hello.rank, "hello")
        self.send_caps(run)
        if run.told_due_s is not None:
            connection.send(self._time_left(run, warning=run.warned))
        if run.stop_step is not None:
            connection.send(StopAtStep(step=run.stop_step))
        elif run.asked_s:
            connection.send(StopRequest())
        self._wake()
        return True

    def handle(self, connection: AgentConnection, message: FromJob) -> None:
        """Note a process's message, and report what the log or the gang needs of it."""
        if connection.hello is None:
            return
        key, index = (connection.hello.job_id, connection.hello.epoch), connection.hello.rank
        run = self.runs.get(key)
        if run is None:
            return
        gang.note_message(run, index, message)
        match message:
            case CheckpointSaved():
                self._note_saved(run, message)
            case SaveFailed():
                error = message.error if len(message.error) <= LONGEST_ERROR else f"{message.error[:LONGEST_ERROR]}…"
                what = f"the checkpoint after step {message.step} could not be written: {error}"
                self._report(RunWarned(warning=what, **self.about(key)))
            case StepProgress() | SessionDone():
                self._note_progress(run, index, message)
            case ReadyToPark():
                self._on_ready((key, index), message.step)
            case _:
                pass
        self.settle(run)

    def _note_progress(self, run: LocalRun, index: int, message: StepProgress | SessionDone) -> None:
        key = run.key
        if index == 0:
            self.unpublished.add(key)
            self.series.add_report(key, run.ranks[0].report, self._clock())
            self._report_rewind(run, max(0, message.step - message.loop_steps))
        if run.ranks[index].crowded and "crowded" not in run.reported:
            run.reported.add("crowded")
            kept = f"{MOST_METRICS} are kept, by names of at most {LONGEST_METRIC} characters"
            self.warn(key, f"rank {index} reports more metrics than are kept: {kept}; the others are left out")
        if isinstance(message, SessionDone):
            run_folders.note_mark(self.runs_dir, run, index, "done")
        if message.memory is not None:
            self._on_memory((key, index), message.memory, message.loop_steps)

    def _note_saved(self, run: LocalRun, message: CheckpointSaved) -> None:
        about = self.about(run.key)
        where, peers = message.tier, message.peers
        self._report(RunCheckpointed(step=message.step, digest=message.digest, tier=where, peers=peers, **about))
        if message.fallback:
            self._warn_of_tier(run, message.fallback)

    def _report_rewind(self, run: LocalRun, step: int) -> None:
        """Report where a run has begun, if that is before the checkpoint that it should have loaded."""
        if step >= run.resumed_step or "rewound" in run.reported:
            return
        try:
            held = self.checkpoints.of_step(run.job_id, step) if step else None
            if held is None and step and self.memory is not None:
                held = self.memory.of_step(run.job_id, step)
        except OSError:  # of a disk that is away: looked at again when the process says how far it is next
            return
        run.reported.add("rewound")
        self._report(
            RunRewound(
                step=step,
                generation=max(1, held.generation) if held is not None else 0,
                digest=held.digest if held is not None else "",
                samples=held.samples if held is not None else 0,
                lost_step=run.resumed_step,
                lost_generation=run.resumed_generation,
                reason=f"its script has not loaded the checkpoint after step {run.resumed_step}",
                **self.about(run.key),
            )
        )

    def settle(self, run: LocalRun, agreed: int | None = None) -> None:
        """Send the processes the stop step once it is known; ``agreed`` is the step that another node has computed."""
        stop = gang.settle_stop(run, agreed)
        if stop is not None:
            run_folders.note_stopping(self.runs_dir, run)
            self._send_all(run, stop)

    def settle_without(self, run: LocalRun, job: Job) -> None:
        """Settle the stop without the gang's processes on nodes that have ended their part."""
        gang = environment.members(environment.placement_of(job), job.spec.processes)
        absent = {member.rank for member in gang if member.node_id not in job.open_nodes}
        if absent != run.absent:
            run.absent = absent
            self.settle(run)

    def disconnected(self, connection: AgentConnection) -> None:
        """Forget a connection, unless the process has a newer one."""
        if connection.hello is not None:
            place = ((connection.hello.job_id, connection.hello.epoch), connection.hello.rank)
            if self.connections.get(place) is connection:
                del self.connections[place]
            self._wake()

    def warn(self, key: Key, warning: str) -> None:
        """Report something about a run that goes on."""
        self._report(RunWarned(warning=warning, **self.about(key)))

    def send_caps(self, run: LocalRun) -> None:
        """Send the processes of a run their present caps, if their own allocators have to keep to them."""
        for index, devices in run.devices_of.items():
            fraction, connection = self.limits.fraction(run.key, devices), self.connections.get((run.key, index))
            if fraction is not None and connection is not None:
                connection.send(HoldMemory(fraction=fraction))

    def _send_all(self, run: LocalRun, message: ToJob) -> None:
        for index in run.ranks:
            if (run.key, index) in self.connections:
                self.connections[run.key, index].send(message)

    def about(self, key: Key) -> RunFactFields:
        """Return the fields that every fact about a run has."""
        return {"job_id": key[0], "epoch": key[1], "node_id": self.site.node_id, "at_s": self._clock()}


def _warm(run: LocalRun, job: Job, secrets: SecretValues) -> WarmRequest | None:
    """Return what a process may have imported before it starts; None for one whose memory is counted exactly."""
    if run.sharing != "exclusive":
        return None
    private = frozenset({*secrets.variables, *secrets.files})
    code = f"{job.spec.code}/{job.spec.cwd}" if job.spec.code else ""
    return WarmRequest(modules=job.spec.preload, code=code, private=private)


def _start_problem(error: OSError, where: Path) -> str:
    what = errno.errorcode.get(error.errno or 0, "error")
    advice = _ADVICE.get(error.errno or 0, "see the executor's log")
    return f"the run could not be started in {where}: {error.strerror or error} ({what}); {advice}"
