"""The examples as jobs: they learn, they resume bit for bit, they crash when told, and two ranks do what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from executor_stub import ExecutorStub, overlay, small_executor, without_digest

from penstock_log import validation
from penstock_log.agent_protocol import EXIT_PREEMPTED, CheckpointSaved, SessionDone
from penstock_log.spec import Choice, JobSpec, SweepSpec
from penstock_testing import free_port
from sweeps import sampled

SLOWLY = {"EMULATED_SPEED": "0.02"}  # such that it is not at its end before it is asked to stop
EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ["digits_mlp.py", "digits_softmax.py", "digits_local_sgd.py"]


@pytest.fixture
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorStub]:
    with small_executor(tmp_path_factory.mktemp("x")) as running:
        yield running


def start(
    script: str, params: dict[str, object], env: dict[str, str], executor: ExecutorStub | None = None
) -> subprocess.Popen[str]:
    """Start an example; ``env`` by names of Env, and MASTER_PORT as it is."""
    port = {"MASTER_PORT": env.pop("MASTER_PORT")} if "MASTER_PORT" in env else {}
    more = executor.env(**env) if executor else overlay({}, **env)
    environ = overlay(os.environ, PARAMS=json.dumps(params)) | more | port
    return subprocess.Popen(
        [sys.executable, script], cwd=EXAMPLES, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def often(folder: Path) -> dict[str, str]:
    """Keep a checkpoint after every step, and at the end."""
    return {"CHECKPOINT_DIR": str(folder), "CHECKPOINT_S": "1e-9", "SAVE_AT_END": "1"}


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = process.communicate(timeout=100)
    return process.returncode, output + errors


def state(folder: Path, step: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"step-{step}" / "state.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("script", sampled(SCRIPTS))
def test_the_example_learns_to_read_digits_by_hand(script: str) -> None:
    code, output = end(start(script, {}, {}))
    assert code == 0
    assert float(output.split("accuracy ")[-1].split()[0]) > 0.95


@pytest.mark.parametrize("script", sampled(SCRIPTS))
def test_a_preempted_run_ends_bit_for_bit_as_one_that_was_left_alone(
    script: str, executor: ExecutorStub, tmp_path: Path
) -> None:
    params: dict[str, object] = {"steps": 150, "width": 32}
    alone, twice = tmp_path / "alone", tmp_path / "twice"
    assert end(start(script, params, often(alone)))[0] == 0

    first = start(script, params, often(twice) | SLOWLY, executor)
    executor.wait(CheckpointSaved, when=lambda saved: saved.step == 5)
    step = executor.preempt()
    assert end(first)[0] == EXIT_PREEMPTED
    assert 5 <= step < 150
    second = start(script, params, often(twice), executor)
    done = executor.wait(SessionDone)
    assert end(second)[0] == 0
    assert (done.step, done.loop_steps) == (150, 150 - step)
    assert done.metrics["accuracy"] > 0.8

    expected, found = state(alone, 150), state(twice, 150)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert value.tobytes() == found[name].tobytes(), name


def test_a_checkpoint_holds_the_random_generator_with_the_half_word_it_has_put_aside(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from digits import Momentum, np\n"
        "class Empty: weights = {}\n"
        "one, two = Momentum(Empty, lr=1), Momentum(Empty, lr=1, seed=9)\n"
        "for draws in range(1, 6):\n"
        "    one.rng.standard_normal(draws, dtype=np.float32)\n"
        "    one.save(Path(sys.argv[1])); two.load(Path(sys.argv[1]))\n"
        "    assert one.rng.standard_normal(dtype=np.float32) == two.rng.standard_normal(dtype=np.float32)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=EXAMPLES, check=True)


def test_a_gang_of_two_learns_what_one_process_learns(executor: ExecutorStub, tmp_path: Path) -> None:
    params: dict[str, object] = {"steps": 40, "width": 32}
    one, two = tmp_path / "one", tmp_path / "two"
    assert end(start("digits_mlp.py", params, often(one)))[0] == 0

    env = {"WORLD_SIZE": "2", "MASTER_PORT": str(free_port()), **often(two)}
    ranks = [start("digits_mlp.py", params, {"RANK": str(rank), **env}, executor) for rank in (0, 1)]
    assert [end(process)[0] for process in ranks] == [0, 0]
    assert [executor.wait(SessionDone, rank).step for rank in (0, 1)] == [40, 40]

    expected, found = state(one, 40), state(two, 40)
    for name in expected:
        if name != "random":
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_preempted_gang_goes_on_where_it_was(executor: ExecutorStub, tmp_path: Path) -> None:
    params: dict[str, object] = {"steps": 400, "width": 64}

    def both(**more: str) -> list[subprocess.Popen[str]]:
        env = {"WORLD_SIZE": "2", "MASTER_PORT": str(free_port()), "CHECKPOINT_DIR": str(tmp_path), **more}
        return [start("digits_mlp.py", params, {"RANK": str(rank), **env}, executor) for rank in (0, 1)]

    ranks = both(**SLOWLY)
    step = executor.preempt(ranks=2)
    assert [end(process)[0] for process in ranks] == [EXIT_PREEMPTED] * 2
    assert without_digest(executor.wait(CheckpointSaved)) == CheckpointSaved(
        step=step, samples=128 * step, leaving=True
    )
    ranks = both()
    assert [end(process)[0] for process in ranks] == [0, 0]
    ended = [executor.wait(SessionDone, rank) for rank in (0, 1)]
    assert [(done.step, done.loop_steps) for done in ended] == [(400, 400 - step)] * 2


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_a_trial_that_is_promoted_does_what_is_missing_and_no_more(
    unit: str, executor: ExecutorStub, tmp_path: Path
) -> None:
    short, long = {unit: 2, "width": 32}, {unit: 3, "width": 32}
    assert end(start("digits_mlp.py", short, {"CHECKPOINT_DIR": str(tmp_path / "a"), "SAVE_AT_END": "1"}))[0] == 0
    env = {"CHECKPOINT_DIR": str(tmp_path / "b"), "BEGIN_DIR": str(tmp_path / "a")}
    assert end(start("digits_mlp.py", long, env, executor))[0] == 0
    done = executor.wait(SessionDone)
    each = 1 if unit == "steps" else 12
    assert (done.step, done.loop_steps) == (3 * each, each)
    assert done.samples == (3 * 128 if unit == "steps" else 3 * 1438)


def test_crash_at_crashes_on_the_first_attempt_only(tmp_path: Path) -> None:
    params: dict[str, object] = {"steps": 40, "width": 32, "crash_at": 20}
    code, output = end(start("digits_mlp.py", params, often(tmp_path)))
    assert code == 1
    assert "crashed at step 20, as crash_at asks" in output
    assert (tmp_path / "step-20").is_dir()
    assert end(start("digits_mlp.py", params, often(tmp_path)))[0] == 0
    assert (tmp_path / "step-40").is_dir()


def test_a_rank_whose_peer_never_comes_says_so() -> None:
    code = "from allreduce import AllReduce; AllReduce(0, 3, '127.0.0.1', 0, timeout_s=0.05)"
    done = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert "PeerLost: ranks [1, 2] did not join within 0.05 s" in done.stderr


def test_a_rank_says_so_when_rank_0_is_not_there() -> None:
    code = f"from allreduce import AllReduce; AllReduce(1, 2, '127.0.0.1', {free_port()}, timeout_s=0.05)"
    done = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert "PeerLost: rank 1 could not join rank 0 at 127.0.0.1:" in done.stderr


def test_a_process_of_an_earlier_run_is_turned_away_and_the_gang_still_meets() -> None:
    port = free_port()
    code = (
        "import sys, numpy as np; from allreduce import AllReduce\n"
        "rank, run = int(sys.argv[1]), sys.argv[2]\n"
        f"with AllReduce(rank, 2, '127.0.0.1', {port}, run=run, timeout_s=float(sys.argv[3])) as peers:\n"
        "    print(peers.sum(np.full(3, rank + 1, np.float32)).tolist())"
    )

    def rank(number: int, run: str, timeout_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(number), run, str(timeout_s)]
        return subprocess.Popen(command, cwd=EXAMPLES, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    zero, stale = rank(0, "j/2", 60), rank(1, "j/1", 0.5)
    assert "PeerLost" in end(stale)[1]
    one = rank(1, "j/2", 60)
    assert end(one) == (0, "[3.0, 3.0, 3.0]\n")
    assert end(zero) == (0, "[3.0, 3.0, 3.0]\n")


def test_every_job_file_is_a_job_of_a_script_that_is_there() -> None:
    files = sorted((EXAMPLES / "jobs").glob("*.toml"))
    assert files
    for file in files:
        spec = validation.settled(msgspec.convert(validation.widened(msgspec.toml.decode(file.read_bytes())), JobSpec))
        assert not list(validation.elastic_problems(spec))
        assert spec.command[0] == "python"
        assert (EXAMPLES / spec.command[1]).exists()


def test_the_sweep_has_eight_trials_over_lr_and_width() -> None:
    sweep = msgspec.toml.decode((EXAMPLES / "sweeps" / "digits.toml").read_bytes(), type=SweepSpec)
    sizes = [len(choice.values) for choice in sweep.space.values() if isinstance(choice, Choice)]
    assert sorted(sweep.space) == ["lr", "width"]
    assert np.prod(sizes) == sweep.trials == 8
    assert (sweep.metric, sweep.mode) == ("accuracy", "max")
