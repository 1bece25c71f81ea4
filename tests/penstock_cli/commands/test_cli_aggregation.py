"""Aggregators and the jobs on them, as ``aggregation ls`` and ``show`` say it."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
from fake_gateway import FakeGateway

from penstock_cli.commands.aggregation import aggregated_table, aggregator_table
from penstock_log import PartPlaced, views
from penstock_log.request_bodies import AggregationRequest

Run = Callable[..., tuple[int, str, str]]


def aggregator(name: str = "n1/0", **more: object) -> views.AggregatorUseView:
    about = {"id": name, "node_id": "n1", "pool": "default", "state": "running", "since_s": 90.0, **more}
    return msgspec.convert(about, views.AggregatorUseView)


def job(job_id: str = "j1", **more: object) -> views.AggregatedJobView:
    about = {
        "id": job_id,
        "name": "train",
        "user": "ada",
        "pool": "default",
        "epoch": 1,
        "mode": "shared",
        "phase": "packed",
        "shares": True,
        "servers": 2,
        "parts": 2,
        "size_bytes": 2 << 20,
        "world_size": 2,
        "rule": "mean",
        **more,
    }
    return msgspec.convert(about, views.AggregatedJobView)


def test_aggregators_are_listed_with_how_busy_they_are() -> None:
    busy = aggregator(parts=3, jobs=("j1", "j2"), others=1, cycle_s=12.0, busy_s=0.7, utilisation=0.058)
    _, rows = aggregator_table([busy, aggregator("n1/1")], 100.0)
    assert rows[0] == ("n1/0", "running", "3", "j1,j2,1 of others", "12s", "700ms", "6%", "10.0s ago")
    assert rows[1][3:7] == ("-", "-", "-", "-")


def test_what_an_agent_says_of_its_aggregators_is_listed_in_wide() -> None:
    about = {
        "heard_s": 99.0,
        "spent_s": 2.5,
        "received_bytes": 1 << 20,
        "sent_bytes": 2 << 20,
        "refused": {"COUNTED": 3},
    }
    headers, rows = aggregator_table([aggregator(**about), aggregator("n1/1")], 100.0, wide=True)
    assert headers[-5:] == ("PROCESSOR", "RECEIVED", "SENT", "REFUSED", "HEARD")
    assert [row[-5:] for row in rows] == [("2.5s", "1MiB", "2MiB", "3", "1.0s ago"), ("-",) * 5]


def test_jobs_are_listed_with_what_sharing_costs_them() -> None:
    one = job(aggregators=("n1/0", "n2/0"), alone_s=0.2, loss=0.04, moves=3, moving=1, assigned_s=40.0)
    measured = msgspec.structs.replace(one, now_s=0.21, measured_loss=0.05)
    _, rows = aggregated_table([measured, job("j2", phase="waits"), one], 100.0)
    assert rows[0][2:] == ("shared", "packed", "n1/0,n2/0", "200ms", "210ms", "5%", "3 (1 on the way)", "1m00s ago")
    assert rows[1][4:] == ("-", "-", "-", "-", "0", "-")
    assert rows[2][6:8] == ("-", "4%")  # as computed, until it is measured
    headers, wide = aggregated_table([one], 100.0, wide=True)
    assert (headers[-1], wide[0][-8]) == ("WHY", "default")


def test_both_lists_stand_below_each_other(penstock: Run, gateway: FakeGateway) -> None:
    gateway.aggregation = views.AggregationView(
        aggregators=(aggregator(jobs=("j1",)),), jobs=(job(),), seq=7, most={"default": 4}, free={"default": 1}
    )
    code, out, _ = penstock("aggregation", "ls")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line] == ["AGGREGATOR", "n1/0", "JOB", "j1", "aggregators:"]
    assert out.endswith("aggregators: 1 of 4 free in default\n")
    assert json.loads(penstock("aggregation", "ls", "-o", "json")[1])["jobs"][0]["servers"] == 2


def test_a_job_is_shown_with_its_parts(penstock: Run, gateway: FakeGateway) -> None:
    placed = tuple(PartPlaced(part=part, aggregator="n1/0", generation=1) for part in range(2))
    about = {"placed": placed, "aggregators": ("n1/0",), "alone_s": 0.2}
    about |= {"now_s": 0.22, "held_s": 0.003, "alone_held_s": 0.001, "evidence": "it is so"}
    gateway.aggregation = views.AggregationView(
        aggregators=(aggregator(jobs=("j1", "j2"), cycle_s=1.0, utilisation=0.5),),
        jobs=(msgspec.structs.replace(job(), measured_loss=1 - 0.2 / 0.22, **about),),
        seq=7,
    )
    out = penstock("aggregation", "show", "j1")[1]
    said = {key.strip(): text.strip() for key, _, text in (line.partition(":  ") for line in out.splitlines())}
    assert said["because"] == "it is so"
    assert said["now"] == "220ms an iteration, 9.1% slower; 3ms of it at its aggregators, 1ms when it was alone"
    assert said["on n1/0"] == "parts 0, 1, 50% of a cycle of 1s, with j2"
    assert gateway.asked[-1] == AggregationRequest(id="j1")


def test_a_job_without_aggregation_says_how_to_have_some(penstock: Run, gateway: FakeGateway) -> None:
    code, _, error = penstock("aggregation", "show", "j1")
    assert code != 0
    assert "its script has not used session.aggregate() in this run so far" in error
