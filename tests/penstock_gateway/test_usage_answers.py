"""Accounts: the sums of windows and groups, against a sum over the raw facts by brute force; and who sees what."""

from __future__ import annotations

import gzip
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from gateway_cases import NOW_S, ended, gateway, joined, placed, refusal, started, submitted
from hypothesis import given, settings
from hypothesis import strategies as st
from log_state import read_wire
from random_runs import T0, RandomRuns
from recorded_clusters import log as recorded
from usage_oracle import COLUMNS, COUNTS, Oracle

from penstock import Client
from penstock_bus import Delivery
from penstock_bus.decider import Fold
from penstock_bus.memory import MemoryBus
from penstock_gateway import machine, usage_answers
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_log.request_bodies import RunProgress, UsageBy, UsageRequest
from penstock_log.usage import Usage
from penstock_log.views import UsageView
from penstock_simulator.traces import log_file
from penstock_testing import Scenario, delivery
from sweeps import examples

DATA = Path(__file__).parents[1] / "data"
LOGS = sorted(path.name for folder in ("logs", "recorded") for path in (DATA / folder).glob("*.log.gz"))
GROUPS = ("user", "team", "pool", "model", "kind", "job")
WINDOWS = 12


@cache
def log_named(name: str) -> tuple[Delivery, ...]:
    if name == "every fact":
        return tuple(one for one in recorded() if one.subject != "penstock.evt.archive.log")
    if (path := DATA / "logs" / name).exists():
        return tuple(read_wire(path))
    return tuple(log_file.decode(gzip.decompress((DATA / "recorded" / name).read_bytes()).splitlines()))


@cache
def model_of(name: str) -> ReadModel:
    fold: Fold[GatewayState] = Fold(machine.decider(GatewaySettings()))
    log = [one for one in log_named(name) if one.subject != "penstock.evt.archive.log"]
    for one in log:
        fold.apply(one)
    return ReadModel(state=fold.state, now_s=log[-1].stored_s, seq=fold.last_seq)


@cache
def oracle_of(name: str) -> Oracle:
    return Oracle([one for one in log_named(name) if one.subject != "penstock.evt.archive.log"])


def windows(name: str) -> Iterator[tuple[float, float]]:
    rng = np.random.default_rng(len(name))
    log = log_named(name)
    first_s, last_s = log[0].stored_s, log[-1].stored_s
    yield -math.inf, math.inf
    for _ in range(WINDOWS):
        since_s, until_s = sorted(map(float, rng.uniform(first_s - 5, last_s + 5, 2)))
        yield since_s, min(until_s, last_s)


def asked(by: str = "user", since_s: float = -math.inf, until_s: float = math.inf, **more: Any) -> UsageRequest:
    return UsageRequest(
        by=by,  # type: ignore[arg-type] # of the literal
        since=None if since_s == -math.inf else since_s,
        until=None if until_s == math.inf else until_s,
        **more,
    )


def columns(usage: Usage) -> dict[str, float]:
    return {name: getattr(usage, f"{name}_gpu_s") for name in COLUMNS} | {name: getattr(usage, name) for name in COUNTS}


def answer(model: ReadModel, request: UsageRequest, caller: Caller = SERVICE) -> UsageView:
    return usage_answers.usage(model, request, caller)


def by_name(view: UsageView) -> dict[str, dict[str, float]]:
    return {row.name: columns(row.usage) for row in view.rows if not row.usage.is_empty}


def test_the_groups_are_those_of_the_request() -> None:
    assert get_args(UsageBy) == GROUPS


@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("name", [*LOGS, "every fact"])
def test_each_group_has_what_the_raw_facts_say_in_any_window(name: str, by: str) -> None:
    for since_s, until_s in windows(name):
        expected: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for key, row in oracle_of(name).usage(max(since_s, 0.0), until_s).items():
            for column, value in row.items():
                expected[key[GROUPS.index(by)]][column] += value
        view = answer(model_of(name), asked(by, since_s, until_s))
        found = by_name(view)
        assert found.keys() == {key for key, row in expected.items() if any(row.values())}
        for key, row in expected.items():
            assert found[key] == pytest.approx(dict(row), abs=1e-4), (key, since_s, until_s)


