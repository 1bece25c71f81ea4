"""What one process does by itself is what aggregators do for many, and a script that asks wrongly is told how."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.aggregation.local_update import LocalUpdate
from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup, SessionError
from penstock_log.aggregation_messages import UpdateRule


def weights() -> np.ndarray[Any, Any]:
    return np.linspace(-1, 1, 10, dtype="f4")


def test_the_mean_over_one_process_is_what_it_gave() -> None:
    with penstock.session() as session:
        values = weights()
        session.aggregate(values).mean()
    assert np.array_equal(values, weights())


def test_an_optimizer_moves_the_parameters_as_the_one_of_torch_does() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its optimizers are not compared")
    parameter = torch.nn.Parameter(torch.from_numpy(weights().copy()))
    optimizer = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    ours = weights()
    with penstock.session() as session:
        shared = session.aggregate(ours, "adamw", lr=0.01, weight_decay=0.1)
        for step in range(20):
            gradient = np.cos(np.arange(10, dtype="f4") + step)
            parameter.grad = torch.from_numpy(gradient.copy())
            optimizer.step()
            shared.push(gradient)
            shared.pull()
    assert np.allclose(ours, parameter.detach().numpy(), atol=1e-6)


def test_local_steps_come_together_once_in_so_many() -> None:
    with penstock.session() as session:
        shared = session.aggregate(weights(), every=3)
        assert [shared.step() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_values_that_come_from_a_generator_are_kept_for_each_step() -> None:
    values = weights()
    with penstock.session() as session:
        shared = session.aggregate((each for each in [values]), every=1)
        assert [shared.step() for _ in range(2)] == [True, True]


def test_an_outer_optimizer_takes_what_was_moved_as_its_gradient() -> None:
    moved = weights()
    with penstock.session() as session:
        shared = session.aggregate(moved, "sgd", every=2, lr=0.5)
        for _ in range(2):
            moved += 1
            shared.step()
    assert np.allclose(moved, weights() + 1)  # half of the two that it has moved


def test_a_resumed_job_goes_on_with_the_optimizer_state_that_was_saved(tmp_path: Path) -> None:
    alone = trained(20, None, tmp_path / "none")
    folder = tmp_path / "saved"
    folder.mkdir()
    first = trained(12, None, folder)
    assert np.array_equal(trained(8, first, folder, begins=12), alone)


def trained(steps: int, start: np.ndarray[Any, Any] | None, folder: Path, begins: int = 0) -> np.ndarray[Any, Any]:
    """Train, from a checkpoint where ``begins`` says so; write one at the end where the folder is there."""
    values = weights() if start is None else start.copy()
    with Session(ProcessSetup()) as session:
        shared = session.aggregate(values, "adamw", lr=0.05)
        if begins:
            shared.load(folder)
        for step in range(begins, begins + steps):
            shared.push(np.sin(values + np.float32(step)))
            shared.pull()
        if folder.exists():
            shared.save(folder)
    return values


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda s: s.aggregate(weights(), "adam"), "rule is 'adam'; expected one of mean, sgd, momentum, adamw"),
        (lambda s: s.aggregate(weights(), every=-1), "every is -1; expected a number of steps"),
        (lambda s: s.aggregate(weights(), "sgd", lr=-1), "lr is -1.0; expected a number, 0 or more"),
        (
            lambda s: s.aggregate(weights(), "adamw", betas=(1, 0.9)),
            "beta1 is 1.0; expected a number, 0 or more and below 1",
        ),
        (lambda s: [s.aggregate(weights()), s.aggregate(weights())], "called once in a script"),
        (lambda s: s.aggregate(weights()).push(weights()), "needs an optimizer"),
        (lambda s: s.aggregate(weights(), "sgd").mean(), "for the rule 'mean', and this has 'sgd'"),
        (lambda s: s.aggregate(weights(), "sgd").pull(), r"without a push\(\) before it"),
        (lambda s: s.aggregate(weights()).step(), "needs to know how often"),
        (lambda s: s.aggregate(weights()).mean(np.zeros(3, "f4")), r"shape \(3,\) came, and \(10,\) was aggregated"),
    ],
)
def test_a_script_that_asks_wrongly_is_told_how(use: Callable[[Session], object], reason: str) -> None:
    with penstock.session() as session, pytest.raises(SessionError, match=reason):
        use(session)


def test_several_processes_without_an_agent_are_told_what_to_run() -> None:
    with Session(ProcessSetup(job_id="j", world_size=2)) as session:
        shared = session.aggregate(weights())
        with pytest.raises(SessionError, match="there is no aggregation agent on this node: run `penstock service"):
            shared.mean()


def test_each_process_of_a_sample_sums_up_by_itself() -> None:
    values = weights()
    with Session(ProcessSetup(job_id="j", world_size=2, rank=1, sample_iterations=5)) as session:
        shared = session.aggregate(values, every=1)
        assert shared.step()
    assert np.array_equal(values, weights())


class Farewells(LocalUpdate):
    """Notes what is said at the end."""

    def __init__(self) -> None:
        super().__init__(UpdateRule())
        self.said: list[str] = []

    def leave(self) -> None:
        self.said.append("leave")

    def close(self) -> None:
        self.said.append("close")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (None, ["leave", "close"]),
        (SystemExit(), ["leave", "close"]),
        (SystemExit(0), ["leave", "close"]),
        (SystemExit(75), ["close"]),  # it is preempted, and the others are as well
        (ValueError("boom"), ["close"]),  # its exit status ends the gang, and is the reason that people see
    ],
    ids=["falls_through", "exits", "exits_with_0", "is_preempted", "fails"],
)
def test_only_a_process_that_ends_well_says_that_it_has(end: BaseException | None, said: list[str]) -> None:
    update = Farewells()
    with suppress(ValueError, SystemExit), Session(ProcessSetup()) as session:
        session.aggregate(weights())._update = update
        if end is not None:
            raise end
    assert update.said == said


def test_a_job_that_wants_no_aggregation_is_told_so() -> None:
    with Session(ProcessSetup(job_id="j", world_size=2, aggregation="none")) as session:
        shared = session.aggregate(weights())
        with pytest.raises(SessionError, match='this job says aggregation = "none"'):
            shared.mean()


def test_a_checkpoint_of_another_rule_is_refused(tmp_path: Path) -> None:
    with Session(ProcessSetup()) as session:
        session.aggregate(weights(), "sgd").save(tmp_path)
    with Session(ProcessSetup()) as session:
        other = session.aggregate(weights(), "adamw")
        with pytest.raises(SessionError, match="is of the rule 'sgd', and this job has 'adamw'"):
            other.load(tmp_path)


def test_the_hook_has_no_annotations_since_torch_takes_none_but_its_own() -> None:
    with penstock.session() as session:
        assert session.aggregate(weights()).ddp_hook().__annotations__ == {}
