"""Elastic jobs as the gateway takes them in, and what it tells of their sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, preempted, refusal, spec, started, submitted

from penstock_bus import Bus, Delivery
from penstock_gateway import answers, machine, story
from penstock_gateway.dry_run import dry_run
from penstock_gateway.job_history import JobHistory
from penstock_gateway.job_sizes import MOST_RESIZES, MOST_RUNS
from penstock_gateway.machine import GatewaySettings
from penstock_log import (
    Batch,
    Commit,
    Demand,
    JobSpec,
    RoundDecided,
    Scalability,
    ScaleDecided,
    Timing,
    WorkloadScaled,
    subjects,
    validation,
    workload,
)
from penstock_log.job_state import Size
from penstock_log.request_bodies import RunProgress
from penstock_log.views import DryRunView, JobDetail, SizingView, WhyView
from penstock_testing import Scenario, eventually

RANGED: dict[str, Any] = {
    "name": "digits",
    "command": ["true"],
    "profile": "off",
    "gpus": "1..8",
    "batch": {"min": 64, "max": 512, "lr": "linear"},
}
ELASTIC = validation.settled(
    spec(id="j1", min_gpus=1, max_gpus=8, batch=Batch(min=64, max=512, per_gpu_max=128, lr="linear"))
)
KEY = workload.key(ELASTIC)


@pytest.fixture
async def served(bus: Bus) -> AsyncIterator[Gateway]:
    async with gateway(bus, joined(fast=8)) as running:
        yield running


@pytest.fixture(params=["memory"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(f"{request.param}_bus")


@pytest.fixture
def log() -> Scenario[machine.GatewayState]:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 100).given(joined(fast=8))


def arrived(job_id: str = "j1", **fields: Any) -> Any:
    fact = submitted(job_id)
    return msgspec.structs.replace(fact, spec=msgspec.structs.replace(ELASTIC, id=job_id, **fields))


def sized(*demands: Demand, at_s: float = NOW_S + 1, **fields: Any) -> ScaleDecided:
    return ScaleDecided(at_s=at_s, pool="default", demands=demands, **fields)


def demand(job_id: str = "j1", gpus: int = 4, batch_size: int = 256, epoch: int = 0, **fields: Any) -> Demand:
    return Demand(job_id=job_id, epoch=epoch, gpus=gpus, batch_size=batch_size, kinds=("fast",), **fields)


def runs_on_four(log: Scenario[machine.GatewayState]) -> None:
    """Have the job sized for four devices at once, and run on them since second 2."""
    log.given(arrived(), sized(demand(reason="starts on 4 devices"), because="arrival"))
    log.given(placed("j1", 0, 1, 2, 3, epoch=2), started(epoch=2))


def shrinks(log: Scenario[machine.GatewayState], at_s: float = NOW_S + 30) -> None:
    """Have it give two of them to another job, and go on on the rest."""
    log.given(submitted("b2", at_s=at_s - 1))
    fact = demand(gpus=2, batch_size=128, epoch=2, gives={"b2": 2}, reason="shrinks from 4 to 2, and gives 2 to b2")
    log.given(sized(fact, because="arrival", at_s=at_s), preempted(epoch=2, at_s=at_s + 1))
    log.given(
        ended(outcome="preempted", epoch=2, at_s=at_s + 2, steps=560, loop_steps=560, loop_s=28.0, batch_size=256)
    )
    log.given(placed("j1", 0, 1, epoch=3, at_s=at_s + 3), started(epoch=3, at_s=at_s + 4))


def sizes(log: Scenario[machine.GatewayState], told: RunProgress | None = None) -> SizingView:
    own = log.state.histories["j1"].sizing
    assert own is not None
    return own.view(log.state.jobs["j1"], told or RunProgress(), log.now_s)


def detail(log: Scenario[machine.GatewayState], told: RunProgress | None = None) -> JobDetail:
    model = answers.ReadModel(state=log.state, now_s=log.now_s, seq=1, reports={"j1": told} if told else {})
    return answers.detail(model, log.state.jobs["j1"])


def why(log: Scenario[machine.GatewayState], job_id: str = "j1") -> WhyView:
    return answers.ReadModel(state=log.state, now_s=log.now_s, seq=1).why.explain(log.state.jobs[job_id])


def asked(log: Scenario[machine.GatewayState], **fields: Any) -> DryRunView:
    return dry_run(log.state, msgspec.structs.replace(ELASTIC, **fields), log.now_s)


def scaled(**caps: int) -> WorkloadScaled:
    timing = Timing(local_batch=32, iteration_s=0.1)
    kinds = tuple(Scalability(kind=kind, timings=(timing,), per_gpu_cap=cap) for kind, cap in caps.items())
    return WorkloadScaled(at_s=NOW_S, key=KEY, kinds=kinds)


# --- taking them in
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_range_of_devices_is_written_out_and_settled(served: Gateway, wrapped: bool) -> None:
    body = {**RANGED, "id": "j1"}
    await served.command("submit", {"spec": body} if wrapped else body)
    stored = msgspec.convert((await served.query("job", {"id": "j1"}))["spec"], JobSpec)
    assert (stored.gpus, stored.min_gpus, stored.max_gpus, stored.batch_size) == (1, 1, 8, 64)
    assert stored.batch == Batch(min=64, max=512, base=64, lr="linear")


async def test_the_inbox_takes_a_range_too(served: Gateway) -> None:
    await served.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode({**RANGED, "id": "j1"}))
    await served.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode({**RANGED, "gpus": "8..1"}))

    async def both() -> bool:
        return bool((await served.query("rejected"))["rejected"]) and (await served.query("jobs"))["total"] == 1

    await eventually(both)
    assert (await served.query("jobs"))["jobs"][0]["max_gpus"] == 8
    (rejected,) = (await served.query("rejected"))["rejected"]
    assert rejected["reason"] == '$.gpus: got "8..1"; the fewest devices come first: "1..8"'


async def test_the_same_job_again_is_the_same_whatever_size_it_has_by_then(served: Gateway) -> None:
    body = {**RANGED, "id": "j1"}
    assert (await served.command("submit", body))["created"]
    await served.told(sized(demand()))
    assert (await served.query("job", {"id": "j1"}))["spec"]["gpus"] == 4
    assert not (await served.command("submit", body))["created"]
    code, said = await refusal(served.command("submit", {**body, "gpus": "1..4"}))
    assert (code, "max_gpus (8, now 4)" in said) == (409, True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"gpus": "0..4"}, '$.gpus: got "0..4"; expected from 1 to 65536 devices'),
        ({"gpus": "a..b"}, '$.gpus: expected a whole number from 1 to 65536, or a range such as "1..8", got "a..b"'),
        ({"batch": {"min": 512, "max": 64}}, "$.batch: min is 512 and max 64; expected the smallest batch first"),
        ({"batch": None}, "$.gpus: 1 to 8 devices need a batch size to divide among them; set `batch_size`"),
        ({"sharing": "lane"}, "$.sharing: an elastic job has its devices to itself, got `lane`; leave `sharing` out"),
        (
            {"batch": {"min": 64, "max": 64, "per_gpu_max": 4}},
            "$.batch: the smallest, 64, does not fit on 8 devices of at most 4 samples each; lower min, or raise",
        ),
    ],
)
async def test_what_cannot_be_meant_so_is_refused(served: Gateway, fields: dict[str, Any], expected: str) -> None:
    code, said = await refusal(served.command("submit", {**RANGED, **fields}))
    assert code == 400
    assert said.startswith(expected), said
    assert (await refusal(served.query("dryrun", {**RANGED, **fields})))[1] == said


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_trials_of_a_sweep_are_sized_by_it_alone(served: Gateway, wrapped: bool) -> None:
    sweep = {"name": "s", "job": RANGED, "space": {"lr": {"kind": "choice", "values": [1]}}, "metric": "m"}
    code, said = await refusal(served.command("tune", {"spec": sweep} if wrapped else sweep))
    assert code == 400
    assert said.startswith("$.job.gpus: trials are sized by their sweep; give the job one number of devices")


async def test_a_smallest_batch_that_no_kind_holds_is_said_in_figures(served: Gateway) -> None:
    body = {**RANGED, "gpus": "1..16", "batch": {"min": 512, "max": 1024, "per_gpu_max": 32}}
    expected = (
        "it cannot start now: its smallest batch, 512, needs 16 fast of at most 32 samples each; of pool `default` it "
        "can have 8 fast (lower the smallest batch, or accept more than 16 devices)"
    )
    assert (await served.command("submit", body))["warnings"] == [expected]
    tried = await served.query("dryrun", body)
    assert (tried["starts"], tried["cause"], tried["warnings"]) == (False, "never_fits", [expected])
    assert tried["size"].startswith("tried with 16 devices and a batch of 512, the fewest that do;")
    assert await refusal(served.command("submit", {"spec": body, "strict": True})) == (
        400,
        f"refused, as `strict` asks: {expected}",
    )


async def test_so_is_one_that_was_measured_not_to_fit(served: Gateway) -> None:
    wanted = {**RANGED, "batch": {"min": 512, "max": 1024}}
    await served.told(msgspec.structs.replace(scaled(fast=16), key=workload.key(validation.settled(job_of(wanted)))))
    (said,) = (await served.command("submit", wanted))["warnings"]
    assert said.startswith("it cannot start now: its smallest batch, 512, needs 32 fast of at most 16 samples each;")


def job_of(raw: dict[str, Any]) -> JobSpec:
    return msgspec.convert(validation.widened(raw), JobSpec)


# --- what they have and had
def test_a_job_shows_its_range_its_size_and_its_samples(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    view = detail(log, RunProgress(step=50, samples=12_800)).job
    assert (view.gpus, view.min_gpus, view.max_gpus, view.batch_size, view.batches) == (4, 1, 8, 256, (64, 512))
    assert view.samples == 12_800


def test_each_run_is_kept_with_its_size_and_how_fast_it_went(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    shrinks(log)
    first, second = sizes(log, RunProgress(step=660, loop_s=10.0)).runs
    assert (first.start_s, first.end_s, first.gpus, first.batch_size) == (NOW_S + 2, NOW_S + 32, 4, 256)
    assert (first.kind, first.outcome, first.samples_per_s) == ("fast", "resized", 560 * 256 / 30)
    assert (second.start_s, second.end_s, second.gpus, second.batch_size) == (NOW_S + 34, None, 2, 128)
    assert (second.outcome, second.steps) == ("", 660)


def test_what_the_present_run_told_says_how_fast_it_goes(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    assert sizes(log).samples_per_s is None
    log.at(NOW_S + 12)
    assert sizes(log, RunProgress(step=50, loop_s=2.0)).samples_per_s == 50 * 256 / 10
    assert sizes(log, RunProgress(step=50, loop_s=2.0, batch_size=64)).samples_per_s == 50 * 64 / 10
    shrinks(log)
    log.given(ended(epoch=3, at_s=NOW_S + 90))
    assert sizes(log, RunProgress(step=50, loop_s=2.0)).samples_per_s is None


def test_a_resumed_run_counts_its_own_steps_alone(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    shrinks(log)
    log.given(ended(outcome="lost", epoch=3, at_s=NOW_S + 50), placed("j1", 0, 1, epoch=4, at_s=NOW_S + 51))
    log.given(msgspec.structs.replace(started(epoch=4, at_s=NOW_S + 52), resumed_step=560))
    log.at(NOW_S + 56)
    assert sizes(log, RunProgress(step=600, loop_s=3.0)).samples_per_s == 40 * 128 / 4


def test_where_there_is_a_sampler_its_samples_count_and_not_those_of_whole_batches(
    log: Scenario[machine.GatewayState],
) -> None:
    runs_on_four(log)
    log.given(sized(demand(gpus=2, batch_size=128, epoch=2), at_s=NOW_S + 30))
    log.given(ended(outcome="preempted", epoch=2, at_s=NOW_S + 32, steps=10, loop_steps=10, samples=1500))
    log.given(placed("j1", 0, 1, epoch=3, at_s=NOW_S + 33))
    log.given(msgspec.structs.replace(started(epoch=3, at_s=NOW_S + 34), resumed_step=10)).at(NOW_S + 44)
    first, second = sizes(log, RunProgress(step=20, samples=2500)).runs
    assert (first.samples_per_s, second.samples_per_s) == (1500 / 30, 1000 / 10)


def test_after_a_loss_nobody_knows_how_many_samples_were_done_before(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    log.given(ended(outcome="lost", epoch=2, at_s=NOW_S + 32, steps=10, loop_steps=10, samples=1500))
    log.given(placed("j1", 0, 1, 2, 3, epoch=3, at_s=NOW_S + 33))
    log.given(msgspec.structs.replace(started(epoch=3, at_s=NOW_S + 34), resumed_step=8)).at(NOW_S + 44)
    assert sizes(log, RunProgress(step=13, samples=2100)).samples_per_s == 5 * 256 / 10


def test_a_run_that_went_with_its_node_has_an_end_too(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    log.given(RoundDecided(at_s=NOW_S + 50, pool="default", lost_nodes=("n1",)))
    (run,) = sizes(log).runs
    assert (run.end_s, run.outcome, run.samples_per_s) == (NOW_S + 50, "lost", None)


def test_a_decision_is_kept_with_what_was_given_and_taken_and_when_it_was_done(
    log: Scenario[machine.GatewayState],
) -> None:
    runs_on_four(log)
    shrinks(log)
    first, second = sizes(log).resizes
    assert (first.before, first.after, first.because, first.done_s) == (Size(1, 64), Size(4, 256), "arrival", NOW_S + 2)
    assert (second.before, second.after, second.gives) == (Size(4, 256), Size(2, 128), {"b2": 2})
    assert (second.at_s, second.done_s) == (NOW_S + 30, NOW_S + 34)


def test_who_grows_knows_from_whom_it_has_that(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    log.given(arrived("b2"), sized(demand("b2", 2, 128), at_s=NOW_S + 20))
    log.given(placed("b2", 4, 5, epoch=2, at_s=NOW_S + 21), started("b2", epoch=2, at_s=NOW_S + 22))
    log.given(sized(demand(gpus=5, epoch=2), demand("b2", 1, 64, 2, gives={"j1": 1}), at_s=NOW_S + 40))
    assert sizes(log).resizes[-1].takes == {"b2": 1}


def test_a_demand_that_comes_too_late_is_no_decision(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    before = sizes(log).resizes
    log.given(sized(demand(gpus=8, epoch=1), at_s=NOW_S + 9))
    assert sizes(log).resizes == before


def test_a_size_that_did_not_do_is_told_with_the_way_back(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    log.given(sized(demand(gpus=8, batch_size=512, epoch=2), at_s=NOW_S + 20), preempted(epoch=2, at_s=NOW_S + 21))
    log.given(ended(outcome="preempted", epoch=2, at_s=NOW_S + 22, steps=90, loop_steps=90, loop_s=9.0))
    log.given(placed("j1", *range(8), epoch=3, at_s=NOW_S + 23), started(epoch=3, at_s=NOW_S + 24))
    log.given(ended(outcome="failed", epoch=3, at_s=NOW_S + 25, exit_code=1, reason="out of memory", steps=90))
    view = sizes(log)
    assert (view.unfit, view.size) == ((Size(8),), Size(4, 256))
    assert (view.resizes[-1].because, view.resizes[-1].before, view.resizes[-1].after) == (
        "unfit",
        Size(8, 512),
        Size(4, 256),
    )
    assert "out of memory" in view.resizes[-1].reason


def test_only_the_last_runs_and_decisions_are_kept(log: Scenario[machine.GatewayState]) -> None:
    log.given(arrived())
    for number in range(MOST_RUNS + 3):
        at_s, epoch = NOW_S + 10 * number, 2 * number
        log.given(sized(demand(gpus=1 + number % 2, epoch=epoch), at_s=at_s))
        log.given(placed("j1", *range(1 + number % 2), epoch=epoch + 2, at_s=at_s + 1))
        log.given(started(epoch=epoch + 2, at_s=at_s + 2), ended(outcome="preempted", epoch=epoch + 2, at_s=at_s + 3))
    view = sizes(log)
    assert (len(view.runs), view.left_out, len(view.resizes)) == (MOST_RUNS, 3, MOST_RESIZES)
    assert view.runs[-1].start_s == NOW_S + 10 * (MOST_RUNS + 2) + 2


@pytest.mark.parametrize(("rule", "factor"), [("keep", 1.0), ("linear", 4.0), ("sqrt", 2.0), ("callback", None)])
def test_the_learning_rates_factor_is_that_of_the_rule(
    log: Scenario[machine.GatewayState], rule: Any, factor: float | None
) -> None:
    log.given(arrived(batch=Batch(min=64, max=512, base=64, lr=rule)), sized(demand()))
    assert sizes(log).lr_factor == factor


def test_what_people_see_survives_a_snapshot(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    shrinks(log)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(log.state.histories), type=dict[str, JobHistory])
    assert kept == log.state.histories


# --- why, and the story
def test_why_tells_of_a_running_job_what_it_gave_to_whom_and_when(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    shrinks(log)
    view = why(log)
    assert (view.cause, view.size) == ("running", "2 devices (of 1 to 8) with a batch of 128 (of 64 to 512)")
    assert view.resized is not None
    assert (view.resized.gives, view.resized.at_s) == ({"b2": 2}, NOW_S + 30)
    assert view.resized.reason == "shrinks from 4 to 2, and gives 2 to b2"


def test_why_names_the_width_with_which_a_waiting_job_would_start(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted("big", gpus=7), placed("big", *range(7)), started("big"))
    log.given(arrived(gpus=2, min_gpus=2), sized(demand(gpus=2, batch_size=64))).at(NOW_S + 3)
    view = why(log)
    assert (view.cause, view.size) == ("gang", "2 devices (of 2 to 8) with a batch of 64 (of 64 to 512)")
    assert view.evidence == "needs 2 devices of one kind at once; idle: 1 fast; it is next"
    assert view.remedy == 'accept 1 device too (gpus = "1..8"): it starts now on `fast`'


def test_why_asks_nobody_to_take_widths_or_kinds_that_he_takes_anyway(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted("big", gpus=7), placed("big", *range(7)), started("big"))
    log.given(joined("n2", fast=0, slow=4), arrived(), sized(demand(gpus=4))).at(NOW_S + 3)
    assert (why(log).cause, why(log).remedy) == ("gang", "")


def test_a_waiting_job_knows_who_makes_way_for_it_until_it_is_placed(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    shrinks(log)
    assert why(log, "b2").freed == {"j1": 2}
    log.given(placed("b2", 2, epoch=1, at_s=NOW_S + 35))
    assert why(log, "b2").freed == {}


def test_a_job_that_is_not_elastic_has_no_size_to_tell_of(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted())
    assert (why(log).size, why(log).resized) == ("", None)
    assert detail(log).sizing is None


def test_the_story_tells_each_decision_and_who_made_way() -> None:
    life = Scenario(machine.decider(GatewaySettings())).given(arrived()).state.jobs["j1"]
    facts = [
        arrived(),
        sized(demand(reason="starts on 4 devices (fast) with a batch of 256"), because="arrival"),
        sized(demand("b2", 1, 64, 2, gives={"j1": 1}), at_s=NOW_S + 2),
        sized(demand(gpus=5, epoch=2), because="completion", at_s=NOW_S + 3),
    ]
    teller = story.Timeline(life)
    lines = [line.text for seq, fact in enumerate(facts, 1) for line in teller.lines(delivery(fact, seq))]
    assert lines == [
        "submitted: 1 to 8 devices with a batch of 64 to 512",
        "sized (a job has come): starts on 4 devices (fast) with a batch of 256",
        "job b2 is to give up 1 device for it",
        "sized (a job is over): to have 5 devices with a batch of 256",
    ]


def test_the_story_gives_the_reason_of_a_resize_once(log: Scenario[machine.GatewayState]) -> None:
    runs_on_four(log)
    said = "shrinks from 4 to 2"
    facts = [
        sized(demand(gpus=2, epoch=2, reason=said), because="arrival", at_s=NOW_S + 9),
        preempted(epoch=2, reason=said),
        ended(outcome="preempted", epoch=2, reason=said, steps=9),
        preempted(epoch=3, reason="its node is drained"),
    ]
    teller = story.Timeline(log.state.jobs["j1"])
    assert [line.text for fact in facts for line in teller.lines(delivery(fact, 1))] == [
        "sized (a job has come): shrinks from 4 to 2",
        "to be preempted for that",
        "run preempted on n1 after step 9",
        "to be preempted: its node is drained",
    ]


def delivery(fact: Any, seq: int) -> Delivery:
    commit = Commit(id=str(seq), actor="test", facts=(fact,))
    return Delivery(seq=seq, subject="x", commit=commit, stored_s=fact.at_s, pending=0)


async def test_the_gateway_reads_the_story_of_sizes_from_the_pools_subject(served: Gateway) -> None:
    await served.command("submit", {**RANGED, "id": "j1"})
    await served.told(sized(demand(reason="starts on 4 devices"), at_s=NOW_S + 500))
    lines = (await served.query("story", {"id": "j1"}))["lines"]
    assert "sized (it was time to): starts on 4 devices" in [line["text"] for line in lines]


# --- dry runs
def test_a_dry_run_tries_the_smallest_size_and_says_so(log: Scenario[machine.GatewayState]) -> None:
    view = asked(log)
    assert (view.starts, view.devices) == (True, ("n1/fast0",))
    assert view.size == (
        "tried with 1 device and a batch of 64, the fewest that do; it may be given 1 to 8 devices with a batch of 64 "
        "to 512, and what it gets of that is decided when it comes"
    )


def test_a_dry_run_of_one_that_is_sampled_says_that_it_waits_for_its_size(log: Scenario[machine.GatewayState]) -> None:
    view = asked(log, profile="on")
    assert (view.starts, view.cause) == (False, "profiling")
    assert view.size.endswith("what it gets of that is decided once its workload is measured, or after 10 s")


def test_of_a_known_workload_it_says_that_nothing_is_waited_for(log: Scenario[machine.GatewayState]) -> None:
    log.given(scaled(fast=0))
    assert asked(log).size.endswith(", and what it gets of that is decided when it comes")


def test_it_needs_as_many_devices_as_its_smallest_batch_does(log: Scenario[machine.GatewayState]) -> None:
    log.given(scaled(fast=20))
    view = asked(log)
    assert (view.starts, view.devices) == (True, ())  # on more than these: which, is said when it comes
    assert view.size.startswith("tried with 4 devices and a batch of 64, the fewest that do;")


def test_where_nothing_is_free_it_says_who_could_give_way(log: Scenario[machine.GatewayState]) -> None:
    log.given(arrived(), sized(demand(gpus=8)), placed("j1", *range(8), epoch=2), started(epoch=2))
    view = asked(log, id="")
    assert (view.starts, view.cause) == (False, "capacity")
    assert view.warnings == (
        "1 elastic job (j1) could give up 7 devices between them: the autoscaler decides on that when it comes",
    )
