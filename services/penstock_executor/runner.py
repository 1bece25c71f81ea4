"""The executor at work: it follows the log, watches the processes, and makes these match the log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec
import structlog

from penstock_bus.addresses import reachable_address
from penstock_bus.follower import FoldFollower, background, pause, until_available
from penstock_bus.health import VERSION, Vitals
from penstock_bus.port import BusError, Endpoint
from penstock_bus.service_folder import AGGREGATOR_SOCKET, MEMORY_SOCKET, alone_in, path_in, secret_in
from penstock_bus.shell import Shell
from penstock_cluster import DeviceSurvey, host_limits, survey
from penstock_cluster.host_backends import parse_bytes
from penstock_cluster.host_limits import HostCapacity, node_id_of
from penstock_executor import agent_listener, health_watch, job_folders, machine
from penstock_executor.checkpoint_folder import CheckpointFolder, serving
from penstock_executor.checkpoint_tier import WriteBehind, memory_root
from penstock_executor.checkpoint_transfer import CheckpointFinder, CopyLimits, PendingResumes
from penstock_executor.code_cache import CodeCache, WorkFolders
from penstock_executor.code_fetch import PendingCode
from penstock_executor.device_watch import DeviceWatch
from penstock_executor.fact_outbox import FactAppender
from penstock_executor.fence import HeardPage
from penstock_executor.health_watch import HealthWatch
from penstock_executor.job_sessions import JobSessions
from penstock_executor.launchers import LAUNCHERS, environment, sandbox
from penstock_executor.launchers.containers import ContainerRuntimes, RunContainers
from penstock_executor.launchers.launcher import LaunchedProcess
from penstock_executor.memory_limits import MemoryLimits
from penstock_executor.name_claim import NameClaim
from penstock_executor.output_store import OutputStore
from penstock_executor.parking import ParkedRuns
from penstock_executor.process_host import NodeExhausted, Place, ProcessHost
from penstock_executor.run_credentials import CredentialLookups, NodeSecrets
from penstock_executor.run_folders import ExecutorError
from penstock_executor.run_identity import IdentityRule
from penstock_executor.run_state import Key, LocalRun, NodeObservation
from penstock_executor.settings import ExecutorSettings
from penstock_executor.sharing.sharing_supervisor import SharingSupervisor
from penstock_executor.telemetry import RunTelemetry
from penstock_log import (
    Job,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    RunEnded,
    RunStarted,
    subjects,
)
from penstock_log.agent_protocol import MemoryReport
from penstock_log.request_bodies import NodeHeard

__all__ = ["Executor", "ExecutorError", "run"]

RETRY_S: Final = 1.0
"""How long a run that found no room on the disk waits for its next try."""
LEAVING_S: Final = 2.0
"""How long an executor that stops tries to tell the log so before it begins to end its runs."""
SIGNAL_S: Final = 1.0
"""How long the executor waits for a signal to itself after one such as TERM has ended a process: for this long the end
may be a part of its node's own."""
SERVE_ON_S: Final = 15.0
"""How long an executor that has left hands out checkpoints for which jobs wait that it had to preempt."""
LANES_LOOK_S: Final = 0.5
"""How often it is looked whether those who take turns still do, and keep to their memory."""
HOST_LOOK_S: Final = 0.5
"""How often it is looked whether runs keep to their part of the host's memory, where the kernel does not see to it."""
LANES_PUBLISH_S: Final = 0.9
SNAPSHOT_EVERY: Final = 5_000
SNAPSHOT_LOOK_S: Final = 10.0
EXPIRE_LOOK_S: Final = 60.0
LEAVE_LOOK_S: Final = 0.5
"""How often it is looked whether the node is to leave."""
_NOBODY: Final = 65_534
_log: Final = structlog.get_logger("penstock.executor")


async def run(shell: Shell, settings: ExecutorSettings) -> None:
    """Be a node's executor until the shell stops."""

    def examine(vitals: Vitals) -> None:
        vitals.undecided_s = shell.progress.undecided_s()

    shell.examine = examine  # from now on, since reading the log may take long too
    if settings.address:
        reachable_address(shell.url, settings.address)  # or say now that there is no such network here
    with alone_in(settings.data_dir, "executor", ExecutorError) as data:
        node_id = node_id_of(settings.node_id)
        if settings.identities(node_id).switches:
            _let_users_in(settings, data)
        if settings.sandbox != "none":
            await _try_sandbox(settings.identities(node_id))
        runtimes = await _container_runtimes(settings, settings.identities(node_id))
        found, capacity = survey(settings.devices), _capacity(settings)
        live = FoldFollower(
            shell.bus,
            machine.decider(),
            name=f"executor.{node_id}",
            on_delivery=lambda delivery: shell.progress.read(delivery.seq, matters=True),
        )
        async with live:
            await live.caught_up()
            async with asyncio.TaskGroup() as tasks:
                await Executor(
                    shell,
                    settings,
                    live,
                    tasks,
                    data=data,
                    node_id=node_id,
                    found=found,
                    capacity=capacity,
                    runtimes=runtimes,
                ).work()
            await live.save_snapshot()


