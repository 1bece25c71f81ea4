"""Totals since the log began, and the figures that the query ``stats`` gives."""

from pathlib import Path

import msgspec
import pytest
from gateway_cases import NOW_S, ended, gateway, joined, placed, preempted, spec, started, submitted, waits
from hypothesis import given
from hypothesis import strategies as st
from log_state import read_wire

from penstock_bus.memory import MemoryBus
from penstock_dashboard import cluster_metrics
from penstock_gateway import machine
from penstock_gateway.answers import ReadModel
from penstock_gateway.machine import GatewayState
from penstock_gateway.retention import still_due
from penstock_gateway.stats_answer import stats
from penstock_gateway.totals_fold import TotalsRecord
from penstock_log import (
    ARCHIVE,
    AllocationAdded,
    AllocationSpec,
    DeviceFailed,
    JobCancelled,
    JobHeld,
    JobsArchived,
    JobTimedOut,
    JobUnblocked,
    NodeDrained,
    NodeLeft,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    ProfileSample,
    RoundDecided,
    SamplesRequested,
    Wait,
    subjects,
)
from penstock_log.totals import BOUNDS_S, ClusterTotals, DeviceTime, PoolTotals, Spread
from penstock_log.views import PoolStatsView, StatsView

RECORDED = Path(__file__).parents[1] / "data" / "logs" / "35a4014.log.gz"


def folded(*facts) -> GatewayState:
    state = GatewayState()
    for seq, fact in enumerate(facts, start=1):
        machine.apply(state, fact, seq)
    return state


def default(state: GatewayState, now_s: float = NOW_S + 10) -> PoolStatsView:
    found = stats(ReadModel(state=state, now_s=now_s, seq=7), 9)
    return next(one for one in found.pools if one.pool == "default")


def test_waiting_and_completion_are_counted_by_the_jobs_own_times():
    totals = default(folded(submitted(), placed(), started(at_s=NOW_S + 4), ended(at_s=NOW_S + 64))).totals
    assert totals.waits.total_ms == 4_000
    assert totals.completions.total_ms == 64_000
    assert totals.waits.counts[BOUNDS_S.index(5.0)] == 1
    assert totals.runs == {"completed": 1}
    assert totals.teams[""].ended == {"completed": 1}


def test_a_job_that_is_started_again_has_waited_once():
    again = [placed(epoch=2, at_s=NOW_S + 8), started(epoch=2, at_s=NOW_S + 9), ended(epoch=2, at_s=NOW_S + 20)]
    state = folded(submitted(), placed(), started(), preempted(), ended(outcome="preempted"), *again)
    totals = default(state).totals
    assert sum(totals.waits.counts) == sum(totals.completions.counts) == 1
    assert totals.runs == {"preempted": 1, "completed": 1}


def test_a_job_that_is_preempted_fifty_times_counts_fifty_preemptions():
    facts = [submitted()]
    for epoch in range(1, 51):
        facts += [
            placed(epoch=epoch),
            started(epoch=epoch),
            preempted(epoch=epoch),
            ended(outcome="preempted", epoch=epoch),
        ]
    assert default(folded(*facts)).totals.runs == {"preempted": 50}


def test_a_run_whose_node_is_lost_counts_as_lost():
    lost = RoundDecided(at_s=NOW_S + 3, pool="default", lost_nodes=("n1",))
    assert default(folded(joined(), submitted(), placed(), started(), lost)).totals.runs == {"lost": 1}


def test_a_run_that_a_round_loses_and_places_anew_at_once_counts_as_lost():
    elsewhere = placed(epoch=2, node="n2", at_s=NOW_S + 3)
    moved = msgspec.structs.replace(elsewhere, lost_nodes=("n1",))
    state = folded(joined(), joined("n2"), submitted(), placed(), started(), moved)
    assert default(state).totals.runs == {"lost": 1}


def test_a_job_that_never_ran_has_no_waiting_time_and_is_counted_as_cancelled():
    totals = default(folded(submitted(team="vision"), JobCancelled(at_s=NOW_S + 9, job_id="j1", by="ann"))).totals
    assert totals.waits == totals.completions == Spread()
    assert totals.teams["vision"].ended == {"cancelled": 1}