@pytest.mark.parametrize("name", [*LOGS, "every fact"])
def test_columns_groups_and_windows_add_up(name: str) -> None:
    model, first_s = model_of(name), log_named(name)[0].stored_s
    for since_s, until_s in windows(name):
        middle_s = 0.4 * max(since_s, first_s) + 0.6 * min(until_s, model.now_s)
        for by in GROUPS:
            view = answer(model, asked(by, since_s, until_s))
            whole = columns(view.total.usage)
            assert whole["held"] == pytest.approx(sum(whole[one] for one in ("used", "idle", "unmeasured", "lost")))
            parts = [columns(row.usage) for row in view.rows]
            assert {one: sum(part[one] for part in parts) for one in whole} == pytest.approx(whole)
            assert sum(row.waits.jobs for row in view.rows) == view.total.waits.jobs
            earlier, later = answer(model, asked(by, since_s, middle_s)), answer(model, asked(by, middle_s, until_s))
            both = {key: by_name(earlier).get(key, {}) for key in by_name(earlier).keys() | by_name(later)}
            for key, row in by_name(view).items():
                halves = [both.get(key, {}), by_name(later).get(key, {})]
                assert {one: sum(half.get(one, 0.0) for half in halves) for one in row} == pytest.approx(row, abs=1e-6)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_runs_have_what_the_raw_facts_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log = [delivery(seq, fact) for seq, fact in enumerate(RandomRuns(rng).facts(150), 1)]
    fold: Fold[GatewayState] = Fold(machine.decider(GatewaySettings()))
    for one in log:
        fold.apply(one)
    now_s = max(fact.at_s for one in log for fact in one.commit.facts) + 30.0
    model = ReadModel(state=fold.state, now_s=now_s, seq=fold.last_seq)
    oracle = Oracle(log, now_s)
    for since_s, until_s in [(0.0, now_s), *(sorted(rng.uniform(T0 - 100, now_s, 2).tolist()) for _ in range(3))]:
        expected: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for key, row in oracle.usage(since_s, until_s).items():
            for column, value in row.items():
                expected[key[-1]][column] += value
        found = by_name(answer(model, asked("job", since_s, until_s)))
        for job_id, row in expected.items():
            assert found.get(job_id) == pytest.approx(dict(row), abs=1e-3), (job_id, since_s, until_s)
        assert found.keys() == expected.keys()


@pytest.fixture
def log() -> Scenario[GatewayState]:
    """Three users in two teams, whose jobs have held a device for 4, 5 and 6 seconds, and one that waits."""
    log = Scenario(machine.decider(GatewaySettings())).at(NOW_S + 100)
    log.given(joined(fast=3))
    for number, (user, team) in enumerate((("uma", "vision"), ("tom", "vision"), ("bob", "robots"))):
        job_id, model = f"j-{user}", f"net-{user}"
        log.given(submitted(job_id, user=user, team=team, model=model, name=f"secret-{user}"))
        log.given(placed(job_id, number), started(job_id), ended(job_id, at_s=NOW_S + 5 + number))
    return log.given(submitted("waits", user="uma", team="vision", model="net-uma", gpus=2, at_s=NOW_S + 50))


def now(log: Scenario[GatewayState], **more: Any) -> ReadModel:
    return ReadModel(state=log.state, now_s=log.now_s, seq=log.fold.last_seq, **more)


def held(view: UsageView) -> dict[str, float]:
    return {"(others)" if row.others else row.name: row.usage.held_gpu_s for row in view.rows}


UMA = Caller(name="uma", role="user", teams=("vision",))
ANYBODY = Caller(name="anonymous", role="viewer")
OPERATOR = Caller(name="oskar", role="operator")


@pytest.mark.parametrize(
    ("caller", "by", "expected"),
    [
        (OPERATOR, "user", {"bob": 6, "tom": 5, "uma": 4}),
        (UMA, "user", {"tom": 5, "uma": 4, "(others)": 6}),
        (ANYBODY, "user", {"(others)": 15}),
        (UMA, "model", {"net-tom": 5, "net-uma": 4, "(others)": 6}),
        (ANYBODY, "model", {"(others)": 15}),
        (UMA, "job", {"j-tom": 5, "j-uma": 4, "waits": 0, "(others)": 6}),
        (ANYBODY, "team", {"vision": 9, "robots": 6}),
        (ANYBODY, "pool", {"default": 15}),
        (ANYBODY, "kind", {"fast": 15, "": 0}),
    ],
)
def test_people_see_their_own_rows_and_the_sum_of_the_others(
    log: Scenario[GatewayState], caller: Caller, by: UsageBy, expected: dict[str, float]
) -> None:
    view = answer(now(log), asked(by), caller)
    assert held(view) == expected
    assert view.total.usage.held_gpu_s == 15.0
    if caller is not OPERATOR and by in {"user", "model", "job"}:
        assert "bob" not in msgspec.json.encode(view).decode()


def test_what_is_beyond_the_limit_is_one_row(log: Scenario[GatewayState]) -> None:
    assert held(answer(now(log), asked("user", limit=1))) == {"bob": 6, "(others)": 9}
    assert list(held(answer(now(log), asked("user", order="waited")))) == ["uma", "bob", "tom"]
    assert list(held(answer(now(log), asked("user", order="name")))) == ["bob", "tom", "uma"]


def test_a_job_that_waits_has_waited_until_now_and_counts_once(log: Scenario[GatewayState]) -> None:
    (row,) = (one for one in answer(now(log), asked("job")).rows if one.name == "waits")
    assert (row.usage.waited_gpu_s, row.usage.jobs, row.usage.runs, row.title) == (100.0, 1, 0, "job")
    later = answer(now(log), asked("job", since_s=NOW_S + 90))
    assert [(one.name, one.usage.waited_gpu_s, one.usage.jobs) for one in later.rows] == [("waits", 20.0, 0)]


