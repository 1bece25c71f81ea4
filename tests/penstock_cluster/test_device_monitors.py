"""Monitors of devices: by a driver that answers from tables, and by a host that is a folder."""

from pathlib import Path

import pynvml
import pytest
from fake_nvml import GIB, FakeEvent, FakeGpu, FakeNvml

from penstock_cluster.cuda_monitor import CudaMonitor
from penstock_cluster.device_backend import BACKENDS
from penstock_cluster.device_monitor import HostMonitor, processor_s
from penstock_log import Device
from penstock_log.device_samples import DeviceReading


def gpu(uuid: str = "GPU-0", parent: str = "") -> Device:
    return Device(index=0, kind="h100", memory_bytes=80 * GIB, backend="cuda", uuid=uuid, parent=parent)


def test_a_gpu_is_read_in_units_of_ours() -> None:
    nvml = FakeNvml([FakeGpu("GPU-0", used_bytes=3 * GIB, percent=37, milliwatts=123_456, minor=4, double_bit=2)])
    assert CudaMonitor(nvml).read(gpu(), {}) == DeviceReading(
        source="driver",
        model="NVIDIA H100 80GB HBM3",
        minor=4,
        utilisation=0.37,
        memory_used_bytes=3 * GIB,
        memory_free_bytes=77 * GIB,
        memory_total_bytes=80 * GIB,
        temperature_c=40,
        power_w=123.456,
        sm_clock_mhz=1_980,
        xid=0,
        ecc_double_bit=2,
    )


def test_of_an_older_driver_what_it_keeps_for_itself_is_in_what_is_used() -> None:
    new, old = (FakeGpu("GPU-0", used_bytes=3 * GIB, reserved_bytes=kept) for kept in (GIB, None))
    old.used_bytes += GIB
    told = [CudaMonitor(FakeNvml([one])).read(gpu(), {}) for one in (new, old)]
    assert [(one.memory_used_bytes, one.memory_free_bytes) for one in told] == [
        (3 * GIB, 76 * GIB),
        (4 * GIB, 76 * GIB),
    ]


def test_what_a_gpu_does_not_tell_is_none() -> None:
    silent = FakeGpu("GPU-0", percent=None, celsius=None, milliwatts=None, clock_mhz=None, double_bit=None, minor=None)
    found = CudaMonitor(FakeNvml([silent], tells_events=False)).read(gpu(), {})
    told = (found.utilisation, found.temperature_c, found.power_w, found.sm_clock_mhz, found.ecc_double_bit)
    assert (*told, found.minor, found.xid) == (None,) * 7
    assert found.memory_total_bytes == 80 * GIB


def test_the_last_error_of_each_gpu_stays_known() -> None:
    one, other = FakeGpu("GPU-0"), FakeGpu("GPU-1")
    nvml = FakeNvml([one, other])
    monitor = CudaMonitor(nvml)
    assert [monitor.read(gpu(uuid), {}).xid for uuid in ("GPU-0", "GPU-1")] == [0, 0]
    nvml.events += [FakeEvent(one, 31), FakeEvent(one, 79)]
    assert [monitor.read(gpu(uuid), {}).xid for uuid in ("GPU-1", "GPU-0")] == [0, 79]
    assert [monitor.read(gpu(uuid), {}).xid for uuid in ("GPU-0", "GPU-1")] == [79, 0]


def test_a_gpu_that_is_lost_says_so_and_keeps_its_error() -> None:
    one, other = FakeGpu("GPU-0"), FakeGpu("GPU-1")
    nvml = FakeNvml([one, other])
    monitor = CudaMonitor(nvml)
    monitor.read(gpu(), {})
    nvml.events.append(FakeEvent(one, 79))
    monitor.read(gpu("GPU-1"), {})
    one.lost = True
    found = monitor.read(gpu(), {})
    assert (found.xid, found.utilisation) == (79, None)
    assert found.error.startswith("it cannot be read: ")
    assert monitor.read(gpu("GPU-1"), {}).error == ""
    assert nvml.opened == 1


