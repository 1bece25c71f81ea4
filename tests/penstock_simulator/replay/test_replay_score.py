"""A history and its replays beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_log import Device, NodeJoined
from penstock_simulator import CONFIGURED
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import ClusterTimeline, DeviceSpells, Outcome, summary
from penstock_simulator.replay import change_plot, report
from penstock_simulator.replay import replay as replay_module
from penstock_simulator.replay.history import ClusterHistory, read_log
from penstock_simulator.replay.past_outcome import AS_IT_WAS, only, without_ends
from penstock_simulator.replay.replay import replay
from penstock_simulator.replay.score import MOST, estimate, score, survival
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse
from sweeps import examples

JOBS = 24


def outcome(end_s: list[float], *, users: list[str] | None = None, **more: Any) -> Outcome:
    jobs = len(end_s)
    trace = Trace(
        name="t",
        job_ids=[f"j{row:02d}" for row in range(jobs)],
        submit_s=np.zeros(jobs),
        num_gpus=np.ones(jobs, np.int64),
        duration_s=np.ones(jobs),
        users=users or ["ada"] * jobs,
        states=["completed"] * jobs,
    )
    fields: dict[str, Any] = {
        "policy": "p",
        "trace": trace,
        "gpus": 2,
        "start_s": np.zeros(jobs),
        "end_s": np.array(end_s),
        "executed_s": np.ones(jobs),
        "preemptions": np.arange(jobs),
        "promotions": np.zeros(jobs, np.int64),
        "events": 0,
        "wall_s": 0.0,
    }
    return Outcome(**{**fields, **more})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    rng = np.random.default_rng(3)
    trace = Trace(
        name="test",
        job_ids=[f"j{row:03d}" for row in range(JOBS)],
        submit_s=np.cumsum(rng.exponential(8.0, JOBS)),
        num_gpus=np.ones(JOBS, np.int64),
        duration_s=rng.lognormal(3.0, 1.0, JOBS),
        vcs=rng.choice(["red", "blue"], JOBS).tolist(),
        users=rng.choice(["ada", "bob"], JOBS).tolist(),
    )
    path = tmp_path_factory.mktemp("log") / "log"
    simulate(trace, parse("1x1@fast+1x1@slow"), "fifo-backfill", log=path)
    return path.read_text().splitlines()


# --- censoring
def test_the_product_limit_of_a_textbook_case() -> None:
    """Six jobs, censored at 2 and 4: 5/6, then 3/4 of that, then 1/2, then none."""
    at_s, left = survival(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), np.array([1, 0, 1, 0, 1, 1], bool))
    assert at_s.tolist() == [1.0, 3.0, 5.0, 6.0]
    assert left == pytest.approx([5 / 6, 5 / 6 * 3 / 4, 5 / 6 * 3 / 4 / 2, 0.0])


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_whoever_is_censored_never_lowers_the_mean(found: list[tuple[int, bool]]) -> None:
    times_s, completed = np.array([pair[0] for pair in found], float), np.array([pair[1] for pair in found], bool)
    horizon_s = float(times_s.max())
    whole = estimate(times_s, np.ones(len(found), bool), horizon_s)
    part = estimate(times_s, completed, horizon_s)
    assert whole.mean_s == pytest.approx(times_s.mean()) == pytest.approx(part.least_s)
    assert part.mean_s >= whole.mean_s - 1e-9
    assert part.mean_s <= horizon_s + 1e-9


# --- score
def test_parties_are_told_apart_and_jobs_that_gain_and_lose_most_are_named() -> None:
    was = outcome([10.0, 20.0, 30.0, 40.0], users=["ada", "ada", "bob", "bob"])
    now = outcome([5.0, 20.01, 33.0, np.nan], users=["ada", "ada", "bob", "bob"])
    found = score(was, now, left_s=was.end_s, names=["a", "b", "c", "d"])
    assert (found.all.jobs, found.all.was_avg_s) == (3, 20.0)
    assert found.all.avg_change_s == pytest.approx(-1.99 / 3)
    assert {user: one.jobs for user, one in found.users.items()} == {"ada": 2, "bob": 1}
    assert [(job.id, job.name, job.change_s) for job in found.gained] == [("j00", "a", -5.0)]
    assert [(job.id, job.change_s) for job in found.lost] == [("j02", 3.0)]
    assert found.unfinished == ("j03",)


def test_ten_of_each_are_named_the_most_first() -> None:
    was = outcome([100.0] * 30)
    now = outcome([100.0 + row - 15 for row in range(30)])
    found = score(was, now, left_s=was.end_s)
    assert [job.change_s for job in found.gained] == [-15.0 + row for row in range(MOST)]
    assert [job.change_s for job in found.lost] == [14.0 - row for row in range(MOST)]


def test_jobs_without_a_true_length_are_left_out_of_averages_and_estimated_beside_them() -> None:
    was = outcome([10.0, np.nan, 20.0])
    found = score(was, outcome([8.0, 2.0, 20.0]), left_s=np.array([10.0, 4.0, 20.0]))
    assert (found.all.jobs, found.all.avg_s) == (2, 14.0)
    assert (found.everybody.jobs, found.everybody.censored, found.everybody.horizon_s) == (3, 1, 20.0)
    assert found.everybody.was.mean_s == pytest.approx(15.0)  # nobody left before 10; the other two as they were
    assert found.everybody.was.least_s == pytest.approx(34 / 3)
    assert found.everybody.now.mean_s == pytest.approx(14.0)


def test_the_same_seed_gives_the_same_intervals() -> None:
    rng = np.random.default_rng(1)
    was, now = outcome(rng.exponential(9.0, 40).tolist()), outcome(rng.exponential(9.0, 40).tolist())
    assert score(was, now, left_s=was.end_s, seed=4) == score(was, now, left_s=was.end_s, seed=4)
    assert score(was, now, left_s=was.end_s, seed=4) != score(was, now, left_s=was.end_s, seed=5)


# --- rows
def test_some_rows_of_an_outcome_keep_their_own_columns() -> None:
    whole = outcome(
        [1.0, 2.0, 3.0],
        spells=DeviceSpells(np.array([0, 1, 2]), np.array([0, 0, 1]), np.zeros(3), np.ones(3)),
        timeline=ClusterTimeline(np.array([-5.0, -1.0, 1.0]), np.array([2, 1, 0]), np.array([4, 3, 0])),
    )
    part = only(whole, np.array([1, 2]))
    assert list(part.trace.job_ids) == ["j01", "j02"]
    assert (part.end_s.tolist(), part.preemptions.tolist()) == ([2.0, 3.0], [1, 2])
    assert part.spells is not None
    assert (part.spells.job.tolist(), part.spells.device.tolist()) == ([0, 1], [0, 1])
    assert part.timeline is not None
    assert (part.timeline.at_s.tolist(), part.timeline.busy_gpus.tolist()) == ([0.0, 1.0], [1, 0])


def test_what_devices_were_held_for_counts_after_the_last_known_end() -> None:
    whole = outcome([1.0, 4.0], executed_s=np.array([1.0, 4.0]))
    part = without_ends(whole, np.array([False, True]))
    assert part.finished.tolist() == [True, False]
    assert summary(part).utilisation == summary(whole).utilisation == 5 / 8
    assert summary(part).makespan_s == 1.0


# --- what there is, and what more there could be
def history(*nodes: tuple[str, dict[str, int]]) -> ClusterHistory:
    joined = [
        NodeJoined(
            at_s=0.0,
            node_id=name,
            devices=tuple(
                Device(index=index, kind=kind, memory_bytes=2**33, backend="emulated", speed=0.5)
                for index, kind in enumerate(kind for kind, count in kinds.items() for _ in range(count))
            ),
        )
        for name, kinds in nodes
    ]
    return ClusterHistory(joined=joined)


SOME = history(("n1", {"fast": 3, "slow": 1}), ("n2", {"fast": 2}))


@pytest.mark.parametrize(
    ("word", "nodes"),
    [
        ("+8xfast", "2x3@fast+1x2@fast"),
        ("+1xslow", "1x1@slow"),
        ("+2x4@fast", "2x4@fast"),
        ("+1x8@slow+3xfast", "1x8@slow+1x3@fast"),
    ],
)
def test_what_is_added_is_like_what_there_is(word: str, nodes: str) -> None:
    found = replay_module.parse(word, SOME)
    assert str(found) == nodes
    assert {(group.memory_gib, group.speed) for group in found.groups} == {(8.0, 0.5)}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("8xfast", "expected what is added, such as"),
        ("+", "'' adds nothing"),
        ("+8fast", "'8fast' adds nothing"),
        ("+0xfast", "adds no device"),
        ("+0x4@fast", "adds no device"),
        ("+8xh100", "no device of kind 'h100', so nobody knows how fast jobs are on it; expected one of fast, slow"),
    ],
)
def test_a_word_that_adds_nothing_is_refused_with_what_was_expected(word: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replay_module.parse(word, SOME)


def test_nodes_that_are_to_be_left_out_must_have_been_there() -> None:
    replay_module.check_nodes(["n1"], SOME)
    with pytest.raises(ValueError, match="there is no node 'n3' in the log; expected one of n1, n2"):
        replay_module.check_nodes(["n3"], SOME)
    with pytest.raises(ValueError, match="no node is left"):
        replay_module.check_nodes(["n2", "n1"], SOME)


# --- a log run again
def test_jobs_outside_the_window_are_not_told_of_but_compete(log: list[str]) -> None:
    found = read_log(log)
    jobs = found.replayable()
    whole = replay(found, "fifo")
    part = replay(found, "fifo", from_s=jobs[10].submitted_s, to_s=jobs[15].submitted_s)
    assert list(part.names) == [job.spec.name for job in jobs[10:15]]
    assert part.replayed.end_s.tolist() == whole.replayed.end_s[10:15].tolist()
    assert part.measured.end_s.tolist() == whole.measured.end_s[10:15].tolist()


def test_a_node_that_is_left_out_runs_nothing(log: list[str]) -> None:
    found = read_log(log)
    less = replay(found, "fifo", without=["n2"], spells=True)
    assert less.replayed.gpus == 1
    assert less.replayed.spells is not None
    assert set(less.replayed.spells.device.tolist()) == {0}
    was_s, now_s = less.average_jct_s()
    assert now_s > was_s


def test_what_really_happened_says_who_held_what(log: list[str], tmp_path: Path) -> None:
    found = replay(read_log(log), spells=True, timeline=True)
    measured = found.measured
    assert measured.policy == AS_IT_WAS
    assert measured.spells is not None
    held_s = np.bincount(measured.spells.job, measured.spells.to_s - measured.spells.from_s, minlength=JOBS)
    assert held_s == pytest.approx(measured.executed_s * measured.trace.num_gpus, abs=1e-3)
    timeline = measured.timeline
    assert timeline is not None
    assert (timeline.busy_gpus[-1], timeline.waiting_jobs[-1]) == (0, 0)
    assert (timeline.busy_gpus >= 0).all()
    assert (timeline.waiting_jobs >= 0).all()
    busy_s = (timeline.busy_gpus[:-1] * np.diff(timeline.at_s)).sum()
    assert busy_s == pytest.approx(held_s.sum(), abs=1e-2)


def test_what_is_not_known_is_said_in_sentences(log: list[str]) -> None:
    cut = read_log(log[: len(log) // 2])
    found = replay(cut, "fifo")
    unknown, never = list(report.of_replay(found))
    assert "have no true length (" in unknown
    assert "still running" in unknown
    assert "still waiting" in never
    assert found.never_ran[0].id in never
    scores = {"fifo": score(found.measured, found.replayed, left_s=found.left_s)}
    told = list(report.of_scores(scores, 0))
    assert "2,000 resamples" in told[0]
    assert f"--policy {CONFIGURED}" in told[-1]
    assert not list(report.of_log(cut))
    assert "begins at sequence" in next(report.of_log(read_log(log[40:])))


def test_it_is_said_what_a_replay_makes_of_jobs_that_shared_devices(log: list[str]) -> None:
    cut = read_log(log[: len(log) // 2])
    assert not list(report.of_sharing(cut))
    job = next(job for job in cut.jobs if cut.runs.get(job.id))
    job.spec = msgspec.structs.replace(job.spec, sharing="lane")
    assert next(report.of_sharing(cut)).startswith(f"1 job shared devices: {job.id}; each runs as long as it did")


def test_the_page_has_a_section_for_each_policy(log: list[str]) -> None:
    found = replay(read_log(log), "srtf")
    html = "".join(report.sections({"srtf<": score(found.measured, found.replayed, left_s=found.left_s)}, str))
    assert "srtf&lt; against what really happened" in html
    assert "team red" in html
    assert "user bob" in html
    assert "jobs that gain most" in html


def test_parties_with_an_interval_are_drawn_the_same_each_time() -> None:
    rng = np.random.default_rng(1)
    users = ["ada"] * 20 + ["bob"] * 20 + ["cy"] * 2
    was = outcome(rng.exponential(9.0, 42).tolist(), users=users)
    now = outcome((was.end_s / 3).tolist(), users=users)
    scores = {"srtf": score(was, now, left_s=was.end_s), "fifo": score(was, was, left_s=was.end_s)}
    (picture,) = change_plot.draw(scores)
    assert (picture,) == tuple(change_plot.draw(scores))
    assert picture.name == "changes"
    assert list(change_plot._rows(scores)) == ["all jobs", "user ada", "user bob"]
    few = outcome([1.0, 2.0])
    assert not list(change_plot.draw({"fifo": score(few, few, left_s=few.end_s)}))
