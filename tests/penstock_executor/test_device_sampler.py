"""Samples of a node's devices, and who is on them."""

import asyncio

import msgspec
import pytest
from executor_cases import World, python
from fake_nvml import FakeEvent, FakeGpu, FakeNvml

from penstock_cluster.cuda_monitor import CudaMonitor
from penstock_cluster.device_monitor import HostMonitor
from penstock_executor.device_sampler import DeviceHolders, DeviceSampler, holders
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import Device, Job, JobSpec, subjects
from penstock_log.device_samples import DevicesSampled, DeviceUser


def job(job_id: str, team: str = "a") -> Job:
    return Job(id=job_id, spec=JobSpec(name="secret", command=("true",), user="ann", team=team), submitted_s=0.0)


def run(job_id: str, devices: tuple[int, ...], ranks: dict[int, RunProcess]) -> LocalRun:
    return LocalRun(job_id=job_id, epoch=1, devices=devices, ranks=ranks)


ALIVE = RunProcess()


def test_each_process_has_its_device_and_one_process_has_all() -> None:
    jobs = {"gang": job("gang"), "lone": job("lone", team="")}
    runs = [
        run("gang", (0, 1), {0: ALIVE, 1: ALIVE}),
        run("lone", (2, 3), {0: ALIVE}),
        run("unknown", (3,), {0: ALIVE}),
    ]
    leaders = {("gang", 0): 70, ("gang", 1): 71, ("lone", 0): 80, ("unknown", 0): 0}
    found = holders(runs, jobs.get, lambda place: leaders[place[0][0], place[1]])
    lone = DeviceUser("lone", "ann", "")
    assert found.users[0] == found.users[1] == [DeviceUser("gang", "ann", "a")]
    assert found.users[3] == [lone, DeviceUser("unknown")]
    assert found.sessions == {0: {70: 1.0}, 1: {71: 1.0}, 2: {80: 0.5}, 3: {80: 0.5}}


def test_devices_of_two_backends_are_sampled_side_by_side() -> None:
    devices = (
        Device(index=0, kind="h100", memory_bytes=80 << 30, backend="cuda", uuid="GPU-0"),
        Device(index=1, kind="fast", memory_bytes=1 << 30, backend="emulated"),
    )
    nvml = FakeNvml([FakeGpu("GPU-0", percent=50)])
    monitors = {"cuda": CudaMonitor(nvml), "emulated": HostMonitor(lambda: 0.0)}
    sampler = DeviceSampler("n1", devices, lambda: 0.0, monitors)
    nvml.events.append(FakeEvent(nvml.gpus[0], 63))
    found = sampler.sample(DeviceHolders({0: [DeviceUser("j1", "ann", "a")]}, {}), 7.0)
    sampler.close()
    real, emulated = found.devices
    assert (real.reading.utilisation, real.reading.xid, real.users) == (0.5, 63, (DeviceUser("j1", "ann", "a"),))
    assert (emulated.backend, emulated.reading.source, emulated.users) == ("emulated", "processes", ())
    assert msgspec.json.decode(msgspec.json.encode(found), type=DevicesSampled) == found


def test_of_very_many_devices_those_that_nobody_uses_are_left_out() -> None:
    devices = tuple(Device(index=i, kind="fast", memory_bytes=1, backend="emulated") for i in range(10_000))
    sampler = DeviceSampler("n1", devices, lambda: 0.0)
    found = sampler.sample(DeviceHolders({7: [DeviceUser("j1")]}, {}), 0.0)
    assert [device.index for device in found.devices] == [7]


@pytest.mark.slow
async def test_a_node_tells_who_is_on_its_devices_and_how_busy_they_are(world: World) -> None:
    node = await world.node(device_sample_s=0.1, devices="fast:2@1.0:1GiB")
    await world.submit("j1", *python("while True: pass"), user="ann", team="vision")
    await world.place("j1", 1)
    async with asyncio.timeout(60.0):
        async for _, body in node.bus.subscribe(subjects.devices("n1")):
            told = msgspec.json.decode(body, type=DevicesSampled)
            if (told.devices[1].reading.utilisation or 0.0) > 0.2:
                break
    idle, busy = told.devices
    assert busy.users == (DeviceUser("j1", "ann", "vision"),)
    assert (busy.reading.memory_used_bytes or 0) > 1 << 20
    assert (idle.users, idle.reading.utilisation) == ((), 0.0)
    assert told.node_id == "n1"
