"""
What a schedule leaves behind, read in ways of its own: the log as bytes, the jobs' notes, leases, folds, processes.

Facts are plain dictionaries here, decoded by ``json``. Only the comparison of snapshots with folds uses the code that
it checks, since it asks whether that agrees with itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from chaos.schedule import PlannedJob, Schedule
from penstock import Client
from penstock_bus import BusError
from penstock_bus.decider import Decider, Fold
from penstock_bus.nats import NatsBus, direct_get
from penstock_bus.nats.consumer import StreamReader, position
from penstock_bus.nats.streams import BUCKET, KEY
from penstock_log import subjects
from penstock_log.services import CORE

Fact = dict[str, Any]


@dataclass(frozen=True)
class LoggedFact:
    """One fact as it stands in the log."""

    seq: int
    subject: str
    actor: str
    fact: Fact

    @property
    def type(self) -> str:
        """Its tag without the version."""
        return str(self.fact["type"]).rpartition(".")[0]


@dataclass(frozen=True)
class JobNote:
    """One line that a process of a job wrote."""

    what: str
    epoch: int
    rank: int
    pid: int
    t_ns: int
    more: Mapping[str, Any]


@dataclass(frozen=True)
class LeaseNote:
    """One entry of the leases' bucket: who had one at which time of the server; an owner who gave it back is empty."""

    name: str
    owner: str
    stored_s: float
    ttl_s: float


@dataclass(frozen=True)
class GivenAnswer:
    """
    What Penstock says about a job when all is over.

    Attributes
    ----------
    output : mapping of int to bytes
        Epoch → standard output of its first process.
    missing : sequence of str
        What is said of output that is nowhere to be had.
    """

    state: str
    exit_code: int | None
    output: Mapping[int, bytes]
    missing: Sequence[str] = ()


@dataclass
class Record:
    """
    All that invariants are checked on.

    Attributes
    ----------
    accepted, cancelled, killed_jobs : set of str
        Of submissions: answered; asked to be cancelled; a process killed by the schedule.
    refused : mapping of str to str
        Submissions and commands that were refused, and why.
    unfinished : set of str
        Jobs and sweeps that had not ended a long time after the last fault.
    answers : mapping of str to GivenAnswer or str
        What Penstock says of each job in the end; text where it does not answer.
    orphans : sequence of str
        Processes of jobs that were there after all jobs had ended, or after all services had.
    statuses : mapping of str to int
        Of processes that were told to stop in the end.
    gave_up : sequence of str
        What is not started any more.
    folds : sequence of str
        Snapshots that are not the fold of the log, and why.
    """

    schedule: Schedule
    facts: Sequence[LoggedFact] = ()
    notes: Mapping[str, Sequence[JobNote]] = field(default_factory=dict)
    leases: Sequence[LeaseNote] = ()
    accepted: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    killed_jobs: set[str] = field(default_factory=set)
    refused: Mapping[str, str] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    answers: Mapping[str, GivenAnswer | str] = field(default_factory=dict)
    orphans: Sequence[str] = ()
    statuses: Mapping[str, int] = field(default_factory=dict)
    gave_up: Sequence[str] = ()
    folds: Sequence[str] = ()


async def facts(bus: NatsBus) -> list[LoggedFact]:
    """Return all facts of the log, from its bytes."""
    read: list[LoggedFact] = []
    async for message in direct_get.stored(bus.link, subjects.EVT, f"{subjects.ROOT}.evt.>"):
        body = json.loads(message.body)
        read += [LoggedFact(message.seq, message.subject, body.get("actor", ""), fact) for fact in body["facts"]]
    return read


def notes(folder: Path) -> dict[str, list[JobNote]]:
    """Return what each job's processes noted, in the order of its file."""
    return {path.stem: list(_lines(path)) for path in sorted(folder.glob("*.jsonl"))}


def _lines(path: Path) -> Iterator[JobNote]:
    for line in path.read_bytes().splitlines():
        noted = json.loads(line)
        yield JobNote(*(noted.pop(name) for name in ("what", "epoch", "rank", "pid", "t_ns")), more=noted)


async def watch_leases(bus: NatsBus, into: list[LeaseNote]) -> None:
    """Note every entry of the leases' bucket that can be seen, with the server's own time of it, for ever."""
    reader = StreamReader(bus.link, BUCKET, 0, [f"{KEY}>"])
    async for batch in reader.batches():
        for message in batch:
            reader.seen, stored_s, _ = position(message.reply)
            into.append(_lease(message, stored_s))


def _lease(message: Msg, stored_s: float) -> LeaseNote:
    name = message.subject.removeprefix(KEY)
    if not message.data:  # given back, or run out
        return LeaseNote(name, "", stored_s, 0.0)
    ttl_s = float((message.headers or {})["Nats-TTL"].removesuffix("s"))
    return LeaseNote(name, json.loads(message.data)["owner"], stored_s, ttl_s)


# --- what Penstock says
async def answers(client: Client, jobs: Iterable[PlannedJob]) -> dict[str, GivenAnswer | str]:
    """Ask for the end and the output of each job."""
    return {job.id: await _answer(client, job.id) for job in jobs if job.kind != "sweep"}


async def _answer(client: Client, job_id: str) -> GivenAnswer | str:
    try:
        job = (await client.job(job_id)).job
        output: dict[int, bytes] = {}
        missing: list[str] = []
        async with aclosing(client.logs(job_id)) as pieces:
            async for piece in pieces:
                missing += [piece.missing] if piece.missing else []
                channel = getattr(piece.place, "channel", None)
                if channel is not None and (channel.rank, channel.stream) == (0, "stdout"):
                    output[channel.epoch] = output.get(channel.epoch, b"") + piece.data
    except BusError as error:
        return f"{error}"
    return GivenAnswer(job.state, job.exit_code, output, missing)


# --- folds and snapshots
_EXECUTOR: Final = "executor."


async def wrong_folds(bus: NatsBus, executors: int) -> list[str]:
    """Return each snapshot that differs from the fold of the log from nothing up to its sequence."""
    everything = await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT])
    wrong = []
    names = [*(name for name in CORE if name != "executor"), *(f"{_EXECUTOR}node-{i + 1}" for i in range(executors))]
    for name in names:
        snapshot = await bus.load_snapshot(name)
        if snapshot is None:
            continue
        service = name.partition(".")[0]
        saved, fold = Fold(decider_of(service)), Fold(decider_of(service))
        if not saved.restore(snapshot):
            wrong.append(f"the snapshot of {name} cannot be read")
            continue
        for delivery in everything:
            if delivery.seq <= snapshot.last_seq:
                fold.apply(delivery)
        if saved.encoded() != fold.encoded():
            wrong.append(f"the snapshot of {name} at {snapshot.last_seq} is not the fold of the log up to there")
    return wrong


def decider_of(service: str) -> Decider[Any]:
    """Return the decider that a service runs."""
    machine = import_module(f"penstock_{service}.machine")
    found = machine.decider(machine.GatewaySettings()) if service == "gateway" else machine.decider()
    assert isinstance(found, Decider)
    return found
