"""
Watch over this node's devices and over what runs do with them. Part of the runner.

:class:`DeviceWatch` publishes how busy devices are, tells the log of those that fail and that are well again, and of
runs that hold devices and do nothing, and says why a process failed where a device of it is unfit.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock_bus.follower import FoldFollower
from penstock_bus.shell import Shell
from penstock_cluster import DeviceError
from penstock_cluster.accounting import by_session
from penstock_cluster.device_backend import BACKENDS
from penstock_executor import idle_watch
from penstock_executor.device_sampler import DeviceSampler, holders
from penstock_executor.fact_outbox import FactAppender
from penstock_executor.fence import HeardPage
from penstock_executor.health_watch import HealthWatch
from penstock_executor.idle_watch import IdleWatch, RunActivity
from penstock_executor.machine import ExecutorState
from penstock_executor.process_host import Place, ProcessHost
from penstock_executor.run_state import Key, LocalRun
from penstock_executor.settings import ExecutorSettings
from penstock_log import Device, DeviceFailed, DeviceRecovered, subjects, tag_of
from penstock_policies.idleness import IdleRules

DRIVER_PATIENCE_S: Final = 3.0
"""How long the end of a run waits for a driver to say whether a device has failed: twice so long at most."""
IDLE_LOOK_S: Final = 5.0
"""The longest pause between two looks at whether runs do anything."""


class DeviceWatch:
    """
    The devices of one node, watched.

    Parameters
    ----------
    health : HealthWatch
        What is known of their failures.
    page : HeardPage
        When the node was last heard: runs of a node that is not are stopped, and not idle.
    incarnation : callable
        Under which the node has joined.
    publish : callable
        Publishes a message that may be lost, on a subject.
    """

    def __init__(
        self,
        shell: Shell,
        settings: ExecutorSettings,
        live: FoldFollower[ExecutorState],
        host: ProcessHost,
        appender: FactAppender,
        *,
        health: HealthWatch,
        page: HeardPage,
        incarnation: Callable[[], str],
        publish: Callable[[str, object], Awaitable[None]],
    ) -> None:
        self._shell, self._settings, self._live, self._host, self._appender = shell, settings, live, host, appender
        self._health, self._page, self._incarnation, self._publish = health, page, incarnation, publish
        self._node_id = host.site.node_id
        self._looking: asyncio.Task[None] | None = None

    async def sample(self) -> None:
        """Publish how busy the devices are, and who is on them, for ever."""
        sampler = DeviceSampler(self._node_id, self._host.site.devices, self._shell.monotonic)
        try:
            while True:
                held = holders(self._host.runs.values(), self._live.state.jobs.get, self._host.leader)
                sampled = await asyncio.to_thread(sampler.sample, held, self._shell.now_s())  # a driver may hang
                await self._publish(subjects.devices(self._node_id), sampled)
                await asyncio.sleep(self._settings.device_sample_s)
        finally:
            sampler.close()

    async def watch_health(self) -> None:
        """Tell the log of devices that fail, and of those that are well again."""
        try:
            while self._health.watches:
                await self._look_at_devices()
                node = self._live.state.cluster.nodes.get(self._node_id)
                here = node is not None and node.present and node.incarnation == self._incarnation()
                for fact in [*self._health.facts(node, self._shell.now_s())] if node is not None and here else []:
                    self._shell.log.warning("device_health_changed", index=fact.index, fact=tag_of(fact))
                    await self._appender.append_node(fact)
                    self._note_told(fact)
                await asyncio.sleep(self._settings.device_health_s)
        finally:
            if self._looking is not None:
                await asyncio.wait({self._looking}, timeout=DRIVER_PATIENCE_S)
            if self._looking is None or self._looking.done():
                self._health.close()

    def _note_told(self, fact: DeviceFailed | DeviceRecovered) -> None:
        try:
            self._health.note_told(fact)
        except OSError as error:
            self._shell.log.warning("device_events_not_kept", error=str(error))

    async def _look_at_devices(self, patience_s: float | None = None) -> None:
        """Have the devices' health read, one look at a time; a driver may hang, so only the patient wait for it."""
        under_way = self._looking is not None and not self._looking.done()
        for _ in range(1 + under_way):  # the one that is under way may not see what has just happened
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._read_health())
            await asyncio.wait({self._looking}, timeout=patience_s)

    async def _read_health(self) -> None:
        try:
            await asyncio.to_thread(self._health.read)
        except DeviceError as error:
            self._shell.log.warning("devices_not_looked_at", error=str(error))
        except OSError as error:
            advice = "an error that a driver tells of once is lost if this executor ends before the log has it"
            self._shell.log.warning("device_events_not_kept", error=str(error), advice=advice)

    async def why_unfit(self, place: Place) -> str:
        """Return why a device of a process that has failed is unfit: then it is not the job that has failed."""
        if not self._health.watches:
            return ""
        await self._look_at_devices(DRIVER_PATIENCE_S)
        key, rank = place
        node = self._live.state.cluster.nodes.get(self._node_id)
        for device in self._host.site.devices:
            if device.index not in self._host.runs[key].devices_of[rank]:
                continue
            outage = node.outage(device.index) if node is not None else None
            told = outage.failure if outage is not None and outage.failed else ""
            if reason := self._health.unfit(device.index) or told:
                return f"device {self._node_id}/{device.kind}{device.index} failed: {reason}"
        return ""

    async def watch_idle_runs(self) -> None:
        """Tell the log of runs that hold devices and do nothing, where the rule of the pool is that they do not."""
        watch, looked_s = IdleWatch(self._node_id), 0.0
        while True:
            rule = IdleRules.of(self._live.state.policies.get(self._settings.pool, {}))
            pause_s = min(IDLE_LOOK_S, max(0.2, rule.idle_after_s / 8)) if rule.idle_after_s else IDLE_LOOK_S
            await asyncio.sleep(pause_s)
            runs = [run for run in self._host.runs.values() if self._may_be_idle(run)] if rule.idle_after_s else []
            now_s = self._shell.now_s()
            held = any(0 < run.hold_s < self._page.unheard_s for run in runs)
            if held or now_s - looked_s > 3 * pause_s:  # the runs were stopped, or this process was
                watch.forgive()
            looked_s = now_s
            if not runs:
                continue
            activities = await self._activities(runs)
            told = {key: self._live.state.idle.get(key[0], {}).get(self._node_id) == key[1] for key in activities}
            for fact in watch.look(activities, dict.fromkeys(activities, rule), told, self._shell.now_s()):
                self._appender.report(fact)

    def _may_be_idle(self, run: LocalRun) -> bool:
        """Say whether a run is one that its pool's rule for idle runs is about."""
        job = self._live.state.jobs.get(run.key[0])
        return idle_watch.is_watched(run) and (job is None or job.spec.idle != "allow")

    async def _activities(self, runs: Iterable[LocalRun]) -> dict[Key, RunActivity]:
        """Return what runs have done so far, by their devices, and by their iterations or else by their processes."""
        steps = {run.key: idle_watch.steps_of(run) for run in runs}
        devices = {run.key: run.devices for run in runs}
        leaders = {
            run.key: [self._host.leader((run.key, rank)) for rank, each in run.ranks.items() if each.alive]
            for run in runs
            if steps[run.key] is None
        }
        used, spent_s = await asyncio.to_thread(lambda: (self._used(devices), _processor_s(leaders)))
        return {
            key: RunActivity(steps=steps[key], processor_s=spent_s.get(key, 0.0), used=key in used) for key in devices
        }

    def _used(self, devices: Mapping[Key, tuple[int, ...]]) -> set[Key]:
        """Return the runs of which a device is in use by measurement."""
        return {
            key
            for key, indices in devices.items()
            if any(self._is_used(device) for device in self._host.site.devices if device.index in indices)
        }

    def _is_used(self, device: Device) -> bool:
        try:
            return BACKENDS[device.backend].load().is_used(device)
        except DeviceError as error:
            self._shell.log.warning("device_use_not_known", index=device.index, error=str(error))
            return True


def _processor_s(leaders: Mapping[Key, Sequence[int]]) -> dict[Key, float]:
    """Return the processor time of runs so far, in seconds, from the leaders of their processes' sessions."""
    if not leaders:
        return {}
    families, ticks_per_s = (
        by_session({one for ids in leaders.values() for one in ids}),
        float(os.sysconf("SC_CLK_TCK")),
    )
    return {
        key: idle_watch.processor_s([pid for one in ids for pid in families.get(one, ())], ticks_per_s)
        for key, ids in leaders.items()
    }
