"""The pages of sweeps, over real HTTP, as a gateway on the same bus knows them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest_asyncio
from dashboards import RunningDashboard, dashboard
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, spec, started, submitted, sweep_spec

from penstock_bus.memory import MemoryBus
from penstock_log import (
    Budget,
    SweepFinished,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    UserSet,
    subjects,
)
from penstock_log.request_bodies import RunProgress

PEOPLE = (
    UserSet(at_s=0.0, user="alice", role="user", teams=("vision",)),
    UserSet(at_s=0.0, user="bob", role="user", teams=("speech",)),
)
HOSTILE = "<script>alert('x')</script>\x1b[2J"


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(memory_bus, joined("n1", fast=4), *PEOPLE) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


def sweep(**fields: object) -> SweepSubmitted:
    return SweepSubmitted(
        at_s=NOW_S, sweep_id="s1", spec=sweep_spec(id="s1", job=spec(user="alice", command=(HOSTILE,)), **fields)
    )


def trial(number: int, **fields: object) -> Trial:
    return Trial(
        **{"job_id": f"s1-t{number}", "params": {"lr": 0.1 * number, "note": HOSTILE}, "number": number, **fields}
    )


def opened(*trials: Trial, group: int = 0) -> TrialGroupOpened:
    return TrialGroupOpened(at_s=NOW_S + 1, sweep_id="s1", group=group, trials=trials)


def finished(number: int, value: float | None, **fields: object) -> TrialFinished:
    return TrialFinished(
        **{
            "at_s": NOW_S + 9,
            "sweep_id": "s1",
            "job_id": f"s1-t{number}",
            "state": "completed",
            "value": value,
            **fields,
        }
    )


def job(number: int, **fields: object):
    return submitted(f"s1-t{number}", user="alice", parent="s1", **fields)


async def test_very_many_sweeps_come_in_parts_and_can_be_filtered(served: Gateway, site: RunningDashboard) -> None:
    many = [
        SweepSubmitted(at_s=NOW_S, sweep_id=f"w{n}", spec=sweep_spec(job=spec(user="alice", name=HOSTILE[8:13])))
        for n in range(130)
    ]
    await served.told(*many, SweepFinished(at_s=NOW_S, sweep_id="w129", state="completed"))
    visitor = await site.visitor("alice")
    page = await visitor.get("/sweeps")
    shown = [key for key in page.rows if key.startswith("w")]
    assert (shown[:2], len(shown)) == (["w128", "w127"], 100)
    assert "1 to 100 of 130" in page.rows["pager"]
    rest = await visitor.get("/sweeps?offset=100")
    assert [key for key in rest.rows if key.startswith("w")][-2:] == ["w0", "w129"]
    assert "101 to 130 of 130" in rest.rows["pager"]
    completed = await visitor.get("/sweeps?state=completed")
    assert [key for key in completed.rows if key.startswith("w")] == ["w129"]
    assert "No sweep" in (await visitor.get("/sweeps?user=bob")).rows["none"]


async def test_sweeps_are_listed_to_whom_they_may_be_shown(served: Gateway, site: RunningDashboard) -> None:
    await served.told(sweep(trials=9), opened(trial(1), trial(2)), job(1), finished(1, 0.75))
    row = (await (await site.visitor("alice")).get("/sweeps")).rows["s1"]
    assert row.startswith("s1 s running alice accuracy 0.75 1 of 9")
    for visitor in (await site.visitor("bob"), await site.visitor()):
        assert "No sweep that you may see" in (await visitor.get("/sweeps")).text
        assert (await visitor.get("/sweeps/s1")).status == 403


async def test_a_sweep_without_trials_has_a_page(served: Gateway, site: RunningDashboard) -> None:
    await served.told(sweep())
    page = await (await site.visitor("alice")).get("/sweeps/s1")
    assert page.status == 200
    assert page.rows["best so far"] == "best so far none yet"
    assert "No trial was opened yet." in page.text
    assert "No device was held yet." in page.text


async def test_trials_are_sorted_by_value_and_the_best_is_marked(served: Gateway, site: RunningDashboard) -> None:
    trials = [trial(number) for number in range(1, 4)]
    await served.told(sweep(trials=3), opened(*trials), *(job(number) for number in range(1, 4)))
    values = {1: 0.2, 2: 0.9}
    await served.told(*(finished(number, value) for number, value in values.items()))
    await served.told(finished(3, None, state="failed", problem="crashed", reason=HOSTILE))
    visitor = await site.visitor("alice")
    page = await visitor.get("/sweeps/s1")
    assert [key for key in page.rows if key.startswith("s1-t")] == ["s1-t2", "s1-t1", "s1-t3"]
    assert page.rows["s1-t2"].endswith("the best")
    assert "crashed: <script>" in page.rows["s1-t3"]
    assert "<script>alert" not in page.text
    assert "\x1b" not in page.text
    by_number = (await visitor.get("/sweeps/s1?sort=number")).rows
    assert [key for key in by_number if key.startswith("s1-t")] == ["s1-t1", "s1-t2", "s1-t3"]
    assert (await visitor.get("/sweeps/s1?sort=nonsense")).status == 200


async def test_rungs_and_curves_follow_a_trial_that_went_on(served: Gateway, site: RunningDashboard) -> None:
    budget = Budget(least=10, most=90)
    first = [trial(number, budget=10) for number in (1, 2)]
    await served.told(sweep(search="halving", budget=budget), opened(*first), finished(1, 0.3), finished(2, 0.1))
    again = trial(1, job_id="s1-t1-r1", budget=30, rung=1, origin="s1-t1")
    await served.told(opened(again, group=1), msgspec.structs.replace(finished(1, 0.6), job_id="s1-t1-r1"))
    page = await (await site.visitor("alice")).get("/sweeps/s1")
    assert page.rows["0 0"] == "0 0 10 2 2 1 0.3"
    assert page.rows["0 1"] == "0 1 30 1 1 0 0.6"
    curve = page.text.partition('data-line="1" data-mark="best" data-points="')[2].partition('"')[0]
    assert curve == "[[10,0.0,0.3],[30,0.0,0.6]]"


async def test_curves_of_running_trials_come_from_what_they_report(served: Gateway, site: RunningDashboard) -> None:
    await served.told(sweep(), opened(trial(1)), job(1), placed("s1-t1"), started("s1-t1"))
    visitor = await site.visitor("alice")
    report = RunProgress(job_id="s1-t1", epoch=1, step=7, metrics={"accuracy": 0.4, "loss": 2.0})
    await served.bus.publish(subjects.progress("s1-t1"), msgspec.json.encode(report))
    while 'data-line="s1-t1" data-mark="running"' not in (page := (await visitor.get("/sweeps/s1")).text):
        assert site.url
    assert "[[7," in page


async def test_the_water_level_has_a_column_for_each_open_trial(served: Gateway, site: RunningDashboard) -> None:
    wide, packed = trial(1, gpus=2), trial(2, packed=4)
    lane = {"sharing": "lane", "sharers": 4}
    await served.told(sweep(), opened(wide, packed), job(1, gpus=2), job(2, **lane), job(3))
    await served.told(placed("s1-t1", 0, 1), started("s1-t1"))
    page = await (await site.visitor("alice")).get("/sweeps/s1")
    assert "1 run on about 2 devices, 2 each" in page.rows["text"]
    assert "trial s1-t1: 2 devices, running" in page.text
    assert "trial s1-t2: a device shared by 4 at most, waiting" in page.text


async def test_device_time_adds_up_to_what_was_held(served: Gateway, site: RunningDashboard) -> None:
    await served.told(sweep(), opened(trial(1)), job(1), placed("s1-t1"), started("s1-t1"))
    await served.told(ended("s1-t1", at_s=NOW_S + 42, loop_s=10.0, loop_steps=5), finished(1, 0.5, at_s=NOW_S + 43))
    rows = (await (await site.visitor("alice")).get("/sweeps/s1")).rows
    assert rows["training that went on"].endswith("10 GPU-seconds, 25 %")
    assert rows["starting, saving and leaving"].endswith("30 GPU-seconds, 75 %")


async def test_a_sweep_is_cancelled_from_its_page_by_who_may(served: Gateway, site: RunningDashboard) -> None:
    await served.told(sweep(), opened(trial(1)), job(1))
    alice, bob = await site.visitor("alice"), await site.visitor("bob")
    for visitor in (alice, bob):
        await visitor.get("/sweeps")
    fields = {"verb": "cancel_sweep", "id": "s1", "back": "/sweeps/s1"}
    assert (await bob.post("/act", {"token": bob.form_token, **fields})).status == 403
    assert (await alice.post("/act", {"token": bob.form_token, **fields})).status == 403
    assert 'value="cancel_sweep"' in (await alice.get("/sweeps/s1")).text
    assert (await alice.post("/act", {"token": alice.form_token, **fields})).status == 303
    page = await alice.get("/sweeps/s1")
    assert page.rows["state"].startswith("state cancelling")
    assert 'value="cancel_sweep"' not in page.text


async def test_a_sweep_is_shown_as_it_was(served: Gateway, site: RunningDashboard) -> None:
    seq = await served.told(sweep(), opened(trial(1)), job(1))
    await served.told(finished(1, 0.5))
    visitor = await site.visitor("alice")
    past = await visitor.get(f"/sweeps/s1?at={seq}")
    assert past.rows["best so far"] == "best so far none yet"
    assert f"/jobs/s1-t1?at={seq}" in past.text
    assert 'value="cancel_sweep"' not in past.text
    assert (await visitor.get(f"/sweeps?at={seq}")).rows["s1"].startswith("s1 s running")


async def test_a_sweep_of_very_many_trials_shows_the_best_of_them(served: Gateway, site: RunningDashboard) -> None:
    trials = tuple(trial(number, budget=9) for number in range(700))
    await served.told(sweep(search="halving", budget=Budget(most=9)), opened(*trials))
    await served.told(*(finished(number, number / 1000) for number in range(600)))
    visitor = await site.visitor("alice")
    page = await visitor.get("/sweeps/s1")
    rows = [key for key in page.rows if key.startswith("s1-t")]
    assert rows[:2] == ["s1-t599", "s1-t598"]
    assert len(rows) == 500
    assert "200 are left out" in page.text
    assert page.text.count('data-chart="curves"') == 1 + 50
