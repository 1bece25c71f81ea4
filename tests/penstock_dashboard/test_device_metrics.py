"""Devices and lanes as metrics: under Penstock's names, and GPUs under dcgm-exporter's."""

import asyncio

import msgspec
from scrapes import OPEN_METRICS, dashboard, get

from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_dashboard.device_metrics import HeardNodes, of_devices, of_lanes
from penstock_log import subjects
from penstock_log.device_samples import DeviceReading, DeviceSample, DevicesSampled, DeviceUser
from penstock_log.views import LanesView, SharedDeviceView, SharedLaneView, SharedRunView
from penstock_testing import eventually

GIB = 1 << 30
READ = DeviceReading(
    source="driver",
    model="NVIDIA H100 80GB HBM3",
    minor=4,
    utilisation=0.37,
    memory_used_bytes=3 * GIB,
    memory_free_bytes=77 * GIB,
    memory_total_bytes=80 * GIB,
    temperature_c=63,
    power_w=412.5,
    sm_clock_mhz=1_980,
    xid=79,
    ecc_double_bit=2,
)
ANN, BOB = DeviceUser("j1", "ann", "vision"), DeviceUser("j2", "bob<script>\n", "")


def sampled(*devices: DeviceSample, node: str = "n1") -> DevicesSampled:
    return DevicesSampled(node_id=node, host="gpu-host-7", at_s=0.0, devices=devices)


def gpu(*users: DeviceUser, reading: DeviceReading = READ) -> DeviceSample:
    return DeviceSample(index=0, kind="h100", backend="cuda", uuid="GPU-abc", users=users, reading=reading)


def emulated(*users: DeviceUser) -> DeviceSample:
    reading = DeviceReading(utilisation=0.5, memory_used_bytes=GIB, memory_total_bytes=2 * GIB, model="none")
    return DeviceSample(index=1, kind="fast", backend="emulated", users=users, reading=reading)


def samples(told: DevicesSampled) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = of_devices({told.node_id: (1.5, told)})
    return {family.name: [(sample.labels, sample.value) for sample in family.samples] for family in families}


def test_a_gpu_has_the_names_labels_and_units_of_dcgm_exporter() -> None:
    found = samples(sampled(gpu(ANN)))
    values = {name: own[0][1] for name, own in found.items() if name.startswith("DCGM_FI_DEV_")}
    assert values == {
        "DCGM_FI_DEV_GPU_UTIL": 37.0,
        "DCGM_FI_DEV_FB_USED": 3 * 1024,
        "DCGM_FI_DEV_FB_FREE": 77 * 1024,
        "DCGM_FI_DEV_GPU_TEMP": 63,
        "DCGM_FI_DEV_POWER_USAGE": 412.5,
        "DCGM_FI_DEV_SM_CLOCK": 1_980,
        "DCGM_FI_DEV_XID_ERRORS": 79,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 2,
    }
    assert found["DCGM_FI_DEV_GPU_UTIL"][0][0] == {
        "gpu": "4",
        "UUID": "GPU-abc",
        "device": "nvidia4",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "gpu-host-7",
        "penstock_job": "j1",
        "user": "ann",
        "team": "vision",
    }


def test_what_is_no_gpu_has_no_name_of_dcgm_exporter() -> None:
    found = samples(sampled(emulated(ANN)))
    assert not any(own for name, own in found.items() if name.startswith("DCGM"))
    labels, value = found["penstock_device_utilisation_ratio"][0]
    assert (value, labels["source"], labels["penstock_job"]) == (0.5, "processes", "j1")


def test_what_a_driver_does_not_tell_has_no_sample() -> None:
    found = samples(sampled(gpu(reading=DeviceReading(source="driver", error="it is lost"))))
    assert not any(own for name, own in found.items() if name.startswith("DCGM"))
    assert found["penstock_device_unreadable"][0][1] == 1
    assert found["penstock_device_utilisation_ratio"] == []


def test_a_device_that_two_jobs_share_has_one_sample_and_names_both_beside() -> None:
    found = samples(sampled(gpu(ANN, BOB)))
    assert [labels["penstock_job"] for labels, _ in found["DCGM_FI_DEV_GPU_UTIL"]] == [""]
    assert [labels["penstock_job"] for labels, _ in found["penstock_device_job"]] == ["j1", "j2"]


def test_lanes_are_told_with_their_members_and_turns() -> None:
    members = tuple(SharedRunView(job_id=f"j{n}", epoch=1, state="turn", share=0.4) for n in range(2))
    lane = SharedLaneView(lane=3, size_bytes=GIB, holder="j0", switches_per_s=12.0, members=members)
    device = SharedDeviceView(device=1, kind="fast", memory_bytes=2 * GIB, used_bytes=GIB, lanes=(lane,))
    families = of_lanes({"n1": LanesView(node_id="n1", at_s=0.0, devices=(device,))})
    found = {family.name: (family.samples[0].labels, family.samples[0].value) for family in families}
    assert found["penstock_lane_members"] == ({"node": "n1", "device": "1", "lane": "3"}, 2)
    assert found["penstock_lane_turn_ratio"][1] == 0.8
    assert found["penstock_shared_device_used_bytes"] == ({"node": "n1", "device": "1"}, GIB)


async def test_what_nodes_told_too_long_ago_is_left_out() -> None:
    bus, now = MemoryBus(MemoryServer()), [0.0]
    heard = HeardNodes(lambda: now[0])
    listening = [asyncio.create_task(listen(bus)) for listen in (heard.listen_to_devices, heard.listen_to_lanes)]

    async def told() -> bool:
        await bus.publish(subjects.devices("n1"), b"no sample")
        await bus.publish(subjects.devices("n1"), msgspec.json.encode(sampled(emulated())))
        await bus.publish(subjects.lanes("n1"), msgspec.json.encode(LanesView(node_id="n1", at_s=0.0, devices=())))
        return bool(heard.devices() and heard.lanes())

    await eventually(told)
    now[0] += 31.0
    assert (heard.devices(), heard.lanes()) == ({}, {})
    for task in listening:
        task.cancel()


async def test_devices_are_scraped_with_odd_names_and_all() -> None:
    bus = MemoryBus(MemoryServer())
    async with dashboard(MemoryBus(bus.server)) as url:

        async def there() -> bool:
            await bus.publish(subjects.devices("n1"), msgspec.json.encode(sampled(gpu(BOB), emulated(ANN))))
            return bool((await get(url)).values("penstock_device_job"))

        await eventually(there)
        found = await get(url, Accept=OPEN_METRICS)
    assert found.value("DCGM_FI_DEV_XID_ERRORS", UUID="GPU-abc", user="bob<script>\n") == 79
    assert found.value("penstock_device_memory_total_bytes", node="n1", device="1") == 2 * GIB
