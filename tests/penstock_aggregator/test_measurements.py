"""How often an aggregator measures a run: each measurement is a fact of the log."""

from __future__ import annotations

from penstock_aggregator.hosted_run import HostedRun
from penstock_log.aggregation_messages import OpenPart, RunMeasuredHere, UpdateRule


def opened(part: int = 0, generation: int = 1) -> OpenPart:
    about = {"job_id": "j1", "epoch": 1, "part": part, "generation": generation, "elements": 4, "dtype": "f4"}
    return OpenPart(**about, world_size=1, rule=UpdateRule(), how="join")  # type: ignore[arg-type]


def measured(run: HostedRun, steps: int, step_s: float) -> list[RunMeasuredHere]:
    """Complete so many steps of a run with one part; return what was measured."""
    hosted = run.parts[0]
    found = (run.completed(hosted, step, step * step_s) for step in range(steps))
    return [one for one in found if one is not None]


def test_fast_steps_are_measured_over_more_of_them_as_time_goes_on() -> None:
    run = HostedRun(("j1", 1))
    run.put_part(opened())
    found = measured(run, 100_001, 2**-10)
    assert [one.steps for one in found] == [20, 100, 5 * 1024, *[30 * 1024] * 3]


def test_slow_steps_are_measured_by_their_number() -> None:
    run = HostedRun(("j1", 1))
    run.put_part(opened())
    assert [one.steps for one in measured(run, 321, 0.5)] == [20, 100, 100, 100]


def test_a_part_that_comes_begins_anew() -> None:
    run = HostedRun(("j1", 1))
    run.put_part(opened())
    measured(run, 300, 0.001)
    run.put_part(opened(generation=2))
    (first,) = measured(run, 21, 0.001)
    assert (first.steps, first.generation) == (20, 2)