def test_an_instance_has_its_own_memory_and_the_rest_of_its_gpu() -> None:
    part = FakeGpu("MIG-1", memory_bytes=10 * GIB, used_bytes=GIB, percent=None)
    whole = FakeGpu("GPU-0", mig=(1, 1), instances=[part], celsius=63, percent=99)
    nvml = FakeNvml([whole])
    monitor = CudaMonitor(nvml)
    monitor.read(gpu("MIG-1", "GPU-0"), {})
    nvml.events.append(FakeEvent(whole, 94))
    found = monitor.read(gpu("MIG-1", "GPU-0"), {})
    assert (found.memory_total_bytes, found.temperature_c, found.xid) == (10 * GIB, 63, 94)
    assert found.utilisation is None


def test_a_driver_that_is_gone_is_opened_again_when_it_is_back() -> None:
    nvml = FakeNvml([FakeGpu("GPU-0")])
    monitor = CudaMonitor(nvml)
    assert monitor.read(gpu(), {}).error == ""
    nvml.opened, nvml.absent = 0, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert monitor.read(gpu(), {}).error
    assert monitor.read(gpu(), {}).error
    nvml.absent = 0
    assert monitor.read(gpu(), {}).error == ""


def test_the_driver_is_let_go() -> None:
    nvml = FakeNvml([FakeGpu("GPU-0")])
    monitor = CudaMonitor(nvml)
    monitor.close()
    monitor.read(gpu(), {})
    monitor.close()
    monitor.close()
    assert nvml.opened == 0


EMULATED = Device(index=3, kind="fast", memory_bytes=8 * GIB, backend="emulated")


class Host:
    """Processes as the kernel tells of them, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 100.0

    def process(self, pid: int, ticks: int, resident_kib: int = 0, name: str = "a) b (c") -> None:
        folder = self.folder / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} ({name}) S 1 {pid} {pid} 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 5\n")
        (folder / "status").write_text(f"VmRSS:\t {resident_kib} kB\n")


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_process_with_one_thread_is_all_of_an_emulated_device(machine: Host) -> None:
    monitor = HostMonitor(lambda: machine.now_s, proc=machine.folder)
    machine.process(7, ticks=1000, resident_kib=1024)
    assert monitor.read(EMULATED, {7: 1.0}).utilisation is None
    machine.now_s += 10
    machine.process(7, ticks=1500, resident_kib=2048)
    found = monitor.read(EMULATED, {7: 1.0})
    assert (found.utilisation, found.memory_used_bytes, found.source) == (0.5, 2 << 20, "processes")
    machine.now_s += 10
    machine.process(7, ticks=9000)
    assert monitor.read(EMULATED, {7: 1.0}).utilisation == 1.0


def test_a_process_with_two_devices_is_half_on_each(machine: Host) -> None:
    monitor = HostMonitor(lambda: machine.now_s, proc=machine.folder)
    machine.process(7, ticks=0)
    monitor.read(EMULATED, {7: 0.5})
    machine.now_s += 10
    machine.process(7, ticks=1000)
    assert monitor.read(EMULATED, {7: 0.5}).utilisation == 0.5


def test_a_device_of_many_processors_is_all_of_them(machine: Host) -> None:
    monitor = HostMonitor(lambda: machine.now_s, 4, machine.folder)
    machine.process(7, ticks=0)
    monitor.read(EMULATED, {7: 1.0})
    machine.now_s += 10
    machine.process(7, ticks=1000)
    assert monitor.read(EMULATED, {7: 1.0}).utilisation == 0.25


def test_a_device_that_nobody_has_is_idle_and_one_whose_process_has_ended_too(machine: Host) -> None:
    monitor = HostMonitor(lambda: machine.now_s, proc=machine.folder)
    machine.process(7, ticks=0)
    monitor.read(EMULATED, {7: 1.0})
    machine.now_s += 10
    assert monitor.read(EMULATED, {8: 1.0}).utilisation == 0.0
    machine.now_s += 10
    assert monitor.read(EMULATED, {}).utilisation == 0.0


def test_a_process_that_is_not_there_has_no_time(tmp_path: Path) -> None:
    assert processor_s(7, tmp_path) is None


def test_every_backend_has_a_monitor_that_tells_without_an_error() -> None:
    for name, entry in BACKENDS.items():
        found = entry.load().monitor(lambda: 0.0).read(gpu() if name == "cuda" else EMULATED, {})
        assert bool(found.error) == (name == "cuda"), "there is no driver here"
