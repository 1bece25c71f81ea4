"""Each rule finds what violates it, and passes over what does not: on records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos.invariants import RULES, violations
from chaos.record import GivenAnswer, JobNote, LeaseNote, LoggedFact, Record
from chaos.schedule import Fault, PlannedJob, Schedule, schedule

JOB = PlannedJob(id="j1", kind="command", at_s=0.0, length_s=1.0, code=3)
SESSION = PlannedJob(id="s1", kind="session", at_s=0.0, length_s=0.15, retries=20)
PLAN = Schedule(seed=1, number=1, replicas={}, executors=2, jobs=(JOB, SESSION), faults=())


def facts(*bodies: dict[str, Any]) -> list[LoggedFact]:
    return [LoggedFact(seq, "", "", body) for seq, body in enumerate(bodies, 1)]


def fact(tag: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"{tag}.v1", **fields}


def placed(job_id: str, epoch: int, node_id: str = "n1") -> dict[str, Any]:
    slots = [{"node_id": node_id, "devices": [0]}]
    return fact("round.decided", placements=[{"job_id": job_id, "epoch": epoch, "slots": slots}])


def ended(job_id: str, epoch: int, node_id: str = "n1", **fields: Any) -> dict[str, Any]:
    return fact("run.ended", job_id=job_id, epoch=epoch, node_id=node_id, **fields)


def note(what: str, at_s: float, epoch: int = 1, **more: Any) -> JobNote:
    more = {"node": "n1", "devices": "0"} | more if what == "begin" else more
    return JobNote(what, epoch, 0, 100 + epoch, int(at_s * 1e9), more)


def good() -> Record:
    return Record(
        PLAN,
        facts=facts(
            fact("job.submitted", job_id="j1"),
            fact("job.submitted", job_id="s1"),
            placed("j1", 1),
            ended("j1", 1, exit_code=3),
            fact("job.finished", job_id="j1", state="failed", exit_code=3),
            placed("s1", 1),
            fact("run.checkpointed", job_id="s1", epoch=1, step=2),
            ended("s1", 1),
            placed("s1", 2),
            ended("s1", 2),
            fact("job.finished", job_id="s1", state="completed", exit_code=0),
        ),
        notes={
            "j1": [note("begin", 1.0), note("alive", 1.1, number=1), note("end", 2.0, code=3)],
            "s1": [
                note("begin", 3.0),
                *(note("step", 3.0 + step, step=step) for step in (1, 2)),
                note("begin", 6.0, epoch=2),
                note("step", 7.0, epoch=2, step=3),
                note("end", 8.0, epoch=2, code=0, sum=14),
            ],
        },
        leases=[
            LeaseNote("matcher", "a", 10.0, 3.0),
            LeaseNote("matcher", "b", 13.0, 3.0),
            LeaseNote("matcher", "", 14.0, 0.0),
            LeaseNote("matcher", "a", 14.1, 3.0),
        ],
        accepted={"j1", "s1"},
        answers={"j1": GivenAnswer("F", 3, {1: b"line 1\n"}), "s1": GivenAnswer("CD", 0, {})},
        statuses={"matcher-1": 0},
    )


def without(record: Record, tag: str) -> Record:
    return replace(record, facts=[one for one in record.facts if one.type != tag])


def with_facts(record: Record, *bodies: dict[str, Any]) -> Record:
    return replace(record, facts=[*record.facts, *facts(*bodies)])


def with_notes(record: Record, job_id: str, *notes: JobNote) -> Record:
    return replace(record, notes={**record.notes, job_id: [*record.notes[job_id], *notes]})


BROKEN: dict[str, tuple[str, Callable[[Record], Record]]] = {
    "lost": ("accepted", lambda record: without(record, "job.submitted")),
    "doubled": ("accepted", lambda record: with_facts(record, fact("job.submitted", job_id="j1"))),
    "refused": ("accepted", lambda record: replace(record, refused={"j1": "no"})),
    "ended twice": (
        "ends-once",
        lambda record: with_facts(record, fact("job.finished", job_id="j1", state="failed", exit_code=3)),
    ),
    "another's code": ("ends-once", lambda record: replace(record, schedule=_with(record, replace(JOB, code=4)))),
    "a code of nobody": ("ends-once", lambda record: replace(record, notes={**record.notes, "j1": []})),
    "not told": ("says-so", lambda record: _answered(record, "the gateway is away")),
    "told another end": ("says-so", lambda record: _answered(record, GivenAnswer("CD", 0, {}))),
    "a line lost": ("output", lambda record: _answered(record, GivenAnswer("F", 3, {1: b""}))),
    "a line doubled": ("output", lambda record: _answered(record, GivenAnswer("F", 3, {1: b"line 1\nline 1\n"}))),
    "never ended": ("waits-for-ever", lambda record: replace(record, unfinished={"j1"})),
    "the old one goes on": ("two-epochs", lambda record: with_notes(record, "s1", note("step", 6.5, step=3))),
    "one device for two": (
        "device-twice",
        lambda record: replace(record, notes={**record.notes, "j2": [note("begin", 1.5), note("alive", 1.6)]}),
    ),
    "a saved step done again": (
        "step-lost",
        lambda record: replace(
            record, notes={"s1": [note("step", 1.0, step=1), note("step", 7.0, epoch=2, step=2)], "j1": []}
        ),
    ),
    "a step left out": (
        "step-lost",
        lambda record: with_notes(record, "s1", note("end", 9.0, epoch=3, code=0, sum=13)),
    ),
    "a process that stays": ("orphan", lambda record: replace(record, orphans=["process 1"])),
    "an end out of order": ("stops", lambda record: replace(record, statuses={"matcher-1": 1})),
    "a wrong snapshot": ("fold", lambda record: replace(record, folds=["the snapshot of matcher"])),
    "a lease for two": (
        "two-leaders",
        lambda record: replace(record, leases=[*record.leases, LeaseNote("matcher", "b", 15.0, 3.0)]),
    ),
    "a device given twice": ("given-twice", lambda record: with_facts(record, placed("j1", 2), placed("s1", 3))),
}


def _with(record: Record, job: PlannedJob) -> Schedule:
    return replace(record.schedule, jobs=(job, SESSION))


def _answered(record: Record, answer: GivenAnswer | str) -> Record:
    return replace(record, answers={**record.answers, "j1": answer})


def test_a_good_record_violates_nothing() -> None:
    assert violations(good()) == []


@pytest.mark.parametrize("what", BROKEN)
def test_each_rule_finds_what_it_is_for(what: str) -> None:
    rule, broken = BROKEN[what]
    assert [text.partition(":")[0] for text in violations(broken(good()))].count(rule) >= 1


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _ in BROKEN.values()} == set(RULES)


def test_a_killed_job_without_retries_may_end_by_the_signal() -> None:
    killed = without(good(), "job.finished")
    killed = with_facts(killed, fact("job.finished", job_id="j1", state="failed", exit_code=137))
    assert any(text.startswith("ends-once: j1") for text in violations(killed))
    assert not any(text.startswith("ends-once: j1") for text in violations(replace(killed, killed_jobs={"j1"})))


def test_leases_are_not_judged_by_a_clock_that_was_set() -> None:
    double = replace(good(), leases=[*good().leases, LeaseNote("matcher", "b", 15.0, 3.0)])
    clock = Fault(kind="clock", at_s=1.0, target="server-1", amount=-30.0)
    assert violations(replace(double, schedule=replace(PLAN, faults=(clock,)))) == []


def test_a_lost_node_gives_its_devices_back() -> None:
    lost = with_facts(good(), placed("j1", 2), fact("round.decided", lost_nodes=["n1"]), placed("j1", 3))
    assert violations(lost) == []


def test_a_round_that_places_a_cancelled_job_gives_nothing() -> None:
    overtaken = with_facts(good(), fact("job.cancelled", job_id="j9"), placed("j9", 1), placed("j1", 2))
    assert violations(overtaken) == []


def test_a_schedule_is_the_same_whenever_it_is_made() -> None:
    first = [schedule(7, number) for number in range(1, 60)]
    assert first == [schedule(7, number) for number in range(1, 60)]
    assert len({str(one.faults) for one in first}) == len(first)
    assert {fault.kind for one in first for fault in one.faults} >= {"kill", "stop", "cut", "power", "full", "clock"}
