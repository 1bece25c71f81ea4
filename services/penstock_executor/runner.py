"""The executor at work: it follows the log, watches the processes, and makes these match the log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, assert_never

from penstock_bus.follower import FoldFollower, background, until_available
from penstock_bus.health import VERSION, Vitals
from penstock_bus.port import Endpoint
from penstock_bus.shell import Shell
from penstock_cluster import host_limits, survey
from penstock_cluster.host_backends import parse_bytes
from penstock_cluster.host_limits import HostCapacity
from penstock_executor import agent_listener, machine
from penstock_executor.checkpoint_folder import serving
from penstock_executor.checkpoint_transfer import CheckpointFinder, CopyLimits, Resume, ResumeRequest, RunFactFields
from penstock_executor.fact_outbox import FactAppender
from penstock_executor.gang import reachable_address
from penstock_executor.launchers import LAUNCHERS, environment
from penstock_executor.launchers.launcher import LaunchedProcess
from penstock_executor.memory_limits import MemoryLimits
from penstock_executor.output_store import OutputStore
from penstock_executor.process_host import DiskFull, Place, ProcessHost
from penstock_executor.run_folders import ExecutorError, alone_in
from penstock_executor.run_state import Key, LocalRun, NodeObservation
from penstock_executor.settings import ExecutorSettings
from penstock_executor.sharing.sharing_supervisor import SharingSupervisor, open_floor
from penstock_executor.telemetry import RunTelemetry
from penstock_log import NodeJoined, NodeLeft, RunEnded, RunStarted, subjects

__all__ = ["Executor", "ExecutorError", "run"]

ROOM_S: Final = 1.0
"""How long a run that found no room on the disk waits for its next try."""
HAND_OVER_S: Final = 15.0
"""How long an executor that has left hands out checkpoints for which jobs wait that it had to preempt."""
LANES_LOOK_S: Final = 0.5
"""How often it is looked whether those who take turns still do, and keep to their memory."""
HOST_LOOK_S: Final = 0.5
"""How often it is looked whether runs keep to their part of the host's memory, where the kernel does not see to it."""
LANES_TELL_S: Final = 0.9
SNAPSHOT_EVERY: Final = 5_000
SNAPSHOT_LOOK_S: Final = 10.0
EXPIRE_LOOK_S: Final = 60.0
FOLLOWED: Final = tuple(
    f"{subjects.ROOT}.evt.{kind}.*" for kind in ("job", "profile", "request", "round", "run", "node", "sweep", "scale")
)
"""Of sweeps and scales: what jobs are to have next; of sweeps also, when nobody needs their checkpoints any more."""


async def run(shell: Shell, settings: ExecutorSettings) -> None:
    """Be a node's executor until the shell stops."""
    with alone_in(settings.data_dir) as data:
        await Executor(shell, settings, data).work()


