"""What is made of a driver's answers, by a library that answers from tables; on a real driver see the conformance."""

import os
from pathlib import Path

import pynvml
import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, FakeProcess, four_gpus

from penstock_cluster import DeviceError, DeviceSurvey
from penstock_cluster.cuda_backend import PIPE_DIRECTORY, CudaBackend, running
from penstock_cluster.host_backends import EmulatedBackend
from penstock_cluster.nvml import NvmlLibrary


@pytest.fixture(autouse=True)
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipe directory without a daemon, and no GPUs that are named, whatever this host has."""
    monkeypatch.setenv(PIPE_DIRECTORY, str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def sliced(**state: tuple[int, int]) -> FakeGpu:
    parts = [
        FakeGpu("MIG-a", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40 * GIB, gpu_instance=1),
        None,  # destroyed
        FakeGpu("MIG-b", "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 10 * GIB, gpu_instance=9),
    ]
    return FakeGpu("GPU-m", mig=state.get("mig", (1, 1)), instances=parts)


def test_a_gpu_without_mig_is_one_device() -> None:
    (device,) = CudaBackend(FakeNvml([FakeGpu("GPU-0")])).devices()
    assert (device.kind, device.memory_bytes, device.uuid, device.backend) == ("h100", 80 * GIB, "GPU-0", "cuda")
    assert (device.mig, device.parent, device.mps) == ("", "", False)


def test_each_instance_of_a_gpu_in_mig_mode_is_a_device_and_the_gpu_is_none() -> None:
    devices = CudaBackend(FakeNvml([FakeGpu("GPU-0"), sliced(), FakeGpu("GPU-2")])).devices()
    assert [(d.index, d.kind, d.uuid, d.mig, d.parent) for d in devices] == [
        (0, "h100", "GPU-0", "", ""),
        (1, "h100-3g-40gb", "MIG-a", "3g.40gb", "GPU-m"),
        (2, "h100-1g-10gb-me", "MIG-b", "1g.10gb+me", "GPU-m"),
        (3, "h100", "GPU-2", "", ""),
    ]
    assert [d.memory_bytes // GIB for d in devices] == [80, 40, 10, 80]
    assert CudaBackend.environment(devices[1:2]) == {"CUDA_VISIBLE_DEVICES": "MIG-a"}


def test_compute_instances_of_one_gpu_instance_are_not_given_its_memory_twice() -> None:
    product = "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"
    parts = [FakeGpu(f"MIG-{i}", product, 20 * GIB, gpu_instance=1) for i in range(2)]
    other = FakeGpu("MIG-2", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20 * GIB, gpu_instance=2)
    devices = CudaBackend(FakeNvml([FakeGpu("GPU-m", mig=(1, 1), instances=[*parts, other])])).devices()
    assert [(d.kind, d.memory_bytes // GIB) for d in devices] == [
        ("a100-1c-3g-20gb", 10),
        ("a100-1c-3g-20gb", 10),
        ("a100-3g-20gb", 20),
    ]


@pytest.mark.parametrize(
    ("mig", "label"),
    [
        ((1, 1), "on, 2 instances"),
        ((1, 0), "on, 2 instances, off after a reset"),
        ((0, 1), "off, on after a reset"),
        ((0, 0), None),
    ],
)
def test_mig_is_a_fact_of_the_node(mig: tuple[int, int], label: str | None) -> None:
    assert CudaBackend(FakeNvml([sliced(mig=mig)])).labels().get("mig.GPU-m") == label


def test_gpus_are_connected_by_their_links_or_else_where_their_roads_meet() -> None:
    assert CudaBackend(FakeNvml(four_gpus())).labels() == {
        "links.0": "1:nv2 2:sys 3:sys",
        "links.1": "0:nv2 2:sys 3:sys",
        "links.2": "0:sys 1:sys 3:nv2",
        "links.3": "0:sys 1:sys 2:nv2",
    }


def test_links_into_a_switch_connect_all_that_have_such_links() -> None:
    gpus = [FakeGpu(f"GPU-{i}", links=["switch"] * 18) for i in range(2)]
    gpus[1].links = ["switch"] * 17 + [""]  # one link is down
    assert CudaBackend(FakeNvml([*gpus, FakeGpu("GPU-2")])).labels() == {
        "links.0": "1:nv17 2:phb",
        "links.1": "0:nv17 2:phb",
        "links.2": "0:phb 1:phb",
    }


def test_labels_number_the_devices_as_the_node_does() -> None:
    node = DeviceSurvey([EmulatedBackend("fast:2"), CudaBackend(FakeNvml([sliced(), *four_gpus()[:2]]))])
    assert [device.uuid for device in node.devices] == ["", "", "MIG-a", "MIG-b", "GPU-0", "GPU-1"]
    assert node.labels["links.4"] == "5:nv2"
    assert "links.2" not in node.labels


def test_a_gpu_that_only_one_process_may_use_is_labelled_so() -> None:
    gpus = [FakeGpu("GPU-0"), FakeGpu("GPU-1", mode=pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)]
    labels = CudaBackend(FakeNvml(gpus)).labels()
    assert labels["compute_mode.1"] == "exclusive"
    assert "compute_mode.0" not in labels


def test_mps_is_used_where_its_daemon_lives_and_never_where_it_left_a_directory_behind(pipe: Path) -> None:
    assert not CudaBackend(FakeNvml([FakeGpu("GPU-0")])).devices()[0].mps
    (pipe / "nvidia-cuda-mps-control.pid").write_text("4194305\n")  # above any pid
    assert running(os.environ) is None
    (pipe / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    nvml = CudaBackend(FakeNvml([FakeGpu("GPU-0"), sliced()]))
    assert [device.mps for device in nvml.devices()] == [True, False, False]
    assert nvml.labels()["mps"] == str(pipe)
    assert nvml.environment(nvml.devices()[:1])[PIPE_DIRECTORY] == str(pipe)
    assert PIPE_DIRECTORY not in nvml.environment(nvml.devices()[1:2])


@pytest.mark.parametrize("content", ["", "nonsense", "0", "-1"])
def test_a_pid_file_that_names_no_process_names_no_daemon(pipe: Path, content: str) -> None:
    (pipe / "nvidia-cuda-mps-control.pid").write_text(content)
    assert running(os.environ) is None


def test_the_driver_counts_each_process_once_and_what_it_does_not_know_not_at_all() -> None:
    gpu = FakeGpu(
        "GPU-0",
        processes=[FakeProcess(7, 5 * GIB), FakeProcess(8, None), FakeProcess(9, GIB)],
        mps_processes=[FakeProcess(9, 2 * GIB), FakeProcess(10, GIB)],
    )
    library = FakeNvml([gpu])
    backend = CudaBackend(library)
    assert backend.held(backend.devices()[0], [7, 8, 9, 10, 11]) == {7: 5 * GIB, 9: 2 * GIB, 10: GIB}
    assert backend.held(backend.devices()[0], [7]) == {7: 5 * GIB}
    assert library.opened == 0


def test_a_process_on_an_instance_is_counted_there() -> None:
    gpu = sliced()
    assert gpu.instances[0]
    gpu.instances[0].processes = [FakeProcess(7, GIB)]
    backend = CudaBackend(FakeNvml([gpu]))
    first, second = backend.devices()[:2]
    assert backend.held(first, [7]) == {7: GIB}
    assert backend.held(second, [7]) == {}


def test_a_device_that_falls_off_the_bus_is_an_error_that_says_so() -> None:
    library = FakeNvml([FakeGpu("GPU-0")])
    backend = CudaBackend(library)
    library.gpus.clear()
    with pytest.raises(DeviceError, match="an NVIDIA device cannot be read"):
        backend.held(backend.devices()[0], [1])
    assert library.opened == 0


def test_a_host_without_a_driver_says_so_and_one_with_a_broken_driver_fails() -> None:
    nvml = CudaBackend(FakeNvml(absent=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert (nvml.devices(), nvml.labels()) == ((), {})
    assert "no NVIDIA driver" in nvml.reason
    with pytest.raises(DeviceError, match="does nvidia-smi work"):
        CudaBackend(FakeNvml(absent=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))


def test_every_function_of_the_port_is_one_of_the_real_library() -> None:
    names = [name for name in dir(NvmlLibrary) if name.startswith("nvml")]
    assert len(names) > 15
    assert [name for name in names if not callable(getattr(pynvml, name, None))] == []