def test_samples_of_the_profiler_do_not_count():
    sample = ProfileSample(sample_id="j1", kind="fast", gpus=1, iterations=10)
    asked = SamplesRequested(at_s=NOW_S, key="k", spec=spec(), samples=(sample,))
    found = default(folded(joined(), asked, placed(), started(), ended()))
    assert found.totals == PoolTotals()
    assert found.jobs == {}


def test_jobs_that_are_not_over_are_counted_by_team_and_state():
    wait = Wait(job_id="j2", cause="no_devices", evidence="none is free")
    facts = [
        *(
            submitted("j1", team="a"),
            submitted("j2", team="a", at_s=NOW_S + 1),
            submitted("j3"),
            submitted("j4", team="b"),
        ),
        *(
            placed("j1"),
            started("j1"),
            JobHeld(at_s=NOW_S, job_id="j3"),
            waits(wait),
            JobCancelled(at_s=NOW_S, job_id="j4"),
        ),
    ]
    found = default(folded(joined(), *facts), now_s=NOW_S + 31)
    assert found.jobs == {"": {"held": 1}, "a": {"running": 1, "pending": 1}}
    assert (found.waits, found.longest_wait_s) == ({"no_devices": 1, "held": 1}, 30.0)


def test_each_pending_job_counts_once_by_its_cause_and_those_that_cannot_begin_yet_wait_for_nothing():
    facts = [
        submitted("undecided", at_s=NOW_S + 500),
        submitted("begins", begin_s=NOW_S + 1e6),
        submitted("behind", after=("afterok:undecided",)),
        submitted("held", hold=True),
        submitted("runs"),
        placed("runs"),
    ]
    found = default(folded(joined(), *facts), now_s=NOW_S + 600)
    assert found.waits == {"undecided": 1, "begin": 1, "dependency": 1, "held": 1}
    assert found.longest_wait_s == 100.0
    assert default(folded(joined(), submitted("begins", begin_s=NOW_S + 1e6))).longest_wait_s == 0.0


def test_a_job_that_came_to_begin_or_was_unblocked_waits_from_then_on():
    begins = submitted("a", begin_s=NOW_S + 60)
    assert default(folded(joined(), begins), now_s=NOW_S + 90).longest_wait_s == 30.0
    behind = [submitted("b", after=("after:a",)), JobUnblocked(at_s=NOW_S + 70, job_id="b", met=("after:a",))]
    assert default(folded(joined(), *behind), now_s=NOW_S + 90).longest_wait_s == 20.0
    found = default(folded(joined(), begins, placed("a", at_s=NOW_S + 61), started("a", at_s=NOW_S + 64)))
    assert found.totals.waits.total_ms == 4_000


async def test_answers_say_that_a_job_has_not_waited_before_it_could_begin():
    behind = [submitted("b", after=("after:a",)), JobUnblocked(at_s=NOW_S + 70, job_id="b", met=("after:a",))]
    facts = [joined(), submitted("a", begin_s=NOW_S + 1e6), *behind]
    async with gateway(MemoryBus(), *facts) as served:
        found = {job["id"]: job for job in (await served.query("jobs", {}))["jobs"]}
        assert (found["a"]["wait_s"], found["a"].get("eligible_s")) == (0.0, None)
        assert (found["b"]["wait_s"], found["b"]["eligible_s"]) == (pytest.approx(30.0, abs=5.0), NOW_S + 70)
        sums = (await served.query("usage", {"by": "job"}))["total"]["usage"]
        assert sums["requested_gpu_s"] == sums["waited_gpu_s"] == pytest.approx(30.0, abs=5.0)
        run = (await served.query("job", {"id": "b"}))["runs"][0]
        assert run["pending_s"] == NOW_S + 70