class Executor:
    """One node's executor, for one life of its process."""

    def __init__(self, shell: Shell, settings: ExecutorSettings, data: Path) -> None:
        self.shell, self.settings = shell, settings
        self.node_id = settings.node_id or host_name()
        self.actor = f"executor/{self.node_id}"
        self.boot = uuid.uuid4().hex[:8]
        self.joins = 0
        self.left = False
        self.found = survey(settings.devices)
        self.capacity = _capacity(settings)
        self.site = environment.LaunchSite(
            node_id=self.node_id,
            devices=self.found.devices,
            socket=str(agent_listener.path_in(data)),
            lanes=str(agent_listener.path_in(data, "lanes")),
            checkpoints=Path(settings.checkpoint_dir or data / "checkpoints").absolute(),
            cwd=os.getcwd(),
            pass_env=settings.pass_env,
        )
        self.live = FoldFollower(
            shell.bus,
            machine.decider(),
            name=f"executor.{self.node_id}",
            subjects=FOLLOWED,
            on_delivery=lambda delivery: shell.progress.read(delivery.seq, matters=True),
        )
        shell.examine = self._examine
        self.wake = self.live.changed.set
        self.alone = asyncio.Event()
        """It is to end and has no process to end before: from then on it does not wait for a log that is away."""
        self.appender = FactAppender(shell.bus, self.live, self.actor, self._spawn, self.alone)
        launcher = LAUNCHERS[settings.launcher](settings)
        self.host = ProcessHost(
            self.site,
            data / "runs",
            clock=shell.now_s,
            watch=self._watch,
            report=self.appender.report,
            wake=self.wake,
            outputs=OutputStore(data / "output", self.node_id),
            output_bytes=settings.output_bytes,
            launcher=launcher,
            limits=MemoryLimits(
                self.found.devices,
                launcher.memory_caps(Path(settings.cgroup) if settings.cgroup else None),
                self.capacity.share(len(self.found.devices)),
            ),
        )
        self.teller = RunTelemetry(shell, settings, self.host, lambda: self.incarnation, self.alone)
        self.watched: dict[Place, int] = {}
        shell.busy = self._busy
        self.postponed: dict[Key, float] = {}
        self.resumes: dict[Key, Resume] = {}
        self.finding: dict[Key, asyncio.Task[None]] = {}
        self.unreadable: set[Key] = set()
        limits = CopyLimits(largest_bytes=settings.checkpoint_copy_bytes, longest_s=settings.checkpoint_copy_s)
        present = self._is_present
        self.finder = CheckpointFinder(shell.bus, self.host.checkpoints, self.node_id, present, limits)
        self.removed: set[str] = set()
        self.again: asyncio.TimerHandle | None = None
        self.door: agent_listener.AgentListener
        self.floor: SharingSupervisor
        self.tasks: asyncio.TaskGroup

    async def work(self) -> None:
        """Catch up, adopt the runs that are still alive, and reconcile until the shell stops."""
        async with self.live:
            await self.live.caught_up()
            self.removed = set(self.live.state.finished)
            await self._work()
            await self.live.save_snapshot()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as self.tasks:
            ended = list(self.host.adopt())  # before there is a door: who comes in by it has not ended before
            with self._listening(), self._floor():
                for place in ended:
                    self._spawn(self._conclude(place))
                self._recall()
                teller = self.teller
                looking = (self._look_after_lanes(), self._look_after_host())
                telling = (teller.beat(), teller.publish(), teller.hear_peers(), *looking)
                self.host.checkpoints.enter()
                tidying = (self._save(), self._expire_output())
                async with (
                    self._serving(),
                    serving(self.shell.bus, self.host.checkpoints, self.node_id),
                    background(*telling, self._until_stopping(), *tidying),
                ):
                    await self._reconcile()
                    await self._hand_over()
                self.shell.vitals.ready = False

    # --- the loop
    async def _reconcile(self) -> None:
        while not self._over():
            self.live.changed.clear()
            self.shell.progress.decided(self.live.last_seq)
            self._settle_gangs()
            self.floor.tidy(self._is_wanted)
            self._tidy_resumes()
            observed = self._observed()
            now_s = self.shell.now_s()
            limit_s = self.settings.sample_limit_s
            plan = machine.decide(self.live.state, self.node_id, observed, now_s, limit_s)
            for action in plan.actions:
                await self._act(action)
            self._remove_checkpoints()
            if plan.actions:
                continue
            wait_s = None if plan.wake_at_s is None else max(0.0, plan.wake_at_s - self.shell.now_s())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.live.changed.wait()
        for finding in self.finding.values():
            finding.cancel()

    def _examine(self, vitals: Vitals) -> None:
        vitals.undecided_s = self.shell.progress.undecided_s()

    def _observed(self) -> NodeObservation:
        return NodeObservation(
            incarnation=self.boot,
            runs=self.host.runs,
            draining=self.shell.stopping.is_set(),
            postponed=self.postponed,
            seats=self.floor.seats,
            resumes=self.resumes,
        )

    def _over(self) -> bool:
        return self.left or (self.shell.stopping.is_set() and self.settings.on_shutdown == "leave")

    async def _act(self, action: machine.Action) -> None:
        host = self.host
        match action:
            case machine.FindCheckpoint() | machine.RequestLanes() | machine.StartRun():
                self._begin(action)
            case machine.AskToStop():
                host.ask((action.job_id, action.epoch), action.ending, action.why)
                self.floor.hurry((action.job_id, action.epoch))
                await self.teller.tell_peers(host.runs[action.job_id, action.epoch])
            case machine.TerminateRun():
                host.term((action.job_id, action.epoch), action.ending)
            case machine.KillRun():
                host.kill((action.job_id, action.epoch))
            case machine.ReportFact():
                self._tell_end_or_start(action.fact)
            case machine.RemoveRun():
                host.clean((action.job_id, action.epoch))
                self.appender.forget(action.job_id)
            case machine.AnnounceNode():
                await self._join()
            case machine.WithdrawNode():
                left = NodeLeft(node_id=self.node_id, reason="shutdown", at_s=self.shell.now_s())
                await self.appender.append_node(left)
                self.left = True
            case _:
                assert_never(action)

    def _begin(self, action: machine.FindCheckpoint | machine.RequestLanes | machine.StartRun) -> None:
        match action:
            case machine.FindCheckpoint():
                self._find((action.job_id, action.epoch), action.request)
            case machine.RequestLanes():
                self.floor.arrive(self.live.state.jobs[action.job_id])
            case machine.StartRun():
                self._start(action.job_id)

    def _settle_gangs(self) -> None:
        for run in self.host.runs.values():
            job = self.live.state.jobs.get(run.job_id)
            if run.asked_s and run.stop_step is None and job is not None and job.may_run(run.epoch, self.node_id):
                self.host.settle_without(run, job)

    # --- what runs go on from
    def _find(self, key: Key, request: ResumeRequest) -> None:
        self.resumes[key] = Resume(at="looking")
        self.finding[key] = self.tasks.create_task(self._look(key, request))

    async def _look(self, key: Key, request: ResumeRequest) -> None:
        log = self.shell.log.bind(job_id=key[0], epoch=key[1])
        try:
            resume = await self.finder.find(request)
        except OSError as error:  # of a disk that is away: what lies there is not lost
            self._put_off(key, error)
            return
        if resume.copied_from:
            log.info("checkpoint_copied", step=resume.source.step, node_id=resume.copied_from)
        if resume.lost is not None:
            log.warning("checkpoint_not_had", step=resume.lost.step, reason=resume.reason)
        about: RunFactFields = {"job_id": key[0], "epoch": key[1], "node_id": self.node_id, "at_s": self.shell.now_s()}
        for fact in resume.news(request, about):
            self.appender.report(fact)
        self.resumes[key] = resume
        self.wake()

    def _put_off(self, key: Key, error: OSError) -> None:
        """Look again later for the checkpoint that a run goes on from."""
        self.shell.log.warning("checkpoints_not_readable", job_id=key[0], epoch=key[1], error=str(error))
        if key not in self.unreadable:
            self.unreadable.add(key)
            words = f"{self.site.checkpoints} cannot be read: {error.strerror or error}"
            self.host.warn(key, f"{words}; the run waits until it can, so as not to begin anew")
        asyncio.get_running_loop().call_later(ROOM_S, self._look_again, key)

    def _look_again(self, key: Key) -> None:
        self.resumes.pop(key, None)
        self.finding.pop(key, None)
        self.wake()

    async def _hand_over(self) -> None:
        """Serve checkpoints for a while longer, if jobs that had to leave this node need them elsewhere."""
        sharing = self.host.checkpoints.sharing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                while self.left and machine.is_awaited(self.live.state, self.node_id, sharing):
                    self.live.changed.clear()
                    observed, now_s = self._observed(), self.shell.now_s()
                    for action in machine.refuse(self.live.state, self.node_id, observed, now_s):
                        self._tell_end_or_start(action.fact)
                    await self.live.changed.wait()

    def _tidy_resumes(self) -> None:
        """Drop the checkpoints found for runs that have started or are no longer wanted; copies for them stop."""
        for key in [key for key in self.resumes if key in self.host.runs or not self._is_wanted(key)]:
            del self.resumes[key]
            self.finding.pop(key).cancel()
        self.unreadable = {key for key in self.unreadable if self._is_wanted(key)}

    def _is_present(self, node_id: str) -> bool:
        node = self.live.state.cluster.nodes.get(node_id)
        return node is not None and node.present

    def _start(self, job_id: str) -> None:
        job = self.live.state.jobs[job_id]
        key, log = (job_id, job.epoch), self.shell.log.bind(job_id=job_id, epoch=job.epoch)
        try:
            started = self.host.start(job, self.live.state.cluster, self.resumes.get(key))
        except DiskFull as error:
            if key not in self.postponed:
                log.warning("run_postponed", reason=str(error))
                self.host.warn(key, f"{error}; it is tried again until then")
            self.postponed[key] = self.shell.now_s() + ROOM_S
            return
        self.postponed.pop(key, None)
        if started.refused:
            self.floor.withdraw(key, started.refused)
            log.warning("run_refused", reason=started.refused)
        else:
            log.info("run_started", devices=started.devices, ranks=sorted(started.ranks))

    def _tell_end_or_start(self, fact: RunStarted | RunEnded) -> None:
        run = self.host.runs.get((fact.job_id, fact.epoch))
        if run is None:  # a grant that never ran here: remembered, so that its end is told once
            run = LocalRun(job_id=fact.job_id, epoch=fact.epoch, refused="never started", told={"started"})
            self.host.runs[run.key] = run
            self.floor.withdraw(run.key, "its lease ended before it began")
        run.told.add("ended" if isinstance(fact, RunEnded) else "started")
        self.appender.report(fact)

    def _remove_checkpoints(self) -> None:
        fresh = [job_id for job_id in self.live.state.finished if job_id not in self.removed]
        if fresh:
            self.removed = set(self.live.state.finished)
            for job_id in () if self.settings.keep_checkpoints else fresh:
                self.host.remove_checkpoints(job_id)

    async def _join(self) -> None:
        self.joins += 1
        address = self.settings.address or await asyncio.to_thread(reachable_address, self.shell.url)
        labels = {"address": address, **self.found.labels, **self.settings.labels}
        joined = NodeJoined(
            node_id=self.node_id,
            devices=self.site.devices,
            pool=self.settings.pool,
            labels=labels,
            incarnation=self.incarnation,
            cpus=self.capacity.cpus,
            host_memory_bytes=self.capacity.memory_bytes,
            held_by=self.host.limits.enforcer.name,
            at_s=self.shell.now_s(),
        )
        await self.appender.append_node(joined)
        self.shell.vitals.ready = True
        self.shell.log.info("node_joined", node_id=self.node_id, devices=len(self.site.devices), address=address)

    @property
    def incarnation(self) -> str:
        """The name of this life of the node: another after each start, and after each return from being lost."""
        return f"{self.boot}-{self.joins}"

    # --- what the processes do
    def _watch(self, place: Place, process: LaunchedProcess) -> None:
        self.teller.begin(place)
        fd = self.host.launcher.exit_fd(process)
        self.watched[place] = fd
        asyncio.get_running_loop().add_reader(fd, self._on_exit, place)

    def _on_exit(self, place: Place) -> None:
        self._unwatch(place)
        self._spawn(self._conclude(place))  # which begins in the loop's next turn, whatever the rest here meets
        self.floor.exited(place)
        self.door.catch_up()  # nothing that it said can come later than its end

    def _unwatch(self, place: Place) -> None:
        fd = self.watched.pop(place)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._note_alone()

    def _busy(self) -> bool:
        return bool(self.watched) and self.settings.on_shutdown == "preempt"

    def _note_alone(self) -> None:
        if self.shell.stopping.is_set() and not self._busy():
            self.alone.set()

    async def _conclude(self, place: Place) -> None:
        """Publish the rest of a process's output, then report its end."""
        code = self.host.buried(place)
        await self.teller.finish(place)
        self.host.ended(place, code)

    # --- the frame
    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Listen on the agents' socket; afterwards stop watching all processes, which live on."""
        self.door = agent_listener.AgentListener(Path(self.site.socket), self.host)
        try:
            yield
        finally:
            self.door.close()
            for place in list(self.watched):
                self._unwatch(place)

    @contextmanager
    def _floor(self) -> Iterator[None]:
        """Run the sharing supervisor; afterwards shared runs go on as they are, until a new broker starts."""
        loop = asyncio.get_running_loop()
        self.floor = open_floor(
            self.host,
            self.settings,
            life=self.boot,
            clock=self.shell.now_s,
            report=self.appender.report,
            wake=self.wake,
            again=self._again,
        )
        loop.add_reader(self.floor.keeper.fileno(), self.floor.turn)
        try:
            yield
        finally:
            loop.remove_reader(self.floor.keeper.fileno())
            if self.again is not None:
                self.again.cancel()
            self.floor.keeper.close()

    def _again(self, wait_s: float) -> None:
        if self.again is None:
            self.again = asyncio.get_running_loop().call_later(wait_s, self._turn)

    def _turn(self) -> None:
        self.again = None
        self.floor.turn()

    async def _look_after_lanes(self) -> None:
        loop, told_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(LANES_LOOK_S)
            self.floor.look(int(loop.time() * 1e9))
            if loop.time() >= told_s + LANES_TELL_S and (view := self.floor.told()) is not None:
                told_s = loop.time()
                await self.teller.tell(subjects.lanes(self.node_id), view)

    async def _look_after_host(self) -> None:
        while True:
            await asyncio.sleep(HOST_LOOK_S)
            over = await asyncio.to_thread(self.host.limits.over_host, self.host.places())  # a walk through their pages
            self.host.end_over_memory(over)

    async def _until_stopping(self) -> None:
        await self.shell.stopping.wait()
        self._note_alone()
        self.wake()

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_LOOK_S)
            if self.live.unsaved >= SNAPSHOT_EVERY:
                await until_available(self.live.save_snapshot, "save_snapshot")

    async def _expire_output(self) -> None:
        settings = self.settings
        while True:
            live = {job_id for job_id, _ in self.host.runs}
            keep = (settings.output_age_s, settings.output_disk_bytes)
            try:
                gone = await asyncio.to_thread(self.host.outputs.expire, self.shell.now_s(), live, *keep)
            except OSError as error:  # somebody tidies up there too
                self.shell.log.warning("output_not_looked_at", error=str(error))
                gone = []
            if gone:
                self.shell.log.info("output_removed", jobs=gone)
            await asyncio.sleep(EXPIRE_LOOK_S)

    def _serving(self) -> AbstractAsyncContextManager[None]:
        """Answer requests for the output that this node keeps."""
        subject = subjects.output(self.node_id)
        endpoint = Endpoint(name="output", subject=subject, handler=self.host.outputs.answer)
        return self.shell.bus.serve(f"penstock-output-{self.node_id}", VERSION, [endpoint])

    def _recall(self) -> None:
        """Note for adopted runs which facts the log has already, and which devices they share."""
        for found in sorted(self.host.runs.values(), key=lambda run: run.started_s):
            if self.live.state.started.get(found.job_id, {}).get(self.node_id) == found.epoch:
                found.told.add("started")
            if found.alive and self._is_wanted(found.key):
                self.host.limits.set_host(self.live.state.jobs[found.job_id])
                self.floor.adopt(self.live.state.jobs[found.job_id], found)

    def _is_wanted(self, key: Key) -> bool:
        job = self.live.state.jobs.get(key[0])
        return job is not None and job.may_run(key[1], self.node_id)

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        try:
            self.tasks.create_task(task)
        except RuntimeError:  # the executor is being ended; the next one finds in the run folders what it has to say
            task.close()


def _capacity(settings: ExecutorSettings) -> HostCapacity:
    memory_bytes = parse_bytes(settings.host_memory) if settings.host_memory else 0
    return host_limits.host_capacity(settings.cpus, memory_bytes)


def host_name() -> str:
    """Return the host's name as an id: lower-case letters, digits, - and _."""
    return re.sub(r"[^a-z0-9_-]+", "-", platform.node().lower()).strip("-")[:63] or "node"
