"""Decisions about sizes: against reference values, against trying everything, and what must hold for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import msgspec
import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_log import Size
from penstock_policies import elastic
from penstock_policies.elastic import ThroughputProfile
from penstock_policies.queue_policies import DispatchMode
from penstock_scheduler.sizing.decision import decide
from penstock_scheduler.sizing.kind_search import rows
from penstock_scheduler.sizing.problem import Asking, FixedSizeJob, SizeRequest, SizingDecision, SizingRules
from sweeps import examples

FREE = SizingRules(least_gain=0.0)
FAST = ThroughputProfile(b_min=64, b_max=512, per_gpu_cap=128, batch_step=32, t_proc_s={32: 0.1, 64: 0.18, 128: 0.34})
"""Scales with its devices, up to four."""


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return published.reference("elastic.json")


def profile(reference: dict[str, Any], name: str, fixed: int | None = None) -> ThroughputProfile:
    known = reference["elastic_dp"]["profile"][name]
    times = {
        which: {int(at): float(Fraction(time_s)) for at, time_s in known[which].items()}
        for which in ("t_proc_s", "t_comm_s")
    }
    least, most = (fixed, fixed) if fixed else (known["b_min"], known["b_max"])
    return ThroughputProfile(
        b_min=least, b_max=most, per_gpu_cap=known["per_gpu_cap"], batch_step=known["batch_step"], **times
    )


def request(job_id: str = "a", one: ThroughputProfile = FAST, most: int = 8, **more: Any) -> SizeRequest:
    return SizeRequest(**{"job_id": job_id, "profiles": {"x": one}, "widths": range(1, most + 1), **more})


def on(gpus: int, batch: int, kind: str = "x") -> dict[str, Any]:
    return {"now": Size(gpus, batch), "kind": kind}


def sizes(sizing: SizingDecision) -> dict[str, tuple[int, int]]:
    return {job: (each.gpus, each.batch_size) for job, each in sizing.jobs.items()}


def test_jobs_of_the_reference_get_its_devices_and_batches(reference: dict[str, Any]) -> None:
    seen = 0
    for case in reference["elastic_dp"]["cases"]:
        fixed = {**dict.fromkeys(case["jobs"]), **(case.get("fixed_batch") or {})}
        if case["name"].endswith("fixed_max_batch"):  # which only says that it is infeasible
            fixed = {name: reference["elastic_dp"]["profile"][name]["b_max"] for name in case["jobs"]}
        order = [request(job, profile(reference, job, fixed[job]), case["k_max"]) for job in case["jobs"]]
        found = decide(order, {"x": case["K"]}, FREE)
        seen += 1
        if case.get("infeasible"):
            assert found.jobs[case["jobs"][-1]].gpus == 0, case["name"]
            continue
        assert sizes(found) == {j: (each["gpus"], each["batch"]) for j, each in case["alloc"].items()}
        if not case.get("fixed_batch"):  # that one is counted relative to the best batch on the smallest width
            assert found.scaling == pytest.approx(float(Fraction(case["total_scaling"])))
    assert seen == 10


@pytest.mark.parametrize("drop", [False, True])
def test_who_comes_and_goes_is_given_what_the_published_autoscaler_gives(reference: dict[str, Any], drop: bool) -> None:
    one, queue, now = profile(reference, "compute_bound"), list[str](), dict[str, Size]()
    for tick in reference["autoscaler_trace_K4"]:
        queue = [job for job in queue if job not in tick["finished"]] + tick["arrived"]
        here = {job: size for job, size in now.items() if job in queue}
        order = [request(j, one, 4, now=here.get(j), kind="x" if j in here else "", fresh=j not in here) for j in queue]
        found = decide(order, {"x": 4}, msgspec.structs.replace(FREE, drop=drop))
        running = {job: list(size) for job, size in sizes(found).items() if size[0]}
        assert running == tick["running_gpus_batch"], tick["tick"]
        assert [job for job in queue if job not in running] == tick["queued_or_dropped"]
        assert found.dropped == (tuple(tick["queued_or_dropped"]) if drop else ())
        now = {job: found.jobs[job].size for job in running}


def test_a_job_is_not_resized_for_less_than_that_costs() -> None:
    rules = SizingRules(horizon_s=100.0, least_gain=0.0)
    cheap, dear = (decide([request(cost_s=cost_s, **on(2, 256))], {"x": 3}, rules) for cost_s in (30.0, 40.0))
    assert cheap.jobs["a"].gpus == 3  # half as fast again: worth a third of the horizon
    assert dear.jobs["a"].gpus == 2
    assert not dear.jobs["a"].changed


def test_a_new_job_is_let_in_whatever_that_costs_and_the_one_that_loses_least_shrinks() -> None:
    order = [
        request("a", cost_s=500.0, **on(4, 512)),
        request("b", cost_s=1.0, **on(4, 512)),
        request("c", cost_s=1.0, fresh=True),
    ]
    found = decide(order, {"x": 8})
    assert [found.jobs[job].gpus for job in "abc"] == [4, 3, 1]
    assert found.jobs["b"].gives == {"c": 1}
    assert not found.jobs["a"].changed


def test_a_slightly_better_batch_is_not_worth_a_restart_but_a_better_one_is() -> None:
    assert decide([request(most=1, **on(1, 96))], {"x": 1}, SizingRules(least_gain=0.1)).jobs["a"].batch_size == 96
    assert decide([request(most=1, **on(1, 96))], {"x": 1}, FREE).jobs["a"].batch_size == 128


def test_a_fixed_gang_keeps_its_width_and_a_batch_may_be_all_that_is_chosen() -> None:
    order: list[Asking] = [
        FixedSizeJob(job_id="g", gpus=4, kinds=("x",)),
        request("a", widths=range(2, 3)),
        request("b"),
    ]
    found = decide(order, {"x": 8}, FREE)
    assert sizes(found) == {"a": (2, 256), "b": (2, 256)}
    assert found.fixed == {"g": "x"}


def test_who_may_not_be_moved_keeps_what_it_has_and_the_others_share_the_rest() -> None:
    order = [request("a"), request("b", movable=False, **on(3, 100))]
    found = decide(order, {"x": 4}, FREE)
    assert sizes(found) == {"a": (1, 128), "b": (3, 100)}
    assert not found.jobs["b"].changed
    assert decide([request("a", movable=False)], {"x": 4}).jobs["a"].gpus == 0


def test_devices_of_a_run_for_which_no_size_is_known_to_do_are_given_to_nobody() -> None:
    small = msgspec.structs.replace(FAST, per_gpu_cap=2)
    found = decide([request("a", small, **on(3, 64)), request("b", **on(1, 128)), request("c", small)], {"x": 5}, FREE)
    assert sizes(found) == {"a": (3, 64), "b": (2, 256), "c": (0, 0)}
    assert not found.jobs["a"].changed
    assert "no size of its is known to be feasible" in found.jobs["a"].reason


def test_sizes_that_did_not_do_are_not_chosen_again_nor_larger_batches_there() -> None:
    found = decide([request(unfit=[Size(4, 512)])], {"x": 4}, FREE)
    assert sizes(found) == {"a": (4, 480)}
    found = decide([request(unfit=[Size(4, 512), Size(4, 64)])], {"x": 4}, FREE)
    assert sizes(found) == {"a": (3, 384)}


def test_fewer_devices_than_a_job_needs_make_it_wait_and_hold_up_nobody() -> None:
    large = ThroughputProfile(b_min=256, b_max=256, per_gpu_cap=128, t_proc_s={64: 0.1, 128: 0.2})
    found = decide([request("a", large), request("b")], {"x": 1}, FREE)
    assert sizes(found) == {"a": (0, 0), "b": (1, 128)}
    assert "holds it on 1 to 8 devices" in found.jobs["a"].reason


def test_others_pass_a_job_that_does_not_fit_only_where_the_order_has_it_so() -> None:
    order: list[Asking] = [request("a"), FixedSizeJob(job_id="g", gpus=4, kinds=("x",)), request("b")]
    assert sizes(decide(order, {"x": 4}, FREE)) == {"a": (3, 384), "b": (1, 128)}
    strict = decide(order, {"x": 4}, FREE, DispatchMode(backfills=False))
    assert sizes(strict) == {"a": (4, 512), "b": (0, 0)}


@pytest.mark.parametrize(
    ("preempts", "inside"), [("never", ["b", "c"]), ("queue", ["a", "b"]), ("position", ["a", "b"])]
)
def test_running_jobs_make_way_for_those_for_whom_the_order_has_them_do_so(preempts: Any, inside: list[str]) -> None:
    order = [request("a", queue=0), request("b", queue=1, **on(1, 128)), request("c", queue=1, **on(1, 128))]
    found = decide(order, {"x": 2}, FREE, DispatchMode(preempts=preempts))
    assert [job for job, each in found.jobs.items() if each.gpus] == inside


def test_of_one_queue_running_jobs_go_first_unless_positions_bind() -> None:
    order = [request("a"), request("b", **on(2, 256))]
    assert decide(order, {"x": 1}, FREE).jobs["b"].gpus == 1
    assert decide(order, {"x": 1}, FREE, DispatchMode(preempts="position")).jobs["b"].gpus == 0


def test_a_size_that_a_waiting_job_asks_for_already_is_no_change_once_it_was_sized() -> None:
    asks = Size(4, 512)
    assert not decide([request(asks=asks)], {"x": 4}, FREE).jobs["a"].changed
    assert decide([request(asks=asks, fresh=True)], {"x": 4}, FREE).jobs["a"].changed


def test_reasons_name_what_changes_who_gets_what_and_what_it_is_worth() -> None:
    a, b, c, d = (
        request("a", **on(4, 512)),
        request("b", cost_s=3.0, **on(1, 128)),
        request("c", fresh=True),
        request("d"),
    )
    found = decide([a, c], {"x": 4}, FREE)
    assert found.jobs["a"].reason == (
        "shrinks from 4 to 3 devices (x) with a batch of 384, and gives 1 to c: 3 times its pace on 1 device"
    )
    assert found.jobs["c"].reason == "starts on 1 device (x) with a batch of 128: 1 times its pace on 1 device"
    assert decide([b], {"x": 2}, FREE).jobs["b"].reason == (
        "grows from 1 to 2 devices (x) with a batch of 256: 2 times its pace on 1 device, "
        "worth the 3 s that it costs within 600 s"
    )
    found = decide([b, d], {"x": 1}, FREE)
    assert found.jobs["b"].reason == (
        "keeps 1 device (x) with a batch of 128: no other size is worth the 3 s that resizing it costs"
    )
    assert found.jobs["d"].reason == "waits: jobs before it leave fewer devices than the 1 that it needs at least"


def test_a_pace_is_compared_on_the_kind_that_the_sentence_names() -> None:
    """The scaling of a job on its slow kind is relative to its fast one: no job grows to 0.8 times its pace."""
    times = {local: 5 * time_s for local, time_s in FAST.t_proc_s.items()}
    slow = ThroughputProfile(b_min=64, b_max=512, per_gpu_cap=128, batch_step=32, t_proc_s=times)
    both = {"x": FAST, "y": slow}
    others = FixedSizeJob(job_id="g", gpus=4, kinds=("x",), kind="x")
    grows = request("a", profiles=both, now=Size(1, 128), kind="y")
    found = decide([others, grows], {"x": 4, "y": 2}, FREE).jobs["a"]
    assert 0 < found.scaling < 1
    assert found.reason == "grows from 1 to 2 devices (y) with a batch of 256: 2 times its pace on 1 device"
    moved = decide([grows], {"x": 1, "y": 1}, FREE).jobs["a"]
    assert moved.reason == "moves from 1 y to 1 device (x) with a batch of 128: 5 times its present pace"


def test_a_job_that_shrinks_gives_to_several_and_idle_devices_go_first() -> None:
    order = [request("a", **on(4, 512)), *(request(job, most=1) for job in "bcd")]
    found = decide(order, {"x": 5}, FREE)
    assert found.jobs["a"].gives == {"c": 1, "d": 1}


def test_where_a_running_job_has_to_leave_another_may_come_before_it_at_once() -> None:
    held = request("b", movable=False, **on(2, 64))
    order = [
        request("a"),
        held,
        FixedSizeJob(job_id="g", gpus=2, kinds=("x",), kind="x"),
    ]  # of four devices one is lost
    found = decide(order, {"x": 3}, FREE, DispatchMode(backfills=False))
    assert sizes(found) == {"a": (1, 128), "b": (2, 64)}
    assert found.fixed == {}


def test_a_job_that_moves_to_another_kind_lets_one_in_behind_it_at_once() -> None:
    slow = ThroughputProfile(b_min=64, b_max=64, per_gpu_cap=64, t_proc_s={64: 1.0})
    fast = msgspec.structs.replace(slow, t_proc_s={64: 0.5})
    moves = request("a", profiles={"x": slow, "y": fast}, **on(1, 64))
    found = decide(
        [moves, FixedSizeJob(job_id="g", gpus=1, kinds=("x",))], {"x": 1, "y": 1}, FREE, DispatchMode(backfills=False)
    )
    assert found.jobs["a"].kind == "y"
    assert found.fixed == {"g": "x"}


def test_a_job_moves_to_the_kind_where_it_is_worth_most_and_pays_for_it() -> None:
    slow = ThroughputProfile(b_min=64, b_max=64, per_gpu_cap=64, t_proc_s={64: 1.0})
    fast = msgspec.structs.replace(slow, t_proc_s={64: 0.5})
    at = request("a", profiles={"x": slow, "y": fast}, widths=range(1, 2), cost_s=200.0, **on(1, 64))
    assert decide([at], {"x": 1, "y": 1}, FREE).jobs["a"].kind == "y"
    dear = msgspec.structs.replace(at, cost_s=400.0)
    assert decide([dear], {"x": 1, "y": 1}, FREE).jobs["a"].kind == "x"


@st.composite
def profiles_of(draw: st.DrawFn) -> ThroughputProfile:
    """Return a profile that is feasible from some small width on."""
    b_min = draw(st.sampled_from([1, 8, 16, 24]))
    pace = draw(st.sampled_from([0.5, 1.0, 2.0]))
    comm = draw(st.dictionaries(st.sampled_from([2, 4]), st.sampled_from([0.05, 0.5, 2.0])))
    return ThroughputProfile(
        b_min=b_min,
        b_max=b_min + draw(st.integers(0, 3)) * 8,
        batch_step=8,
        per_gpu_cap=draw(st.sampled_from([8, 16, 64])),
        t_proc_s={8: pace, 16: pace * draw(st.sampled_from([1.1, 1.5, 2.0]))},
        t_comm_s=comm,
    )


@st.composite
def askings(draw: st.DrawFn, kinds: Sequence[str], most: int = 4) -> list[Asking]:
    found: list[Asking] = []
    for number in range(draw(st.integers(1, most))):
        job_id, queue = f"j{number}", draw(st.integers(0, 1))
        own = draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True))
        runs = draw(st.booleans())
        if draw(st.integers(0, 4)) == 0:
            gpus, kind = draw(st.integers(1, 3)), draw(st.sampled_from(own)) if runs else ""
            found.append(FixedSizeJob(job_id=job_id, gpus=gpus, kinds=tuple(own), kind=kind, queue=queue))
            continue
        each = SizeRequest(
            job_id=job_id,
            profiles={kind: draw(profiles_of()) for kind in own},
            widths=range(draw(st.integers(1, 2)), draw(st.integers(3, 5))),
            cost_s=draw(st.sampled_from([0.0, 5.0, 200.0, 2000.0])),
            queue=queue,
            unfit=draw(st.lists(st.builds(Size, st.integers(1, 4), st.sampled_from([8, 16, 24])), max_size=1)),
        )
        if runs:
            now = Size(draw(st.sampled_from(list(each.widths))), each.profiles[own[0]].b_min)
            each = msgspec.structs.replace(each, now=now, kind=own[0], movable=draw(st.integers(0, 5)) > 0)
        found.append(each)
    return found


modes = st.builds(DispatchMode, st.booleans(), st.sampled_from(["never", "queue", "position"]))
rules_of = st.builds(SizingRules, least_gain=st.sampled_from([0.0, 0.02]), horizon_s=st.just(600.0))


def then(order: Sequence[Asking], found: SizingDecision) -> list[Asking]:
    """Return the jobs as they are once they have what was decided."""
    after: list[Asking] = []
    for asking in order:
        if isinstance(asking, FixedSizeJob):
            after.append(msgspec.structs.replace(asking, kind=found.fixed.get(asking.job_id, "")))
        else:
            each = found.jobs[asking.job_id]
            now = each.size if each.gpus else None
            after.append(msgspec.structs.replace(asking, now=now, kind=each.kind, asks=each.size))
    return after


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from([["x"], ["x", "y"]]), rules_of, modes)
def test_deciding_again_changes_nothing(
    data: st.DataObject, kinds: list[str], rules: SizingRules, mode: DispatchMode
) -> None:
    order = data.draw(askings(kinds))
    devices = {kind: data.draw(st.integers(0, 6)) for kind in kinds}
    found = decide(order, devices, rules, mode)
    again = decide(then(order, found), devices, rules, mode)
    assert sizes(again) == sizes(found)
    assert {job: each.kind for job, each in again.jobs.items()} == {job: each.kind for job, each in found.jobs.items()}
    assert not any(each.changed for each in again.jobs.values())
    assert again.fixed == found.fixed


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from([["x"], ["x", "y"]]), rules_of, modes)
def test_no_device_is_given_twice_and_each_size_is_feasible(
    data: st.DataObject, kinds: list[str], rules: SizingRules, mode: DispatchMode
) -> None:
    order = data.draw(askings(kinds))
    devices = {kind: data.draw(st.integers(0, 6)) for kind in kinds}
    found = decide(order, devices, rules, mode)
    running = [each for each in order if isinstance(each, SizeRequest) and each.now]
    keeps = {each.job_id: each for each in running if not (each.movable and rows(each, devices, rules))}
    for kind in kinds:
        used = sum(each.gpus for job, each in found.jobs.items() if each.kind == kind and job not in keeps)
        used += sum(
            each.gpus for each in order if isinstance(each, FixedSizeJob) and found.fixed.get(each.job_id) == kind
        )
        held = sum(each.now.gpus for each in keeps.values() if each.kind == kind and each.now is not None)
        assert used <= max(0, devices[kind] - held)
    for asking in order:
        if isinstance(asking, SizeRequest) and (each := found.jobs[asking.job_id]).gpus and asking.job_id not in keeps:
            one = asking.profiles[each.kind]
            assert each.gpus in asking.widths
            assert one.b_min <= each.batch_size <= one.b_max
            assert float(one.throughput(each.batch_size, each.gpus)) > 0
            assert each.size not in asking.unfit
            assert each.reason


def factor(one: SizeRequest, size: Size, rules: SizingRules) -> float:
    """Return what a size counts for, of its throughput."""
    return 1 + rules.least_gain if one.now == size else 1 - one.cost_s / rules.horizon_s


def tried(order: Sequence[SizeRequest], devices: int, rules: SizingRules) -> Iterator[float]:
    """Yield the work that each choice of widths and batches gets done over the horizon, in horizons at scaling 1."""
    options: list[list[tuple[int, float]]] = []
    for one in order:
        batches = np.arange(one.profiles["x"].b_min, one.profiles["x"].b_max + 1, one.profiles["x"].batch_step)
        speeds = {g: one.profiles["x"].throughput(batches, g) for g in one.widths}
        unit = next(float(np.nanmax(each)) for each in speeds.values() if not np.isnan(each).all())
        found = []
        for gpus, each in speeds.items():
            for batch, speed in zip(batches.tolist(), each.tolist(), strict=True):
                worth = speed / unit * factor(one, Size(gpus, batch), rules)
                found += [(gpus, worth)] if speed > 0 else []
        options.append(found)
    for choice in product(*options):
        if sum(gpus for gpus, _ in choice) <= devices:
            yield sum(worth for _, worth in choice)


def worth(order: Sequence[SizeRequest], found: SizingDecision, rules: SizingRules) -> float:
    """Return the same of what was decided."""
    total = 0.0
    for one in order:
        each = found.jobs[one.job_id]
        total += each.scaling * factor(one, each.size, rules)
    return total


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(profiles_of(), st.integers(2, 4), st.integers(0, 4), st.sampled_from([0.0, 60.0, 300.0])),
        min_size=1,
        max_size=3,
    ),
    st.integers(3, 8),
)
def test_no_other_sizes_get_more_done_within_the_horizon(
    jobs: list[tuple[ThroughputProfile, int, int, float]], devices: int
) -> None:
    order = []
    for number, (one, most, now, cost_s) in enumerate(jobs):
        fits = now and now <= most and float(one.throughput(one.b_min, now)) > 0
        order.append(request(f"j{number}", one, most, cost_s=cost_s, **(on(now, one.b_min) if fits else {})))
    found = decide(order, {"x": devices})
    if all(each.gpus for each in found.jobs.values()):
        assert worth(order, found, SizingRules()) == pytest.approx(max(tried(order, devices, SizingRules())), abs=1e-5)
    else:  # then there are too few for the smallest
        least = [elastic.smallest(elastic.table(one, range(1, most + 1))[1][None, :])[0] for one, most, _, _ in jobs]
        assert 0 in least or sum(least) > devices


@settings(max_examples=examples(40))
@given(st.lists(profiles_of(), min_size=1, max_size=4), st.integers(0, 8))
def test_more_devices_never_make_it_worse(jobs: list[ThroughputProfile], devices: int) -> None:
    order = [request(f"j{number}", one, 4) for number, one in enumerate(jobs)]
    before, after = (decide(order, {"x": count}, FREE) for count in (devices, devices + 1))
    if [job for job, each in before.jobs.items() if each.gpus] == [
        job for job, each in after.jobs.items() if each.gpus
    ]:
        assert after.scaling >= before.scaling - 1e-9


@settings(max_examples=examples(40))
@given(st.data())
def test_what_is_given_was_held_and_is_got(data: st.DataObject) -> None:
    order = data.draw(askings(["x"]))
    devices = {"x": data.draw(st.integers(0, 8))}
    found = decide(order, devices)
    after: Mapping[str, int] = {job: each.gpus for job, each in found.jobs.items()}
    for asking in order:
        if isinstance(asking, SizeRequest):
            held = asking.now.gpus if asking.now is not None else 0
            gives = found.jobs[asking.job_id].gives
            assert sum(gives.values()) <= max(0, held - after[asking.job_id])
            assert all(number > 0 for number in gives.values())
