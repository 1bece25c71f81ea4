"""Snapshots of the read model: at any moment, all answers are those of a fold from the beginning of the log."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import recorded_clusters
from gateway_cases import NOW_S, ended, joined, placed, started, submitted, sweep_spec
from log_state import read_wire
from random_history import RandomHistory

from penstock_bus import Delivery
from penstock_bus.decider import Fold
from penstock_gateway import (
    acceptance,
    aggregation_answers,
    answers,
    device_answers,
    machine,
    stats_answer,
    usage_answers,
)
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.past_fold import OF_JOB_TABLE, PastFold, example
from penstock_gateway.past_tables import PastJobs, PastTable
from penstock_gateway.snapshot_file import SnapshotFile
from penstock_log import Job, JobsArchived, JobState, RunCheckpointed, SweepFinished, SweepSubmitted
from penstock_log.lifecycle import JobTable
from penstock_log.request_bodies import JobsRequest, QueueRequest, SweepsRequest, UsageRequest
from penstock_simulator.traces import log_file
from penstock_testing import delivery
from sweeps import sampled

DECIDER = machine.decider(GatewaySettings())
DATA = Path(__file__).parents[1] / "data"
ASKS = (
    JobsRequest(),
    JobsRequest(limit=3),
    JobsRequest(state=("CD", "F")),
    JobsRequest(state=("PD", "R")),
    JobsRequest(user="ada", limit=2),
    JobsRequest(name="tr*"),
    JobsRequest(name="traine*", limit=1),
    JobsRequest(name="x"),
    JobsRequest(samples=True, limit=7),
    JobsRequest(parent="w0"),
    JobsRequest(limit=2, offset=3),
    JobsRequest(limit=5, offset=1000),
    JobsRequest(limit=5, rows=True, state=("CD",), offset=1),
    JobsRequest(team="vision", limit=3),
    JobsRequest(pool="other"),
    JobsRequest(model="mlp"),
    JobsRequest(model="bert", user="ada"),
    JobsRequest(text="1"),
    JobsRequest(text="RAI", limit=4),
    JobsRequest(group="nightly", limit=3),
    JobsRequest(group="exp", state=("CD", "F")),
    JobsRequest(array="exp", limit=2),
    JobsRequest(ids=("j1", "j0", "nobody")),
    JobsRequest(ids=("j1", "j0"), since_s=NOW_S + 40),
    JobsRequest(since_s=NOW_S + 40),
    JobsRequest(since_s=NOW_S + 20, user="ada", limit=3),
)
SWEPT = (
    SweepsRequest(),
    SweepsRequest(limit=1),
    SweepsRequest(limit=2, offset=1),
    SweepsRequest(offset=1000),
    SweepsRequest(state=("completed", "running"), limit=3),
    SweepsRequest(user="ada"),
    SweepsRequest(team="vision", limit=1),
)
USED = (
    UsageRequest(),
    UsageRequest(by="job", since=NOW_S, until=NOW_S + 120),
    UsageRequest(by="team", since="1h"),
)
CALLERS = (SERVICE, Caller(name="ada", role="user", teams=("vision",)), Caller(name="anonymous", role="viewer"))


def logs() -> Iterator[Any]:
    yield pytest.param(recorded_clusters.log(), id="every fact")
    for path in sorted((DATA / "logs").glob("*.log.gz")):
        yield pytest.param(read_wire(path), id=path.name.removesuffix(".log.gz"))
    for seed in range(3):
        facts = [joined("n1"), joined("n2"), *RandomHistory(seed).facts(200)]
        yield pytest.param([delivery(seq, fact) for seq, fact in enumerate(facts, 1)], id=f"random {seed}")
    facts = [joined("n1"), joined("n2"), *RandomHistory(3, pilots=True).facts(200)]
    yield pytest.param([delivery(seq, fact) for seq, fact in enumerate(facts, 1)], id="random pilots")


def written(folder: Path, log: Sequence[Delivery], every: int) -> SnapshotFile:
    """Return a file with a snapshot after each so many commits."""
    file = SnapshotFile.make(folder / "0-1-a.past.sqlite", example(), 0)
    fold = PastFold(file, DECIDER, None)
    for number, one in enumerate(log, 1):
        fold.apply(one)
        if number % every == 0:
            assert fold.save()
    return file


def past(file: SnapshotFile, log: Sequence[Delivery], until: Delivery) -> PastFold:
    fold = PastFold(file, DECIDER, file.nearest(until.seq))
    for one in log:
        if fold.base_seq < one.seq <= until.seq:
            fold.apply(one)
    return fold


def questions(state: GatewayState) -> Iterator[tuple[str, Any]]:
    """Yield what is asked: each is answered by a model of its own, in which nothing was read yet."""
    for number, asked in enumerate(ASKS):
        for caller in CALLERS:
            yield f"jobs {number} {caller.name}", lambda model, a=asked, c=caller: answers.jobs(model, a, c)
        yield f"devices {caller.name}", lambda model, c=caller: device_answers.devices(model, c)
    for caller in CALLERS:
        for queued in (QueueRequest(), QueueRequest(user="ada", limit=2), QueueRequest(cause="capacity")):
            yield f"queue {queued}", lambda model, q=queued, c=caller: device_answers.queue(model, q, c)
        for used in USED:
            yield f"usage {used}", lambda model, u=used, c=caller: account_of(model, u, c)
    yield "stats", lambda model: stats_answer.stats(model, model.seq)
    yield "nodes", answers.nodes
    yield "status", lambda model: answers.status(model, model.seq)
    yield "policies", answers.policies
    yield "users", lambda model: answers.users(model, "root")
    yield from swept_questions()
    yield "aggregation", aggregation_answers.aggregation
    for job_id in state.jobs.by_id:
        yield f"job {job_id}", lambda model, j=job_id: answers.detail(model, model.state.jobs[j])
    for sweep_id in state.sweeps:
        yield f"sweep {sweep_id}", lambda model, s=sweep_id: answers.sweep(model, model.state.sweeps[s])
    for key in sorted({answers.known_as(job) for job in state.jobs}):
        yield f"profile {key}", lambda model, k=key: answers.profile(model, k, CALLERS[1])
    for wanted in ("j", "j1", "s", "nobody", "train"):
        yield f"named {wanted}", lambda model, w=wanted: named(model, w)


def swept_questions() -> Iterator[tuple[str, Any]]:
    for asked, caller in zip(SWEPT, cycle(CALLERS), strict=False):
        yield f"sweeps {asked}", lambda model, s=asked, c=caller: answers.sweeps(model, s, c)


def account_of(model: ReadModel, asked: UsageRequest, caller: Caller) -> Any:
    try:
        return usage_answers.usage(model, asked, caller)
    except RequestRefused as refused:  # the window begins after the moment
        return str(refused)


def named(model: ReadModel, wanted: str) -> Any:
    try:
        return acceptance.job_named(model.state, wanted, CALLERS[1]).id
    except RequestRefused as refused:
        return refused.code, str(refused)


def plain(value: Any) -> Any:
    return msgspec.to_builtins(value, order="deterministic")


def whole(state: GatewayState) -> Any:
    """Return all of a state, with the order of its tables."""
    found = {name: getattr(state, name) for name in state.__struct_fields__}
    found["jobs"], found["sharers"] = dict(state.jobs.by_id.items()), state.jobs.sharers
    found["arrays"] = state.jobs.arrays
    for name, value in found.items():
        if isinstance(value, dict):
            found[name] = list(value.items()) if name in {"jobs", "sweeps"} else dict(value.items())
    return plain(found)


@pytest.mark.parametrize("every", sampled([3, 40]))
@pytest.mark.parametrize("log", sampled([*logs()], every=3))
def test_at_any_moment_all_answers_are_those_of_a_fold_from_the_beginning(
    tmp_path: Path, log: list[Delivery], every: int
) -> None:
    file = written(tmp_path, log, every)
    rng = np.random.default_rng(len(log) + every)
    moments = {log[-1].seq, *(log[at].seq for at in rng.integers(len(log), size=3))}
    fold = Fold(DECIDER)
    for one in log:
        fold.apply(one)
        if one.seq not in moments:
            continue
        expected = ReadModel(fold.state, one.stored_s, one.seq)
        shared = ReadModel(past(file, log, one).state, one.stored_s, one.seq)
        for what, ask in questions(fold.state):
            answer = plain(ask(expected))
            fresh = ReadModel(past(file, log, one).state, one.stored_s, one.seq)
            assert plain(ask(fresh)) == answer, what
            assert plain(ask(shared)) == answer, what
        assert whole(past(file, log, one).state) == whole(fold.state)
        assert whole(shared.state) == whole(fold.state)


def test_a_recorded_cluster_is_answered_the_same(tmp_path: Path) -> None:
    for path in sorted((DATA / "recorded").glob("*.log.gz")):
        log = list(log_file.decode(gzip.decompress(path.read_bytes()).splitlines()))
        (folder := tmp_path / path.name).mkdir()
        file, fold = written(folder, log, 25), Fold(DECIDER)
        fold.apply_all(log)
        assert whole(past(file, log, log[-1]).state) == whole(fold.state)


def test_every_filter_of_jobs_is_one_that_the_past_knows() -> None:
    known = {"state", "user", "team", "pool", "model", "text", "name", "parent", "group", "array", "since_s"}
    of_page = {"ids", "samples", "limit", "offset", "rows", "at"}
    assert set(JobsRequest.__struct_fields__) == known | of_page, "add it to job_filter._columns, ASKS, and this test"


def test_of_very_many_sweeps_only_those_of_the_page_are_read(tmp_path: Path) -> None:
    facts: list[Any] = []
    for number in range(300):
        facts.append(SweepSubmitted(at_s=NOW_S, sweep_id=f"w{number}", spec=sweep_spec()))
        if number != 7:
            facts.append(SweepFinished(at_s=NOW_S, sweep_id=f"w{number}", state="completed"))
    log = [delivery(seq, fact) for seq, fact in enumerate(facts, 1)]
    file = written(tmp_path, log, 100)
    state = past(file, log, log[-1]).state
    view = answers.sweeps(ReadModel(state, NOW_S, len(log)), SweepsRequest(limit=3, offset=1))
    assert ([one.id for one in view.sweeps], view.total) == (["w297", "w298", "w299"], 300)
    assert answers.status(ReadModel(state, NOW_S, len(log)), 1).sweeps == {"completed": 299, "running": 1}
    assert isinstance(state.sweeps, PastTable)
    assert len(state.sweeps.loaded()) < 60, "what was folded in, and the page"


@pytest.mark.parametrize("seed", range(3))
def test_the_jobs_that_completed_last_are_those_of_a_fold_from_the_beginning(tmp_path: Path, seed: int) -> None:
    facts = [joined("n1"), joined("n2"), *RandomHistory(seed).facts(400)]
    log = [delivery(seq, fact) for seq, fact in enumerate(facts, 1)]
    file, fold = written(tmp_path, log, 20), Fold(DECIDER)

    def last(jobs: Iterable[Job], most: int) -> list[str]:
        done = [job for job in jobs if job.state is JobState.COMPLETED and job.spec.pool == "default"]
        done = [job for job in done if job.sample is None]
        return [job.id for job in sorted(done, key=lambda job: job.finished_s, reverse=True)[:most]]

    for one in log:
        fold.apply(one)
        if one.seq % 37 == 0:
            for most in (1, 3, 100):
                jobs = past(file, log, one).state.jobs
                assert isinstance(jobs, PastJobs)
                found = jobs.last_completed("default", most)
                assert last(found, most) == last(fold.state.jobs, most)


def test_a_job_that_is_over_is_stored_once(tmp_path: Path) -> None:
    facts = [joined(), submitted("j1"), placed("j1"), started("j1"), ended("j1")]
    more = [submitted(f"k{n}") for n in range(20)]
    log = [delivery(seq, fact) for seq, fact in enumerate([*facts, *more], 1)]
    file = written(tmp_path, log, 5)
    rows = file._db.execute("SELECT seq FROM entries WHERE kind = 'jobs' AND key = 'j1'").fetchall()
    assert rows == [(5,)]


def test_a_late_word_about_a_job_that_is_over_changes_it_from_then_on(tmp_path: Path) -> None:
    run = {"job_id": "j1", "epoch": 1, "node_id": "n1", "step": 5, "digest": "d"}
    saved = RunCheckpointed(at_s=NOW_S + 3, tier="memory", **run)
    late = RunCheckpointed(at_s=NOW_S + 50, tier="disk", generation=1, **run)
    facts = [joined(), submitted("j1"), placed("j1"), started("j1"), saved, ended("j1"), joined("n2"), late]
    log = [delivery(seq, fact) for seq, fact in enumerate(facts, 1)]
    file = written(tmp_path, log, 1)
    for seq, tier in ((7, "memory"), (8, "disk")):
        checkpoint = past(file, log, log[seq - 1]).state.jobs["j1"].checkpoint
        assert checkpoint is not None
        assert checkpoint.tier == tier


def test_an_archived_job_is_there_until_it_was_archived(tmp_path: Path) -> None:
    archived = JobsArchived(at_s=NOW_S + 9, archive="log", job_ids=("j1",))
    facts = [joined(), submitted("j1"), placed("j1"), started("j1"), ended("j1"), submitted("j2"), archived]
    log = [delivery(seq, fact) for seq, fact in enumerate(facts, 1)]
    file = written(tmp_path, log, 1)
    before, after = (ReadModel(past(file, log, log[n]).state, NOW_S, n + 1) for n in (5, 6))
    assert [job.id for job in answers.jobs(before, JobsRequest()).jobs] == ["j1", "j2"]
    assert [job.id for job in answers.jobs(after, JobsRequest()).jobs] == ["j2"]
    assert answers.status(after, 7).jobs == {"PD": 1}


def test_a_list_of_jobs_reads_only_those_that_it_shows(tmp_path: Path) -> None:
    facts: list[Any] = [joined()]
    for number in range(100):
        job_id = f"j{number:03}"
        facts += [submitted(job_id), placed(job_id), started(job_id), ended(job_id)]
    log = [delivery(seq, fact) for seq, fact in enumerate(facts, 1)]
    file = written(tmp_path, log, 1)
    model = ReadModel(past(file, log, log[-1]).state, NOW_S, log[-1].seq)
    found = answers.jobs(model, JobsRequest(limit=2))
    assert ([job.id for job in found.jobs], found.total) == (["j098", "j099"], 100)
    table = model.state.jobs.by_id
    assert isinstance(table, PastTable)
    assert sorted(key for key, _ in table.loaded()) == ["j098", "j099"]


def test_the_past_keeps_all_that_the_table_of_jobs_has_beside_them() -> None:
    assert {"by_id", *OF_JOB_TABLE} == {*JobTable.__struct_fields__}