class Executor:
    """One node's executor, for one life of its process; it adopts the runs that are still alive."""

    def __init__(
        self,
        shell: Shell,
        settings: ExecutorSettings,
        live: FoldFollower[machine.ExecutorState],
        tasks: asyncio.TaskGroup,
        *,
        data: Path,
        node_id: str,
        found: DeviceSurvey,
        capacity: HostCapacity,
        runtimes: ContainerRuntimes,
    ) -> None:
        self.shell, self.settings, self.live, self.tasks = shell, settings, live, tasks
        self.page = HeardPage(data / "heard")
        self._page_thread = ThreadPoolExecutor(1, thread_name_prefix="heard")
        self.alone_s: float | None = None
        self.node_id, self.found, self.capacity = node_id, found, capacity
        self.boot, self.joins, self.left = uuid.uuid4().hex[:8], 0, False
        self.told_leaving = self.told_spent = False
        self.ended_runs: set[Key] = set()  # of a node that is for so many runs
        self.claim = NameClaim(shell.bus, node_id, data, self.boot, settings.heartbeat_s)
        self.rule = settings.identities(node_id)
        self.wake = live.changed.set
        self.giving_up = asyncio.Event()
        """It is to end and has no process to end before: from then on it does not wait for a log that is away."""
        self.appender = FactAppender(shell.bus, live, f"executor/{node_id}", self._spawn, self.giving_up)
        self.work_folders = WorkFolders(data / "work")
        self.removals: list[Callable[[], None]] = []
        self.removing = False
        self.host = self._process_host(data)
        self.sessions = JobSessions(shell.bus, self.host, shell.monotonic)
        self.telemetry = RunTelemetry(shell, settings, self.host, lambda: self.incarnation, self.giving_up)
        self.parking = ParkedRuns(
            self.host,
            capacity,
            0 if settings.leave_after_runs else settings.park_bytes,  # it leaves, and what is parked would go with it
            clock=shell.now_s,
            spawn=self._spawn,
            finish_output=self.telemetry.finish_output,
            let_go=self._let_go,
            is_entered=self.sessions.is_in,
            report=self.appender.report,
            wake=self.wake,
        )
        self._show_gauges()
        limits = CopyLimits(largest_bytes=settings.checkpoint_copy_bytes, longest_s=settings.checkpoint_copy_s)
        self.resumes = PendingResumes(
            CheckpointFinder(
                shell.bus,
                self.host.checkpoints,
                node_id,
                self._is_present,
                limits,
                memory=self.host.memory,
                agent=self.host.site.memory,
            ),
            tasks,
            about=self.host.about,
            report=self.appender.report,
            warn=self.host.warn,
            wake=self.wake,
        )
        cache = CodeCache(data / "code", settings.code_cache_bytes)
        cache.enter()
        self.code = PendingCode(
            shell.bus, cache, self.work_folders, tasks, rule=self.rule, warn=self.host.warn, wake=self.wake
        )
        self.behind = self._write_behind()
        secrets = NodeSecrets(node_id, settings.secrets_dir, settings.secrets)
        self.credentials = CredentialLookups(self.rule, self._spawn, self._may_start, secrets)
        self.containers = RunContainers(
            runtimes,
            data,
            spawn=self._spawn,
            found=self._may_start,
            warn=self.host.warn,
            pull_s=settings.image_pull_s,
        )
        self.watched: dict[Place, int] = {}
        self.postponed: dict[Key, float] = {}
        self.removed, self.looked_through = set(live.state.finished), live.state.finished
        readers = health_watch.readers(found.devices) if settings.device_health_s else ()
        self.devices = DeviceWatch(
            shell,
            settings,
            live,
            self.host,
            self.appender,
            health=HealthWatch(node_id, readers, health_watch.boot_id(), data / "device-events.json"),
            page=self.page,
            incarnation=lambda: self.incarnation,
            publish=self.telemetry.publish,
        )
        self.timer: asyncio.TimerHandle | None = None
        shell.busy = self._busy
        self.ended = list(self.host.adopt())  # before there is a listener: who comes in by it has not ended before
        self.listener = agent_listener.AgentListener(Path(self.host.site.socket), self.host, for_all=self.rule.switches)
        self.sharing = SharingSupervisor(
            self.host,
            settings,
            life=self.boot,
            clock=shell.now_s,
            report=self.appender.report,
            wake=self.wake,
            again=self._turn_later,
        )

    def _show_gauges(self) -> None:
        metrics, host, parking = self.shell.metrics, self.host, self.parking
        metrics.gauge("penstock_outbox_facts", "Facts that wait for the log.").follow(lambda: self.appender.waiting)
        alive = metrics.gauge("penstock_node_runs", "Runs whose processes live on the node.")
        alive.follow(lambda: sum(run.alive for run in host.runs.values()))
        servers = metrics.gauge("penstock_warm_servers", "Servers that are kept for warm starts.")
        servers.follow(lambda: host.launcher.kept()[0])
        held = metrics.gauge("penstock_warm_server_bytes", "Memory that servers for warm starts hold.")
        held.follow(lambda: host.launcher.kept()[1])
        entered = metrics.gauge("penstock_node_sessions", "Sessions of people in jobs on the node.")
        entered.follow(lambda: self.sessions.open)
        metrics.gauge("penstock_parked_runs", "Runs that are parked on the node.").follow(lambda: len(parking.runs))
        held_bytes = metrics.gauge("penstock_parked_bytes", "Memory that parked runs hold.")
        held_bytes.follow(lambda: parking.held_bytes)

    def _process_host(self, data: Path) -> ProcessHost:
        settings, devices, for_all = self.settings, self.found.devices, self.rule.switches
        site = environment.LaunchSite(
            node_id=self.node_id,
            devices=devices,
            socket=str(path_in(data, for_all=for_all)),
            lanes=str(path_in(data, "lanes", for_all=for_all)),
            memory=_agents_socket(settings.memory_dir, MEMORY_SOCKET),
            aggregation=_agents_socket(settings.aggregator_dir, AGGREGATOR_SOCKET),
            aggregation_secret=_aggregation_secret(settings),
            checkpoints=checkpoints_of(settings, data),
            checkpoint_memory=memory_root(settings.checkpoint_memory_dir, data)
            if settings.checkpoint_memory_bytes
            else None,
            temporary=data / "tmp",
            keeps_apart=self.rule.asks or settings.sandbox != "none",
            sandbox=settings.sandbox,
            writable=settings.writable,
            new_privileges=settings.new_privileges,
            most_tasks=settings.most_tasks,
            cwd=os.getcwd(),
            image=settings.image,
            work=self.work_folders.folder,
            pass_env=settings.pass_env,
            heard=str(self.page.path),
            held_s=settings.held_s,
        )
        launcher = LAUNCHERS[settings.launcher](settings)
        caps = launcher.memory_caps(Path(settings.cgroup) if settings.cgroup else None)
        return ProcessHost(
            site,
            data / "runs",
            clock=self.shell.now_s,
            watch=self._watch,
            report=self.appender.report,
            wake=self.wake,
            on_memory=self._note_memory,
            on_ready=self._park,
            outputs=OutputStore(data / "output", self.node_id),
            output_bytes=settings.output_bytes,
            launcher=launcher,
            rule=self.rule,
            checkpoint_most=settings.checkpoint_memory_bytes,
            limits=MemoryLimits(devices, caps, self.capacity.share(len(devices)), settings.most_tasks),
            beside=self._remove_later,
        )

    def _write_behind(self) -> WriteBehind | None:
        if self.host.memory is None:
            return None
        return WriteBehind(
            self.host.memory,
            self.host.checkpoints,
            self.node_id,
            clock=self.shell.now_s,
            spawn=self._spawn,
            report=self.appender.report,
            wake=self.wake,
        )

    async def work(self) -> None:
        """Reconcile until the shell stops."""
        with contextlib.closing(self.host.launcher), self._listening():
            for place in self.ended:
                self._spawn(self._conclude(place, found=True))
            self._recall()
            self._spawn(self.containers.sweep({key for key, run in self.host.runs.items() if run.alive}))
            self.host.checkpoints.enter()
            telemetry = self.telemetry
            async with (
                self._serving(),
                self._letting_in(),
                serving(self.shell.bus, self._checkpoint_folders(), self.node_id),
                background(
                    telemetry.publish_heartbeats(),
                    telemetry.publish_output(),
                    telemetry.publish_series(),
                    telemetry.follow_peers(),
                    self._follow_answers(),
                    self._look_after_lanes(),
                    self._look_after_host(),
                    self.devices.sample(),
                    self.devices.watch_health(),
                    self.devices.watch_idle_runs(),
                    self._until_stopping(),
                    self._leave_in_time(),
                    self._save(),
                    self._expire_output(),
                    self.sessions.look(),
                ),
            ):
                await self._reconcile()
                await self._serve_checkpoints_on()
            self.shell.vitals.ready = False

    # --- the loop
    async def _reconcile(self) -> None:
        while not self._over():
            self.live.changed.clear()
            self.shell.progress.decided(self.live.last_seq)
            self._settle_gangs()
            self.sharing.tidy(self._is_wanted)
            self.resumes.tidy(self._is_wanted, self.host.runs)
            self.code.tidy(self._is_wanted, self.host.runs)
            self.credentials.tidy(self._is_wanted, self.host.runs)
            self.containers.tidy(self._is_wanted, self.host.runs)
            observed = self._observed()
            limit_s = self.settings.sample_limit_s
            plan = machine.decide(self.live.state, self.node_id, observed, self.shell.now_s(), limit_s)
            for action in plan.actions:
                await self._act(action)
            self._remove_checkpoints()
            if self.behind is not None:
                self.behind.settle(self.live.state.jobs, self._runs_here)
            if plan.actions:
                continue
            wait_s = None if plan.wake_at_s is None else max(0.0, plan.wake_at_s - self.shell.now_s())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.live.changed.wait()
        self.resumes.cancel()
        self.containers.close({key for key, run in self.host.runs.items() if run.alive})
        self.code.cancel()

    def _observed(self) -> NodeObservation:
        return NodeObservation(
            incarnation=self.boot,
            runs=self.host.runs,
            draining=self.shell.stopping.is_set(),
            told_leaving=self.told_leaving,
            postponed=self.postponed,
            shared=self.sharing.progress,
            resumes=self.resumes.found,
            code=self.code.found,
            unheard_s=self.page.unheard_s,
            alone_s=self.alone_s,
            parked=self.parking.runs,
            leaving=self.parking.leaving,
            parks=self.parking.is_on,
            devices=self.host.site.devices,
            fences=bool(self.host.site.heard),
        )

    def _over(self) -> bool:
        return self.left or (self.shell.stopping.is_set() and self.settings.on_shutdown == "leave")

    async def _act(self, action: machine.Action) -> None:
        host = self.host
        match action:
            case (
                machine.FindCheckpoint()
                | machine.FetchCode()
                | machine.RequestLanes()
                | machine.StartRun()
                | machine.ContinueRun()
                | machine.EndParked()
            ):
                self._begin(action)
            case machine.AskToStop():
                host.ask(action.key, action.ending, action.why, park=action.park)
                self.sharing.hurry(action.key)
                await self.telemetry.publish_answers(host.runs[action.key])
            case machine.TerminateRun():
                host.terminate(action.key, action.ending)
            case machine.TellTime():
                host.tell_time(action)
            case machine.KillRun():
                host.kill(action.key)
            case machine.ReportFact():
                if isinstance(action.fact, RunEnded):
                    await self._leave_after((action.fact.job_id, action.fact.epoch))
                self._report_start_or_end(action.fact)
            case machine.RemoveRun():
                await self._leave_after(action.key)
                host.clean(action.key)
                self.containers.release(action.key)
                self.appender.forget(action.job_id)
            case machine.AnnounceNode() | machine.AnnounceLeaving() | machine.WithdrawNode():
                await self._tell_of_node(action)
            case _:
                assert_never(action)

    async def _tell_of_node(
        self, action: machine.AnnounceNode | machine.AnnounceLeaving | machine.WithdrawNode
    ) -> None:
        match action:
            case machine.AnnounceNode():
                await self._announce()
            case machine.AnnounceLeaving():
                await self._announce_leaving("shutdown")
                self.told_leaving = True
            case machine.WithdrawNode():
                left = NodeLeft(node_id=self.node_id, reason="shutdown", at_s=self.shell.now_s())
                await self.appender.append_node(left)
                self.left = True

    def _begin(
        self,
        action: machine.FindCheckpoint
        | machine.FetchCode
        | machine.RequestLanes
        | machine.StartRun
        | machine.ContinueRun
        | machine.EndParked,
    ) -> None:
        match action:
            case machine.ContinueRun():
                self._continue(self.live.state.jobs[action.job_id])
            case machine.EndParked():
                self.parking.end(action.job_id, action.why)
            case machine.FetchCode():
                self.code.fetch(action.key, self.live.state.jobs[action.job_id])
            case machine.FindCheckpoint():
                self.resumes.find(action.key, action.request)
            case machine.RequestLanes():
                self.sharing.arrive(self.live.state.jobs[action.job_id])
            case machine.StartRun():
                self._start(action.job_id)

    def _settle_gangs(self) -> None:
        for run in self.host.runs.values():
            job = self.live.state.jobs.get(run.job_id)
            if run.asked_s and run.stop_step is None and job is not None and job.may_run(run.epoch, self.node_id):
                self.host.settle_without(run, job)

    async def _serve_checkpoints_on(self) -> None:
        """Serve checkpoints for a while longer, if jobs that had to leave this node need them elsewhere."""
        sharing = self.host.checkpoints.sharing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVE_ON_S):
                while self.left and machine.is_awaited(self.live.state, self.node_id, sharing):
                    self.live.changed.clear()
                    observed, now_s = self._observed(), self.shell.now_s()
                    for action in machine.refuse(self.live.state, self.node_id, observed, now_s):
                        self._report_start_or_end(action.fact)
                    await self.live.changed.wait()

    def _checkpoint_folders(self) -> list[CheckpointFolder]:
        return [folder for folder in (self.host.memory, self.host.checkpoints) if folder is not None]

    def _runs_here(self, job_id: str) -> bool:
        return any(run.job_id == job_id and run.alive for run in self.host.runs.values())

    def _is_present(self, node_id: str) -> bool:
        node = self.live.state.cluster.nodes.get(node_id)
        return node is not None and node.present

    def _start(self, job_id: str) -> None:
        job = self.live.state.jobs[job_id]
        key, log = (job_id, job.epoch), self.shell.log.bind(job_id=job_id, epoch=job.epoch)
        container = None
        if job.spec.image not in {"", self.settings.image}:
            devices = [
                device for device in self.host.site.devices if device.index in machine.devices_of(job, self.node_id)
            ]
            container = self.containers.prepare(key, job.spec.image, devices)
            if container is None:
                self.postponed[key] = self.shell.now_s() + RETRY_S
                return
        credentials = self.credentials.take(key, job.spec)
        if credentials is None:
            self.postponed[key] = self.shell.now_s() + RETRY_S
            return
        try:
            found = self.resumes.found.get(key)
            started = self.host.start(job, self.live.state.cluster, found, credentials, container)
        except NodeExhausted as error:
            if key not in self.postponed:
                log.warning("run_postponed", reason=str(error))
                self.host.warn(key, f"{error}; it is tried again until then")
            self.postponed[key] = self.shell.now_s() + RETRY_S
            return
        self.postponed.pop(key, None)
        if started.refused:
            self.sharing.withdraw(key, started.refused)
            log.warning("run_refused", reason=started.refused)
        else:
            log.info("run_started", devices=started.devices, ranks=sorted(started.ranks))

    def _continue(self, job: Job) -> None:
        key = job.id, job.epoch
        try:
            run = self.parking.go_on(job)
        except NodeExhausted as error:
            if key not in self.postponed:
                self.host.warn(key, f"{error}; it is tried again until then")
            self.postponed[key] = self.shell.now_s() + RETRY_S
            return
        self.postponed.pop(key, None)
        self.shell.log.info("run_continued", job_id=job.id, epoch=job.epoch, devices=run.devices, home=run.home)

    def _park(self, place: Place, step: int) -> None:
        self.parking.park(place, self.live.state.jobs.get(place[0][0]), step)

    def _may_start(self, key: Key) -> None:
        self.postponed.pop(key, None)
        self.wake()

    def _report_start_or_end(self, fact: RunStarted | RunEnded) -> None:
        run = self.host.runs.get((fact.job_id, fact.epoch))
        if run is None:  # a grant that never ran here: remembered, so that its end is told once
            run = LocalRun(job_id=fact.job_id, epoch=fact.epoch, refused="never started", reported={"started"})
            self.host.runs[run.key] = run
            self.sharing.withdraw(run.key, "its grant ended before it began")
        run.reported.add("ended" if isinstance(fact, RunEnded) else "started")
        self.appender.report(fact)

    def _remove_checkpoints(self) -> None:
        finished = self.live.state.finished
        if finished is self.looked_through:
            return
        self.looked_through = finished  # the fold makes another list when a job is over
        fresh = [job_id for job_id in finished if job_id not in self.removed]
        if fresh:
            self.removed = set(finished)
            for job_id in () if self.settings.keep_checkpoints else fresh:
                self.host.remove_checkpoints(job_id)
                if self.behind is not None:
                    self.behind.end_job(job_id)

    async def _announce(self) -> None:
        await self.claim.check(self.live.state.cluster.nodes.get(self.node_id))
        self.joins += 1
        address = await asyncio.to_thread(reachable_address, self.shell.url, self.settings.address)
        labels = {"address": address, **self.found.labels, **self.settings.labels}
        joined = NodeJoined(
            node_id=self.node_id,
            devices=self.host.site.devices,
            pool=self.settings.pool,
            labels=labels,
            incarnation=self.incarnation,
            cpus=self.capacity.cpus,
            host_memory_bytes=self.capacity.memory_bytes,
            held_by=self.host.limits.enforcer.name,
            containers=self.containers.runtimes.names,
            image=self.settings.image,
            until_s=self.settings.leave_at_s,
            at_s=self.shell.now_s(),
        )
        await self.appender.append_node(joined)
        self.shell.vitals.ready, self.told_spent = True, False
        self.shell.log.info("node_joined", node_id=self.node_id, devices=len(self.host.site.devices), address=address)

    async def _announce_leaving(self, reason: str) -> bool:
        """
        Tell the log that this node leaves, and return whether it has heard; a log that is away delays that little.

        A node that stops says so before any of its runs is ended.
        """
        leaving = NodeLeaving(
            node_id=self.node_id, incarnation=self.incarnation, reason=reason, at_s=self.shell.now_s()
        )
        try:
            async with asyncio.timeout(LEAVING_S):
                await self.appender.append_node(leaving)
        except (TimeoutError, BusError) as error:
            self.shell.log.warning("leaving_not_announced", within_s=LEAVING_S, error=str(error))
            return False
        return True

    async def _leave_after(self, key: Key) -> None:
        """
        Tell the log that this node leaves before it hears of its last run's end, after which it would place another.

        How the run has ended is decided already: its failure is its own, and not the leaving node's. A run that the log
        no longer wants counts as well, once its processes have ended.
        """
        if self.settings.leave_after_runs:
            self.ended_runs.add(key)
        if self._has_had_its_runs() and self._is_staying():
            self.told_spent = await self._announce_leaving(machine.HAS_HAD_ITS_RUNS)

    def _is_staying(self) -> bool:
        """Return whether the log has this life of the node, has not heard that it leaves, and is not about to."""
        node = self.live.state.cluster.nodes.get(self.node_id)
        is_there = node is not None and node.present and node.incarnation == self.incarnation
        return is_there and not (self.told_spent or self.told_leaving or self.shell.stopping.is_set())

    def _has_had_its_runs(self) -> bool:
        return 0 < self.settings.leave_after_runs <= len(self.ended_runs)

    @property
    def incarnation(self) -> str:
        """The name of this life of the node: another after each start, and after each return from being lost."""
        return f"{self.boot}-{self.joins}"

    async def _follow_answers(self) -> None:
        """Note for ever which heartbeats the matcher has answered: for so long after them the runs may go on."""
        async for _, body in self.shell.bus.subscribe(subjects.heard(self.node_id)):
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                await self._note_answer(msgspec.json.decode(body, type=NodeHeard))

    async def _note_answer(self, answer: NodeHeard) -> None:
        """
        Let the runs go on, if none of them was given up.

        The node was not lost when the answer was given, since its incarnation is another after each loss. What was
        given up before this node joined stands in the log before that, so the fold has it.
        """
        node = self.live.state.cluster.nodes.get(self.node_id)
        if node is None or not node.present or not node.incarnation == self.incarnation == answer.incarnation:
            return
        self.telemetry.answered(answer.incarnation)
        if self.alone_s is None:
            self.alone_s = self.shell.now_s()
        if any(run.alive and not self._is_wanted(key) for key, run in self.host.runs.items()):
            self.wake()  # they are ended first
            return
        held_s = self.page.unheard_s
        note = partial(self.page.note, answer.ticks_s)
        await asyncio.get_running_loop().run_in_executor(
            self._page_thread, note
        )  # a disk may hang; heartbeats must not
        for run in list(self.host.runs.values()):
            began_in_time = self.shell.now_s() - run.started_s > held_s - run.hold_s  # maybe after the last heartbeat
            if run.alive and 0 < run.hold_s < held_s and began_in_time:
                why = f"the matcher did not hear node {self.node_id} for {held_s:.1f} s"
                self.host.warn(run.key, f"{why}: the run was stopped meanwhile, and goes on")
        self.wake()

    # --- what the processes do
    def _watch(self, place: Place, process: LaunchedProcess) -> None:
        self.telemetry.begin_output(place)
        fd = self.host.launcher.exit_fd(process)
        self.watched[place] = fd
        asyncio.get_running_loop().add_reader(fd, self._on_exit, place)

    def _on_exit(self, place: Place) -> None:
        self._unwatch(place)
        self._spawn(self._conclude(place))  # which begins in the loop's next turn, whatever the rest here meets
        self.sharing.exited(place)
        self.listener.catch_up()  # nothing that it said can come later than its end

    def _note_memory(self, place: Place, memory: MemoryReport, iterations: int) -> None:
        self.sharing.note_memory(place, memory, iterations)

    def _unwatch(self, place: Place) -> None:
        fd = self.watched.pop(place)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._note_giving_up()

    def _let_go(self, place: Place) -> bool:
        """Stop watching for a process's end; return False where that has come."""
        if place not in self.watched:
            return False
        self._unwatch(place)
        return True

    def _busy(self) -> bool:
        return bool(self.watched) and self.settings.on_shutdown == "preempt"

    def _note_giving_up(self) -> None:
        if self.shell.stopping.is_set() and not self._busy():
            self.giving_up.set()

    async def _conclude(self, place: Place, *, found: bool = False) -> None:
        """
        Publish the rest of a process's output, then report its end.

        Parameters
        ----------
        found : bool
            Whether it ended while there was no executor.
        """
        code = self.host.reap(place)
        if await self._is_stopped(place, code, found):
            self.host.note_stopped(place)
        unfit = await self.devices.why_unfit(place) if code else ""
        await self.telemetry.finish_output(place)
        self.host.ended(place, code, unfit)

    async def _is_stopped(self, place: Place, code: int | None, found: bool) -> bool:
        """
        Say whether a process has ended as its node was being stopped, by whatever stops it.

        Slurm's ``scancel``, systemd and a terminal signal the processes of jobs as well, in no order: so after an end
        by such a signal ours is waited for. Where there was no executor, nobody can say more than that it was one.
        """
        if self.settings.on_shutdown != "preempt":
            return found and self.host.may_be_stopped(place, code)
        if found:
            node = self.live.state.cluster.nodes.get(self.node_id)
            is_leaving = node is not None and node.leaving
            return is_leaving or self.host.may_be_stopped(place, code)
        if self.host.may_be_stopped(place, code):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SIGNAL_S):
                    await self.shell.stopping.wait()
        return self.shell.stopping.is_set()

    # --- the frame
    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Follow the lanes' broker; at the end close all sockets and stop watching the processes, which live on."""
        loop, broker = asyncio.get_running_loop(), self.sharing.broker
        loop.add_reader(broker.fileno(), self.sharing.turn)
        try:
            yield
        finally:
            loop.remove_reader(broker.fileno())
            if self.timer is not None:
                self.timer.cancel()
            broker.close()
            self.parking.close()
            self.listener.close()
            self._page_thread.shutdown(wait=False)
            for place in list(self.watched):
                self._unwatch(place)

    def _turn_later(self, wait_s: float) -> None:
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(wait_s, self._turn)

    def _turn(self) -> None:
        self.timer = None
        self.sharing.turn()

    async def _look_after_lanes(self) -> None:
        loop, published_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(LANES_LOOK_S)
            self.sharing.look(int(loop.time() * 1e9))
            if loop.time() >= published_s + LANES_PUBLISH_S and (view := self.sharing.view()) is not None:
                published_s = loop.time()
                await self.telemetry.publish(subjects.lanes(self.node_id), view)

    async def _look_after_host(self) -> None:
        while True:
            await asyncio.sleep(HOST_LOOK_S)
            places, beside = self.host.places(), self.sessions.leaders()
            over = await asyncio.to_thread(self.host.limits.over_host, places, beside)  # a walk through their pages
            self.host.end_over_memory(over)
            self.parking.end_under_pressure()

    async def _until_stopping(self) -> None:
        await self.shell.stopping.wait()
        self._note_giving_up()
        self.wake()

    async def _leave_in_time(self) -> None:
        """Begin to stop when this node is to leave, was idle for as long as it may be, or has had its runs."""
        settings, idle_since_s = self.settings, self.shell.monotonic()
        if not (settings.leave_at_s or settings.leave_idle_s or settings.leave_after_runs):
            return
        while not self.shell.stopping.is_set():
            is_idle = not (any(run.alive for run in self.host.runs.values()) or self._has_grant())
            if not is_idle:
                idle_since_s = self.shell.monotonic()
            if settings.leave_at_s and self.shell.now_s() >= settings.leave_at_s:
                self.shell.log.info("leaving", reason="its time is over", leave_at_s=settings.leave_at_s)
                self.shell.stopping.set()
            elif settings.leave_idle_s and self.shell.monotonic() - idle_since_s >= settings.leave_idle_s:
                self.shell.log.info("leaving", reason="no run was here", idle_s=settings.leave_idle_s)
                self.shell.stopping.set()
            elif is_idle and self._has_had_its_runs():
                self.shell.log.info("leaving", reason="it has had its runs", runs=len(self.ended_runs))
                self.shell.stopping.set()
            await pause(LEAVE_LOOK_S, self.shell.stopping)

    def _has_grant(self) -> bool:
        return any(self.node_id in job.open_nodes for job in self.live.state.jobs)

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
            old = await asyncio.to_thread(
                self.work_folders.expire, self.shell.now_s(), self._keys(), settings.workdir_age_s
            )
            if old:
                self.shell.log.info("work_folders_removed", runs=old)
            await asyncio.sleep(EXPIRE_LOOK_S)

    def _keys(self) -> set[Key]:
        """Return the runs whose folders are in use, or are about to be."""
        return {*self.host.runs, *self.host.homes(), *self.code.found}

    def _serving(self) -> AbstractAsyncContextManager[None]:
        """Answer requests for the output that this node keeps."""
        subject = subjects.output(self.node_id)
        endpoint = Endpoint(name="output", subject=subject, handler=self.host.outputs.answer)
        return self.shell.bus.serve(f"penstock-output-{self.node_id}", VERSION, [endpoint])

    @asynccontextmanager
    async def _letting_in(self) -> AsyncIterator[None]:
        """Answer those who enter jobs; at the end, their sessions do too."""
        subject = subjects.session(self.node_id)
        endpoint = Endpoint(name="session", subject=subject, handler=self.sessions.answer, concurrent=True)
        async with self.shell.bus.serve(f"penstock-session-{self.node_id}", VERSION, [endpoint]):
            try:
                yield
            finally:
                self.sessions.close()

    def _recall(self) -> None:
        """Note for adopted runs which facts the log has already, and which devices they share."""
        for found in sorted(self.host.runs.values(), key=lambda run: run.started_s):
            if self.live.state.started.get(found.job_id, {}).get(self.node_id) == found.epoch:
                found.reported.add("started")
            if found.alive and self._is_wanted(found.key):
                self.host.limits.set_host(self.live.state.jobs[found.job_id])
                self.sharing.adopt(self.live.state.jobs[found.job_id], found)

    def _is_wanted(self, key: Key) -> bool:
        job = self.live.state.jobs.get(key[0])
        return job is not None and job.may_run(key[1], self.node_id)

    def _remove_later(self, act: Callable[[], None]) -> None:
        """Have something removed by a thread: a disk that syncs the log keeps who removes a file for milliseconds."""
        self.removals.append(act)
        if not self.removing:
            self.removing = True
            self._spawn(self._remove())

    async def _remove(self) -> None:
        while self.removals:
            acts, self.removals = self.removals, []
            removal = asyncio.ensure_future(asyncio.to_thread(_do_all, acts))
            try:
                await asyncio.shield(removal)
            except asyncio.CancelledError:
                await removal  # whoever comes next looks through these folders
                raise
        self.removing = False

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        try:
            self.tasks.create_task(task)
        except RuntimeError:  # the executor is being ended; the next one finds in the run folders what it has to say
            task.close()


