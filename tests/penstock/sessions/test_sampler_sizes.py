"""What a script is told of its size, what becomes of its learning rate, and what it says of both."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_stub import ExecutorStub, overlay, small_executor, without_digest

import penstock
from penstock import Resize
from penstock.sessions.checkpoint import MANIFEST
from penstock.sessions.setup import BadEnvironment, SessionError, read
from penstock_log.agent_protocol import AgentEnv, CheckpointSaved, SessionDone, StepProgress

BASE = {"BASE_BATCH_SIZE": "32", "LR_RULE": "linear"}


class Stopped(Exception):
    """A run was cut off."""


@pytest.fixture
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorStub]:
    with small_executor(tmp_path_factory.mktemp("x")) as running:
        yield running


def of(**env: str) -> penstock.Session:
    return penstock.Session(read(overlay({}, **env)))


def sized(folder: Path, batch: int, **env: str) -> Resize:
    """Do one step, saved in the folder, and return what the script was told of its size."""
    told: list[Resize] = []
    with of(CHECKPOINT_DIR=str(folder), CHECKPOINT_S="1e-9", BATCH_SIZE=str(batch), **env) as session:
        session.on_resize(told.append)
        session.on_checkpoint(lambda _: None, lambda _: None)
        with contextlib.suppress(Stopped):
            for item, _ in enumerate(session.iterations(session.sampler(1000))):
                if item == 1:
                    raise Stopped
    (size,) = told
    return size


# --- the learning rate
@pytest.mark.parametrize(("rule", "expected"), [("keep", 0.1), ("linear", 0.4), ("sqrt", 0.2), ("callback", 0.1)])
def test_a_learning_rate_goes_by_the_jobs_rule(rule: str, expected: float) -> None:
    assert of(BATCH_SIZE="128", BASE_BATCH_SIZE="32", LR_RULE=rule).lr(0.1) == pytest.approx(expected)


def test_without_a_rule_or_by_hand_a_learning_rate_stays_as_it_is() -> None:
    assert of().lr(0.1) == of(BATCH_SIZE="64").lr(0.1) == of(**BASE).lr(0.1) == 0.1


def test_by_hand_the_samplers_batch_is_the_one_that_counts() -> None:
    session = of(**BASE)
    session.sampler(100, batch_size=64)
    assert session.lr(0.1) == pytest.approx(0.2)


def test_the_learning_rate_is_logged_once_and_by_one_process(caplog: pytest.LogCaptureFixture) -> None:
    for rank in ("0", "1"):
        session = of(BATCH_SIZE="64", RANK=rank, WORLD_SIZE="2", **BASE)
        session.lr(0.1)
        session.lr(0.05)
    assert [record.message for record in caplog.records] == [
        "lr_scaled rule=linear base_batch_size=32 batch_size=64 factor=2"
    ]


def test_nothing_is_logged_of_a_job_whose_batch_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    of(BATCH_SIZE="64").lr(0.1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("env", "warned"),
    [
        ({"BATCH_SIZE": "64", **BASE}, True),
        ({"BATCH_SIZE": "32", **BASE}, False),
        ({"BATCH_SIZE": "64", **BASE, "LR_RULE": "keep"}, False),
        ({"BATCH_SIZE": "32", **BASE, "LR_RULE": "callback"}, True),
        ({"BATCH_SIZE": "64", **BASE, "RANK": "1", "WORLD_SIZE": "2"}, False),
    ],
)
def test_a_script_that_ignores_its_rule_is_warned(
    env: dict[str, str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.session"), of(**env) as session:
        list(session.iterations(range(2)))
    assert ("lr_rule_ignored" in caplog.text) == warned


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({AgentEnv.LR_RULE: "cubic"}, "PENSTOCK_LR_RULE is 'cubic', expected keep, linear, sqrt or callback"),
        ({AgentEnv.LR_RULE: "sqrt"}, "PENSTOCK_LR_RULE is 'sqrt', but PENSTOCK_BASE_BATCH_SIZE is not set"),
        ({AgentEnv.BASE_BATCH_SIZE: "many"}, "PENSTOCK_BASE_BATCH_SIZE is 'many', expected a whole number"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(BadEnvironment, match=message):
        read(env)


# --- the script's own function
def test_a_script_is_told_its_size_and_the_one_before_in_every_run(tmp_path: Path) -> None:
    first = sized(tmp_path, 64, **BASE)
    assert first == Resize(
        batch_size=64, base_batch_size=32, previous_batch_size=32, world_size=1, previous_world_size=1, rule="linear"
    )
    second = sized(tmp_path, 96, WORLD_SIZE="3", **BASE)
    assert (second.previous_batch_size, second.batch_size, second.factor) == (64, 96, 3.0)
    assert (second.previous_world_size, second.world_size) == (1, 3)
    again = sized(tmp_path, 96, WORLD_SIZE="3", **BASE)
    assert again.previous_batch_size == again.batch_size == 96


def test_the_script_is_told_after_its_checkpoint_was_loaded_and_before_its_first_step(tmp_path: Path) -> None:
    sized(tmp_path, 64)
    order = []
    with of(CHECKPOINT_DIR=str(tmp_path)) as session:
        session.on_resize(lambda _: order.append("told"))
        session.on_checkpoint(lambda _: None, lambda _: order.append("loaded"))
        for _ in session.iterations(session.sampler(1000, batch_size=500)):
            order.append("step")
            break
        order.extend("step" for _ in session.iterations(range(1)))
    assert order == ["loaded", "told", "step", "step"]


def test_a_fixed_job_has_its_own_batch_as_its_base(tmp_path: Path) -> None:
    size = sized(tmp_path, 64)
    assert (size.base_batch_size, size.previous_batch_size, size.factor, size.rule) == (64, 64, 1.0, "keep")


def test_a_function_that_comes_too_late_or_twice_is_refused() -> None:
    with of() as session:
        session.on_resize(lambda _: None)
        with pytest.raises(SessionError, match="called once, and before the first iterations"):
            session.on_resize(lambda _: None)
        list(session.iterations([1]))
    with of() as session:
        list(session.iterations([1]))
        with pytest.raises(SessionError, match="called once, and before the first iterations"):
            session.on_resize(lambda _: None)


# --- what is told of it
def test_the_executor_hears_the_batch_in_use_and_the_samples_done(executor: ExecutorStub, tmp_path: Path) -> None:
    env = {"CHECKPOINT_DIR": str(tmp_path), "BATCH_SIZE": "4", "SAVE_AT_END": "1"}
    with penstock.Session(read(executor.env(**env))) as session:
        session.on_checkpoint(lambda _: None, lambda _: None)
        sampler = session.sampler(10, batch_size=3)
        for _ in range(2):
            for _ in session.iterations(sampler):
                pass
        assert session.samples == 20
    done = executor.wait(SessionDone)
    assert (done.step, done.batch_size, done.samples) == (6, 4, 20)
    assert without_digest(executor.wait(CheckpointSaved)) == CheckpointSaved(step=6, samples=20)


@pytest.mark.parametrize(("asks", "told"), [(True, 16), (False, 0)])
def test_without_a_sampler_the_batch_is_the_wish_once_it_is_read(asks: bool, told: int, executor: ExecutorStub) -> None:
    with penstock.Session(read(executor.env(BATCH_SIZE="16"))) as session:
        if asks:
            assert session.batch_size == 16
        list(session.iterations(range(3)))
    done = executor.wait(SessionDone)
    assert (done.batch_size, done.samples) == (told, 0)


def test_the_samples_of_a_step_that_failed_are_not_done(executor: ExecutorStub) -> None:
    with (
        contextlib.suppress(Stopped),
        penstock.Session(read(executor.env(BATCH_SIZE="4"))) as session,
    ):
        for step, _ in enumerate(session.iterations(session.sampler(10))):
            if step == 2:
                raise Stopped
    executor.wait_hung_up()
    last = executor.of(StepProgress)[-1]
    assert (last.step, last.samples) == (2, 8)


def test_a_break_leaves_out_samples_that_are_not_counted() -> None:
    with of() as session:
        sampler = session.sampler(10, batch_size=4)
        for _ in range(2):
            for _ in session.iterations(sampler):
                break
        assert (session.samples, sampler.epoch) == (8, 1)


# --- checkpoints of before
def test_a_checkpoint_that_kept_no_count_is_taken_to_have_done_whole_epochs(tmp_path: Path) -> None:
    with of(CHECKPOINT_DIR=str(tmp_path), SAVE_AT_END="1") as session:
        session.on_checkpoint(lambda _: None, lambda _: None)
        sampler = session.sampler(10, batch_size=4)
        for _ in range(2):
            list(session.iterations(sampler))
    (manifest,) = tmp_path.glob(f"step-*/{MANIFEST}")
    old = manifest.read_text().replace(',"samples":20', "").replace(',"batch_size":4,"world_size":1', "")
    assert len(old) < len(manifest.read_text()) - 20
    manifest.write_text(old)
    told: list[Resize] = []
    with of(CHECKPOINT_DIR=str(tmp_path), BATCH_SIZE="5") as session:
        session.on_resize(told.append)
        session.on_checkpoint(lambda _: None, lambda _: None)
        assert session.samples == 20
        sampler = session.sampler(10)
        for _ in range(3):
            list(session.iterations(sampler))
        assert session.samples == 30
    assert (told[0].previous_batch_size, told[0].previous_world_size) == (5, 1)
