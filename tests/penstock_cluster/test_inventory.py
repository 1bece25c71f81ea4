"""One conformance suite for all device backends, and what is particular to each."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from fake_nvml import FakeNvml, four_gpus
from hypothesis import given
from hypothesis import strategies as st

from penstock_cluster import DeviceBackend, DeviceError, DeviceSurvey, cuda_backend, environment, inventory, survey
from penstock_cluster.accounting import HostAccounting
from penstock_cluster.cuda_backend import CudaBackend, kind_of
from penstock_cluster.device_backend import BACKENDS, CAPABILITIES, BackendEntry, DeviceCapabilities
from penstock_cluster.host_backends import CpuBackend, EmulatedBackend, EmulatedGroup, parse
from penstock_cluster.nodes import fits
from penstock_log import Commit, Device, JobSpec, NodeJoined, decode, encode
from penstock_log.agent_protocol import AgentEnv

GIB = 2**30
TPU = """
from penstock_cluster.accounting import HostAccounting
from penstock_cluster.device_backend import DeviceBackend
from penstock_log import Device


class TpuBackend(DeviceBackend):
    name = "tpu"

    @classmethod
    def parse(cls, part, column):
        return cls() if part == "tpu" else None

    @classmethod
    def found(cls):
        return cls()

    @classmethod
    def conflict(cls, backends):
        return " names the chips twice"

    def devices(self):
        return (Device(index=0, kind="v5e", memory_bytes=16 << 30, backend="tpu"),)

    def labels(self, first=0):
        return {"pod": "1"}

    @staticmethod
    def environment(devices):
        return {"TPU_VISIBLE_CHIPS": ",".join(str(device.index) for device in devices)}

    @classmethod
    def accounting(cls):
        return HostAccounting()