def test_waits_are_from_submission_to_the_first_devices(log: Scenario[GatewayState]) -> None:
    log.given(placed("waits", 0, 1, at_s=NOW_S + 90))
    (row,) = answer(now(log), asked("pool")).rows
    assert (row.waits.jobs, row.waits.median_s) == (4, 1.0)
    assert row.waits.p90_s == pytest.approx(1 + 0.7 * 39)
    assert answer(now(log), asked("pool", since_s=NOW_S + 91)).total.waits.median_s is None


def test_a_run_that_goes_on_is_measured_by_its_report(log: Scenario[GatewayState]) -> None:
    log.given(placed("waits", 0, 1, at_s=NOW_S + 60), started("waits", at_s=NOW_S + 60))
    assert answer(now(log), asked()).total.usage.unmeasured_gpu_s == 15 + 80
    report = RunProgress(job_id="waits", epoch=1, loop_s=30.0, loop_steps=3)
    found = answer(now(log, reports={"waits": report}), asked()).total.usage
    assert (found.unmeasured_gpu_s, found.used_gpu_s, found.idle_gpu_s) == (15.0, 60.0, 20.0)


def test_a_run_that_goes_on_and_waits_for_its_turn_is_not_idle(log: Scenario[GatewayState]) -> None:
    for job_id in ("a", "b"):
        log.given(submitted(job_id, sharing="lane", at_s=NOW_S + 60), placed(job_id, at_s=NOW_S + 60))
        log.given(started(job_id, at_s=NOW_S + 60))
    half = RunProgress(job_id="a", epoch=1, loop_s=10.0, loop_steps=3, waited_s=20.0)
    found = {row.name: row.usage for row in answer(now(log, reports={"a": half}), asked("job")).rows}
    assert (found["a"].held_gpu_s, found["a"].used_gpu_s, found["a"].idle_gpu_s) == (20.0, 15.0, 5.0)
    unsaid = RunProgress(job_id="a", epoch=1, loop_s=15.0, loop_steps=3)  # of an executor that does not say it
    found = {row.name: row.usage for row in answer(now(log, reports={"a": unsaid}), asked("job")).rows}
    assert (found["a"].used_gpu_s, found["a"].idle_gpu_s) == (15.0, 5.0)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (
            {"since": "yesterday"},
            "since='yesterday' is no time; expected a span before now (7d), a UTC day (2026-01-31)",
        ),
        ({"until": math.inf}, "until=inf is no time; expected seconds since the epoch"),
        ({"since": "1h", "until": "2h"}, "since='1h' is after the window's end, until='2h'; name an earlier one"),
        ({"since": NOW_S + 10_000}, "is after the window's end, until='now'"),
    ],
)
def test_a_window_that_is_none_is_refused(log: Scenario[GatewayState], window: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRefused, match=r"(since|until)=") as refused:
        answer(now(log), UsageRequest(**window))
    assert (refused.value.code, message in str(refused.value)) == (400, True)


def test_a_window_is_named_by_a_span_a_day_or_a_time() -> None:
    now_s = 1_769_860_800.0  # 2026-01-31T12:00:00Z
    noon = UsageRequest(since="2026-01-31", until="2026-01-31T11:00:00+01:00")
    assert usage_answers.window(noon, now_s) == (now_s - 43_200, now_s - 7_200)
    assert usage_answers.window(UsageRequest(since="7d"), now_s) == (now_s - 604_800, now_s)
    assert usage_answers.window(UsageRequest(since="1w", until=now_s + 5), now_s) == (now_s - 604_800, now_s)


async def test_a_client_asks_a_gateway_also_about_the_past() -> None:
    facts = [joined(), submitted("j1", user="uma", gpus=2), placed("j1", 0, 1), started("j1")]
    async with MemoryBus() as bus, gateway(bus, *facts, ended("j1")) as running, Client(bus=running.bus) as client:
        view = await client.usage("user", since=NOW_S, until=NOW_S + 3)
        assert [(row.name, row.usage.held_gpu_s, row.usage.waited_gpu_s) for row in view.rows] == [("uma", 4.0, 2.0)]
        past = await client.usage("user", at=3)
        assert (past.seq, past.total.usage.runs, past.total.usage.preemptions) == (3, 1, 0)
        code, said = await refusal(client.usage(since="soon"))
        assert (code, said.startswith("since='soon' is no time")) == (400, True)


def test_an_empty_cluster_has_an_empty_account() -> None:
    empty = Scenario(machine.decider(GatewaySettings())).at(NOW_S)
    view = answer(now(empty), asked())
    assert (view.rows, view.since_s, view.until_s, view.total.usage.is_empty) == ((), NOW_S, NOW_S, True)
