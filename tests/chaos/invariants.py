"""
What must be true of the record of a schedule, each rule a function that yields what violates it.

The rules know facts as dictionaries, jobs by what these wrote themselves, and share no code with what they check.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from chaos.record import Fact, JobNote, LoggedFact, Record
from chaos.schedule import PlannedJob

KILLED: Final = frozenset({128 + 9, 128 + 15})
_S: Final = 1e9
_LEASE_SLACK_S: Final = 0.05
_ENDS: Final = ("job.finished", "sweep.finished")


def violations(record: Record) -> list[str]:
    """Return each violation as one sentence that begins with the name of the rule."""
    return [f"{name}: {text}" for name, rule in RULES.items() for text in rule(record)]


# --- jobs end once, and as they should
def accepted_once(record: Record) -> Iterator[str]:
    """Everything that was accepted is in the log, once, and nothing was refused."""
    for what, why in record.refused.items():
        yield f"{what} was refused: {why}"
    kinds = {"job.submitted": "job_id", "request.sweep_submitted": "sweep_id"}
    stored = Counter(one.fact[kinds[one.type]] for one in record.facts if one.type in kinds)
    for job in _planned(record):
        if job.id in record.accepted and stored[job.id] != 1:
            yield f"{job.id} was accepted and is {stored[job.id]} times in the log"


def ends_once(record: Record) -> Iterator[str]:
    """Whatever is in the log ends exactly once, with its own exit code."""
    ended = defaultdict(list)
    for one in record.facts:
        if one.type in _ENDS:
            ended[one.fact.get("job_id") or one.fact["sweep_id"]].append(one.fact)
    for job_id in _submitted(record):
        if len(ended[job_id]) > 1:
            yield f"{job_id} has ended {len(ended[job_id])} times"
    for job in _planned(record):
        if job.kind != "sweep" and len(ended[job.id]) == 1:
            yield from _own_end(job, ended[job.id][0], record)


def _own_end(job: PlannedJob, end: Fact, record: Record) -> Iterator[str]:
    code, state = end.get("exit_code"), end["state"]
    if state == "cancelled":
        if job.id not in record.cancelled:
            yield f"{job.id} was cancelled by nobody: {end.get('reason', '')}"
        return
    wanted = {job.code}
    if job.id in record.killed_jobs and job.retries < job.failures + _MANY:
        wanted |= KILLED
    if code not in wanted or (state == "completed") != (code == 0):
        reason = end.get("reason", "")
        yield f"{job.id} is {state} with exit code {code}, expected {_listed(wanted)}: {reason}"
    said = [note.more["code"] for note in record.notes.get(job.id, ()) if note.what == "end"]
    if code == job.code and code not in said:
        yield f"{job.id} is {state} with exit code {code}, and no process of it has come to that end"


_MANY: Final = 10
"""Retries that no schedule uses up."""


def says_so(record: Record) -> Iterator[str]:
    """Whoever asks in the end is told the end that is in the log."""
    ends = {one.fact["job_id"]: one.fact for one in record.facts if one.type == "job.finished"}
    for job_id, answer in record.answers.items():
        end = ends.get(job_id)
        if isinstance(answer, str):
            yield f"{job_id} is asked for, and the answer is: {answer}"
        elif end is not None and (answer.state, answer.exit_code) != (_SHOWN[end["state"]], end.get("exit_code")):
            yield f"{job_id} is shown as {answer.state} with {answer.exit_code}, and the log has {end['state']}"


_SHOWN: Final = {"completed": "CD", "failed": "F", "cancelled": "CA"}


def output_whole(record: Record) -> Iterator[str]:
    """What a command has printed in a run that came to its own end is there, whole and in order, but for power cuts."""
    if any(fault.kind == "power" for fault in record.schedule.faults):
        return  # what had not been written back is lost with it
    known: dict[str, set[int]] = defaultdict(set)  # a run that was lost at its very end may have lost its output too
    for one in record.facts:
        if one.type == "run.ended" and one.fact.get("exit_code") is not None:
            known[one.fact["job_id"]].add(one.fact["epoch"])
    for job in _planned(record):
        answer = record.answers.get(job.id)
        if job.kind not in {"command", "retried"} or answer is None or isinstance(answer, str):
            continue
        notes = record.notes.get(job.id, ())
        came = {note.epoch for note in notes if note.what == "end" and note.more["code"] == answer.exit_code}
        for epoch in came & known.get(job.id, set()):
            count = sum(note.what == "alive" and note.epoch == epoch for note in notes)
            wanted = b"".join(b"line %d\n" % number for number in range(1, count + 1))
            found = answer.output.get(epoch, b"")
            if found != wanted:
                tail, said = found[-80:].decode(errors="replace"), "; ".join(answer.missing) or "nothing is said of it"
                yield f"{job.id}: epoch {epoch} printed {len(wanted)} bytes, {len(found)} are there (…{tail!r}); {said}"


def nothing_waits(record: Record) -> Iterator[str]:
    """Everything ends within a bound after the last fault."""
    last = {one.fact.get("job_id") or one.fact.get("sweep_id"): one for one in record.facts}
    for job_id in sorted(record.unfinished):
        found = last.get(job_id)
        what = f"its last fact is {found.fact['type']} at {found.seq}" if found else "it is not in the log"
        yield f"{job_id} has not ended; {what}"


# --- steps
def no_two_epochs(record: Record) -> Iterator[str]:
    """No process of an epoch does anything after the first of a later epoch has begun."""
    for job_id, notes in record.notes.items():
        begun: dict[int, int] = {}
        last: dict[int, int] = {}
        for note in notes:
            begun[note.epoch] = min(begun.get(note.epoch, note.t_ns), note.t_ns)
            last[note.epoch] = max(last.get(note.epoch, note.t_ns), note.t_ns)
        for new, begun_ns in begun.items():
            for old, last_ns in last.items():
                if old < new and last_ns > begun_ns:
                    late = sum(note.epoch == old and note.t_ns > begun_ns for note in notes)
                    beside_s = (last_ns - begun_ns) / _S
                    yield f"{job_id}: epoch {old} wrote {late} lines in {beside_s:.2f} s after epoch {new} had begun"


def no_device_twice(record: Record) -> Iterator[str]:
    """No two jobs are on one device at a time, by what their processes write; those that take turns may be."""
    spans: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    shared = {job.id for job in _planned(record) if job.kind == "lane"}
    for job_id, notes in record.notes.items():
        if job_id in shared:
            continue
        for process, lines in _processes(notes).items():
            begin = lines[0]
            if begin.what == "begin":
                for device in filter(None, str(begin.more["devices"]).split(",")):
                    who = f"{job_id}/{process[0]}/{process[1]}"
                    spans[str(begin.more["node"]), device].append((begin.t_ns, lines[-1].t_ns, who))
    for (node, device), found in spans.items():
        for (_, end, one), (start, _, other) in pairwise(sorted(found)):
            if start < end:
                yield f"{one} and {other} were on device {device} of {node} for {(end - start) / _S:.2f} s"


def no_step_lost(record: Record) -> Iterator[str]:
    """A run goes on after the last checkpoint that was reported before it was placed, and the sum of all is right."""
    checkpoints: dict[str, list[LoggedFact]] = defaultdict(list)
    placed: dict[tuple[str, int], int] = {}
    for one in record.facts:
        if one.type == "run.checkpointed":
            checkpoints[one.fact["job_id"]].append(one)
        elif one.type == "round.decided":
            placed |= {(p["job_id"], p["epoch"]): one.seq for p in one.fact.get("placements", ())}
    for job in _planned(record):
        if job.kind in {"session", "lane", "gang"}:
            notes = record.notes.get(job.id, ())
            yield from _resumed(job, notes, checkpoints[job.id], placed)
            yield from _whole(job, notes)


def _resumed(
    job: PlannedJob, notes: Sequence[JobNote], saved: Sequence[LoggedFact], placed: dict[tuple[str, int], int]
) -> Iterator[str]:
    firsts = {}
    for note in notes:
        if note.what == "step" and note.rank == 0:
            firsts.setdefault(note.epoch, note.more["step"])
    for epoch, first in firsts.items():
        since = placed.get((job.id, epoch), 0)
        known = [one.fact["step"] for one in saved if one.seq < since and one.fact["epoch"] < epoch]
        if known and first <= max(known):
            yield f"{job.id}: epoch {epoch} began at step {first}, though step {max(known)} had been saved"


def _whole(job: PlannedJob, notes: Iterable[JobNote]) -> Iterator[str]:
    wanted = sum(step * step for step in range(1, job.steps + 1))
    for note in notes:
        if note.what == "end" and note.rank == 0 and note.more["sum"] != wanted:
            yield f"{job.id}: epoch {note.epoch} ended with the sum {note.more['sum']}, expected {wanted}"


# --- the cluster
def no_orphans(record: Record) -> Iterator[str]:
    """No process of a job is left when all jobs have ended, and none of anybody when all has been stopped."""
    yield from record.orphans


def stops_in_good_order(record: Record) -> Iterator[str]:
    """Every process keeps being started again, and ends with status 0 when it is told to."""
    yield from record.gave_up
    for name, status in record.statuses.items():
        if status:
            yield f"{name} ended with status {status} when it was told to stop"


def folds_agree(record: Record) -> Iterator[str]:
    """Every snapshot is the fold of the log from nothing."""
    yield from record.folds


def one_leader(record: Record) -> Iterator[str]:
    """No lease is given to somebody before that of the owner before has run out, by the server's own times, if true."""
    if record.schedule.server_clocks:
        return
    held: dict[str, tuple[str, float]] = {}
    for note in record.leases:
        owner, until_s = held.get(note.name, ("", 0.0))
        if note.owner and owner and note.owner != owner and note.stored_s < until_s - _LEASE_SLACK_S:
            early_s = until_s - note.stored_s
            yield f"{note.owner} got the lease {note.name} {early_s:.2f} s before that of {owner} had run out"
        held[note.name] = (note.owner, note.stored_s + note.ttl_s)