def _do_all(acts: Sequence[Callable[[], None]]) -> None:
    for act in acts:
        act()


def _agents_socket(folder: str, name: str) -> str:
    """Return where an agent of the node listens to clients, by its folder; empty where there is none."""
    return str(path_in(Path(folder).absolute(), name, for_all=True)) if folder else ""


def _aggregation_secret(settings: ExecutorSettings) -> bytes:
    """
    Return the secret that the node's aggregation agent has as well; empty where there is none.

    Raises
    ------
    ExecutorError
        If it cannot be read or made.
    """
    if not settings.aggregator_dir:
        return b""
    try:
        return secret_in(Path(settings.aggregator_dir).absolute())
    except (OSError, ValueError) as error:
        raise ExecutorError(
            f"the secret of aggregator_dir {settings.aggregator_dir} cannot be read: {error}; name the data_dir of "
            "this node's aggregation agent, which runs as the same user, or leave it out"
        ) from error


def checkpoints_of(settings: ExecutorSettings, data: Path) -> Path:
    """Return the folder of all jobs' checkpoints."""
    return Path(settings.checkpoint_dir or data / "checkpoints").absolute()


def _let_users_in(settings: ExecutorSettings, data: Path) -> None:
    """
    Open the way to what users' jobs need, and no more.

    Raises
    ------
    ExecutorError
        If a folder above is closed to them.
    """
    job_folders.make_passable(data)
    for folder, name in ((data, "data_dir"), (checkpoints_of(settings, data), "checkpoint_dir")):
        if (closed := job_folders.closed_above(folder)) is not None:
            raise ExecutorError(
                f'jobs run as their users (run_as = "user"), who cannot come to {name} {folder}: {closed} is closed '
                f"to them; set {name} to a folder such as /var/lib/penstock, or open it: chmod o+x {closed}"
            )


async def _try_sandbox(rule: IdentityRule) -> None:
    """
    Try whether jobs can be sandboxed here, as a user who is not the executor where they run as such.

    Raises
    ------
    ExecutorError
        If they cannot be.
    """
    if why := await asyncio.to_thread(sandbox.problem, _NOBODY if rule.switches else None):
        raise ExecutorError(f'sandbox = "bubblewrap": {why}')


async def _container_runtimes(settings: ExecutorSettings, rule: IdentityRule) -> ContainerRuntimes:
    """
    Return what runs the images of jobs on this node.

    Raises
    ------
    ExecutorError
        If the settings name something that does not.
    """
    found = await asyncio.to_thread(ContainerRuntimes.survey, settings.containers, _NOBODY if rule.switches else None)
    if settings.containers in found.reasons:
        raise ExecutorError(
            f'containers = "{settings.containers}": {found.reasons[settings.containers]}; or set containers = "none"'
        )
    if found.reasons:
        _log.info("containers_not_used", **found.reasons)
    return found


def _capacity(settings: ExecutorSettings) -> HostCapacity:
    memory_bytes = parse_bytes(settings.host_memory) if settings.host_memory else 0
    return host_limits.host_capacity(settings.cpus, memory_bytes)
