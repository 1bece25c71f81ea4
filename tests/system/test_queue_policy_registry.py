"""One registry of queue policies: everything that runs, shows or documents one reads it there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from order_oracle import columns, rank
from outcome_rows import trace_of
from ranker_facts import submitted

from penstock_log import JobsRanked
from penstock_policies.queue_policies import FALLS_BY, QUEUE_POLICIES, QueueKey, QueuePolicy
from penstock_ranker.machine import RankerSettings, RankerState, decider
from penstock_simulator import fast
from penstock_simulator.engine import policies, simulation
from penstock_simulator.report.picture import looks
from penstock_simulator.virtual_cluster import parse

DOCS = Path(__file__).parents[2] / "docs"
TRACE = trace_of([(0, 2, 100), (0, 2, 10), (5, 1, 50), (6, 4, 20)])

everyone = pytest.mark.parametrize("name", QUEUE_POLICIES)


@everyone
def test_the_ranker_ranks_by_it(name: str) -> None:
    ranker, state = decider(RankerSettings(order=name)), RankerState()
    ranker.apply(state, submitted("j1", 1.0, gpus=2, duration_s=9.0), 1)
    ((fact,),) = (proposal.facts for proposal in ranker.decide(state, 2.0).proposals)
    assert isinstance(fact, JobsRanked)
    assert (fact.order, [place.job_id for place in fact.ranks]) == (name, ["j1"])


@everyone
def test_the_event_engine_runs_it_and_has_jobs_declare_what_its_key_needs(name: str) -> None:
    chosen = policies.choose(name)
    assert (chosen.ranker.order, chosen.declares) == (name, QUEUE_POLICIES[name].declares)
    found = simulation.simulate(TRACE, parse("1x4"), name)
    assert found.finished.all()


@everyone
def test_the_fast_path_counts_it_or_says_why_not(name: str) -> None:
    if QUEUE_POLICIES[name].not_counted:
        assert name not in fast.FAST_POLICIES
    else:
        assert fast.simulate(TRACE, parse("1x4"), name).finished.all()


def test_one_that_is_declared_not_to_be_counted_has_its_reason_in_the_registry() -> None:
    assert {name for name, policy in QUEUE_POLICIES.items() if not policy.not_counted} == {*fast.FAST_POLICIES}


def test_each_has_a_look_of_its_own_in_reports() -> None:
    found = looks([*QUEUE_POLICIES])
    assert len({(look.colour, str(look.dashes)) for look in found.values()}) == len(QUEUE_POLICIES)


@everyone
def test_the_documents_have_it(name: str) -> None:
    policy = QUEUE_POLICIES[name]
    row = f"| `{name}` | {FALLS_BY[policy.demotes_by]} | {policy.within} | {policy.says} |"
    assert row in (DOCS / "ranking.md").read_text().splitlines()
    if not policy.not_counted:
        assert f"`{name}`" in next(
            line for line in (DOCS / "simulation.md").read_text().splitlines() if line.startswith("It counts ")
        )


ADDED = """
import sys
from penstock_policies.queue_policies import QUEUE_POLICIES, QueueKey, QueuePolicy

QUEUE_POLICIES["aged-length"] = QueuePolicy(
    "The shortest job first, and each second of waiting counts.", key=QueueKey(submitted=1, length=3), preempts=False
)

from penstock_cli.app import app
from penstock_simulator.report.picture import looks

print(looks(["fifo", "aged-length"])["aged-length"].colour)
for arguments in (
    ["sim", "--help"],
    ["sim", sys.argv[1], "--cluster", "1x1", "-p", "aged-length,fifo", "--engine", "counted", "-o", "json"],
    ["sim", sys.argv[1], "--cluster", "1x1", "-p", "aged-length,fifo", "--engine", "deciders", "-o", "json"],
):
    print("-----")
    app(arguments, standalone_mode=False)
"""


def test_one_that_is_added_to_the_registry_runs_everywhere_without_another_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,num_gpus,duration_s\na,0,1,100\nb,1,1,50\nc,2,1,10\nd,30,1,1\n")
    done = subprocess.run(
        [sys.executable, "-c", ADDED, str(tmp_path / "jobs.csv")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    colour, help_text, *figures = done.stdout.split("-----\n")
    assert colour.startswith("#")
    assert "each second of waiting counts" in " ".join(help_text.split())
    for told in figures:
        found = json.loads(told)["policies"]  # keys of b, c, d: 151, 32, 33
        assert found["aged-length"]["sum_jct_s"] == pytest.approx(100 + 108 + 81 + 160, abs=0.01)
        assert found["fifo"]["sum_jct_s"] == pytest.approx(100 + 149 + 158 + 131, abs=0.01)


def test_a_key_is_a_weighted_sum_times_devices_or_not() -> None:
    table = columns([2, 1], [3.0, 5.0], [1.0, 2.0], length_s=[10.0, 20.0])
    summed = QueuePolicy("", key=QueueKey(submitted=1, length=2.0))
    assert rank(summed, table)[1].tolist() == [23.0, 45.0]
    area = QueuePolicy("", key=QueueKey(devices=0.5, left=1.0, times_devices=True))
    assert np.allclose(rank(area, table)[1], [2 * (1.0 + 9.0), 18.5])
    assert area.falls_per_s(2, 2) == 2.0


@pytest.mark.parametrize("key", [QueueKey(), QueueKey(left=-1.0), QueueKey(times_devices=True)])
def test_a_key_that_orders_nobody_or_rises_by_service_is_refused(key: QueueKey) -> None:
    with pytest.raises(ValueError, match="expected a figure with a weight"):
        QueuePolicy("", key=key)


def test_the_published_simulator_refuses_a_line_that_it_does_not_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUEUE_POLICIES, "longest", QueuePolicy("", key=QueueKey(length=-1.0), preempts=False))
    monkeypatch.setattr("penstock_simulator.fast.fast_path.FAST_POLICIES", ("longest",))
    with pytest.raises(ValueError, match="tiresias-2019 sorts no such line"):
        fast.simulate(TRACE, parse("1x4"), "longest", compat="tiresias-2019")
