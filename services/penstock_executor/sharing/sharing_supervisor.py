"""
Runs that share devices of this node, from the grant to the last process.

:class:`SharingSupervisor` is the one way in for the runner. It gives each run its caps and its lanes, hears what the
processes hold, and ends or parks runs that do not give their turn back. Synchronous; owns no loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from penstock_executor import run_state
from penstock_executor.launchers import environment
from penstock_executor.process_host import Place, ProcessHost
from penstock_executor.run_state import Key, LocalRun, SharingProgress
from penstock_executor.settings import ExecutorSettings
from penstock_executor.sharing import lane_telemetry
from penstock_executor.sharing.lane_coordinator import TURN_MESSAGES, LaneCoordinator, TurnClock, TurnLimits
from penstock_executor.sharing.lane_telemetry import ParallelGain
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import NodeLane, ShareRequest
from penstock_log import AnyEvent, Job
from penstock_log.agent_protocol import MemoryReport
from penstock_log.views import LanesView, SharedRunView
from penstock_sharing.lanes import LaneRules, MemoryReading
from penstock_sharing.token import LaneClientId, LaneTokenView, TokenBroker

_log = structlog.get_logger("penstock.executor")


class SharingSupervisor:
    """
    The runs that share devices of this node; whoever makes it closes its broker, which listens on the site's socket.

    Parameters
    ----------
    host : ProcessHost
    settings : ExecutorSettings
    life, clock, report, wake, again
        As in :class:`~penstock_executor.sharing.lane_coordinator.LaneCoordinator`.
    """

    def __init__(
        self,
        host: ProcessHost,
        settings: ExecutorSettings,
        *,
        life: str,
        clock: Callable[[], float],
        report: Callable[[AnyEvent], None],
        wake: Callable[[], None],
        again: Callable[[float], None],
    ) -> None:
        site, least_turn_s = host.site, settings.lane_turn_ms / 1e3
        rules = LaneRules(
            policy=settings.lane_policy, patience_s=settings.lane_patience_s, most_lanes=settings.lane_most or None
        )
        self.host, self.limits = host, host.limits
        self.broker = TokenBroker(Path(site.lanes), host.may_take_turns if host.switches else None)
        self.lanes = NodeLanes(site.node_id, site.devices, rules, settings.lane_reserve, least_turn_s)
        self.coordinator = LaneCoordinator(
            self.broker,
            self.lanes,
            life=life,
            clock=clock,
            is_of=host.is_of,
            report=report,
            limit=self._limit,
            end=self._end,
            wake=wake,
            again=again,
        )
        self._clock, self._hang = clock, settings.lane_hang
        self._turns = TurnClock(TurnLimits(warn_s=settings.lane_warn_s, take_s=settings.lane_hang_s))
        self._shares = lane_telemetry.TurnShares()
        self._gain = ParallelGain()
        self._refused: dict[Key, SharingProgress] = {}
        self._exited: set[Place] = set()

    @property
    def progress(self) -> dict[Key, SharingProgress]:
        """How far each run that takes turns has come."""
        return {**self.lanes.progress, **self._refused}

    # --- from grant to end
    def adopt(self, job: Job, run: LocalRun) -> None:
        """Take over a run that an earlier executor has started."""
        self.limits.set_fraction(job, run.devices)
        if run.sharing == "lane":
            self.arrive(job, run)

    def arrive(self, job: Job, run: LocalRun | None = None) -> None:
        """Share the devices of a job's grant; with ``run``, its processes are here already."""
        gang = environment.members(environment.placement_of(job), job.spec.processes)
        mine = [member for member in gang if member.node_id == self.host.site.node_id]
        if len(mine) < len(gang):
            why = f"its lanes are on {len({m.node_id for m in gang})} nodes; turns are taken together on one node only"
            self._refused[job.id, job.epoch] = SharingProgress(
                "refused", f"{why}: ask for fewer devices, or for exclusive ones"
            )
            return
        ranks = {m.rank: m.devices for m in mine if run is None or run.ranks[m.rank].alive}
        now_s = self._clock()
        request = ShareRequest(
            job_id=job.id,
            epoch=job.epoch,
            ranks=ranks,
            need=job.need or job.spec.memory,
            priority=job.spec.priority,
            service_s=job.executed_by(now_s),
            remaining_s=max(0.0, job.spec.duration_s - job.executed_by(now_s)) if job.spec.duration_s else math.inf,
            adopted=run is not None,
        )
        self.lanes.arrive(request, now_s)
        if run is not None:
            self.coordinator.await_return([LaneClientId(job.id, job.epoch, rank) for rank in ranks])
        self.coordinator.turn()

    def withdraw(self, key: Key, reason: str) -> None:
        """Take a run out that will have no process any more."""
        self._refused.pop(key, None)
        if self._has(key):
            self.lanes.leave(key[0], self._clock(), reason)
            self._gain.forget(key[0])
            self.turn()
        run = self.host.runs.get(key)
        self.limits.forget(key, run.ranks if run is not None else {})

    def exited(self, place: Place) -> None:
        """Free at once what an ended process held, whatever is still to be reported about its end."""
        key, rank = place
        run = self.host.runs[key]
        if run.sharing == "exclusive":
            return
        code = self.host.exit_code(place) or 0
        killed = self.limits.killed(key, rank, run.devices) if code else ""
        if killed and not run.ending:
            run.ending, run.why = "memory", killed
        self._exited.add(place)
        if all((key, index) in self._exited for index in run.ranks):
            self._exited -= {(key, index) for index in run.ranks}
            self.withdraw(key, f"its run has ended with {run_state.exit_text(code)}" if code else "its run has ended")

    def tidy(self, wanted: Callable[[Key], bool]) -> None:
        """Drop shares whose grants ended before they had a process."""
        for key in [key for key in self.progress if key not in self.host.runs and not wanted(key)]:
            self.withdraw(key, "its grant is over")

    def hurry(self, key: Key) -> None:
        """Let a run that was asked to stop reach a boundary soon."""
        if self._has(key):
            self.lanes.hurry(key[0])
            self.turn()

    # --- while it lasts
    def turn(self) -> None:
        """Handle what happened on the pages, and do what follows from it."""
        self.coordinator.turn()

    def look(self, monotonic_ns: int) -> None:
        """Check for runs that keep their turn, hold too much memory, or do not come back."""
        self.coordinator.look_again()
        views = self.coordinator.views()
        self._shares.measure(views, monotonic_ns)
        for device, lanes, ratio in self._gain.look(views):
            _log.info("lanes_compared", device=device, lanes=lanes, ratio=round(ratio, 3))
            self.lanes.gained(device, lanes, ratio, self._clock())
        self._watch(views)
        for run in list(self.host.runs.values()):
            if run.sharing != "exclusive" and run.alive and not run.killed_s:
                self._check_memory(run)
        self.turn()

    def view(self) -> LanesView | None:
        """Return the view of all shared devices; None if no device is shared."""
        fractions: dict[int, list[SharedRunView]] = {}
        for run in self.host.runs.values():
            if run.sharing == "fraction" and run.alive:
                for index, cap_bytes in self.limits.caps.get(run.key, {}).items():
                    part = SharedRunView(job_id=run.job_id, epoch=run.epoch, state="fraction", cap_bytes=cap_bytes)
                    fractions.setdefault(index, []).append(part)
        return lane_telemetry.lanes_view(
            self.lanes.state, self.host.site.devices, self._shares, fractions, self._clock()
        )

    def _watch(self, views: Mapping[NodeLane, LaneTokenView]) -> None:
        """Warn runs that are long in an iteration while others wait, and take their turns in the end."""
        holders = {
            (place, view.holder): (view.iterations, self.lanes.waiting(place))
            for place, view in views.items()
            if view.holder is not None and view.busy
        }
        limits, now_s = self._turns.rules, self._clock()
        for (place, who), verdict in self._turns.look(holders, now_s).items():
            key, (_, waiting) = (who.job_id, who.epoch), holders[place, who]
            if verdict == "go" or key not in self.host.runs:
                continue
            words = TURN_MESSAGES[verdict].format(
                s=limits.warn_s if verdict == "warn" else limits.take_s, waiting=waiting
            )
            if verdict == "warn":
                self.host.warn(key, f"rank {who.rank} {words}")
            elif self._hang == "kill":
                self.host.end(key, "hang", f"rank {who.rank} {words}, and was ended")
            else:
                self.lanes.stopped(who, now_s)
                self.coordinator.revoke(place)

    def _check_memory(self, run: LocalRun) -> None:
        for index, devices in run.devices_of.items():
            leader = self.host.leader((run.key, index))
            for device in devices if leader else ():
                why = self.limits.broken(run.key, index, device, leader)
                if why:
                    _log.warning("memory_cap_broken", job_id=run.job_id, epoch=run.epoch, reason=why)
                    self.host.end(run.key, "memory", f"{why}, and was ended")
                    return

    def note_memory(self, place: Place, memory: MemoryReport, iterations: int) -> None:
        """Note what a process holds between two iterations."""
        (job_id, epoch), rank = place
        run = self.host.runs[place[0]]
        if run.sharing != "lane":
            return
        framework_bytes = 0
        if memory.on_device and (leader := self.host.leader(place)):
            held = [self.limits.held_bytes(index, leader) for index in run.devices_of.get(rank, ())]
            framework_bytes = max(0, max(held, default=0) - memory.reserved_bytes)
        sample = MemoryReading(memory.allocated_bytes, max(memory.peak_bytes, memory.allocated_bytes), framework_bytes)
        self.lanes.see(LaneClientId(job_id, epoch, rank), sample, iterations, self._clock())
        self.coordinator.turn()

    def _limit(self, key: Key, caps: dict[int, int]) -> None:
        self.limits.caps[key] = caps
        self.limits.framework_bytes[key] = self.lanes.needs.framework_bytes(self.lanes.state.shared_runs[key[0]])
        run = self.host.runs.get(key)
        if run is None:
            return
        run.cap_bytes = self.limits.least_bytes(key)
        for index, devices in run.devices_of.items():
            leader = self.host.leader((key, index))
            if leader:
                self.limits.change(key, index, devices, leader)
        self.host.send_caps(run)

    def _end(self, key: Key, reason: str) -> None:
        if key in self.host.runs:
            self.host.end(key, "hang", reason)

    def _has(self, key: Key) -> bool:
        return key in self.lanes.progress
