"""What the gateway says of aggregators, of the jobs on them, and of those that wait for some."""

from __future__ import annotations

from dataclasses import replace

from aggregation_cases import AssignerScenario, ended, gone, running

from penstock_bus.decider import Fold
from penstock_gateway import aggregation_answers as answers
from penstock_gateway import machine, story
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import Caller
from penstock_gateway.machine import GatewaySettings
from penstock_log.aggregation_messages import AggregatorReport
from penstock_log.views import AggregatedJobView, AggregationView

NOW_S = 100.0


def model_of(it: AssignerScenario) -> ReadModel:
    """Return what the gateway knows after the same log."""
    fold = Fold(machine.decider(GatewaySettings()))
    fold.apply_all(it.log)
    return ReadModel(state=fold.state, now_s=NOW_S, seq=fold.last_seq)


def shown(it: AssignerScenario, caller: Caller | None = None) -> AggregationView:
    return answers.aggregation(model_of(it), caller or Caller())


def job_of(view: AggregationView, job_id: str) -> AggregatedJobView:
    return next(one for one in view.jobs if one.id == job_id)


def two_packed() -> AssignerScenario:
    it = AssignerScenario().nodes(n1=3).at(90.0)
    it.packed("j1", 12.0, 1.5)
    it.packed("j2", 6.0, 1.0)
    return it


def test_an_aggregator_says_how_much_of_its_cycle_is_used_and_by_whom() -> None:
    view = shown(two_packed().given(running("n1/0")))
    one = view.aggregators[0]
    assert (one.id, one.node_id, one.state, one.parts, one.jobs) == ("n1/0", "n1", "running", 4, ("j1", "j2"))
    assert (one.cycle_s, one.busy_s) == (12.0, 7.0)
    assert round(one.utilisation, 3) == 0.583
    assert (view.most, view.free) == ({"default": 3}, {"default": 1}), "one has not ended yet"


def test_an_aggregator_says_what_its_agent_has_reported() -> None:
    report = AggregatorReport(aggregator="n1/0", busy_s=3.0, received_bytes=5, refused={"COUNTED": 1})
    model = replace(model_of(two_packed()), aggregators={"n1/0": (99.0, report)})
    one = answers.aggregation(model).aggregators[0]
    assert (one.heard_s, one.spent_s, one.received_bytes, one.refused) == (99.0, 3.0, 5, {"COUNTED": 1})
    assert one.parts == 4


def test_a_job_says_where_it_is_why_and_what_that_costs() -> None:
    it = two_packed()
    one = job_of(shown(it), "j2")
    assert (one.phase, one.shares, one.aggregators, one.generation) == ("packed", True, ("n1/0",), 2)
    assert (one.alone_s, one.loss, one.moves, one.moving, one.placed) == (6.0, 0.0, 2, 0, ())
    assert one.evidence == "aggregation moved to n1/0 10.0 s ago because it was measured, and fits beside j1"
    it.measure("j2", 6.3, 1.0)
    assert round(job_of(shown(it), "j2").measured_loss, 3) == 0.048


def test_a_job_whose_parts_have_never_moved_does_not_say_so() -> None:
    it = AssignerScenario().nodes(n1=3).at(90.0).packed("j1")
    assert job_of(shown(it), "j1").evidence == (
        "aggregation is on n1/0 for 10.0 s, because it was measured, and fits on 1 aggregator"
    )


def test_one_job_is_shown_with_its_parts_and_its_aggregators_alone() -> None:
    it = AssignerScenario().nodes(n1=4).runs("j1", mode="own").runs("j2", servers=2)
    it.settle()
    model = model_of(it)
    view = answers.aggregation(model, Caller(), model.state.jobs["j2"])
    assert [one.id for one in view.aggregators] == ["n1/1", "n1/2"]
    assert [one.part for one in view.jobs[0].placed] == [0, 1]


def test_a_job_that_waits_says_for_what() -> None:
    it = AssignerScenario().nodes(n1=4).runs("j1", mode="own", servers=3, parts=3).runs("j2", servers=2)
    it.settle()
    one = job_of(shown(it), "j2")
    assert (one.phase, one.evidence) == ("waits", "waits for 2 aggregators: 1 of 4 is free")
    assert one.assigned_s is None


def test_a_job_that_is_refused_says_why() -> None:
    it = AssignerScenario().nodes(n1=1).runs("j1", servers=2)
    it.settle()
    one = job_of(shown(it), "j1")
    assert one.phase == "refused"
    assert one.evidence.startswith("aggregation is refused: it asks for 2 aggregators")


def test_a_job_whose_aggregator_is_gone_waits_for_another() -> None:
    it = AssignerScenario().nodes(n1=1).runs("j1")
    it.settle()
    it.given(gone("n1/0", "failed", at_s=99.5))
    assert job_of(shown(it), "j1").evidence == "waits for another aggregator: 0 of 1 are free"


def test_why_a_job_runs_says_where_it_aggregates() -> None:
    model = model_of(two_packed())
    why = model.why.explain(model.state.jobs["j2"])
    assert why.cause == "running"
    assert why.evidence.endswith("; aggregation moved to n1/0 10.0 s ago because it was measured, and fits beside j1")


def test_of_jobs_that_are_not_to_be_seen_only_their_number_is_said() -> None:
    view = shown(two_packed(), Caller(name="uma", role="user"))
    assert view.jobs == ()
    assert (view.aggregators[0].jobs, view.aggregators[0].others) == ((), 2)


def test_a_story_tells_how_a_job_was_aggregated() -> None:
    it = AssignerScenario().nodes(n1=2).at(3.0).packed("j1", servers=2)
    for _ in range(3):
        it.measure("j1", 1.0, 0.1)
    model = model_of(it)
    timeline = story.Timeline(model.state.jobs["j1"])
    told = [line.text for delivery in it.log for line in timeline.lines(delivery)]
    assert told[-7:] == [
        "asks for aggregation of 2 MiB in 2 parts: 2 aggregators, mean",
        "aggregated on n1/0, n1/1: it is to be measured on 2 aggregators of its own",
        "aggregation measured on n1/0 over 20 steps: 1 s each, busy 0.1 s",
        "aggregation measured on n1/1 over 20 steps: 1 s each, busy 0.1 s",
        "aggregated on n1/0, 1 part to be moved: it was measured, and fits on 1 aggregator",
        "part 1 moved from n1/1 to n1/0: 1 MiB in 0.02 s",
        "aggregation measured on n1/0 over 100 steps: 1 s each, busy 0.2 s",
    ]


def test_a_story_tells_a_long_measurement_once_over_however_many_steps_they_are() -> None:
    it = AssignerScenario().nodes(n1=1).at(3.0).packed("j1")
    for steps in (120, 5_000, 4_987):
        it.measure("j1", 1.0, 0.1, steps=steps)
    timeline = story.Timeline(model_of(it).state.jobs["j1"])
    told = [line.text for delivery in it.log for line in timeline.lines(delivery)]
    measured = [
        line.partition(" over ")[2].partition(":")[0] for line in told if line.startswith("aggregation measured")
    ]
    assert measured == ["20 steps", "120 steps"]


def test_what_has_ended_is_not_shown_any_more() -> None:
    it = two_packed().given(ended("j1"), ended("j2"))
    it.settle()
    it.given(gone("n1/0", "recycled"), gone("n1/1", "recycled"))
    view = shown(it)
    assert view.jobs == ()
    assert view.free == {"default": 3}
