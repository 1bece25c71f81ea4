from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from executor_stub import overlay

import penstock
from penstock.sessions.setup import BadEnvironment, SessionError, read
from penstock_log.agent_protocol import AgentEnv


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


def test_without_penstock_it_is_a_plain_loop() -> None:
    with penstock.session() as session:
        assert list(session.iterations("abc")) == ["a", "b", "c"]
        assert (session.step, session.rank, session.world_size, session.params) == (3, 0, 1, {})
        assert not session.should_checkpoint


def test_steps_count_over_all_loops() -> None:
    with penstock.session() as session:
        for _ in range(3):
            for _ in session.iterations([1, 2]):
                pass
        assert session.step == 6


def test_a_step_is_counted_when_the_next_item_is_asked_for() -> None:
    with penstock.session() as session:
        assert [session.step for _ in session.iterations(range(3))] == [0, 1, 2]


def test_a_break_ends_the_step_it_is_in() -> None:
    with penstock.session() as session:
        for item in session.iterations(itertools.count()):
            if item == 4:
                break
        assert session.step == 5


def test_a_generator_is_asked_for_one_item_at_a_time() -> None:
    fetched = []

    def loader() -> Iterator[int]:
        for item in range(10):
            fetched.append(item)
            yield item

    with penstock.session() as session:
        for item in session.iterations(loader()):
            if item == 2:
                break
    assert fetched == [0, 1, 2]


def broken_step(session: penstock.Session) -> None:
    for _ in session.iterations([1]):
        raise ValueError("mine")


def loop_within_a_loop(session: penstock.Session) -> None:
    for _ in session.iterations(range(2)):
        list(session.iterations(range(2)))


def test_an_error_in_the_step_or_in_the_loader_reaches_the_script() -> None:
    def loader() -> Iterator[int]:
        yield 1
        raise OSError("disk gone")

    with penstock.session() as session:
        with pytest.raises(OSError, match="disk gone"):
            list(session.iterations(loader()))
        with pytest.raises(ValueError, match="mine"):
            broken_step(session)
        assert list(session.iterations([1])) == [1]


def test_a_loop_within_a_loop_is_refused_with_the_right_form() -> None:
    with penstock.session() as session, pytest.raises(SessionError, match=r"for epoch in session\.epochs"):
        loop_within_a_loop(session)


def test_a_second_session_in_the_same_process_is_refused() -> None:
    with penstock.session():
        second = penstock.session()
        with pytest.raises(SessionError, match="has a session already"):
            second.__enter__()
    with penstock.session() as again:
        assert list(again.iterations([1])) == [1]


def test_iterations_outside_of_the_with_statement_are_refused() -> None:
    with pytest.raises(SessionError, match=r"with penstock\.session"):
        list(penstock.session().iterations([1]))


def test_a_metric_that_is_no_number_is_refused() -> None:
    with (
        penstock.session() as session,
        pytest.raises(SessionError, match=r"report\(loss='low'\): a metric is a number"),
    ):
        session.report(loss="low")  # type: ignore[arg-type]  # this is the mistake


def test_what_the_executor_sets_can_be_read() -> None:
    setup = read(
        overlay(
            {}, JOB_ID="j7", RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", BATCH_SIZE="32", DEVICE_KIND="fast",
            PARAMS='{"lr": 0.5, "name": "x", "nesterov": true}',
        )
    )  # fmt: skip
    session = penstock.Session(setup)
    assert (session.job_id, session.rank, session.local_rank, session.world_size) == ("j7", 1, 1, 2)
    assert (session.batch_size, session.device_kind) == (32, "fast")
    assert session.params == {"lr": 0.5, "name": "x", "nesterov": True}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (AgentEnv.RANK, "one", "PENSTOCK_RANK is 'one', expected a whole number, 0 or more"),
        (AgentEnv.WORLD_SIZE, "-2", "PENSTOCK_WORLD_SIZE is '-2', expected a whole number"),
        (AgentEnv.EMULATED_SPEED, "nan", "PENSTOCK_EMULATED_SPEED is 'nan', expected a number, 0 or more"),
        (AgentEnv.CHECKPOINT_S, "soon", "PENSTOCK_CHECKPOINT_S is 'soon', expected a number"),
        (AgentEnv.PARAMS, "[1]", r"PENSTOCK_PARAMS is '\[1\]', expected a JSON object"),
        (AgentEnv.PARAMS, "{", "PENSTOCK_PARAMS is '{', expected a JSON object"),
        (AgentEnv.AGGREGATION, "mine", "PENSTOCK_AGGREGATION is 'mine', expected shared, own or none"),
        (AgentEnv.RANK, "3", "PENSTOCK_RANK is 3, but PENSTOCK_WORLD_SIZE is 1"),
    ],
)
def test_a_variable_of_the_wrong_form_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(BadEnvironment, match=expected):
        read({name: value})


def test_importing_penstock_and_its_session_brings_nothing_heavy() -> None:
    heavy = {"nats", "typer", "scipy", "numpy", "networkx", "structlog", "rich", "asyncio"}
    code = f"import sys, penstock; penstock.session; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_refused_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        penstock.sesion  # noqa: B018 - this is the mistake
    assert "session" in dir(penstock)


def test_metrics_beyond_those_that_are_kept_are_left_out_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with penstock.session() as session:
        session.report(**{f"m{i}": i for i in range(1000)})
        session.report(**{"x" * 200: 1.0, "m0": 7.0})
        kept = session._boundary.metrics
        assert (len(kept), kept["m0"]) == (256, 7.0)
    (said,) = [record.getMessage() for record in caplog.records if "metric_left_out" in record.getMessage()]
    assert said.startswith("metric_left_out name=m256; 256 are kept, by names of at most 128 characters")
