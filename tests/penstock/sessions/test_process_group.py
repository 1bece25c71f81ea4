"""A gang's process group: chosen by the devices, met where the executor says; without torch, it says so."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys

import pytest
from executor_stub import overlay

import penstock
from penstock.sessions.setup import SessionError, read
from penstock_testing import free_port

TORCH = importlib.util.find_spec("torch") is not None
pytestmark = pytest.mark.timeout(600)  # seconds of processor time, in up to five processes that load torch
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is not installed here")

GRADIENTS = """
import penstock, torch
from penstock.sessions.sampler import Sampler

x = torch.arange(14, dtype=torch.float64).reshape(7, 2)
with penstock.session() as session, session.distributed() as gang:
    network = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(network.weight, session.rank + 1.0)  # rank 0's will be everybody's
    wrapped, sampler = gang.wrap(network), session.sampler(7, batch_size=ROWS, shuffle=False)
    for rows in session.iterations(sampler):
        loss = gang.mean(wrapped(x[rows]).square().sum(), len(rows))
        loss.backward()
    found = [gang.average(loss).item(), *network.weight.grad.flatten().tolist()]
    print(gang.backend, gang.device, *(f"{value:.9f}" for value in found))
"""


def ranks(script: str, world_size: int, **env: str) -> list[tuple[int, str, str]]:
    """Run a script as every rank of a gang; return exit codes, outputs and errors."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=overlay(os.environ, RANK=str(rank), WORLD_SIZE=str(world_size), BACKEND="cpu") | meeting | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [process.communicate(timeout=500) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.skipif(TORCH, reason="torch is installed")
def test_without_torch_there_is_no_process_group_and_it_says_so() -> None:
    with penstock.Session(read({})) as session, pytest.raises(SessionError, match="needs PyTorch"):
        session.distributed()


@needs_torch
def test_a_gang_of_one_meets_nobody_and_changes_nothing() -> None:
    import torch  # noqa: PLC0415 - only where it is

    with penstock.Session(read(overlay({}, BACKEND="emulated"))) as session, session.distributed() as gang:
        network, loss = torch.nn.Linear(2, 1), torch.tensor(6.0, requires_grad=True)
        assert gang.wrap(network) is network
        assert (gang.mean(loss, 4).item(), gang.average(loss).item(), gang.backend) == (1.5, 6.0, "gloo")
        assert not torch.distributed.is_initialized()


@needs_torch
@pytest.mark.parametrize("batch", [7, 5])  # over 4 processes: parts of 2, 2, 2, 1; and a last batch of 1, 1, 0, 0
def test_unequal_parts_have_the_loss_and_the_gradients_of_the_whole_batch(batch: int) -> None:
    script = GRADIENTS.replace("ROWS", str(batch))
    (alone,) = ranks(script, 1)
    assert alone[0] == 0, alone
    assert [(code, output) for code, output, _ in ranks(script, 4)] == [(0, alone[1])] * 4


@needs_torch
def test_processes_that_do_not_know_where_to_meet_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    setup = read(overlay({}, WORLD_SIZE="2", RANK="0", BACKEND="cpu"))
    with penstock.Session(setup) as session, pytest.raises(SessionError, match="MASTER_ADDR not set: 2 processes"):
        session.distributed()


@needs_torch
def test_who_cannot_meet_the_others_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        setup = read(overlay({}, WORLD_SIZE="2", RANK="0", BACKEND="cpu"))
        with penstock.Session(setup) as session:
            gang = session.distributed(timeout_s=1)
            with pytest.raises(SessionError, match=f"rank 0 of 2 could not meet the others at 127.0.0.1:{port}"):
                gang.__enter__()


@needs_torch
def test_a_torch_without_cuda_on_cuda_devices_says_so() -> None:
    import torch  # noqa: PLC0415 - only where it is

    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA and a device")
    with (
        penstock.Session(read(overlay({}, BACKEND="cuda"))) as session,
        pytest.raises(SessionError, match="cannot use"),
    ):
        session.distributed()
