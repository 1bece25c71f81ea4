from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_facts import accepted, ended, node, opened, ran, random_spec, reported, sweep_spec, swept

from penstock_log import (
    Integers,
    JobCancelled,
    JobSpec,
    NodeDrained,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
    Uniform,
)
from penstock_policies.search import space
from penstock_testing import Scenario
from penstock_tuner.machine import TunerSettings, TunerState, decider, submission

FIRST, SECOND = "s1-t000", "s1-t001"


@pytest.fixture
def tuner() -> Scenario[TunerState]:
    return Scenario(decider()).at(1.0)


def finished(state: Any, job_id: str = "", value: float | None = None, reason: str = "") -> SweepFinished:
    return SweepFinished(at_s=5.0, sweep_id="s1", state=state, best_job_id=job_id, best_value=value, reason=reason)


# --- opening


def test_a_sweep_is_opened_once_with_all_of_its_trials(tuner):
    tuner.when(swept()).then(opened()).then()


def test_a_trial_is_the_template_with_its_point_and_width_on_top(tuner):
    tuner.given(swept()).settle()
    spec = submission(tuner.state, SECOND)
    template = sweep_spec().job
    expected = {"id": SECOND, "name": "digits-t001", "parent": "s1", "params": {"epochs": 3, "lr": 0.2}}
    assert spec == msgspec.structs.replace(template, **expected)


@pytest.mark.parametrize(
    ("kinds", "max_gpus", "width"),
    [
        ((), 4, 1),
        (("a",) * 2, 4, 1),
        (("a",) * 8, 1, 1),
        (("a",) * 8, 4, 4),
        (("a",) * 7, 4, 3),
        (("a", "b") * 4, 9, 4),
    ],
)
def test_devices_are_shared_like_water_within_one_kind(tuner, kinds, max_gpus, width):
    tuner.given(node("n1", *kinds)).when(swept(max_gpus=max_gpus)).then(opened(gpus=width))


def test_no_trial_gets_less_than_its_template_asks_for(tuner):
    job = msgspec.structs.replace(sweep_spec().job, gpus=2)
    tuner.when(swept(job=job)).then(opened(gpus=2))


def test_drained_nodes_do_not_count(tuner):
    tuner.given(node("n1", "a", "a", "a", "a"), NodeDrained(at_s=0.0, node_id="n1"))
    tuner.when(swept(max_gpus=4)).then(opened(gpus=1))


def test_a_long_sweep_is_opened_in_groups_that_never_repeat_an_id(tuner):
    spec = random_spec(1201)
    facts = tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    assert [len(fact.trials) for fact in facts] == [500, 500, 201]
    assert len(tuner.state.unaccepted) == 1201
    assert len({trial.params["lr"] for fact in facts for trial in fact.trials}) == 1201


def test_ids_of_a_sweep_with_a_long_id_are_valid_and_its_own(tuner):
    ids = []
    for last in "ab":
        sweep_id, name = "s" * 62 + last, "n" * 63
        tuner.given(SweepSubmitted(at_s=0.0, sweep_id=sweep_id, spec=sweep_spec(name=name))).settle()
    for job_id in tuner.state.unaccepted:
        spec = submission(tuner.state, job_id)
        assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
        ids.append(job_id)
    assert len(set(ids)) == 4


def test_a_space_that_makes_no_sense_ends_the_sweep_with_the_reason(tuner):
    tuner.at(5.0).when(swept(space={"lr": Uniform(low=0.0, high=1.0)}))
    reason = "space.lr is continuous and search is 'grid'; expected a choice or int, or search = 'random'"
    tuner.then(finished("failed", reason=reason)).then()


def test_a_search_that_fails_on_the_way_ends_its_sweep_and_no_other(tuner, monkeypatch):
    def broken(name: str) -> Any:
        return space.grid if name == "grid" else lambda s, past, _: s.gone if past.trials else [{"lr": 0.5}]

    spec = random_spec(2, concurrency=1)
    tuner.at(5.0).given(SweepSubmitted(at_s=1.0, sweep_id="s2", spec=sweep_spec()))
    with monkeypatch.context() as patched:
        patched.setattr(space, "sampler", broken)
        tuner.given(SweepSubmitted(at_s=1.0, sweep_id="s1", spec=spec)).settle()
        *_, end = tuner.given(*ran(FIRST, acc=0.7)).settle()
    reason = "sampler 'random' raised AttributeError: 'SweepSpec' object has no attribute 'gone'"
    assert end == finished("failed", FIRST, 0.7, reason)
    assert list(tuner.state.sweeps) == ["s2"]


# --- submitting