def devices_given_once(record: Record) -> Iterator[str]:
    """No device is placed anew before the run that had it has ended there, or its node was lost or has left."""
    given: dict[tuple[str, int], tuple[str, int]] = {}
    shared = {job.id for job in _planned(record) if job.kind == "lane"}
    void: set[str] = set()  # jobs that were cancelled while they waited: a round decided at that time changes nothing
    for one in record.facts:
        fact, lost = one.fact, set(one.fact.get("lost_nodes", ()))
        if one.type == "job.cancelled" and fact["job_id"] not in {job_id for job_id, _ in given.values()}:
            void.add(fact["job_id"])
        if one.type == "node.left":
            lost.add(fact["node_id"])
        for key, run in list(given.items()):
            ended = one.type == "run.ended" and (key[0], *run) == (fact["node_id"], *_run(fact))
            if ended or key[0] in lost:
                del given[key]
        for run, placement in ((_run(placement), placement) for placement in fact.get("placements", ())):
            if run[0] in void or run[0] in shared:
                continue
            for key in [(slot["node_id"], device) for slot in placement["slots"] for device in slot["devices"]]:
                if key in given:
                    yield f"round {one.seq} gives device {key[1]} of {key[0]} to {run}, while {given[key]} has it"
                given[key] = run


def _run(fact: Fact) -> tuple[str, int]:
    return fact["job_id"], fact["epoch"]


# --- what several of them ask
def _planned(record: Record) -> Sequence[PlannedJob]:
    return record.schedule.jobs


def _submitted(record: Record) -> set[str]:
    kinds = {"job.submitted": "job_id", "request.sweep_submitted": "sweep_id"}
    return {one.fact[kinds[one.type]] for one in record.facts if one.type in kinds}


def _processes(notes: Iterable[JobNote]) -> dict[tuple[int, int, int], list[JobNote]]:
    found: dict[tuple[int, int, int], list[JobNote]] = defaultdict(list)
    for note in notes:
        found[note.epoch, note.rank, note.pid].append(note)
    return found


def _listed(codes: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(codes)))


RULES: Final[dict[str, Callable[[Record], Iterator[str]]]] = {
    "accepted": accepted_once,
    "ends-once": ends_once,
    "says-so": says_so,
    "output": output_whole,
    "waits-for-ever": nothing_waits,
    "two-epochs": no_two_epochs,
    "device-twice": no_device_twice,
    "step-lost": no_step_lost,
    "orphan": no_orphans,
    "stops": stops_in_good_order,
    "fold": folds_agree,
    "two-leaders": one_leader,
    "given-twice": devices_given_once,
}
