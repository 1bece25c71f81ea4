"""
Devices and lanes, as nodes tell of them, as families of metrics.

:class:`HeardNodes` keeps the last samples. :func:`of_devices` has each device under Penstock's own names, and each GPU
under those of NVIDIA's dcgm-exporter too, so that dashboards made for it work. What is no GPU never has these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
from prometheus_client import Metric

from penstock_bus import TelemetryPort
from penstock_dashboard.metric_catalogue import OF_DEVICES, gauge
from penstock_log import subjects
from penstock_log.device_samples import DeviceReading, DeviceSample, DevicesSampled
from penstock_log.views import LanesView

_FRESH_S: Final = 30.0
_LANES_FRESH_S: Final = 3.5
_GPU: Final = "cuda"
_MIB: Final = 1 << 20


class HeardNodes:
    """
    What nodes told last of their devices and lanes.

    Parameters
    ----------
    clock : callable
        Seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._devices: dict[str, tuple[float, DevicesSampled]] = {}
        self._lanes: dict[str, tuple[float, LanesView]] = {}

    async def listen_to_devices(self, bus: TelemetryPort) -> None:
        """Note samples of devices, for ever."""
        async for subject, body in bus.subscribe(subjects.DEVICES):
            try:
                told = msgspec.json.decode(body, type=DevicesSampled)
            except (ValueError, RecursionError):
                continue  # of a node of another version
            self._devices[subject.rpartition(".")[2]] = self._clock(), told

    async def listen_to_lanes(self, bus: TelemetryPort) -> None:
        """Note what nodes tell of their lanes, for ever."""
        async for subject, body in bus.subscribe(subjects.LANES):
            try:
                told = msgspec.json.decode(body, type=LanesView)
            except (ValueError, RecursionError):
                continue  # of a node of another version
            self._lanes[subject.rpartition(".")[2]] = self._clock(), told

    def devices(self) -> dict[str, tuple[float, DevicesSampled]]:
        """Return the samples that are not too old, by node, and how old each is in seconds."""
        now_s = self._clock()
        self._devices = {node: told for node, told in self._devices.items() if now_s - told[0] < _FRESH_S}
        return {node: (now_s - at_s, told) for node, (at_s, told) in sorted(self._devices.items())}

    def lanes(self) -> dict[str, LanesView]:
        """Return what nodes told of their lanes within the last seconds."""
        now_s = self._clock()
        self._lanes = {node: told for node, told in self._lanes.items() if now_s - told[0] < _LANES_FRESH_S}
        return {node: told for node, (_, told) in sorted(self._lanes.items())}


def of_devices(sampled: dict[str, tuple[float, DevicesSampled]]) -> list[Metric]:
    """Return the families of all devices."""
    found = {kind.name: gauge(kind.name) for kind in OF_DEVICES}
    for node, (age_s, told) in sampled.items():
        found["penstock_node_sample_age_seconds"].add_metric([node], age_s)
        for device in told.devices:
            who, job = [node, str(device.index), device.kind, device.backend, device.uuid], _job_of(device)
            for name, labels, value in (*_own(device, who, job), *_dcgm(device, told.host, job)):
                if value is not None:
                    found[name].add_metric(labels, value)
            for user in device.users:
                found["penstock_device_job"].add_metric([node, who[1], user.job_id, user.user, user.team], 1)
    return list(found.values())


Sample = tuple[str, list[str], float | None]


def _own(device: DeviceSample, who: list[str], job: list[str]) -> Iterator[Sample]:
    reading = device.reading
    yield "penstock_device_utilisation_ratio", [*who, reading.source, *job], reading.utilisation
    yield "penstock_device_memory_used_bytes", [*who, *job], reading.memory_used_bytes
    yield "penstock_device_memory_total_bytes", who, reading.memory_total_bytes
    yield "penstock_device_unreadable", who, bool(reading.error)


def _dcgm(device: DeviceSample, host: str, job: list[str]) -> Iterator[Sample]:
    """Yield the samples under dcgm-exporter's names and in its units, of a GPU."""
    if device.backend != _GPU:
        return
    reading = device.reading
    minor = "" if reading.minor is None else str(reading.minor)
    labels = [minor, device.uuid, f"nvidia{minor}" if minor else "", reading.model, host, *job]
    for name, value in _figures(reading):
        yield f"DCGM_FI_DEV_{name}", labels, value


def _figures(reading: DeviceReading) -> Iterable[tuple[str, float | None]]:
    return (
        ("GPU_UTIL", None if reading.utilisation is None else 100 * reading.utilisation),
        ("FB_USED", None if reading.memory_used_bytes is None else reading.memory_used_bytes // _MIB),
        ("FB_FREE", None if reading.memory_free_bytes is None else reading.memory_free_bytes // _MIB),
        ("GPU_TEMP", reading.temperature_c),
        ("POWER_USAGE", reading.power_w),
        ("SM_CLOCK", reading.sm_clock_mhz),
        ("XID_ERRORS", reading.xid),
        ("ECC_DBE_VOL_TOTAL", reading.ecc_double_bit),
    )


def _job_of(device: DeviceSample) -> list[str]:
    """Return the labels of the one job that has a device; empty ones where none has, or several."""
    if len(device.users) != 1:
        return ["", "", ""]
    user = device.users[0]
    return [user.job_id, user.user, user.team]


def of_lanes(told: dict[str, LanesView]) -> list[Metric]:
    """Return the families of lanes."""
    members, turns = gauge("penstock_lane_members"), gauge("penstock_lane_turn_ratio")
    switches, used = gauge("penstock_lane_switches_per_second"), gauge("penstock_shared_device_used_bytes")
    for node, view in told.items():
        for device in view.devices:
            used.add_metric([node, str(device.device)], device.used_bytes)
            for lane in device.lanes:
                where = [node, str(device.device), str(lane.lane)]
                members.add_metric(where, len(lane.members))
                turns.add_metric(where, min(1.0, sum(member.share for member in lane.members)))
                switches.add_metric(where, lane.switches_per_s)
    return [members, turns, switches, used]