def test_opened_trials_are_outstanding_until_the_gateway_accepts_them(tuner):
    tuner.given(swept())
    assert list(tuner.state.unaccepted) == []
    tuner.settle()
    assert list(tuner.state.unaccepted) == [FIRST, SECOND]
    tuner.given(accepted(FIRST))
    assert list(tuner.state.unaccepted) == [SECOND]
    assert submission(tuner.state, FIRST) is None


def test_a_tuner_that_starts_again_submits_the_same_ids_with_the_same_content(tuner):
    tuner.given(swept()).settle()
    again = Scenario(decider())
    for stored in tuner.log:
        again.given(*stored.commit.facts)
    assert again.settle() == []
    submissions = [[submission(s.state, job_id) for job_id in s.state.unaccepted] for s in (tuner, again)]
    assert submissions[0] == submissions[1]


def test_a_trial_whose_id_somebody_takes_first_has_failed(tuner):
    tuner.at(5.0).given(swept(), opened(), accepted(FIRST, parent=""))
    tuner.then(reported(FIRST, "failed", problem="refused", reason="its id belongs to another job"))
    assert list(tuner.state.unaccepted) == [SECOND]
    tuner.given(*ended(FIRST, acc=0.99)).then()


def test_a_trial_whose_id_was_taken_long_before_has_failed(tuner):
    tuner.at(5.0).given(accepted(FIRST, parent=""), swept(), opened())
    tuner.then(reported(FIRST, "failed", problem="refused", reason="its id belongs to another job"))
    assert list(tuner.state.unaccepted) == [SECOND]


# --- ending


def test_each_trial_is_reported_and_the_best_ends_the_sweep(tuner):
    tuner.at(5.0).given(swept(), opened())
    tuner.when(*ran(FIRST, acc=0.7)).then(reported(FIRST, value=0.7)).then()
    tuner.when(*ran(SECOND, acc=0.9)).then(reported(SECOND, value=0.9))
    tuner.then(finished("completed", SECOND, 0.9)).then()


def test_where_less_is_better_the_least_value_is_the_best(tuner):
    tuner.at(5.0).given(swept(mode="min"), opened(), *ran(FIRST, acc=0.7), *ran(SECOND, acc=0.9))
    tuner.then(reported(FIRST, value=0.7), reported(SECOND, value=0.9)).then(finished("completed", FIRST, 0.7))


def test_a_failed_trial_is_never_the_best(tuner):
    tuner.at(5.0).given(swept(), opened(), *ran(FIRST, "failed", acc=0.99), *ran(SECOND, acc=0.5))
    tuner.then(reported(FIRST, "failed", 0.99, "crashed"), reported(SECOND, value=0.5)).then(
        finished("completed", SECOND, 0.5)
    )


def test_a_sweep_without_any_value_has_failed_and_says_what_was_reported_instead(tuner):
    tuner.at(5.0).given(swept(), opened(), *ran(FIRST, loss=0.1), *ran(SECOND, "failed"))
    tuner.then(reported(FIRST, problem="no_report"), reported(SECOND, "failed", problem="crashed"))
    reason = (
        "no trial gave a finite 'acc' (1 crashed, 1 without a report of it); completed trials reported loss; "
        "expected `session.report(acc=...)` in the script"
    )
    tuner.then(finished("failed", reason=reason))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_finite_number_counts_as_none(tuner, value):
    run_ended = ended(FIRST, acc=value)
    tuner.at(5.0).given(swept(), opened(), accepted(FIRST), run_ended[0])
    tuner.decider.apply(tuner.state, run_ended[1], tuner.fold.last_seq)  # the log itself refuses such a number
    (proposal,) = tuner.decider.decide(tuner.state, 5.0).proposals
    assert proposal.facts == (reported(FIRST, problem="diverged"),)


def test_a_trial_cancelled_by_hand_leaves_the_others(tuner):
    tuner.at(5.0).given(swept(), opened(), accepted(FIRST)).when(JobCancelled(at_s=3.0, job_id=FIRST))
    tuner.then(reported(FIRST, "cancelled"))
    tuner.when(*ran(SECOND, acc=0.5)).then(reported(SECOND, value=0.5)).then(finished("completed", SECOND, 0.5))


# --- cancelling


def test_a_sweep_cancelled_before_it_opened_just_ends(tuner):
    tuner.at(5.0).when(swept(), SweepCancelled(at_s=2.0, sweep_id="s1")).then(finished("cancelled")).then()


def test_a_cancelled_sweep_submits_nothing_more_and_waits_for_what_runs(tuner):
    tuner.at(5.0).given(swept(), opened(), accepted(FIRST))
    tuner.when(SweepCancelled(at_s=4.0, sweep_id="s1")).then(reported(SECOND, "cancelled")).then()
    assert list(tuner.state.unaccepted) == []
    tuner.when(JobCancelled(at_s=5.0, job_id=FIRST)).then(reported(FIRST, "cancelled")).then(finished("cancelled"))


