"""The PyTorch example over several processes does what one process does: step by step, preempted, resized, bereft."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from executor_stub import ExecutorStub, overlay, small_executor, without_digest
from resized_example import NOISE, SAMPLES, Resized, Size, each_once, finite
from test_digits import EXAMPLES, free_port

from penstock_log.agent_protocol import EXIT_PREEMPTED, CheckpointSaved, SessionDone

STEPS = 24  # 1,438 samples in batches of 128, two epochs
LIKE_ONE = 1e-5

pytestmark = pytest.mark.timeout(600)  # seconds of processor time, in up to seven processes that load torch
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


def start(
    folder: Path, executor: ExecutorStub, world_size: int = 1, epoch: int = 1, **params: float
) -> list[subprocess.Popen[str]]:
    """Start every rank; the job's checkpoints are in the folder, also the one after the last step."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    env = {"WORLD_SIZE": str(world_size), "CHECKPOINT_DIR": str(folder), "CHECKPOINT_S": "1e-9", "EPOCH": str(epoch)}
    more = {"PARAMS": json.dumps({"epochs": 2, **params}), "BACKEND": "cpu"}
    return [
        subprocess.Popen(
            [sys.executable, "digits_torch.py"],
            cwd=EXAMPLES,
            env=overlay(os.environ) | executor.env(RANK=str(rank), **env, **more) | meeting,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = process.communicate(timeout=500)
    return process.returncode, output + errors


def ended(ranks: list[subprocess.Popen[str]], code: int = 0) -> None:
    ends = [end(rank) for rank in ranks]
    assert [found for found, _ in ends] == [code] * len(ranks), ends


def losses(folder: Path, step: int = STEPS) -> list[float]:
    import torch  # noqa: PLC0415 - only where it is

    found = torch.load(folder / f"step-{step}" / "state.pt", weights_only=True)["losses"]
    assert len(found) == step
    return list(found)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process at each step."""
    folder = tmp_path_factory.mktemp("alone")
    with small_executor(tmp_path_factory.mktemp("x")) as executor:
        ended(start(folder, executor))
    return losses(folder)


@needs_torch
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_gang_has_the_losses_of_one_process(
    world_size: int, alone: list[float], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    with small_executor(tmp_path_factory.mktemp("x")) as executor:
        ended(start(tmp_path, executor, world_size))
        assert losses(tmp_path) == pytest.approx(alone, rel=LIKE_ONE)
        assert [executor.wait(SessionDone, rank).step for rank in range(world_size)] == [STEPS] * world_size
        assert executor.wait(SessionDone).metrics["accuracy"] > 0.5


@needs_torch
def test_a_gang_that_is_preempted_twice_and_resized_does_every_step_once(
    alone: list[float], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    done = 0
    for epoch, world_size in enumerate((2, 3), start=1):
        with small_executor(tmp_path_factory.mktemp("x")) as executor:
            ranks = start(tmp_path, executor, world_size, epoch)
            agreed = executor.preempt(world_size)  # asked before the first step: they do the steps of the margin
            ended(ranks, EXIT_PREEMPTED)
            assert done < agreed < STEPS
            executor.wait_hung_up()
            assert without_digest(executor.of(CheckpointSaved)[-1]) == CheckpointSaved(
                step=agreed, samples=128 * agreed, leaving=True
            )
            done = agreed
    with small_executor(tmp_path_factory.mktemp("x")) as executor:
        ended(start(tmp_path, executor, 1, 3))
        assert executor.wait(SessionDone).loop_steps == STEPS - done
    assert losses(tmp_path) == pytest.approx(alone, rel=LIKE_ONE)


@needs_torch
def test_who_loses_a_peer_ends_and_the_gang_goes_on_from_its_checkpoint(
    alone: list[float], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    with small_executor(tmp_path_factory.mktemp("x")) as executor:
        first, second = start(tmp_path, executor, 2, crash_at=5, crash_rank=1)
        assert end(second)[0] == 1
        code, output = end(first)  # by itself, out of the operation in which it waited for its peer
        assert code == 1, output
        assert re.search(r"(closed|reset) by peer|Broken pipe", output), output
    assert (tmp_path / "step-5").is_dir()
    with small_executor(tmp_path_factory.mktemp("x")) as executor:
        ended(start(tmp_path, executor, 2, 2))
        assert executor.wait(SessionDone).loop_steps == STEPS - 5
    assert losses(tmp_path) == pytest.approx(alone, rel=LIKE_ONE)


def test_without_torch_the_example_says_what_to_install() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed")
    done = subprocess.run(
        [sys.executable, "digits_torch.py"], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'penstock[torch]'" in done.stderr


@needs_torch
def test_a_gang_resized_from_one_to_four_to_two_sees_the_same_samples_and_learns_as_much(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, epochs = tmp_path_factory.mktemp("r"), 8
    accuracies = []
    for seed in range(3):
        done = resized(folder, f"fixed-{seed}", epochs, seed).run(Size(1, 64))
        assert done is not None
        assert done.samples == epochs * SAMPLES
        accuracies.append(done.metrics["accuracy"])

    job = resized(folder, "resized", epochs)
    *_, last = [job.run(size) for size in (Size(1, 32, 50), Size(4, 128, 20), Size(2, 48))]
    assert last is not None
    assert finite(last)
    assert (last.samples, last.batch_size) == (epochs * SAMPLES, 48)
    assert job.seen() == each_once(epochs)
    assert last.metrics["accuracy"] == pytest.approx(sum(accuracies) / 3, abs=NOISE)


@needs_torch
def test_a_gang_one_of_which_cannot_load_ends_as_a_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("r")
    job = resized(folder, "job", 1)
    job.run(Size(1, 64, 6))
    with small_executor(folder) as executor:
        ends = [end(rank) for rank in job.start(executor, Size(3, 96), UNLOADABLE_RANK="1")]
    assert [code for code, _ in ends] == [1, 1, 1]
    assert "no room for step-6 on this device" in ends[1][1]


def resized(folder: Path, name: str, epochs: int, seed: int = 0) -> Resized:
    (folder / name).mkdir()
    return Resized(
        folder / name,
        folder / "x",
        "digits_torch",
        rule="linear",
        params={"epochs": epochs, "seed": seed, "lr": 0.05},
    )
