"""Sweeps that stop early, on the real thing: rungs that go on from checkpoints, and a tuner killed among them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter

import pytest
from clusters import facts, running, until

from penstock_log import subjects

TRIAL = """
import json, os, time, penstock
state = {"done": 0}
with penstock.session() as session, open(session.params["notes"], "a") as notes:
    number = session.job_id.rpartition("-t")[2].partition("-")[0]
    session.on_checkpoint(lambda p: (p / "state").write_text(json.dumps(state)),
                          lambda p: state.update(json.loads((p / "state").read_text())))
    for step in session.iterations(range(session.params["steps"])):
        time.sleep(0.03)
        state["done"] += 1
        print(number, step, file=notes, flush=True)
    assert state["done"] == session.params["steps"]
    if session.params["x"] > 0.9:
        session.report(score=float("nan"))
    else:
        session.report(score=session.params["x"])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("sweeps") / "data", "--emulate", "fast:3@1.0:4GiB", "--replicas", "tuner=2"
    ) as it:
        yield it


def sweep_file(folder, search: str, **fields: object) -> str:
    (folder / "trial.py").write_text(TRIAL)
    command = [sys.executable, str(folder / "trial.py")]
    params = {"notes": str(folder / "notes")}
    spec = {
        "name": "early",
        "metric": "score",
        "search": search,
        "seed": 4,
        "budget": {"param": "steps", "least": 1, "most": 9},
        "job": {"name": "trial", "command": command, "params": params, "profile": "off"},
        "space": {"x": {"kind": "uniform", "low": 0.0, "high": 1.0}},
        **fields,
    }
    (folder / "sweep.json").write_text(json.dumps(spec))
    return str(folder / "sweep.json")


def noted(folder) -> Counter[tuple[str, str]]:
    return Counter(tuple(line.split()) for line in (folder / "notes").read_text().splitlines())


async def leader(client) -> int:
    async for _, body in client.bus.subscribe(subjects.replicas("tuner")):
        vitals = json.loads(body)
        if vitals["leading"]:
            return int(vitals["pid"])
    raise AssertionError("listening does not end")


async def test_a_tuner_killed_in_mid_rung_is_replaced_and_each_trial_does_each_step_once(cluster, tmp_path):
    async with cluster.client() as client:
        pid = await leader(client)
        sweep_id = cluster.run("tune", sweep_file(tmp_path, "hyperband")).stdout.strip()
        await until(client, sweep_id, "sweep.trial_finished.v1", count=3)
        os.kill(pid, signal.SIGKILL)
        await until(client, sweep_id, "sweep.finished.v1")
        view = await client.sweep(sweep_id)
        assert [(r.bracket, r.budget, r.opened) for r in view.rungs] == [
            (0, 1, 9), (0, 3, 3), (0, 9, 1), (1, 3, 5), (1, 9, 1), (2, 9, 3),
        ]  # fmt: skip
        assert (view.state, view.opened) == ("completed", 17)
        assert set(noted(tmp_path).values()) == {1}, "a promoted trial goes on from its checkpoint, and none runs twice"
        reached = Counter(number for number, _ in noted(tmp_path))
        for trial in view.trials:
            assert reached[f"{trial.number:03d}"] >= trial.budget
        jobs = (await client.jobs(parent=sweep_id, limit=100)).jobs
        assert {job.attempts for job in jobs} == {1}
        assert len(await facts(client, sweep_id, "sweep.finished.v1")) == 1


async def test_a_trial_whose_metric_is_no_number_has_diverged_and_is_not_promoted(cluster, tmp_path):
    path = sweep_file(tmp_path, "halving", space={"x": {"kind": "choice", "values": [0.2, 0.95, 0.4]}}, sampler="grid")
    sweep_id = cluster.run("tune", path).stdout.strip()
    async with cluster.client() as client:
        await until(client, sweep_id, "sweep.finished.v1")
        view = await client.sweep(sweep_id)
    assert [trial.problem for trial in view.trials] == ["", "diverged", "", "", ""]
    assert view.best_value == 0.4
    shown = cluster.run("sweep", "show", sweep_id).stdout
    assert cluster.run("sweep", "best", sweep_id).stdout.split()[:4] == ["job:", view.best_job_id, "score:", "0.4"]
    rows = cluster.run("sweep", "export", sweep_id).stdout.splitlines()
    assert rows[2].endswith(",diverged,False,0.95")
    assert "diverged" in shown
    assert "goodput:" in shown
