"""A recorded history with every kind of fact in it, as the services would have written it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock_bus import Delivery
from penstock_log import (
    ARCHIVE,
    AggregationAsked,
    AggregationAssigned,
    AggregationLeft,
    AggregationMeasured,
    AggregationRefused,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    AggregatorStarted,
    AggregatorUnreachable,
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AllocationSpec,
    AnyEvent,
    Batch,
    Choice,
    Demand,
    Device,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    JobCancelled,
    JobEntered,
    JobFinished,
    JobHeld,
    JobRank,
    JobReleased,
    JobsArchived,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    JobTimedOut,
    JobTimeSet,
    JobUnblocked,
    KindSpeed,
    LaneChanged,
    LogCopied,
    LogTrimmed,
    MemoryNeed,
    MemoryOffered,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeLoginIssued,
    NodeLoginRevoked,
    NodeRemoved,
    NodeResumed,
    NodeTokenIssued,
    NotificationRuleRemoved,
    NotificationRuleSet,
    NotificationSent,
    Outcome,
    PartMoved,
    PartPlaced,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
    Placement,
    PolicySet,
    PoolLearnt,
    Preemption,
    ProfileSample,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunBusyAgain,
    RunCheckpointed,
    RunEnded,
    RunIdle,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    RunWarned,
    SamplesRequested,
    Scalability,
    ScaleDecided,
    SlabsEvicted,
    SlabsLent,
    SlabsReturned,
    Slot,
    SweepCancelled,
    SweepFinished,
    SweepSpec,
    SweepSubmitted,
    Timing,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    TrialsScaled,
    UserRemoved,
    UserSet,
    Wait,
    WorkloadProfiled,
    WorkloadScaled,
    workload,
)
from penstock_log.usage import DayUsage, Usage
from penstock_testing import delivery

T0 = 1_700_000_000.0
MLP = JobSpec(name="mlp", command=("python", "mlp.py"), model="mlp", batch_size=32, user="ada", retries=1)
KEY = workload.key(MLP)
SWEEP = SweepSpec(name="lr", job=MLP, space={"lr": Choice(values=(0.1, 0.01))}, metric="accuracy", search="grid")


def facts() -> list[AnyEvent]:
    """Return the history in order, one fact a second."""
    history = [*_nodes(), *_policies(), *_profiled(), *_gang(), *_elastic(), *_retried_and_cancelled()]
    history += [*_sweep(), *_node_lost(), *_memory(), *_aggregation(), *_users(), *_allocations(), *_archived()]
    return [msgspec.structs.replace(fact, at_s=T0 + i) for i, fact in enumerate(history)]


def log(history: list[AnyEvent] | None = None) -> list[Delivery]:
    """Return a history as the log holds it, each fact a commit of its own."""
    return [delivery(seq, fact) for seq, fact in enumerate(facts() if history is None else history, 1)]


def _nodes() -> list[AnyEvent]:
    fast = tuple(Device(index=i, kind="fast", memory_bytes=1 << 30, backend="emulated") for i in range(2))
    slow = (Device(index=0, kind="slow", memory_bytes=1 << 30, backend="emulated", speed=0.4),)
    return [
        NodeJoined(at_s=0, node_id="n1", devices=fast, incarnation="a"),
        NodeJoined(at_s=0, node_id="n2", devices=slow, incarnation="b"),
        NodeDrained(at_s=0, node_id="n2", by="ada"),
        NodeResumed(at_s=0, node_id="n2", by="ada"),
        DeviceFailed(at_s=0, node_id="n1", index=1, code="xid 79", reason="XID 79: the GPU has fallen off the bus"),
        DeviceDrained(at_s=0, node_id="n1", index=1, by="ada", reason="to be replaced", preempt=True),
        DeviceRecovered(at_s=0, node_id="n1", index=1),
        DeviceResumed(at_s=0, node_id="n1", index=1, by="ada"),
    ]


def _policies() -> list[AnyEvent]:
    return [
        PolicySet(at_s=0, pool="default", settings={"order": "fifo", "assign": "first-fit"}, by="ada"),
        PolicySet(at_s=0, pool="default", settings={"thresholds_gpu_s": [60.0, 600.0]}, by="ada", reason="short jobs"),
        ReservationMade(
            at_s=0, pool="default", reservation_id="vision-1", team="vision", gpus=1, from_s=0.0, until_s=1.0, by="ada"
        ),
        ReservationCancelled(at_s=0, pool="default", reservation_id="vision-1", by="ada", reason="not needed"),
    ]


def _allocations() -> list[AnyEvent]:
    spec = AllocationSpec(provider="slurm", max_pilots=2, options=("--partition=gpu", "--gres=gpu:a100:1"))
    fast = (Device(index=0, kind="a100", memory_bytes=1 << 30, backend="emulated"),)
    labels = {"allocation": "lab", "pilot": "lab-1"}
    return [
        AllocationAdded(at_s=0, name="lab", spec=spec, by="ada"),
        PilotPlanned(at_s=0, name="lab", pilot_id="lab-1", reason="1 job would start: j1"),
        PilotSubmitted(at_s=0, name="lab", pilot_id="lab-1", provider_id="17", token="0f"),
        PilotWaits(at_s=0, name="lab", pilot_id="lab-1", reason="Resources"),
        PilotStarted(at_s=0, name="lab", pilot_id="lab-1", hosts=("gpu-3",)),
        NodeJoined(at_s=0, node_id="lab-1", devices=fast, labels=labels, incarnation="a"),
        NodeLeft(at_s=0, node_id="lab-1", reason="shutdown"),
        PilotEnded(at_s=0, name="lab", pilot_id="lab-1", state="finished", reason="COMPLETED"),
        PilotPlanned(at_s=0, name="lab", pilot_id="lab-2"),
        PilotEnded(at_s=0, name="lab", pilot_id="lab-2", state="refused", reason="sbatch: Invalid account"),
        PilotPlanned(at_s=0, name="lab", pilot_id="lab-3"),
        PilotSubmitted(at_s=0, name="lab", pilot_id="lab-3", provider_id="19"),
        PilotWithdrawn(at_s=0, name="lab", pilot_id="lab-3", reason="no job would run on it any more"),
        PilotEnded(at_s=0, name="lab", pilot_id="lab-3", state="cancelled", reason="CANCELLED"),
        PilotsPaused(at_s=0, name="lab", failures=1, reason="sbatch: Invalid account"),
        AllocationResumed(at_s=0, name="lab", by="ada"),
        AllocationPaused(at_s=0, name="lab", by="ada", reason="for the night"),
        AllocationAdded(at_s=0, name="here", spec=AllocationSpec(provider="local"), by="ada"),
        AllocationRemoved(at_s=0, name="here", by="ada"),
    ]


def _profiled() -> list[AnyEvent]:
    samples = tuple(ProfileSample(sample_id=f"s{n}", kind="fast", iterations=n) for n in (5, 25))
    return [
        JobSubmitted(at_s=0, job_id="j1", spec=MLP),
        SamplesRequested(at_s=0, key=KEY, spec=MLP, samples=samples),
        *(
            fact
            for sample in samples
            for fact in (_placed(sample.sample_id), _started(sample.sample_id), _ended(sample.sample_id, loop_steps=5))
        ),
        WorkloadProfiled(at_s=0, key=KEY, speeds=(KindSpeed(kind="fast", iteration_s=0.01, speed=1.0),)),
    ]


def _gang() -> list[AnyEvent]:
    gang = msgspec.structs.replace(MLP, gpus=2, id="g1")
    return [
        JobSubmitted(at_s=0, job_id="g1", spec=gang),
        JobsRanked(at_s=0, pool="default", ranks=(JobRank(job_id="g1", queue=0, position=1.0),)),
        _placed("g1", devices=(0, 1)),
        _started("g1", devices=(0, 1)),
        RunCheckpointed(at_s=0, job_id="g1", epoch=1, node_id="n1", step=10),
        RunWarned(at_s=0, job_id="g1", epoch=1, node_id="n1", warning="output dropped"),
        RunMeasured(at_s=0, job_id="g1", epoch=1, node_id="n1", need=MemoryNeed(300, 50, 400), iterations=8),
        LaneChanged(at_s=0, job_id="g1", epoch=1, node_id="n1", device=0, lane=2, change="entered"),
        JobsRanked(at_s=0, pool="default", ranks=(JobRank(job_id="g1", queue=1, position=9.0, attained_gpu_s=4.0),)),
        RoundDecided(at_s=0, pool="default", preemptions=(Preemption(job_id="g1", epoch=1, reason="rank"),)),
        _ended("g1", outcome="preempted", steps=12, parked=True, parked_bytes=2**30),
        RunUnparked(at_s=0, job_id="g1", epoch=1, node_id="n1", reason="another run was parked in its place"),
        _placed("g1", epoch=2, devices=(0, 1)),
        RunIdle(at_s=0, job_id="g1", epoch=2, node_id="n1", since_s=1.0),
        RunBusyAgain(at_s=0, job_id="g1", epoch=2, node_id="n1"),
        RunRewound(at_s=0, job_id="g1", epoch=2, node_id="n1", step=5, generation=1, lost_step=10, lost_generation=1),
        _started("g1", epoch=2, devices=(0, 1)),
        _ended("g1", epoch=2, steps=30, metrics={"accuracy": 0.9}),
        _finished("g1", "completed"),
    ]


def _elastic() -> list[AnyEvent]:
    """A job that is sized before it starts, is resized while it runs, and another for which there is no room."""
    spec = msgspec.structs.replace(MLP, id="e1", min_gpus=1, max_gpus=2, batch=Batch(min=32, max=128, step=32))
    timings = tuple(
        Timing(gpus=gpus, local_batch=local, iteration_s=0.01 * local / 32, error_s=0.001, runs=2)
        for gpus, local in ((1, 32), (1, 64), (2, 32))
    )
    known = Scalability(kind="fast", timings=timings, per_gpu_cap=64)
    first = Demand(job_id="e1", epoch=0, gpus=1, batch_size=64, reason="it starts")
    wider = Demand(job_id="e1", epoch=2, gpus=2, batch_size=128, reason="devices are idle")
    return [
        JobSubmitted(at_s=0, job_id="e1", spec=spec),
        WorkloadScaled(at_s=0, key=workload.key(spec), kinds=(known,)),
        ScaleDecided(at_s=0, pool="default", demands=(first,), because="arrival", scaling=1.0),
        _placed("e1", epoch=2),
        _started("e1", epoch=2),
        RunCheckpointed(at_s=0, job_id="e1", epoch=2, node_id="n1", step=10),
        ScaleDecided(at_s=0, pool="default", demands=(wider,), because="completion", scaling=1.9),
        RoundDecided(at_s=0, pool="default", preemptions=(Preemption(job_id="e1", epoch=2, reason="wider"),)),
        _ended("e1", epoch=2, outcome="preempted", steps=20, loop_steps=20, saves=True, batch_size=64, samples=1280),
        _placed("e1", epoch=3, devices=(0, 1)),
        _started("e1", epoch=3, devices=(0, 1)),
        JobSubmitted(at_s=0, job_id="e2", spec=msgspec.structs.replace(spec, id="e2")),
        ScaleDecided(at_s=0, pool="default", demands=(), because="arrival", dropped=("e2",), scaling=1.9),
        _finished("e2", "failed"),
        _ended("e1", epoch=3, steps=40, loop_steps=20, saves=True, batch_size=128, samples=3840),
        _finished("e1", "completed"),
    ]


def _retried_and_cancelled() -> list[AnyEvent]:
    return [
        _placed("j1"),
        _started("j1"),
        _ended("j1", outcome="failed", exit_code=3, reason="exit status 3"),
        JobHeld(at_s=0, job_id="j1", by="ada"),
        RoundDecided(at_s=0, pool="default", waits=(Wait(job_id="j1", cause="held", evidence="by ada"),)),
        JobReleased(at_s=0, job_id="j1", by="ada"),
        JobUnblocked(at_s=0, job_id="j1", met=("afterok:j0",)),
        JobTimeSet(at_s=0, job_id="j1", limit_s=120.0, by="ada"),
        _placed("j1", epoch=2),
        JobEntered(at_s=0, job_id="j1", session_id="5e" * 8, epoch=2, rank=0, node_id="n1", purpose="shell", by="ada"),
        JobTimedOut(at_s=0, job_id="j1", limit_s=60.0, executed_s=60.5),
        JobCancelled(at_s=0, job_id="j1", by="ada"),
        _ended("j1", epoch=2, outcome="cancelled"),
        _finished("j1", "cancelled"),
    ]


def _sweep() -> list[AnyEvent]:
    trials = tuple(Trial(job_id=f"t{i}", params={"lr": lr}) for i, lr in enumerate((0.1, 0.01)))
    runs: list[AnyEvent] = []
    for trial in trials:
        spec = msgspec.structs.replace(MLP, id=trial.job_id, params=trial.params, parent="w1")
        narrower = Demand(job_id=trial.job_id, epoch=0, sharing="lane", sharers=2, reason="one device holds them all")
        runs += [JobSubmitted(at_s=0, job_id=trial.job_id, spec=spec)]
        runs += [TrialsScaled(at_s=0, sweep_id="w1", demands=(narrower,))]
        runs += [_placed(trial.job_id, epoch=2), _started(trial.job_id, epoch=2)]  # what waits takes an epoch with it
        runs += [_ended(trial.job_id, epoch=2, metrics={"accuracy": 0.8}), _finished(trial.job_id, "completed")]
        runs += [TrialFinished(at_s=0, sweep_id="w1", job_id=trial.job_id, state="completed", value=0.8)]
    runs += [TrialsMeasured(at_s=0, sweep_id="w1", key=KEY, alpha=1.2, packing=3, overhead_s=2.5)]
    return [
        SweepSubmitted(at_s=0, sweep_id="w1", spec=SWEEP),
        TrialGroupOpened(at_s=0, sweep_id="w1", group=0, trials=trials),
        *runs,
        SweepFinished(at_s=0, sweep_id="w1", state="completed", best_job_id="t0", best_value=0.8),
        SweepSubmitted(at_s=0, sweep_id="w2", spec=SWEEP),
        *_exceeded("w2"),
        SweepCancelled(at_s=0, sweep_id="w2", by="ada"),
    ]


def _exceeded(sweep_id: str) -> list[AnyEvent]:
    """A trial that exceeds its memory beside others and is to run once more."""
    trial = Trial(job_id="x0", params={"lr": 0.1}, packed=2)
    lane = msgspec.structs.replace(MLP, id="x0", parent=sweep_id, sharing="lane", sharers=2, retries=0)
    again = msgspec.structs.replace(trial, job_id="x0-a", packed=1)
    return [
        TrialGroupOpened(at_s=0, sweep_id=sweep_id, group=0, trials=(trial,)),
        JobSubmitted(at_s=0, job_id="x0", spec=lane),
        _placed("x0"),
        _started("x0"),
        _ended(
            "x0", outcome="failed", out_of_memory=True, cap_bytes=100, peak_memory_bytes=90, reason="it wanted more"
        ),
        _finished("x0", "failed"),
        TrialRetried(at_s=0, sweep_id=sweep_id, job_id="x0", trial=again, reason="trial exceeded its memory"),
    ]


def _node_lost() -> list[AnyEvent]:
    lost = msgspec.structs.replace(MLP, id="l1")
    return [
        JobSubmitted(at_s=0, job_id="l1", spec=lost),
        _placed("l1", node="n2"),
        _started("l1", node="n2"),
        RoundDecided(at_s=0, pool="default", lost_nodes=("n2",), prices={"fast": 1.5}),
        _placed("l1", epoch=2),
        _started("l1", epoch=2),
        NodeLeaving(at_s=0, node_id="n2", incarnation="b", reason="shutdown"),
        NodeLeft(at_s=0, node_id="n2", reason="gone"),
        NodeRemoved(at_s=0, node_id="n2", by="ada"),
    ]


def _memory() -> list[AnyEvent]:
    to: dict[str, Any] = {"node_id": "n1", "borrower": "n2", "user": "ada", "job_id": "g1"}
    return [
        MemoryOffered(at_s=0, node_id="n1", slabs=8, slab_bytes=64 << 20, free_bytes=2 << 30, headroom_bytes=1 << 30),
        SlabsLent(at_s=0, slabs=3, **to),
        SlabsReturned(at_s=0, slabs=1, **to),
        SlabsEvicted(at_s=0, slabs=2, reason="pressure", **to),
    ]


def _aggregation() -> list[AnyEvent]:
    """A run that is measured, packed and moved, loses an aggregator and leaves; and one that asks for too much."""
    spec = msgspec.structs.replace(MLP, id="a1")
    run: dict[str, Any] = {"at_s": 0, "job_id": "a1", "epoch": 1}
    pool: dict[str, Any] = {"at_s": 0, "pool": "default"}
    own = tuple(PartPlaced(part=part, aggregator=f"n1/{part}", generation=1) for part in (0, 1))
    moving = PartPlaced(part=1, aggregator="n1/0", generation=2, how="copy", before="n1/1")
    joined = tuple(PartPlaced(part=part, aggregator="n1/2", generation=3) for part in (0, 1))
    asks = {"node_id": "n1", "world_size": 2, "parts": (4096, 4096), "pool": "default"}
    first, second = (
        AggregationMeasured(
            node_id="n1", aggregator=f"n1/{n}", generation=1, steps=20, iteration_s=0.2, costs_s={n: 0.01}, **run
        )
        for n in (0, 1)
    )
    moved: dict[str, Any] = {"before": "n1/1", "part": 1, "generation": 2, "step": 22}
    return [
        AggregatorsOffered(at_s=0, node_id="n1", pool="default", most=3, incarnation="a"),
        JobSubmitted(at_s=0, job_id="a1", spec=spec),
        _placed("a1"),
        _started("a1"),
        AggregationAsked(servers=2, nodes=("n1",), **run, **asks),
        AggregatorsAllocated(aggregators=("n1/0", "n1/1"), job_id="a1", **pool),
        AggregationAssigned(job_id="a1", epoch=1, generation=1, phase="profile", placed=own, because="new", **pool),
        AggregatorStarted(at_s=0, node_id="n1", aggregator="n1/0", incarnation="a"),
        AggregatorStarted(at_s=0, node_id="n1", aggregator="n1/1", incarnation="a"),
        first,
        second,
        AggregationAssigned(
            job_id="a1",
            epoch=1,
            generation=2,
            phase="packed",
            placed=(own[0], moving),
            iteration_s=0.2,
            loss=0.05,
            because="packed on n1/0",
            **pool,
        ),
        PartMoved(node_id="n1", aggregator="n1/0", copied_bytes=4096, pause_s=0.02, **moved, **run),
        AggregatorsRecycled(aggregators=("n1/1",), **pool),
        AggregatorEnded(at_s=0, node_id="n1", aggregator="n1/1", why="recycled"),
        AggregatorUnreachable(node_id="n1", aggregator="n1/0", generation=2, reason="timed out", **run),
        AggregatorsAllocated(aggregators=("n1/2",), job_id="a1", **pool),
        AggregationAssigned(
            job_id="a1", epoch=1, generation=3, phase="recovered", placed=joined, because="cannot be reached", **pool
        ),
        AggregationLeft(node_id="n1", **run),
        _ended("a1", steps=40),
        _finished("a1", "completed"),
        JobSubmitted(at_s=0, job_id="a2", spec=msgspec.structs.replace(MLP, id="a2")),
        _placed("a2"),
        AggregationAsked(at_s=0, job_id="a2", epoch=1, servers=9, mode="own", **asks),
        AggregationRefused(job_id="a2", epoch=1, reason="the nodes run 3 at most", **pool),
        _ended("a2", outcome="failed"),
        _finished("a2", "failed"),
    ]


def _users() -> list[AnyEvent]:
    return [
        UserSet(at_s=0, user="ada", role="operator", teams=("vision",), by="root"),
        NotificationRuleSet(at_s=0, user="ada", rule="n1", target="slack", on=("failed",), waiting_s=3600.0, by="ada"),
        NotificationSent(at_s=0, user="ada", rule="n1", until_seq=3, jobs=1, waiting=("j1",)),
        NotificationRuleRemoved(at_s=0, user="ada", rule="n1", by="ada"),
        UserRemoved(at_s=0, user="ada", by="root"),
        NodeTokenIssued(at_s=0, token="t1", uses=1, expires_s=3600.0, by="root"),
        NodeLoginIssued(at_s=0, token="t1", node_id="n9", key="U9", machine="n9 uid 0"),
        NodeLoginRevoked(at_s=0, token="t1", key="U9", node_id="n9", by="root", reason="sold"),
    ]


def _archived() -> list[AnyEvent]:
    learnt = PoolLearnt(finished_s=(2.0,), completed=1, kept=((-0.5, 2.0),))
    used = DayUsage(day="2023-11-14", user="ada", kind="fast", usage=Usage(held_gpu_s=9.0, idle_gpu_s=9.0, jobs=1))
    return [
        LogCopied(at_s=0, archive=ARCHIVE, file="2026-01-31.jsonl.gz", first_seq=1, last_seq=40, until_s=T0 + 40),
        JobsArchived(
            at_s=0, archive=ARCHIVE, job_ids=("g1",), workloads=("gone",), learnt={"default": learnt}, usage=(used,)
        ),
        LogTrimmed(at_s=0, archive=ARCHIVE, archived_seq=60, before_seq=9, nodes=("gone",), removed=12),
    ]


def _placed(job_id: str, *, epoch: int = 1, node: str = "n1", devices: tuple[int, ...] = (0,)) -> RoundDecided:
    slots = (Slot(node_id=node, devices=devices),)
    return RoundDecided(
        at_s=0, pool="default", placements=(Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots),)
    )


def _started(job_id: str, *, epoch: int = 1, node: str = "n1", devices: tuple[int, ...] = (0,)) -> RunStarted:
    return RunStarted(at_s=0, job_id=job_id, epoch=epoch, node_id=node, devices=devices)


def _ended(job_id: str, *, outcome: Outcome = "completed", epoch: int = 1, **more: Any) -> RunEnded:
    return RunEnded(at_s=0, job_id=job_id, epoch=epoch, node_id="n1", outcome=outcome, **more)


def _finished(job_id: str, state: Literal["completed", "failed", "cancelled"]) -> JobFinished:
    return JobFinished(at_s=0, job_id=job_id, name="mlp", state=state, submitted_s=T0)