def test_a_cancelled_sweep_still_names_the_best_of_what_was_done(tuner):
    tuner.at(5.0).given(swept(), opened(), *ran(FIRST, acc=0.7)).when(SweepCancelled(at_s=4.0, sweep_id="s1"))
    tuner.then(reported(FIRST, value=0.7), reported(SECOND, "cancelled")).then(finished("cancelled", FIRST, 0.7))


def test_trials_opened_while_the_sweep_was_being_cancelled_are_dropped(tuner):
    tuner.at(5.0).given(swept(), SweepCancelled(at_s=1.0, sweep_id="s1"), opened())
    assert list(tuner.state.unaccepted) == []
    tuner.then(reported(FIRST, "cancelled"), reported(SECOND, "cancelled")).then(finished("cancelled"))


def test_a_finished_sweep_leaves_nothing_behind(tuner):
    tuner.at(5.0).given(swept(), opened(), *ran(FIRST, acc=0.7), *ran(SECOND, acc=0.9)).settle()
    state = tuner.state
    left = [state.sweeps, state.sweep_of, state.unaccepted, state.jobs.by_id]
    assert not any(left), left
    tuner.when(SweepCancelled(at_s=9.0, sweep_id="s1"), reported(FIRST)).then()


# --- what must always hold


@given(seed=st.integers(-(2**63), 2**63 - 1), trials=st.integers(1, 30))
def test_the_same_seed_gives_the_same_trials(seed, trials):
    spec = random_spec(trials, seed=seed)
    first, second = (Scenario(decider()).given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)) for _ in range(2))
    assert first.settle() == second.settle()


events = st.sampled_from(
    [
        *(ended(job_id, how, acc=0.5) for job_id in (FIRST, SECOND) for how in ("completed", "failed")),
        *([accepted(job_id)] for job_id in (FIRST, SECOND)),
        [accepted(SECOND, parent="other")],
        [SweepCancelled(at_s=2.0, sweep_id="s1")],
        [JobCancelled(at_s=2.0, job_id=FIRST)],
        [node("n1", "a", "a")],
    ]
)


@given(story=st.lists(events, max_size=12))
def test_whatever_happens_each_trial_is_reported_once_and_the_sweep_ends_once(story):
    tuner = Scenario(decider()).at(5.0)
    said = tuner.given(swept(), opened()).settle()
    for facts in story:
        said += tuner.given(*facts).settle()
    said += tuner.given(SweepCancelled(at_s=9.0, sweep_id="s1")).settle()
    for job_id in (FIRST, SECOND):
        said += tuner.given(*ran(job_id), JobCancelled(at_s=9.0, job_id=job_id)).settle()
    reports = [fact.job_id for fact in said if isinstance(fact, TrialFinished)]
    assert sorted(reports) == [FIRST, SECOND]
    assert [type(fact) for fact in said if not isinstance(fact, TrialFinished)] == [SweepFinished]
    assert not any([tuner.state.sweeps, tuner.state.unaccepted])


@given(trials=st.integers(1, 40), gpus=st.integers(0, 16), max_gpus=st.integers(1, 8))
def test_no_trial_is_wider_than_allowed_or_than_the_cluster(trials, gpus, max_gpus):
    tuner = Scenario(decider()).given(node("n1", *["a"] * gpus))
    spec = sweep_spec(space={"n": Integers(low=1, high=100)}, trials=trials, max_gpus=max_gpus)
    (group,) = tuner.when(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    assert isinstance(group, TrialGroupOpened)
    assert len(group.trials) == trials
    assert all(1 <= trial.gpus <= min(max_gpus, max(gpus, 1)) for trial in group.trials)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="resubmit_s is 0; expected a number of seconds above 0"):
        TunerSettings(resubmit_s=0)


# --- facts that this tuner would not write


def test_a_trial_of_any_rung_and_bracket_takes_no_more_room_than_another(tuner):
    trial = msgspec.structs.replace(opened().trials[0], rung=2**62, bracket=2**62)
    group = TrialGroupOpened(at_s=1.0, sweep_id="s1", group=0, trials=(trial,))
    tuner.given(SweepSubmitted(at_s=1.0, sweep_id="s1", spec=random_spec(2, sampler="tpe")), group)
    assert tuner.state.sweeps["s1"].past.unfinished(2**62) == 1


def test_the_end_of_another_sweeps_trial_is_not_this_ones(tuner):
    taken = msgspec.structs.replace(opened("s2"), trials=opened("s1").trials)
    tuner.given(
        swept(), swept("s2"), opened(), taken, reported(FIRST), msgspec.structs.replace(reported(FIRST), sweep_id="s2")
    )
    assert FIRST in tuner.state.sweeps["s1"].running
    assert FIRST not in tuner.state.sweeps["s2"].running
