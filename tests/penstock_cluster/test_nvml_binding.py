"""The CUDA backend through ``pynvml`` itself, down to a shared library that stands in for the driver's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SURVEY = """\
import json
from penstock_cluster import survey
from penstock_cluster.cuda_backend import CudaBackend

node, backend = survey("cuda"), CudaBackend()
print(json.dumps({
    "devices": [[d.kind, d.memory_bytes >> 30, d.uuid, d.mig, d.parent] for d in node.devices],
    "labels": node.labels,
    "held": [backend.held(device, [77, 78, 79]) for device in node.devices],
}))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: the binding was not tried")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


@pytest.fixture(autouse=True)
def none_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name no GPUs, whatever the environment of the tests does."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_what_the_binding_makes_of_a_drivers_answers_is_what_the_node_has(driver: Path, tmp_path: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", SURVEY], env=env, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == {
        "devices": [
            ["h100", 80, "GPU-1", "", ""],
            ["h100", 80, "GPU-2", "", ""],
            ["h100-1g-10gb", 10, "MIG-31", "1g.10gb", "GPU-3"],
            ["h100-1g-10gb", 10, "MIG-33", "1g.10gb", "GPU-3"],
        ],
        "labels": {
            "links.0": "1:nv3",
            "links.1": "0:nv3",
            "compute_mode.0": "exclusive",
            "mig.GPU-3": "on, 2 instances",
        },
        "held": [{"77": 5 << 30}] * 4,
    }


MONITOR = """\
import msgspec
from penstock_cluster import survey
from penstock_cluster.cuda_monitor import CudaMonitor

monitor = CudaMonitor()
readings = [monitor.read(device, {}) for device in survey("cuda").devices[:3]]
monitor.close()
print(msgspec.json.encode(readings).decode())
"""


def test_what_the_binding_makes_of_a_drivers_readings_is_what_the_monitor_tells(driver: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    told = subprocess.run([sys.executable, "-c", MONITOR], env=env, capture_output=True, text=True, check=True)
    first, second, instance = json.loads(told.stdout)
    assert first == {
        "source": "driver",
        "model": "NVIDIA H100 80GB HBM3",
        "minor": 0,
        "utilisation": 0.25,
        "memory_used_bytes": 1 << 29,  # without what the driver keeps for itself
        "memory_free_bytes": 79 << 30,
        "memory_total_bytes": 80 << 30,
        "temperature_c": 40.0,
        "power_w": 123.456,
        "sm_clock_mhz": 1980.0,
        "xid": 0,
    }
    assert (second["xid"], second["ecc_double_bit"], second["minor"]) == (79, 2, 1)
    assert "utilisation" not in instance
    assert (instance["ecc_double_bit"], instance["model"]) == (3, "NVIDIA H100 80GB HBM3")


HEALTH = """\
import msgspec
from penstock_cluster import survey
from penstock_cluster.cuda_health import CudaHealth

health = CudaHealth(survey("cuda").devices)
readings = [health.read(), health.read()]
health.close()
print(msgspec.json.encode([{str(at): one for at, one in found.items()} for found in readings]).decode())
"""


def test_what_the_binding_makes_of_a_drivers_errors_is_what_is_judged(driver: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    told = subprocess.run([sys.executable, "-c", HEALTH], env=env, capture_output=True, text=True, check=True)
    fit = {"xids": [], "uncorrected": 0, "pending": False, "failure": False, "lost": ""}
    in_mig_mode = {**fit, "uncorrected": 3, "pending": True}
    first, second = json.loads(told.stdout)
    assert first == {"0": fit, "1": {**fit, "xids": [79], "uncorrected": 2}, "2": in_mig_mode, "3": in_mig_mode}
    assert second == {**first, "1": {**fit, "uncorrected": 2}}
