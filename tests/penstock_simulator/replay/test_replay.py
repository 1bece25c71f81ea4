"""A log read back as a history, and the history run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock_log import (
    AnyEvent,
    Batch,
    Demand,
    Device,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    JobUnblocked,
    NodeJoined,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    ScaleDecided,
    Size,
    Slot,
)
from penstock_log import Outcome as RunOutcome
from penstock_simulator.engine.cluster_script import Failures, RunCosts
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import Outcome
from penstock_simulator.replay import report
from penstock_simulator.replay.history import longest, read_log
from penstock_simulator.replay.past_runs import PastRunLedger
from penstock_simulator.replay.replay import replay
from penstock_simulator.trace import Trace
from penstock_simulator.traces import log_file
from penstock_simulator.virtual_cluster import parse
from penstock_testing import delivery

SET = {"thresholds_gpu_s": [60.0], "min_run_s": 5.0}
SPEEDUPS = {"mlp": {"fast": 4.0, "slow": 1.0}, "cnn": {"fast": 1.5, "slow": 1.0}}
FINE = RunCosts(start_s=3.0, stop_s=1.0, checkpoint_s=10.0, iteration_s=0.001)


def trace(jobs: int = 30) -> Trace:
    rng = np.random.default_rng(7)
    return Trace(
        name="test",
        job_ids=[f"j{row:03d}" for row in range(jobs)],
        submit_s=np.cumsum(rng.exponential(12.0, jobs)),
        num_gpus=rng.choice([1, 1, 1, 2], jobs).astype(np.int64),
        duration_s=rng.lognormal(3.0, 1.0, jobs),
        models=rng.choice(["mlp", "cnn"], jobs).tolist(),
        users=rng.choice(["ada", "bob"], jobs).tolist(),
    )


def recorded(tmp_path: Path, failures: Failures | None = None) -> tuple[Outcome, list[str]]:
    """Return what became of a cluster, and its log."""
    log = tmp_path / "log"
    cluster, options = parse("1x2@fast+1x2@slow"), {"settings": SET, "costs": FINE, "speedups": SPEEDUPS}
    outcome = simulate(trace(), cluster, "configured", profile=True, log=log, failures=failures, seed=3, **options)
    return outcome, log.read_text().splitlines()


def test_a_history_run_again_under_the_same_policy_is_as_it_was(tmp_path: Path) -> None:
    outcome, log = recorded(tmp_path)
    assert outcome.preemptions.sum() > 0
    again = replay(read_log(log), settings=SET, costs=RunCosts(checkpoint_s=10.0))
    assert np.allclose(again.measured.jct_s, outcome.jct_s, atol=1e-3)
    assert np.allclose(again.replayed.jct_s, outcome.jct_s, rtol=0.01, atol=0.1)
    assert np.array_equal(again.replayed.preemptions, outcome.preemptions)
    was_s, is_s = again.average_jct_s()
    assert is_s == pytest.approx(was_s, rel=1e-3)


def test_lost_nodes_are_lost_again(tmp_path: Path) -> None:
    outcome, log = recorded(tmp_path, Failures(mtbf_s=200.0, repair_s=30.0))
    history = read_log(log)
    assert any(not orderly for _, _, _, orderly in history.gone)
    assert any(run.outcome == "lost" for runs in history.runs.values() for run in runs)
    was_s, is_s = replay(history, settings=SET, costs=RunCosts(checkpoint_s=10.0)).average_jct_s()
    assert is_s == pytest.approx(was_s, rel=0.1)
    assert was_s == pytest.approx(outcome.jct_s.mean(), rel=1e-6)


def test_another_policy_or_more_nodes_end_jobs_at_other_times(tmp_path: Path) -> None:
    history = read_log(recorded(tmp_path)[1])
    was_s, fifo_s = replay(history, "fifo").average_jct_s()
    _, shortest_s = replay(history, "srtf").average_jct_s()
    _, more_s = replay(history, settings=SET, added=parse("2x4@fast")).average_jct_s()
    assert shortest_s < fifo_s
    assert more_s < was_s
    assert fifo_s != pytest.approx(was_s)


def test_jobs_that_still_run_have_no_true_length_and_those_that_never_ran_are_named(tmp_path: Path) -> None:
    outcome, log = recorded(tmp_path)
    cut = read_log(log[: len(log) // 2])
    found = replay(cut, settings=SET)
    assert found.never_ran
    assert found.censored.sum() == (~found.measured.finished).sum() > 0
    assert not {job.id for job in found.never_ran} & set(found.replayed.trace.job_ids)
    completed = ~found.censored
    assert np.allclose(found.measured.jct_s, outcome.jct_s[: len(completed)][completed], atol=1e-3)


def test_only_the_jobs_of_a_window_are_told_of(tmp_path: Path) -> None:
    history = read_log(recorded(tmp_path)[1])
    jobs = history.replayable()
    found = replay(history, "fifo", from_s=jobs[10].submitted_s, to_s=jobs[20].submitted_s)
    assert list(found.replayed.trace.job_ids) == [job.id for job in jobs[10:20]]
    assert found.replayed.finished.all()


def test_a_run_that_failed_fails_again_at_the_same_step() -> None:
    gpu = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    spec = JobSpec(name="a", command=("x",), profile="off", retries=1, backoff_s=2.0)

    def placed(epoch: int, at_s: float) -> RoundDecided:
        slots = (Slot(node_id="n1", devices=(0,)),)
        lease = Placement(job_id="j1", epoch=epoch, kind="fast", slots=slots)
        return RoundDecided(pool="default", at_s=at_s, placements=(lease,))

    def run(epoch: int, at_s: float, step: int) -> RunStarted:
        return RunStarted(job_id="j1", epoch=epoch, node_id="n1", devices=(0,), resumed_step=step, at_s=at_s)

    facts = [
        NodeJoined(node_id="n1", devices=(gpu,), at_s=100.0),
        JobSubmitted(job_id="j1", spec=spec, at_s=101.0),
        placed(1, 101.0),
        run(1, 101.0, 0),
        RunEnded(job_id="j1", epoch=1, node_id="n1", outcome="failed", steps=60, loop_steps=60, loop_s=6.0, at_s=108.0),
        placed(2, 110.0),
        run(2, 110.0, 50),
        RunEnded(
            job_id="j1", epoch=2, node_id="n1", outcome="completed", steps=100, loop_steps=50, loop_s=5.0, at_s=116.0
        ),
    ]
    text = [log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(facts, start=1)]
    found = replay(read_log(text), "fifo", profile=False)
    assert found.replayed.end_s.tolist() == pytest.approx([116.0])
    assert found.replayed.executed_s.tolist() == pytest.approx([13.0])


def preempted_log(steps: int, loop_steps: int) -> list[bytes]:
    """Return a log: a job is preempted after 10 s of which it kept so many steps, and runs for 30 s more."""
    gpu = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    slots = (Slot(node_id="n1", devices=(0,)),)

    def placed(job_id: str, epoch: int, at_s: float) -> RoundDecided:
        lease = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots)
        return RoundDecided(pool="default", at_s=at_s, placements=(lease,))

    def run(job_id: str, epoch: int, at_s: float, step: int = 0) -> RunStarted:
        return RunStarted(job_id=job_id, epoch=epoch, node_id="n1", devices=(0,), resumed_step=step, at_s=at_s)

    def ended(job_id: str, epoch: int, at_s: float, *, step: int, done: int) -> RunEnded:
        outcome: RunOutcome = "preempted" if at_s == 110.0 else "completed"
        loop_s = done / 10.0
        return RunEnded(
            job_id=job_id,
            epoch=epoch,
            node_id="n1",
            outcome=outcome,
            steps=step,
            loop_steps=done,
            loop_s=loop_s,
            at_s=at_s,
        )

    def submitted(job_id: str, at_s: float) -> JobSubmitted:
        return JobSubmitted(job_id=job_id, spec=JobSpec(name="a", command=("x",), profile="off"), at_s=at_s)

    preempted = Preemption(job_id="j1", epoch=1, for_job="j2")
    more = 300 if loop_steps else 0
    facts: list[AnyEvent] = [
        NodeJoined(node_id="n1", devices=(gpu,), at_s=100.0),
        submitted("j1", 100.0),
        placed("j1", 1, 100.0),
        run("j1", 1, 100.0),
        submitted("j2", 110.0),
        RoundDecided(pool="default", at_s=110.0, preemptions=(preempted,)),
        ended("j1", 1, 110.0, step=steps, done=loop_steps),
        placed("j2", 1, 110.0),
        run("j2", 1, 110.0),
        ended("j2", 1, 115.0, step=more // 6, done=more // 6),
        placed("j1", 2, 115.0),
        run("j1", 2, 115.0, steps),
        ended("j1", 2, 145.0, step=steps + more, done=more),
    ]
    return [log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(facts, start=1)]


@pytest.mark.parametrize(
    ("steps", "loop_steps", "work_s"), [(100, 100, 40.0), (0, 100, 30.0), (0, 0, 30.0)], ids=["saves", "not", "no loop"]
)
def test_what_a_preempted_run_lost_is_no_work_and_is_lost_again_where_it_is_preempted_again(
    steps: int, loop_steps: int, work_s: float
) -> None:
    history = read_log(preempted_log(steps, loop_steps))
    alone = replay(history, "fifo", profile=False)
    assert alone.replayed.executed_s.tolist() == pytest.approx([work_s, 5.0])
    by_length = replay(history, "srtf", profile=False, settings={"min_run_s": 0.0})
    assert by_length.replayed.preemptions.tolist() == [1, 0]
    again_s = 0.0 if steps else 10.0
    assert by_length.replayed.executed_s.tolist() == pytest.approx([work_s + again_s, 5.0])


def ordered_log() -> list[bytes]:
    """Return a log of one device: j2 waits for j1, which was late; j3 is not to begin before 160 s; each runs 10 s."""
    gpu = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    slots = (Slot(node_id="n1", devices=(0,)),)

    def submitted(job_id: str, at_s: float = 100.0, **order: Any) -> JobSubmitted:
        return JobSubmitted(job_id=job_id, spec=JobSpec(name="a", command=("x",), profile="off", **order), at_s=at_s)

    def runs(job_id: str, at_s: float) -> list[AnyEvent]:
        lease = Placement(job_id=job_id, epoch=1, kind="fast", slots=slots)
        about = {"job_id": job_id, "epoch": 1, "node_id": "n1"}
        return [
            RoundDecided(pool="default", at_s=at_s, placements=(lease,)),
            RunStarted(devices=(0,), at_s=at_s, **about),
            RunEnded(outcome="completed", at_s=at_s + 10.0, **about),
        ]

    facts: list[AnyEvent] = [
        NodeJoined(node_id="n1", devices=(gpu,), at_s=100.0),
        submitted("j1"),
        submitted("j2", 100.001, after=("afterok:j1",)),
        submitted("j3", 100.002, begin_s=160.0),
        *runs("j1", 120.0),  # after a pause of the matcher
        JobUnblocked(job_id="j2", met=("afterok:j1",), at_s=130.0),
        *runs("j2", 130.0),
        *runs("j3", 160.0),
    ]
    return [log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(facts, start=1)]


def test_a_job_waits_for_others_and_for_its_time_in_a_replay_too(tmp_path: Path) -> None:
    for log in (None, tmp_path / "log"):
        found = replay(read_log(ordered_log()), "fifo", profile=False, **({"log": log} if log else {}))
        ends = dict(zip(found.replayed.trace.job_ids, found.replayed.end_s.tolist(), strict=True))
        assert ends == {"j1": pytest.approx(110.0), "j2": pytest.approx(120.0), "j3": pytest.approx(170.0)}


def image_log() -> list[bytes]:
    """Return a log of two nodes, of which one runs images: two jobs with one, of 10 s each, run there in turn."""
    gpu = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    facts: list[AnyEvent] = [
        NodeJoined(node_id="n1", devices=(gpu,), at_s=100.0),
        NodeJoined(node_id="n2", devices=(gpu,), containers=("podman",), at_s=100.0),
    ]
    spec = JobSpec(name="a", command=("x",), profile="off", image="a/b:1")
    facts += [JobSubmitted(job_id=job_id, spec=spec, at_s=100.0) for job_id in ("j1", "j2")]
    for number, job_id in enumerate(("j1", "j2")):
        at_s = 100.0 + 10 * number
        slots = (Slot(node_id="n2", devices=(0,)),)
        about = {"job_id": job_id, "epoch": 1, "node_id": "n2"}
        facts += [
            RoundDecided(
                pool="default",
                at_s=at_s,
                placements=(Placement(job_id=job_id, epoch=1, kind="fast", slots=slots),),
            ),
            RunStarted(devices=(0,), at_s=at_s, **about),
            RunEnded(outcome="completed", at_s=at_s + 10.0, **about),
        ]
    return [log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(facts, start=1)]


def test_a_replay_knows_which_nodes_run_images() -> None:
    found = replay(read_log(image_log()), "fifo", profile=False)
    assert found.replayed.end_s.tolist() == pytest.approx([110.0, 120.0])
    more = replay(read_log(image_log()), "fifo", profile=False, added=parse("1x1@fast"))
    assert more.replayed.end_s.tolist() == pytest.approx([110.0, 110.0])


def test_a_first_run_that_goes_on_is_not_taken_to_count_no_iterations() -> None:
    whole, cut = (read_log(log) for log in (preempted_log(0, 0), preempted_log(0, 0)[:4]))
    assert [PastRunLedger(history, history.replayable()).tasks[0].saves for history in (whole, cut)] == [False, True]


def test_a_job_without_iterations_that_was_never_done_is_as_long_as_its_longest_run() -> None:
    history = read_log(
        [*preempted_log(0, 0)[:-1], log_file.encode(delivery(99, JobCancelled(job_id="j9", at_s=118.0)))]
    )
    assert replay(history, "fifo", profile=False).replayed.executed_s[0] == pytest.approx(10.0)


def test_every_fact_of_a_written_log_is_read_back_as_it_was(tmp_path: Path) -> None:
    _, log = recorded(tmp_path)
    commits = list(log_file.decode(log))
    assert [one.seq for one in commits] == list(range(1, len(commits) + 1))
    assert b"".join(map(log_file.encode, commits)).decode().splitlines() == log


def test_a_line_that_is_no_fact_is_named() -> None:
    good = log_file.encode(delivery(1, JobCancelled(job_id="j1", at_s=1.0)))
    with pytest.raises(ValueError, match="line 2 is no fact of a log"):
        read_log([good, b"{}"])
    with pytest.raises(ValueError, match="line 1: not a commit of known facts"):
        read_log([good.replace(b"job.cancelled.v1", b"job.cancelled.v9")])


def test_an_empty_window_is_said() -> None:
    with pytest.raises(ValueError, match="no job of the log ran"):
        replay(read_log([]))


def resized() -> list[AnyEvent]:
    """Return a log in which a job has 2 of 4 devices for 10 s, and then all for 5, in which it does twice as much."""
    gpus = tuple(Device(index=at, kind="fast", memory_bytes=8, backend="emulated") for at in range(4))
    batch = Batch(min=8, max=64, base=8)
    spec = JobSpec(name="a", command=("x",), max_gpus=4, min_gpus=1, batch=batch, batch_size=8, profile="off")

    def sized(epoch: int, at_s: float, gpus: int) -> ScaleDecided:
        demand = Demand(job_id="j1", epoch=epoch, gpus=gpus, batch_size=8 * gpus)
        return ScaleDecided(pool="default", at_s=at_s, demands=(demand,))

    def placed(epoch: int, at_s: float, gpus: int) -> RoundDecided:
        slots = (Slot(node_id="n1", devices=tuple(range(gpus))),)
        lease = Placement(job_id="j1", epoch=epoch, kind="fast", slots=slots)
        return RoundDecided(pool="default", at_s=at_s, placements=(lease,))

    def ended(epoch: int, at_s: float, outcome: RunOutcome, **counts: Any) -> RunEnded:
        return RunEnded(job_id="j1", epoch=epoch, node_id="n1", outcome=outcome, at_s=at_s, loop_steps=100, **counts)

    def started(epoch: int, at_s: float, gpus: int, step: int = 0) -> RunStarted:
        devices = tuple(range(gpus))
        return RunStarted(job_id="j1", epoch=epoch, node_id="n1", devices=devices, resumed_step=step, at_s=at_s)

    return [
        NodeJoined(node_id="n1", devices=gpus, at_s=100.0),
        JobSubmitted(job_id="j1", spec=spec, at_s=101.0),
        sized(0, 101.0, 2),
        placed(2, 101.0, 2),
        started(2, 101.0, 2),
        sized(2, 111.0, 4),
        RoundDecided(pool="default", at_s=111.0, preemptions=(Preemption(job_id="j1", epoch=2),)),
        ended(2, 111.0, "preempted", steps=100, samples=1600, loop_s=10.0),
        placed(3, 111.0, 4),
        started(3, 111.0, 4, step=100),
        ended(3, 116.0, "completed", steps=200, samples=4800, loop_s=5.0),
    ]


def test_an_elastic_job_has_all_of_its_samples_to_do_and_is_as_fast_at_each_size_as_it_was_there() -> None:
    text = [log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(resized(), start=1)]
    history = read_log(text)
    assert [run.size for run in history.runs["j1"]] == [Size(2, 16), Size(4, 32)]
    assert longest(history.runs["j1"]) == Size(2, 16)
    book = PastRunLedger(history, history.replayable())
    task = book.tasks[0]
    assert (task.unit, task.work_s) == ("samples", 4800)
    had = [book.per_s(task, "fast", size) for size in (Size(2, 16), Size(4, 32))]
    assert had == pytest.approx([160, 640])
    by_power = (160 * 0.5**0.8, 640 * 0.25**0.8)  # nobody has timed it on one device
    assert book.per_s(task, "fast", Size(1, 8)) == pytest.approx(4800 / (1600 / by_power[0] + 3200 / by_power[1]))
    found = replay(history, "fifo")
    assert found.measured.end_s.tolist() == [116.0]
    assert found.measured.held_gpu_s is not None
    assert found.measured.held_gpu_s.tolist() == [2 * 10 + 4 * 5]
    assert found.replayed.trace.num_gpus.tolist() == [2]
    assert next(report.of_sizes(history)).startswith("1 job is elastic: j1; the autoscaler sizes them in the replay")


def test_without_samples_the_iterations_of_all_sizes_count_as_equal() -> None:
    facts = [msgspec.structs.replace(fact, samples=0) if isinstance(fact, RunEnded) else fact for fact in resized()]
    history = read_log([log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(facts, start=1)])
    task = PastRunLedger(history, history.replayable()).tasks[0]
    assert (task.unit, task.work_s) == ("steps", 200)


@pytest.mark.parametrize("cut", range(4, 11))
def test_a_history_that_ends_while_an_elastic_job_runs_is_replayed(cut: int) -> None:
    text = [log_file.encode(delivery(seq, fact)) for seq, fact in enumerate(resized()[:cut], start=1)]
    history = read_log(text)
    if not history.replayable():
        assert cut == 4
        return
    found = replay(history, "fifo")
    assert found.censored.all()
    assert np.isfinite(found.replayed.end_s).all()


def test_a_commit_out_of_place_in_a_log_file_is_left_out() -> None:
    cancelled = JobCancelled(job_id="j9", at_s=118.0)
    log = [
        log_file.encode(delivery(1, cancelled)),
        log_file.encode(delivery(2, cancelled, subject="penstock.evt.rank.evil")),
    ]
    assert [one.seq for one in log_file.decode(log)] == [1]
