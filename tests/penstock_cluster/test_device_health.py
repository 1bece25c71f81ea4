"""Which measurements make a device unfit, and how NVML tells of them."""

from __future__ import annotations

import pynvml
import pytest
from fake_nvml import FakeEvent, FakeGpu, FakeNvml, four_gpus

from penstock_cluster import DeviceError
from penstock_cluster.cuda_backend import CudaBackend
from penstock_cluster.cuda_health import CudaHealth
from penstock_cluster.device_health import APPLICATION, HARDWARE, HealthReading, diagnose, is_event
from penstock_log import Device


def devices(*gpus: FakeGpu) -> tuple[Device, ...]:
    made = enumerate(gpus)
    return tuple(Device(index=i, kind="h100", memory_bytes=1, backend="cuda", uuid=gpu.uuid) for i, gpu in made)


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(four_gpus())


@pytest.fixture
def health(nvml: FakeNvml) -> CudaHealth:
    return CudaHealth(devices(*nvml.gpus), nvml)


def codes(health: CudaHealth) -> dict[int, str]:
    found = {index: diagnose(reading) for index, reading in health.read().items()}
    return {index: one.code for index, one in found.items() if one is not None}


@pytest.mark.parametrize("xid", sorted(HARDWARE))
def test_an_error_of_the_hardware_makes_a_device_unfit(xid: int) -> None:
    found = diagnose(HealthReading(xids=(xid,)))
    assert found is not None
    assert found.code == f"xid {xid}"
    assert found.reason.startswith(f"XID {xid}: ")
    assert is_event(found.code)


@pytest.mark.parametrize("xid", [*sorted(APPLICATION), 0, 999])
def test_an_error_of_a_program_or_one_that_is_not_known_does_not(xid: int) -> None:
    assert diagnose(HealthReading(xids=(xid,))) is None


def test_no_error_is_of_both() -> None:
    assert not HARDWARE.keys() & APPLICATION.keys()


@pytest.mark.parametrize(
    ("reading", "code"),
    [
        (HealthReading(uncorrected=1), "ecc_uncorrected"),
        (HealthReading(pending=True), "remap_pending"),
        (HealthReading(failure=True, pending=True), "remap_failure"),
        (HealthReading(lost="GPU is lost", xids=(79,)), "lost"),
    ],
)
def test_what_counters_make_of_a_device(reading: HealthReading, code: str) -> None:
    found = diagnose(reading)
    assert found is not None
    assert found.code == code
    assert not is_event(found.code)


def test_all_that_was_measured_is_in_the_reason() -> None:
    found = diagnose(HealthReading(xids=(48, 13, 48, 63), uncorrected=2))
    assert found is not None
    assert found.reason.count("XID 48") == 1
    assert "XID 63" in found.reason
    assert "XID 13" not in found.reason
    assert found.reason.endswith("2 uncorrected ECC errors since its last reset")


def test_gpus_without_errors_are_fit(health: CudaHealth) -> None:
    assert codes(health) == {}
    assert sorted(health.read()) == [0, 1, 2, 3]


def test_an_event_is_told_once_of_the_gpu_that_it_is_about(health: CudaHealth, nvml: FakeNvml) -> None:
    health.read()
    nvml.events += [FakeEvent(nvml.gpus[2], 31), FakeEvent(nvml.gpus[2], 79), FakeEvent(nvml.gpus[0], 43)]
    assert codes(health) == {2: "xid 79"}
    assert codes(health) == {}


def test_counters_stay_until_they_are_reset(health: CudaHealth, nvml: FakeNvml) -> None:
    nvml.gpus[1].double_bit, nvml.gpus[3].remapped = 4, (9, 1, 1, 0)
    nvml.gpus[0].retiring = 1
    assert codes(health) == {0: "remap_pending", 1: "ecc_uncorrected", 3: "remap_pending"}
    assert codes(health) == {0: "remap_pending", 1: "ecc_uncorrected", 3: "remap_pending"}
    nvml.gpus[1].double_bit = 0
    assert codes(health) == {0: "remap_pending", 3: "remap_pending"}


def test_a_gpu_that_the_driver_lost_is_unfit_and_the_others_are_read(health: CudaHealth, nvml: FakeNvml) -> None:
    nvml.gpus[1].lost = True
    nvml.gpus[2].double_bit = 1
    assert codes(health) == {1: "lost", 2: "ecc_uncorrected"}
    nvml.gpus[1].lost = False
    nvml.events.append(FakeEvent(nvml.gpus[1], 48))
    assert codes(health) == {1: "xid 48", 2: "ecc_uncorrected"}


def test_a_gpu_that_is_listed_no_more_is_unfit(health: CudaHealth, nvml: FakeNvml) -> None:
    del nvml.gpus[3]
    assert codes(health) == {3: "lost"}


def test_without_events_there_are_the_counters(nvml: FakeNvml) -> None:
    nvml.tells_events = False
    nvml.gpus[0].double_bit = 1
    assert codes(CudaHealth(devices(*nvml.gpus), nvml)) == {0: "ecc_uncorrected"}


def test_what_a_gpu_has_its_instances_have_together() -> None:
    instances = [FakeGpu(uuid="MIG-1"), FakeGpu(uuid="MIG-2")]
    gpu = FakeGpu(uuid="GPU-1", mig=(1, 1), instances=instances)
    nvml = FakeNvml([gpu], events=[FakeEvent(gpu, 95)])
    parts = [
        Device(index=i, kind="h100-1g", memory_bytes=1, backend="cuda", uuid=one.uuid, parent="GPU-1")
        for i, one in enumerate(instances)
    ]
    assert codes(CudaHealth(tuple(parts), nvml)) == {0: "xid 95", 1: "xid 95"}


def test_a_driver_that_cannot_be_asked_is_an_error_and_is_asked_again(health: CudaHealth, nvml: FakeNvml) -> None:
    nvml.absent = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(DeviceError, match="does nvidia-smi work"):
        health.read()
    nvml.absent = 0
    assert codes(health) == {}


def test_the_driver_is_let_go_once(health: CudaHealth, nvml: FakeNvml) -> None:
    health.close()
    health.read()
    health.close()
    health.close()
    assert nvml.opened == 0
    assert nvml.watched == []


@pytest.mark.parametrize(("percent", "used"), [(0, False), (1, True), (None, True)])
def test_a_gpu_is_in_use_by_its_utilization_and_where_that_is_not_told(percent: int | None, used: bool) -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-1", percent=percent)])
    assert CudaBackend.is_used(devices(*nvml.gpus)[0], nvml) is used
    assert nvml.opened == 0
