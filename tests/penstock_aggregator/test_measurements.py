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


def test_a_part_that_has_left_is_not_waited_for() -> None:
    run = HostedRun(("j1", 1))
    for part in range(2):
        run.put_part(opened(part))
    run.parts[1].moved_s = 1.0
    run.part_left()
    (first,) = measured(run, 21, 0.001)
    assert (first.steps, list(first.costs_s)) == (20, [0])


def test_what_a_step_spends_here_is_from_its_last_push_to_its_result_on_the_slowest_part() -> None:
    run = HostedRun(("j1", 1))
    for part in range(2):
        run.put_part(opened(part))
    found = []
    for step in range(21):
        for part, held_s in ((0, 0.125), (1, 0.25)):
            run.parts[part].pushed_s = step - held_s
            found.append(run.completed(run.parts[part], step, float(step)))
    (first,) = [one for one in found if one is not None]
    assert (first.steps, first.iteration_s, first.held_s) == (20, 1.0, 0.25)
