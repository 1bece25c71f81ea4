"""A random history of a cluster, with facts that come late, twice, or about what is long over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from gateway_cases import NOW_S, joined, spec, sweep_spec

from penstock_log import (
    ARCHIVE,
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AllocationSpec,
    AnyEvent,
    Demand,
    JobCancelled,
    JobEntered,
    JobFinished,
    JobHeld,
    JobRank,
    JobReleased,
    JobsArchived,
    JobsRanked,
    JobSubmitted,
    JobTimedOut,
    JobTimeSet,
    JobUnblocked,
    LogTrimmed,
    MemoryNeed,
    NodeDrained,
    NodeLeaving,
    NodeLeft,
    NodeResumed,
    NotificationRuleSet,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
    Placement,
    PolicySet,
    Preemption,
    ProfileSample,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    RunWarned,
    SamplesRequested,
    ScaleDecided,
    Slot,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialsMeasured,
    UserSet,
    Wait,
    workload,
)
from penstock_log.spec import ArrayMember

T = TypeVar("T")
_NODES: Final = ("n1", "n2", "n3")
_USERS: Final = ("ada", "bob", "eve")


class _Dice:
    """Draws from few things, one at a time."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def random(self) -> float:
        return float(self._rng.random())

    def randint(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def choice(self, things: Sequence[T]) -> T:
        return things[self.randint(0, len(things) - 1)]


class RandomHistory:
    """
    Draws facts one by one; most of them fit what was drawn before.

    Parameters
    ----------
    seed : int
    trims : bool
        Whether the log says that archived jobs were removed from it.
    pilots : bool
        Whether there are allocations with pilots, whose nodes join, refuse users and leave.
    """

    def __init__(self, seed: int, *, trims: bool = True, pilots: bool = False) -> None:
        self._rng, self._count = _Dice(seed), 0
        self._pilots, self._planned = pilots, list[tuple[str, str]]()
        self._jobs: dict[str, int] = {}
        self._sweeps: list[str] = []
        self._trims = trims

    def facts(self, number: int) -> list[AnyEvent]:
        """Return the next facts."""
        draws: list[tuple[int, Callable[[], AnyEvent]]] = [
            (12, self._submitted),
            (20, self._placed),
            (18, self._started),
            (18, self._ended),
            (10, self._finished),
            (5, self._unparked),
            (6, self._checkpointed),
            (6, self._ranked),
            (4, self._round),
            (8, self._said_of_run),
            (5, self._said_by_people),
            (4, self._node),
            (7, self._sweep),
            (2, self._learnt),
            (1, self._archived),
            *([(40, self._pilot)] if self._pilots else []),
        ]
        kinds = [draw for weight, draw in draws for _ in range(weight)]
        return [self._rng.choice(kinds)() for _ in range(number)]

    def _at_s(self) -> float:
        self._count += 1
        return NOW_S + self._count

    def _new(self) -> str:
        job_id = f"j{len(self._jobs)}"
        self._jobs[job_id] = 0
        return job_id

    def _job(self) -> str:
        ids = list(self._jobs)
        return self._rng.choice(ids[-12:] if self._rng.random() < 0.8 else ids) if ids else self._new()

    def _run(self) -> dict[str, Any]:
        job_id = self._job()
        return {
            "at_s": self._at_s(),
            "job_id": job_id,
            "epoch": self._jobs[job_id],
            "node_id": self._rng.choice(_NODES[:2]),
        }

    def _spec(self, job_id: str, **more: Any) -> Any:
        rng = self._rng
        name = rng.choice(("train", "trainer", "eval", "x"))
        team = rng.choice(("", "vision", "nlp"))
        sharing = rng.choice(("exclusive", "exclusive", "lane"))
        elastic = {"min_gpus": 1, "max_gpus": 2} if sharing == "exclusive" and rng.random() < 0.2 else {}
        pool = rng.choice(("default", "default", "other"))
        retries = rng.randint(0, 1)
        user = rng.choice(_USERS)
        model = rng.choice(("", "mlp", "bert"))
        return spec(
            id=job_id,
            name=name,
            user=user,
            team=team,
            sharing=sharing,
            pool=pool,
            retries=retries,
            model=model,
            **elastic,
            **more,
        )

    def _submitted(self) -> AnyEvent:
        job_id = self._new()
        parent = self._rng.choice(self._sweeps) if self._sweeps and self._rng.random() < 0.4 else ""
        kinds, others = ("after", "afterok", "afterany", "afternotok"), [*self._jobs, *self._sweeps]
        number = self._rng.choice((1, 2)) if others and self._rng.random() < 0.2 else 0
        after = {f"{self._rng.choice(kinds)}:{self._rng.choice(others)}" for _ in range(number)}
        number = crc32(job_id.encode())  # no draw, so that histories of old seeds stay as they are
        array = ArrayMember(id="exp", index=number % 1000, most=2) if number % 5 == 0 else None
        groups = {"group": ("", "nightly")[number % 2], "array": array}
        found = self._spec(job_id, parent=parent, hold=self._rng.random() < 0.1, after=tuple(sorted(after)), **groups)
        return JobSubmitted(at_s=self._at_s(), job_id=job_id, spec=found)

    def _placed(self) -> AnyEvent:
        job_id = self._job()
        if self._rng.random() < 0.9:
            self._jobs[job_id] += 1
        nodes = _NODES[:2] if self._rng.random() < 0.3 else (self._rng.choice(_NODES[:2]),)
        slots = tuple(Slot(node_id=node, devices=(self._rng.randint(0, 1),)) for node in nodes)
        placement = Placement(job_id=job_id, epoch=self._jobs[job_id], kind="fast", slots=slots)
        return RoundDecided(at_s=self._at_s(), pool="default", placements=(placement,))

    def _started(self) -> AnyEvent:
        return RunStarted(devices=(0,), **self._run())

    def _ended(self) -> AnyEvent:
        outcome: Any = self._rng.choice(("completed", "completed", "failed", "preempted", "cancelled"))
        parked = outcome == "preempted" and self._rng.random() < 0.5
        refuses = outcome == "preempted" and not parked and self._rng.random() < 0.5
        steps, held_bytes = self._rng.randint(0, 50), 2**30 if parked else 0
        run = {"loop_steps": 9, "loop_s": 3.0, "parked": parked, "parked_bytes": held_bytes, **self._run()}
        return RunEnded(outcome=outcome, refuses_user=refuses, steps=steps, **run)

    def _unparked(self) -> AnyEvent:
        return RunUnparked(reason="room", **self._run())

    def _finished(self) -> AnyEvent:
        state: Any = self._rng.choice(("completed", "failed"))
        return JobFinished(at_s=self._at_s(), job_id=self._job(), name="x", state=state, submitted_s=NOW_S)

    def _checkpointed(self) -> AnyEvent:
        tier: Any = self._rng.choice(("disk", "memory"))
        run = self._run()
        late = {"generation": run["epoch"]} if self._rng.random() < 0.5 else {}
        return RunCheckpointed(step=self._rng.choice((5, 10)), digest="d", tier=tier, **late, **run)

    def _ranked(self) -> AnyEvent:
        ids = {self._job() for _ in range(3)}
        ranks = tuple(JobRank(job_id=one, queue=self._rng.randint(0, 2), position=self._rng.random()) for one in ids)
        return JobsRanked(at_s=self._at_s(), pool="default", ranks=ranks)

    def _round(self) -> AnyEvent:
        job_id = self._job()
        waits = tuple(Wait(job_id=self._job(), cause="capacity", evidence="2 of 2 are taken") for _ in range(2))
        stopped = (Preemption(job_id=job_id, epoch=self._jobs[job_id], reason="others wait", for_job=self._job()),)
        return RoundDecided(at_s=self._at_s(), pool="default", waits=waits, preemptions=stopped)

    def _said_of_run(self) -> AnyEvent:
        run = self._run()
        kind = self._rng.randint(0, 3)
        if kind == 0:
            return RunWarned(warning=self._rng.choice(("slow", "<script>")), **run)
        if kind == 1:
            return RunRewound(step=0, lost_step=5, lost_generation=run["epoch"], reason="gone", **run)
        if kind == 2:
            need = MemoryNeed(persistent_bytes=self._rng.randint(1, 3) << 20, ephemeral_bytes=1 << 20)
            return RunMeasured(need=need, iterations=5, **run)
        demand = Demand(job_id=run["job_id"], epoch=run["epoch"], gpus=self._rng.randint(1, 2), gives={self._job(): 1})
        dropped = (self._job(),) if self._rng.random() < 0.2 else ()
        return ScaleDecided(at_s=run["at_s"], pool="default", demands=(demand,), dropped=dropped, because="arrival")

    def _said_by_the_gateway(self, at_s: float, job_id: str, kind: int) -> AnyEvent:
        if kind == 8:
            return JobEntered(at_s=at_s, job_id=job_id, session_id="5e" * 8, epoch=1, rank=0, node_id="n1", by="ada")
        if kind == 5:
            return JobUnblocked(at_s=at_s, job_id=job_id)
        if kind == 6:
            return JobTimeSet(at_s=at_s, job_id=job_id, limit_s=self._rng.choice((0.0, 20.0, 1e6)), by="ada")
        return JobTimedOut(at_s=at_s, job_id=job_id, limit_s=30.0, executed_s=30.0)

    def _said_by_people(self) -> AnyEvent:
        at_s, job_id, kind = self._at_s(), self._job(), self._rng.randint(0, 8)
        if kind > 4:
            return self._said_by_the_gateway(at_s, job_id, kind)
        if kind == 0:
            return JobHeld(at_s=at_s, job_id=job_id, by="ada")
        if kind == 1:
            return JobReleased(at_s=at_s, job_id=job_id, by="ada")
        if kind == 2:
            return self._of_user(at_s)
        if kind == 3:
            return self._of_pool(at_s)
        return JobCancelled(at_s=at_s, job_id=job_id, by="ada")

    def _of_pool(self, at_s: float) -> AnyEvent:
        name, kind = f"vision-{self._rng.randint(1, 3)}", self._rng.randint(0, 3)
        if kind == 0:
            return ReservationMade(
                at_s=at_s, pool="default", reservation_id=name, team="vision", gpus=1, from_s=at_s, until_s=at_s + 50.0
            )
        if kind == 1:
            return ReservationCancelled(at_s=at_s, pool="default", reservation_id=name, by="ada")
        return PolicySet(at_s=at_s, pool="default", settings={"order": self._rng.choice(("fifo", "las"))}, by="ada")

    def _of_user(self, at_s: float) -> AnyEvent:
        user = self._rng.choice(_USERS)
        if self._rng.random() < 0.5:
            return UserSet(at_s=at_s, user=user, role="user", teams=("vision",), by="root")
        on, rule = ("started", "failed", "completed", "preempted"), self._rng.choice(("n1", "n2"))
        return NotificationRuleSet(at_s=at_s, user=user, rule=rule, target="json", on=on)

    def _node(self) -> AnyEvent:
        node, kind, at_s = self._rng.choice(_NODES), self._rng.randint(0, 4), self._at_s()
        if kind == 0:
            return RoundDecided(at_s=at_s, pool="default", lost_nodes=(node,))
        if kind == 1:
            return NodeDrained(at_s=at_s, node_id=node, by="ada")
        if kind == 2:
            return NodeResumed(at_s=at_s, node_id=node, by="ada")
        if kind == 3 and node == "n3":
            return NodeLeft(at_s=at_s, node_id=node)
        if kind == 4 and node == "n3":
            return NodeLeaving(at_s=at_s, node_id=node)
        return joined(node)

    def _allocation(self, name: str, at_s: float) -> AnyEvent:
        kind = self._rng.randint(0, 9)
        if kind == 0:
            return AllocationRemoved(at_s=at_s, name=name, by="ada")
        if kind == 1:
            return AllocationPaused(at_s=at_s, name=name, by="ada", reason="<script>")
        if kind == 2:
            return AllocationResumed(at_s=at_s, name=name, by="ada")
        pool = self._rng.choice(("default", "other", "new"))
        spec = AllocationSpec(provider="slurm", pool=pool, max_pilots=3, min_pilots=int(kind == 4))
        return AllocationAdded(at_s=at_s, name=name, spec=spec, by="ada")

    def _pilot(self) -> AnyEvent:
        rng, at_s, kind = self._rng, self._at_s(), self._rng.randint(0, 11)
        name = rng.choice(("lab", "here"))
        if kind < 2:
            return self._allocation(name, at_s)
        if kind < 4 or not self._planned:
            pilot_id = f"{name}-{len(self._planned) + 1}"
            self._planned.append((name, pilot_id))
            return PilotPlanned(at_s=at_s, name=name, pilot_id=pilot_id, reason="1 job would start")
        if kind == 4:
            return PilotsPaused(at_s=at_s, name=name, failures=3, reason="no account")
        name, pilot_id = rng.choice(self._planned[-4:])
        if kind < 7:  # one of the nodes that jobs are placed on: some of its runs refuse users
            labels = {"allocation": name, "pilot": pilot_id}
            return msgspec.structs.replace(joined(rng.choice(_NODES)), at_s=at_s, labels=labels, until_s=at_s + 60.0)
        return self._of_pilot({"at_s": at_s, "name": name, "pilot_id": pilot_id})

    def _of_pilot(self, which: dict[str, Any]) -> AnyEvent:
        end: Any = self._rng.choice(("finished", "cancelled", "failed", "refused", "lost"))
        found: tuple[AnyEvent, ...] = (
            PilotWaits(reason=self._rng.choice(("Resources", "Priority")), **which),
            PilotWithdrawn(reason="no job would run on it", **which),
            PilotStarted(hosts=("gpu-3",), **which),
            PilotEnded(state=end, reason="no account", **which),
            PilotSubmitted(provider_id=str(len(self._planned)), token="0f", **which),
        )
        return self._rng.choice(found)

    def _sweep(self) -> AnyEvent:
        at_s, kind = self._at_s(), self._rng.randint(0, 5)
        if kind == 0 or not self._sweeps:
            self._sweeps.append(f"w{len(self._sweeps)}")
            return SweepSubmitted(at_s=at_s, sweep_id=self._sweeps[-1], spec=sweep_spec(job=self._spec("")))
        sweep_id, job_id = self._rng.choice(self._sweeps[-3:]), self._job()
        if kind == 1:
            trials = tuple(Trial(job_id=self._job(), params={"lr": 0.5}, number=n) for n in range(2))
            return TrialGroupOpened(at_s=at_s, sweep_id=sweep_id, group=0, trials=trials)
        if kind == 2:
            return SweepCancelled(at_s=at_s, sweep_id=sweep_id, by="ada")
        if kind == 3:
            return SweepFinished(at_s=at_s, sweep_id=sweep_id, state="completed")
        value = self._rng.random()
        return TrialFinished(at_s=at_s, sweep_id=sweep_id, job_id=job_id, state="completed", value=value)

    def _learnt(self) -> AnyEvent:
        at_s, asked = self._at_s(), self._spec("")
        if self._sweeps and self._rng.random() < 0.3:
            return TrialsMeasured(at_s=at_s, key=workload.key(asked), sweep_id=self._rng.choice(self._sweeps), moves=1)
        samples = tuple(ProfileSample(sample_id=self._new(), kind="fast", iterations=5) for _ in range(2))
        return SamplesRequested(at_s=at_s, key=workload.key(asked), spec=asked, samples=samples)

    def _archived(self) -> AnyEvent:
        if self._trims and self._rng.random() < 0.3:
            return LogTrimmed(at_s=self._at_s(), archive=ARCHIVE, archived_seq=1, before_seq=1, removed=1)
        gone = tuple(dict.fromkeys(self._job() for _ in range(2)))
        sweeps = (self._rng.choice(self._sweeps),) if self._sweeps and self._rng.random() < 0.5 else ()
        return JobsArchived(at_s=self._at_s(), archive=ARCHIVE, job_ids=gone, sweep_ids=sweeps)