"""


@pytest.fixture(params=["cuda", "cuda by tables", "cpu", "emulated"])
def backend(request: pytest.FixtureRequest) -> DeviceBackend:
    if request.param == "cuda by tables":
        return CudaBackend(FakeNvml(four_gpus()), environ={})
    if request.param == "cuda":
        cuda = CudaBackend()
        if not cuda.devices():
            pytest.skip(f"the CUDA backend was not tried: {cuda.reason or 'the driver lists no device'}")
        return cuda
    return CpuBackend() if request.param == "cpu" else EmulatedBackend("fast:2@1.0:16GiB,slow:2@0.4:8GiB")


def test_devices_are_numbered_from_zero_without_gaps(backend: DeviceBackend) -> None:
    assert [device.index for device in backend.devices()] == list(range(len(backend.devices())))


def test_every_device_has_a_kind_that_a_job_can_name_and_some_memory(backend: DeviceBackend) -> None:
    for device in backend.devices():
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", device.kind)
        assert device.memory_bytes > 0
        assert device.speed > 0
        assert device.backend == backend.name


def test_asking_twice_gives_the_same_devices(backend: DeviceBackend) -> None:
    assert backend.devices() == backend.devices()


def test_a_process_sees_only_the_devices_of_its_grant(backend: DeviceBackend) -> None:
    first = backend.devices()[:1]
    seen = backend.environment(first)["CUDA_VISIBLE_DEVICES"]
    assert seen == (first[0].uuid if backend.name == "cuda" else "")
    assert environment(first) == backend.environment(first)


def test_every_backend_is_registered_under_its_name_and_says_what_it_can_do() -> None:
    assert {entry.load().name: name for name, entry in BACKENDS.items()} == {name: name for name in BACKENDS}
    assert set(CAPABILITIES) == set(BACKENDS) == {"cuda", "cpu", "emulated"}


def test_a_backend_that_this_version_does_not_know_is_in_the_log_and_its_devices_are_for_jobs_that_name_them() -> None:
    device = Device(index=0, kind="mi300", memory_bytes=8, backend="rocm")
    commit = Commit(id="c", actor="executor/n1", facts=(NodeJoined(node_id="n1", at_s=1.0, devices=(device,)),))
    assert decode(encode(commit)) == commit
    assert CAPABILITIES["rocm"] == DeviceCapabilities()
    assert not fits(JobSpec(name="a", command=("true",)), device)
    assert fits(JobSpec(name="a", command=("true",), kinds=("mi300",)), device)


def test_a_new_backend_is_a_module_of_its_own_and_a_row_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tpu_backend.py").write_text(TPU)
    monkeypatch.syspath_prepend(tmp_path)
    tpu = BackendEntry("tpu_backend:TpuBackend", "tpu", DeviceCapabilities(unnamed=True))
    monkeypatch.setattr(inventory, "BACKENDS", {"tpu": tpu, **BACKENDS})
    assert [(device.index, device.kind) for device in survey("cpu,tpu").devices] == [(0, "cpu"), (1, "v5e")]
    assert survey("auto").labels == {"pod": "1"}
    assert environment(survey("tpu").devices) == {"TPU_VISIBLE_CHIPS": "0"}
    with pytest.raises(DeviceError, match="'tpu' at column 5 names the chips twice"):
        survey("tpu,tpu")


def test_what_a_backend_can_do_is_what_it_does(backend: DeviceBackend) -> None:
    offers, device = CAPABILITIES[backend.name], backend.devices()[0]
    assert offers.host_memory == isinstance(BACKENDS[backend.name].load().accounting(), HostAccounting)
    assert offers.declared_speed == (AgentEnv.EMULATED_SPEED in backend.environment([device]))
    assert offers.unnamed == fits(JobSpec(name="a", command=("true",)), device)
    assert offers.tells_allocators != offers.host_memory


def test_a_backend_gives_its_devices_to_a_node_that_numbers_them_on(backend: DeviceBackend) -> None:
    node = DeviceSurvey([CpuBackend(memory_bytes=1), backend])
    assert [device.index for device in node.devices] == list(range(1 + len(backend.devices())))
    assert node.labels == backend.labels(first=1)
    assert all(name and value for name, value in node.labels.items())


def test_what_a_process_that_has_ended_held_is_told_of_nobody(backend: DeviceBackend) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    for device in backend.devices():
        counted = backend if isinstance(backend, CudaBackend) else backend.accounting()
        held = counted.held(device, [os.getpid(), ended.pid])
        assert set(held) <= {os.getpid()}
        assert all(0 < size <= device.memory_bytes for size in held.values())


def test_a_host_without_a_driver_has_no_cuda_devices_and_says_why() -> None:
    cuda = CudaBackend()
    assert cuda.devices() or "no NVIDIA driver" in cuda.reason or not cuda.reason


def test_an_emulated_description_names_kind_count_speed_and_memory() -> None:
    assert parse("fast:2@1.0:16GiB, slow:1@0.4:8GiB") == [
        EmulatedGroup("fast", 2, 1.0, 16 * GIB),
        EmulatedGroup("slow", 1, 0.4, 8 * GIB),
    ]


def test_the_session_is_told_the_slowest_emulated_speed() -> None:
    devices = EmulatedBackend("fast:1@1.0:1GiB,slow:1@0.4:1GiB").devices()
    assert environment(devices)[AgentEnv.EMULATED_SPEED] == "0.4"
    assert AgentEnv.EMULATED_SPEED not in environment(CpuBackend().devices())


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("fast", "'fast' at column 1 is no group of devices; expected kind:count@speed:memory"),
        ("fast:2,sl/ow:1", "kind 'sl/ow' at column 8: expected letters"),
        ("fast:two", "count 'two' at column 6: expected a whole number"),
        ("fast:0@1.0:8GiB", "count '0' at column 6"),
        ("fast:2@quick:8GiB", "speed 'quick' at column 8: expected a number above 0"),
        ("fast:2@-1:8GiB", "speed '-1' at column 8"),
        ("fast:2@1.0:8Gib", "memory '8Gib' at column 12: expected a positive number below 8192 TiB with one of KiB"),
        ("fast:1, slow:1@1.0:lots", "memory 'lots' at column 20"),
        ("fast:1,,slow:1", "nothing at column 8"),
        ("fast:1000000000@1.0:8GiB", "count '1000000000' at column 6: expected a whole number, 1 to 100000"),
        (f"fast:{'9' * 5000}", "count '99999999999999999999' at column 6"),
        (f"fast:1@1.0:{'9' * 400}TiB", "expected a positive number below 8192 TiB"),
        ("fast:1@1.0:8192TiB", "expected a positive number below 8192 TiB"),
        ("cpu,fast:1, cpu:1GiB", "'cpu:1GiB' at column 13: the parts of the host are more than it has"),
        ("cpu,auto", "'auto' at column 5: the parts of the host are more"),
    ],
)
def test_a_wrong_description_says_where_and_what_was_expected(
    description: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a host with GPUs, auto stands for these
    with pytest.raises(DeviceError, match=re.escape(message)):
        survey(description)


def test_an_inventory_numbers_the_devices_of_all_backends_through() -> None:
    devices = survey("fast:2@1.0:16GiB,slow:2@0.4:8GiB,cpu").devices
    assert [(device.index, device.kind) for device in devices] == [
        (0, "fast"),
        (1, "fast"),
        (2, "slow"),
        (3, "slow"),
        (4, "cpu"),
    ]


def test_the_cpu_can_be_given_less_memory_than_the_host_has() -> None:
    assert survey("cpu:2GiB").devices[0].memory_bytes == 2 * GIB


def test_the_cpu_can_be_divided() -> None:
    assert [device.memory_bytes for device in survey("cpu:64MiB,cpu:32MiB").devices] == [64 << 20, 32 << 20]


@pytest.mark.parametrize("description", ["cuda,cuda", "auto,fast:1,cuda", "cuda,auto"])
def test_no_gpu_is_a_device_twice(description: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class FourGpus(CudaBackend):
        def __init__(self) -> None:
            super().__init__(FakeNvml(four_gpus()), environ={})

    monkeypatch.setattr(cuda_backend, "CudaBackend", FourGpus)
    with pytest.raises(DeviceError, match="names the CUDA devices a second time; expected them once"):
        survey(description)


def test_insisting_on_cuda_without_a_driver_is_refused_with_a_way_out() -> None:
    if CudaBackend().devices():
        pytest.skip("this host has CUDA devices")
    with pytest.raises(DeviceError, match="use auto, cpu or an emulated kind"):
        survey("cuda")
    assert [device.backend for device in survey("auto").devices] == ["cpu"]


@pytest.mark.parametrize(
    ("product", "kind"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-40GB", "a100"), ("Tesla T4", "t4")],
)
def test_a_kind_is_the_products_model(product: str, kind: str) -> None:
    assert kind_of(product) == kind


@given(
    st.lists(
        st.builds(EmulatedGroup, st.sampled_from("abc"), st.integers(1, 5), st.floats(0.01, 9), st.integers(1, 2**40)),
        min_size=1,
    )
)
def test_what_is_described_is_what_there_is(groups: list[EmulatedGroup]) -> None:
    text = ",".join(f"{group.kind}:{group.count}@{group.speed!r}:{group.memory_bytes}" for group in groups)
    assert parse(text) == groups
    devices: tuple[Device, ...] = EmulatedBackend(text).devices()
    assert len(devices) == sum(group.count for group in groups)