def test_a_run_that_is_stopped_for_its_time_limit_is_not_counted_as_preempted():
    over = JobTimedOut(at_s=NOW_S + 4, job_id="j1", limit_s=1.0, executed_s=2.0)
    assert default(folded(submitted(), placed(), started(), over, ended(outcome="preempted"))).totals.runs == {
        "timed_out": 1
    }
    first = (placed(), started(), preempted(), ended(outcome="preempted"))
    again = (placed(epoch=2), started(epoch=2), over, ended(outcome="preempted", epoch=2))
    assert default(folded(submitted(), *first, *again)).totals.runs == {"preempted": 1, "timed_out": 1}
    assert default(folded(submitted(), placed(), started(), over, ended(outcome="completed"))).totals.runs == {
        "completed": 1
    }


def test_devices_and_nodes_are_counted_by_state():
    facts = [joined("n1"), joined("n2"), joined("n3", slow=1), joined("n4"), joined("other", pool="lab")]
    gone = [NodeDrained(at_s=NOW_S, node_id="n2"), NodeLeft(at_s=NOW_S, node_id="n3")]
    lost = RoundDecided(at_s=NOW_S, pool="default", lost_nodes=("n4",))
    broken = DeviceFailed(at_s=NOW_S, node_id="n1", index=1, code="xid 79", reason="it fell off the bus")
    found = default(folded(*facts, *gone, lost, broken, submitted(), placed()))
    assert found.nodes == {"up": 1, "drained": 1, "left": 1, "lost": 1}
    assert found.devices["fast"] == {
        "busy": 1,
        "idle": 0,
        "drained": 2,
        "failed": 1,
        "leaving": 0,
        "left": 2,
        "lost": 2,
    }
    assert found.devices["slow"]["left"] == 1


def test_an_empty_cluster_has_no_pools():
    assert stats(ReadModel(state=GatewayState(), now_s=NOW_S, seq=0), 0) == StatsView(pools=(), seq=0, last_seq=0)


def test_pilots_are_counted_by_state_and_by_how_they_ended():
    lab = AllocationAdded(name="lab", spec=AllocationSpec(provider="slurm", pool="gpu"), at_s=NOW_S)
    plans = [PilotPlanned(name="lab", pilot_id=f"lab-{n}", at_s=NOW_S) for n in range(1, 6)]
    told = [PilotSubmitted(name="lab", pilot_id=f"lab-{n}", provider_id="1", at_s=NOW_S) for n in range(1, 4)]
    ends = [
        PilotEnded(name="lab", pilot_id="lab-4", state="refused", reason="no account", at_s=NOW_S),
        PilotsPaused(name="lab", failures=1, reason="no account", at_s=NOW_S),
    ]
    begun = PilotStarted(name="lab", pilot_id="lab-1", at_s=NOW_S)
    state = folded(lab, *plans, *told, begun, *ends)
    [found] = stats(ReadModel(state=state, now_s=NOW_S, seq=7), 9).allocations
    assert (found.name, found.pool, found.paused, found.failures) == ("lab", "gpu", True, 1)
    assert found.pilots == {"planned": 1, "waiting": 2, "starting": 1, "running": 0}
    assert found.ended == {"finished": 0, "cancelled": 0, "failed": 0, "refused": 1, "lost": 0}
    metrics = {
        family.name: family for family in cluster_metrics.of_stats(stats(ReadModel(state=state, now_s=NOW_S, seq=7), 9))
    }
    shown = {tuple(one.labels.values()): one.value for one in metrics["penstock_pilots"].samples}
    assert shown["gpu", "lab", "waiting"] == 2
    assert [one.value for one in metrics["penstock_allocation_paused"].samples] == [1]
    refused = [one.value for one in metrics["penstock_pilots_ended"].samples if one.labels["end"] == "refused"]
    assert refused == [1]


def life(job_id: str, at_s: float, **fields) -> list:
    return [
        submitted(job_id, at_s=at_s, **fields),
        placed(job_id, at_s=at_s + 1),
        started(job_id, at_s=at_s + 2),
        ended(job_id, at_s=at_s + 5),
    ]


def test_archived_jobs_stay_in_the_totals_also_of_a_gateway_that_never_saw_them():
    lives, later = [*life("j1", NOW_S, team="a"), *life("j2", NOW_S)], life("j3", NOW_S + 50)
    state = folded(joined(), *lives)
    before = state.totals.whole
    fact = still_due(state, JobsArchived(at_s=NOW_S + 40, archive=ARCHIVE, job_ids=("j1", "j2")))
    machine.apply(state, fact, 100)
    assert state.totals.whole == before
    assert state.totals.known == ClusterTotals()
    fresh = folded(joined(), fact, *later)
    for seq, one in enumerate(later, start=101):
        machine.apply(state, one, seq)
    assert fresh.totals == state.totals
    assert sum(fresh.totals.whole.pool("default").completions.counts) == 3


