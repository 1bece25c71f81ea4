"""Trials side by side on one device, and moved to others while they run, on the real thing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import pytest
from clusters import facts, running, until

pytestmark = pytest.mark.timeout(300)  # four jobs start at once, and move to other devices several times

TRIAL = """
import json, penstock
state = {"done": 0, "wide": 0}

def others():
    with open(session.params["notes"]) as lines:
        return {line.split()[0] for line in lines}

with penstock.session() as session, open(session.params["notes"], "a") as notes:
    number = session.job_id.rpartition("-t")[2].partition("-")[0]
    session.on_checkpoint(lambda p: (p / "state").write_text(json.dumps(state)),
                          lambda p: state.update(json.loads((p / "state").read_text())))
    for step in session.iterations(range(100_000)):
        sum(range(60_000 // session.world_size))  # which the device stretches
        state["done"] += 1
        state["wide"] += session.world_size > 1
        if session.rank == 0:
            print(number, step, session.world_size, file=notes, flush=True)
        if len(others()) == 4 and (session.params["x"] < 3 or state["wide"] >= 8):
            break
    session.report(score=float(state["done"]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("widths") / "data", "--emulate", "fast:2@0.1:4GiB") as it:
        yield it


def sweep_file(folder) -> str:
    (folder / "trial.py").write_text(TRIAL)
    (folder / "notes").touch()
    command = [sys.executable, str(folder / "trial.py")]
    spec: dict[str, Any] = {
        "name": "widths",
        "metric": "score",
        "search": "grid",
        "max_gpus": 2,
        "packing": 2,
        "job": {"name": "t", "command": command, "params": {"notes": str(folder / "notes")}, "profile": "off"},
        "space": {"x": {"kind": "choice", "values": [0, 1, 2, 3]}},
    }
    (folder / "sweep.json").write_text(json.dumps(spec))
    return str(folder / "sweep.json")


@pytest.mark.thorough
async def test_trials_share_devices_and_the_last_goes_on_on_both_without_losing_a_step(cluster, tmp_path):
    sweep_id = cluster.run("tune", sweep_file(tmp_path)).stdout.strip()
    async with cluster.client() as client:
        await until(client, sweep_id, "sweep.finished.v1")
        view = await client.sweep(sweep_id)
        assert [trial.problem for trial in view.trials] == [""] * 4
        assert view.best_job_id.endswith("-t003"), "the one that goes on until it is wide"
        runs = {t.job_id: await facts(client, t.job_id, "run.started.v1") for t in view.trials}
        first = Counter(tuple(found[0].fact["devices"]) for found in runs.values())
        assert first == {(0,): 2, (1,): 2}, "two side by side on each device"
        assert len(runs[view.best_job_id][-1].fact["devices"]) == 2
        named = [d for scaled in await facts(client, sweep_id, "sweep.scaled.v1") for d in scaled.fact["demands"]]
        assert (named[-1]["job_id"], named[-1]["gpus"]) == (view.best_job_id, 2)
        moves = Counter(demand["job_id"] for demand in named)
        for job_id, found in runs.items():
            assert 1 <= len(found) <= 1 + moves[job_id], "who is not named is not touched"
    steps = [line.split()[:2] for line in (tmp_path / "notes").read_text().splitlines()]
    assert set(Counter(map(tuple, steps)).values()) == {1}, "each step once"
    of_last = [int(step) for number, step in steps if number == "003"]
    assert of_last == list(range(len(of_last))), "and none left out"
    assert view.best_value == len(of_last)
