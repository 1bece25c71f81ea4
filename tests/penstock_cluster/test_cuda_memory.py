"""On a GPU alone: what NVML counts, what torch's fraction holds back, and what an estimate is worth there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.estimate import Step, need_of
from penstock_cluster.cuda_backend import CudaBackend
from penstock_cluster.host_limits import environment
from penstock_log.agent_protocol import AgentEnv

GIB = 2**30
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
pytestmark = pytest.mark.skipif(
    torch is None or not torch.cuda.is_available(), reason="no torch that sees a GPU: GPU memory was not tried"
)


@pytest.fixture
def node() -> CudaBackend:
    found = CudaBackend()
    torch.zeros(1, device="cuda")
    if not found.held(found.devices()[0], [os.getpid()]):
        pytest.skip("the driver knows this process under another pid, or does not tell its memory")
    return found


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    """Leave torch's allocator empty and without a limit."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_what_the_driver_counts_grows_by_what_torch_reserves_within_a_twentieth(node: CudaBackend) -> None:
    counted, reserved = node.held(node.devices()[0], [os.getpid()])[os.getpid()], torch.cuda.memory_reserved()
    kept = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    grown = node.held(node.devices()[0], [os.getpid()])[os.getpid()] - counted
    assert grown == pytest.approx(torch.cuda.memory_reserved() - reserved, rel=0.05)
    assert kept.numel() == 2 * GIB
    assert 0 < counted - reserved < 2 * GIB  # F: the context, and libraries


def test_torchs_allocator_keeps_to_the_fraction_of_a_cap(node: CudaBackend) -> None:
    fraction = float(environment(node.devices()[:1], 2 * GIB)[AgentEnv.MEMORY_FRACTION])
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(fraction)
    assert torch.empty(GIB, dtype=torch.uint8, device="cuda").numel() == GIB
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")


def _training(device: str) -> Step:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device=device) for _ in range(8)))
    descent = torch.optim.Adam(model.parameters())

    def step() -> None:
        descent.zero_grad()
        model(torch.randn(4096, 2048, device=device)).square().mean().backward()
        descent.step()

    return step


def test_an_estimate_made_on_the_processor_is_within_a_fifth_of_the_gpus_peak() -> None:
    need = need_of(lambda: _training("cpu"), framework_bytes=0)
    before = torch.cuda.memory_allocated()
    step = _training("cuda")
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = torch.cuda.max_memory_allocated() - before
    assert need.persistent_bytes + need.ephemeral_bytes == pytest.approx(peak, rel=0.2)