def test_a_fact_of_an_earlier_version_that_archives_jobs_has_their_totals_kept():
    state = folded(joined(), *life("j1", NOW_S))
    before = state.totals.whole
    machine.apply(state, JobsArchived(at_s=NOW_S + 40, archive=ARCHIVE, job_ids=("j1",)), 100)
    assert state.totals.whole == before


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3))
def test_no_time_that_a_fact_may_name_is_too_much_for_a_snapshot(times):
    first, second, third = times
    state = folded(submitted(at_s=first), placed(at_s=first), started(at_s=second), ended(at_s=third))
    packed = msgspec.msgpack.encode(state.totals)
    assert msgspec.msgpack.decode(packed, type=TotalsRecord) == state.totals
    assert state.totals.whole.pool("default").waits.total_ms >= 0


@pytest.mark.slow
async def test_the_answer_to_stats_says_nothing_of_a_job(memory_bus):
    facts = [joined(), submitted("secret-id", user="ann", team="a", name="secret-name"), placed("secret-id")]
    async with gateway(memory_bus, *facts) as served:
        body = await served.bus.request(subjects.query("stats"), b"{}")
    assert b"secret" not in body
    assert b"ann" not in body
    assert msgspec.json.decode(body, type=StatsView).pools[0].jobs == {"a": {"running": 1}}


def test_ten_thousand_jobs_are_counted():
    state = folded(joined(), *(submitted(f"j{n}", at_s=NOW_S, team=f"t{n % 7}") for n in range(10_000)))
    assert sum(counts["pending"] for counts in default(state).jobs.values()) == 10_000


def test_the_time_of_a_run_is_counted_when_it_ends_and_falls_into_columns():
    run = [submitted(team="a"), placed(at_s=NOW_S + 10), started(at_s=NOW_S + 20)]
    state = folded(joined(), *run)
    going_on = default(state, now_s=NOW_S + 70)
    assert going_on.totals.teams == {}
    assert going_on.open_time == {"a": DeviceTime(held_ms=60_000, unmeasured_ms=60_000)}
    machine.apply(state, ended(at_s=NOW_S + 120, loop_s=50.0, loop_steps=5, steps=5), 9)
    over = default(state)
    assert over.totals.teams["a"].time == DeviceTime(held_ms=110_000, used_ms=50_000, idle_ms=60_000)
    assert over.open_time == {}


def test_the_time_of_a_run_whose_node_is_lost_is_lost():
    lost = RoundDecided(at_s=NOW_S + 31, pool="default", lost_nodes=("n1",))
    time = default(folded(joined(), submitted(), placed(), started(), lost)).totals.teams[""].time
    assert time == DeviceTime(held_ms=30_000, lost_ms=30_000)


def leaves(totals: ClusterTotals) -> dict[str, int]:
    found = {}

    def walk(path: str, value: object) -> None:
        if isinstance(value, dict):
            for name, below in value.items():
                walk(f"{path}/{name}", below)
        elif isinstance(value, list):
            for place, count in enumerate(value):
                found[f"{path}/{place}"] = count
        elif isinstance(value, int):
            found[path] = value

    walk("", msgspec.to_builtins(totals))
    return found


def test_over_a_recorded_log_no_counter_ever_falls():
    state, before, seen = GatewayState(), {}, 0
    for delivery in read_wire(RECORDED):
        for fact in delivery.commit.facts:
            machine.apply(state, fact, delivery.seq)
        after = leaves(state.totals.whole)
        assert {name: count for name, count in before.items() if after.get(name, 0) < count} == {}
        seen, before = seen + 1, after
    assert seen > 200
    assert before["/pools/default/runs/completed"] > 10
    assert sum(count for name, count in before.items() if name.endswith("/time/held_ms")) > 0
