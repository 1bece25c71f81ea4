"""Which GPUs an executor takes for its own: what it may open, and what its environment names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, four_gpus

from penstock_cluster import DeviceError
from penstock_cluster.cuda_backend import CudaBackend
from penstock_cluster.cuda_visibility import ListedGpu, ListedInstance, may_open, named

A, B = ListedGpu("GPU-a1", "H100"), ListedGpu("GPU-b2", "H100")
SLICED = ListedGpu("GPU-m", "H100", True, (ListedInstance("MIG-x1", "3/0"), ListedInstance("MIG-y2", "4/0")))
NOBODY = 65534


def uuids(gpus: list[FakeGpu], visible: str | None, **environ: str) -> list[str]:
    names = environ if visible is None else environ | {"CUDA_VISIBLE_DEVICES": visible}
    return [device.uuid for device in CudaBackend(FakeNvml(gpus), environ=names).devices()]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        ("0", ["GPU-0"]),
        ("3,1", ["GPU-1", "GPU-3"]),
        (" 2 , GPU-1", ["GPU-1", "GPU-2"]),
        ("GPU-3", ["GPU-3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["GPU-0"]),
        ("0,", ["GPU-0"]),
    ],
)
def test_a_node_has_the_gpus_that_its_environment_names(visible: str | None, found: list[str]) -> None:
    assert uuids(four_gpus(), visible) == found


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("4", "index 4, and of the GPUs that this process may open there are 4, from 0; see nvidia-smi -L, or unset"),
        ("GPU-9", "'GPU-9', which names no GPU that this process may open"),
        ("0;1", "'0;1', which names no GPU"),
        ("all", "'all', which names no GPU"),
        ("GPU-", "'GPU-', with which GPU-0 and GPU-1 and GPU-2 and GPU-3 begin; name one"),
        ("1,GPU-1", "names GPU-1 twice"),
        ("1,1", "names GPU-1 twice"),
        ("<script>\n", "which names no GPU"),
    ],
)
def test_what_names_no_gpu_or_not_one_is_an_error_that_says_so(visible: str, said: str) -> None:
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES=") as refused:
        uuids(four_gpus(), visible)
    assert said in str(refused.value)


def test_numbers_and_connections_are_those_of_the_gpus_that_are_left() -> None:
    backend = CudaBackend(FakeNvml(four_gpus()), environ={"CUDA_VISIBLE_DEVICES": "1,2"})
    assert [device.index for device in backend.devices()] == [0, 1]
    assert backend.labels() == {
        "links.0": "1:sys",
        "links.1": "0:sys",
        "hidden": "2 by CUDA_VISIBLE_DEVICES='1,2'",
    }


def test_a_gpu_that_may_not_be_opened_is_no_device_and_is_not_counted() -> None:
    gpus = four_gpus()
    for minor, gpu in enumerate(gpus):
        gpu.minor = minor
    gpus[0].forbidden = True  # the driver says so
    backend = CudaBackend(FakeNvml(gpus), environ={}, may_use=lambda minor: minor != 2)
    assert [device.uuid for device in backend.devices()] == ["GPU-1", "GPU-3"]
    assert backend.labels()["hidden"] == "2 that this process may not open"
    second = CudaBackend(FakeNvml(gpus), environ={"CUDA_VISIBLE_DEVICES": "1"}, may_use=lambda minor: minor != 2)
    assert [device.uuid for device in second.devices()] == ["GPU-3"]
    assert second.labels()["hidden"] == "2 that this process may not open, 1 by CUDA_VISIBLE_DEVICES='1'"


def test_where_all_are_hidden_the_reason_says_by_what(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "4 by CUDA_VISIBLE_DEVICES=''"
        in CudaBackend(FakeNvml(four_gpus()), environ={"CUDA_VISIBLE_DEVICES": ""}).reason
    )
    closed = CudaBackend(FakeNvml(four_gpus()), environ={}, may_use=lambda _: False)
    assert closed.reason == "4 that this process may not open"
    assert closed.labels() == {}


@pytest.mark.parametrize(
    ("visible", "found"),
    [("MIG-x1", "MIG-x1"), ("MIG-y", "MIG-y2"), ("MIG-GPU-m/4/0", "MIG-y2"), ("MIG-GPU-m/3", "MIG-x1")],
)
def test_an_instance_is_named_by_its_uuid_or_by_its_older_name(visible: str, found: str) -> None:
    assert named([A, SLICED], {"CUDA_VISIBLE_DEVICES": visible}) == {found}


@pytest.mark.parametrize("visible", ["1", "GPU-m"])
def test_a_gpu_in_mig_mode_stands_for_its_instance_if_it_has_one(visible: str) -> None:
    one = SLICED._replace(instances=SLICED.instances[:1])
    assert named([A, one], {"CUDA_VISIBLE_DEVICES": visible}) == {"MIG-x1"}
    with pytest.raises(DeviceError, match="in MIG mode and has 2 instances; name an instance"):
        named([A, SLICED], {"CUDA_VISIBLE_DEVICES": visible})
    with pytest.raises(DeviceError, match="in MIG mode and has no instances"):
        named([A, SLICED._replace(instances=())], {"CUDA_VISIBLE_DEVICES": visible})


def test_an_instance_that_is_named_is_a_device_with_its_part_of_the_memory_and_its_gpu_is_labelled() -> None:
    parts = [FakeGpu(f"MIG-{i}", "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", 40 * GIB, gpu_instance=1) for i in range(2)]
    gpus = [FakeGpu("GPU-0"), FakeGpu("GPU-m", mig=(1, 1), instances=parts)]
    backend = CudaBackend(FakeNvml(gpus), environ={"CUDA_VISIBLE_DEVICES": "MIG-1"})
    (device,) = backend.devices()
    assert (device.uuid, device.parent, device.memory_bytes) == ("MIG-1", "GPU-m", 20 * GIB)
    assert backend.labels()["mig.GPU-m"] == "on, 2 instances"


def test_indices_are_refused_where_cuda_would_count_otherwise_than_the_driver() -> None:
    mixed = [FakeGpu("GPU-0", "NVIDIA H100"), FakeGpu("GPU-1", "NVIDIA T4")]
    with pytest.raises(
        DeviceError, match=r"differ \(NVIDIA H100, NVIDIA T4\); set CUDA_DEVICE_ORDER=PCI_BUS_ID as well"
    ):
        uuids(mixed, "1")
    assert uuids(mixed, "1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-1"]
    assert uuids(mixed, "0,1") == ["GPU-0", "GPU-1"]
    assert uuids(mixed, "GPU-1") == ["GPU-1"]


def test_a_device_node_may_be_opened_unless_that_is_forbidden(tmp_path: Path) -> None:
    node = tmp_path / "nvidia3"
    assert may_open(3, tmp_path)  # not there: the driver is reached in another way
    node.touch()
    assert may_open(3, tmp_path)
    node.chmod(0o000)
    tmp_path.chmod(0o755)
    script = "import sys; from pathlib import Path; from penstock_cluster.cuda_visibility import may_open\n"
    script += "import os; os.getuid() or os.setuid(int(sys.argv[2])); sys.exit(may_open(3, Path(sys.argv[1])))"
    shared = tmp_path.parent  # of which others may be barred
    for folder in (shared, shared.parent):
        folder.chmod(folder.stat().st_mode | 0o011)
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path), str(NOBODY)], check=False).returncode == 0


SURVEY = """\
import json
from penstock_cluster import DeviceError, survey

try:
    node = survey("cuda")
    print(json.dumps([[device.uuid for device in node.devices], node.labels.get("hidden", "")]))
except DeviceError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.slow
def test_through_the_binding_an_environment_names_what_the_driver_lists(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: the binding was not tried")
    source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)

    def told(visible: str) -> object:
        env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": visible}
        done = subprocess.run([sys.executable, "-c", SURVEY], env=env, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert told("0,MIG-33") == [["GPU-1", "MIG-33"], "2 by CUDA_VISIBLE_DEVICES='0,MIG-33'"]
    assert told("MIG-GPU-3/31/0") == [["MIG-31"], "3 by CUDA_VISIBLE_DEVICES='MIG-GPU-3/31/0'"]
    assert "there is no CUDA device (4 by CUDA_VISIBLE_DEVICES='')" in str(told(""))
    assert "names GPU-3, which is in MIG mode and has 2 instances" in str(told("2"))
    assert "index 3, and of the GPUs that this process may open there are 3" in str(told("3"))
