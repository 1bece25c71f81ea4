"""
The archiver: one gateway at a time copies the old part of the log to files, and has its jobs forgotten and removed.

The log says how far it has come (:mod:`penstock_log.archive_facts`), so it may die at any moment: what was not said to
be done is done again, and comes out the same. Nothing is removed before a file that holds it is on disk under its name.

Files are of a stretch of time each, such as a day, or of so many commits. They hold the log as text
(:mod:`penstock_bus.log_text`), compressed by gzip, so that ``zcat``, DuckDB and pandas open them as well as
``penstock`` does; ``SHA256SUMS`` beside them is for ``sha256sum --check``.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, Protocol

import structlog

from penstock_bus import Append, BusError, Conflict, Delivery, LeasePort, LogPort, LogTrimPort, TrimDenied
from penstock_bus.follower import FoldFollower, until_available
from penstock_bus.log_text import encode
from penstock_bus.replica import LeaderElection
from penstock_bus.shell import Shell
from penstock_gateway.archived_ids import ArchivedIds
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.retention import MOST_IDS, Untrimmed, expired, forgotten_nodes, needed_from, owners, still_due
from penstock_log import ARCHIVE, AnyEvent, Commit, LogCopied, LogTrimmed, subjects

DAY_S: Final = 86_400.0
MOST_COMMITS: Final = 500_000
"""Of one file."""
SUMS: Final = "SHA256SUMS"

_LOOK_S: Final = 60.0
_AT_ONCE: Final = 1_000
_TOGETHER: Final = 32
_LEASE: Final = "gateway"  # as the gateway's own decisions need none
_TTL_S: Final = 60.0  # a file takes a while, and nobody waits for another archiver
_RENEW_S: Final = 5.0
_LEVEL: Final = 6  # the densest takes three times as long, and all else that is done with a fact no longer than that
_OWNER_ONLY: Final = 0o600
_OF_JOBS: Final = ("job", "run")
_SHARED: Final = ("round", "rank", "scale")
_log = structlog.get_logger("penstock.archive")


class ArchiveBus(LogPort, LogTrimPort, LeasePort, Protocol):
    """What the archiver uses."""


class Archiver:
    """
    Copies, archives and removes, while it has the lease.

    Parameters
    ----------
    live : FoldFollower
        The gateway's read model, which knows how far the archive is.
    """

    def __init__(
        self, shell: Shell, bus: ArchiveBus, live: FoldFollower[GatewayState], settings: GatewaySettings
    ) -> None:
        self._shell, self._bus, self._live, self._settings = shell, bus, live, settings
        self._folder = Path(settings.archive_dir)
        self._ids = ArchivedIds(self._folder)
        self._actor = f"{shell.service}/{shell.replica_id}"
        self.election = LeaderElection(
            bus, _LEASE, shell.replica_id, lambda: None, ttl_s=_TTL_S, renew_s=_RENEW_S, clock=shell.monotonic
        )
        self._may_trim = True
        self._looked_until_s = self._archived_until_s = 0.0

    async def run(self) -> None:
        """Archive what is due until the service is to stop; what cannot be done now is tried again."""
        look_s = min(_LOOK_S, max(1.0, self._settings.archive_every_s / 10))
        async with self.election.kept():
            await self.election.repeat(look_s, self._shell.stopping, self._look)

    async def _look(self) -> None:
        try:
            await self._live.caught_up()
            await self.archive(self._shell.now_s())
        except (BusError, OSError) as error:
            _log.warning("archive_waits", error=str(error), folder=str(self._folder))

    async def archive(self, now_s: float) -> None:
        """Copy what is old by now, have its jobs forgotten, and remove them from the log."""
        every_s = self._settings.archive_every_s
        until_s = (now_s - self._settings.keep_days * DAY_S) // every_s * every_s
        copying = True
        while copying:
            copying = await self._copy(until_s)
        if until_s <= self._archived_until_s:
            return
        await self._trim(now_s)  # what another had archived when it died
        for chosen in expired(self._live.state, until_s, now_s, MOST_IDS):
            fact = still_due(self._live.state, chosen)
            await asyncio.to_thread(self._ids.add, list(owners(self._live.state, fact)))
            ends = {job_id: self._live.state.histories[job_id].end_seq for job_id in fact.job_ids}
            await self._append(fact)
            counts = {"jobs": len(fact.job_ids), "sweeps": len(fact.sweep_ids), "workloads": len(fact.workloads)}
            _log.info("jobs_archived", **counts)
            await self._trim(now_s, ends)
        self._archived_until_s = until_s

    # --- copy
    async def _copy(self, until_s: float) -> bool:
        """Copy the next stretch up to a time; False where there is none."""
        record = self._live.state.archive
        if max(record.copied_until_s, self._looked_until_s) >= until_s:
            return False
        with _ArchiveFile(self._folder) as file:
            end_s = await self._fill(file, record.copied_seq, until_s)
            if not file.is_worth_keeping:
                self._looked_until_s = until_s
                return False
            name = await asyncio.to_thread(file.close)
        fact = LogCopied(
            at_s=self._shell.now_s(),
            archive=ARCHIVE,
            file=name,
            first_seq=record.copied_seq + 1,
            last_seq=file.last_seq,
            until_s=end_s,
            commits=file.commits,
            bytes=file.bytes,
            sha256=file.sha256,
        )
        await self._append(fact)
        _log.info("log_copied", file=fact.file, commits=fact.commits, bytes=fact.bytes)
        return fact.until_s < until_s

    async def _fill(self, file: _ArchiveFile, after_seq: int, until_s: float) -> float:
        """
        Write commits into a file until one is of the next stretch; return the time up to which all are in it.

        Stretches in which the archive alone has spoken of itself go with the next one: they are worth no file, and
        what follows has to be copied too.
        """
        last_seq, every_s = await self._bus.last_seq(), self._settings.archive_every_s
        if after_seq >= last_seq:
            return until_s
        found: list[Delivery] = []
        end_s, last_s, is_begun = 0.0, 0.0, False
        async with aclosing(self._bus.follow(after_seq)) as deliveries:
            async for delivery in deliveries:
                if not is_begun:
                    end_s = min(until_s, (delivery.stored_s // every_s + 1) * every_s)
                if delivery.stored_s >= end_s:
                    break
                is_begun |= delivery.subject != subjects.archive(ARCHIVE)
                if file.commits + len(found) >= MOST_COMMITS:
                    end_s = last_s
                    break
                found.append(delivery)
                last_s = delivery.stored_s
                if len(found) >= _AT_ONCE:
                    await asyncio.to_thread(file.write, found)
                    found = []
                if delivery.seq >= last_seq or not delivery.pending:
                    break
        if found:
            await asyncio.to_thread(file.write, found)
        return end_s

    # --- remove
    async def _trim(self, now_s: float, ends: Mapping[str, int] = MappingProxyType({})) -> None:
        """
        Remove archived jobs from the log; ids that were used again meanwhile are left alone.

        What lies before the oldest job that is left goes at once, whosever it is. A job that is known to have ended
        before that needs no request of its own: there are up to three for each of the others.

        Parameters
        ----------
        ends : mapping of str to int
            Job → sequence of its last commit, where that is known: where this archiver has just had it forgotten.
        """
        record = self._live.state.archive
        before_seq = needed_from(self._live.state)
        if not self._may_trim or (not record.untrimmed and before_seq - record.trimmed_before < MOST_COMMITS):
            return
        archived_seq = record.untrimmed[-1].seq if record.untrimmed else 0
        removed = 0
        try:
            for kind in _OF_JOBS:
                removed += await self._bus.trim(subjects.every(kind), before_seq)
            extended = await self._bus.holds(f"{subjects.EXTENSIONS}>")
            for one in record.untrimmed:
                jobs = [job_id for job_id in one.fact.job_ids if ends.get(job_id, before_seq) >= before_seq]
                others = [subjects.extensions(job_id) for job_id in one.fact.job_ids] if extended else []
                patterns = [*_subjects_of(one, jobs), *others]
                removed += await self._remove(patterns, min(one.seq, record.copied_seq + 1))
            nodes = forgotten_nodes(self._live.state, before_seq)
            removed += sum([await self._bus.trim(subjects.node(node_id), seq) for node_id, seq in nodes.items()])
            removed += await self._remove_shared(before_seq)
        except TrimDenied as denied:
            self._may_trim = False
            _log.warning("log_not_trimmed", reason=str(denied))
            return
        fact = LogTrimmed(
            at_s=now_s,
            archive=ARCHIVE,
            archived_seq=archived_seq,
            before_seq=before_seq,
            nodes=tuple(sorted(nodes)),
            removed=removed,
        )
        await self._append(fact)
        _log.info("log_trimmed", archived_seq=archived_seq, before_seq=before_seq, removed=removed)

    async def _remove(self, patterns: Iterable[str], before_seq: int) -> int:
        removed, todo = 0, list(patterns)
        for at in range(0, len(todo), _TOGETHER):
            together = (self._bus.trim(pattern, before_seq) for pattern in todo[at : at + _TOGETHER])
            removed += sum(await asyncio.gather(*together))
        return removed

    async def _remove_shared(self, before_seq: int) -> int:
        """Remove the ranks, sizes and rounds before a sequence, but for the last of each pool."""
        removed = 0
        pools = {*self._live.state.pools(), *self._live.state.waits, *self._live.state.lengths}
        for subject in (subjects.entity(kind, pool) for pool in sorted(pools) for kind in _SHARED):
            last = await self._bus.last(subject)
            if last is not None:
                removed += await self._bus.trim(subject, min(before_seq, last.seq))
        return removed

    async def _append(self, fact: AnyEvent) -> None:
        """Append a fact and wait until the read model has it; a conflict means that another has taken over."""
        subject = subjects.archive(ARCHIVE)
        commit = Commit(id=uuid.uuid4().hex, actor=self._actor, facts=(fact,))
        item = Append(subject=subject, commit=commit, expected=self._live.heads.get(subject, 0))
        if not self.election.held:
            raise Conflict(subject, item.expected or 0)
        seq = await until_available(lambda: self._bus.append(item), f"append to {subject}", self._shell.stopping)
        await self._live.reached(seq)


def _subjects_of(one: Untrimmed, job_ids: Iterable[str]) -> Iterable[str]:
    for job_id in job_ids:
        yield subjects.job(job_id)
        yield subjects.run(job_id)
    for sweep_id in one.fact.sweep_ids:
        yield subjects.sweep(sweep_id)
        yield subjects.request(sweep_id)
    for key in one.fact.workloads:
        yield subjects.profile(key)


class _ArchiveFile:
    """A file that is being written; it has a name of its own, and is on disk, once it is closed."""

    def __init__(self, folder: Path) -> None:
        self.commits = self.last_seq = self.bytes = 0
        self.is_worth_keeping = False
        """Whether there is more in it than what the archive says of itself."""
        self.sha256 = ""
        self._folder, self._part = folder, folder / ".part"
        self._first_seq, self._first_s = 0, 0.0
        self._raw: IO[bytes] | None = None
        self._packed: gzip.GzipFile | None = None

    def __enter__(self) -> _ArchiveFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._raw is not None:
            self._raw.close()
            self._part.unlink(missing_ok=True)

    def write(self, deliveries: list[Delivery]) -> None:
        if self._packed is None:
            self._begin(deliveries[0])
        assert self._packed is not None  # noqa: S101 - since it has begun
        self._packed.write(encode(*deliveries, whole=True))
        self.commits += len(deliveries)
        self.is_worth_keeping |= any(one.subject != subjects.archive(ARCHIVE) for one in deliveries)
        self.last_seq = deliveries[-1].seq

    def close(self) -> str:
        """Have all of it on disk, and give it its name, which says what is in it; return the name."""
        assert self._packed is not None  # noqa: S101 - nothing is closed that was not begun
        assert self._raw is not None  # noqa: S101 - as above
        self._packed.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self.bytes = self._raw.tell()
        self._raw.close()
        self._raw = None
        with self._part.open("rb") as whole:
            self.sha256 = hashlib.file_digest(whole, "sha256").hexdigest()
        day = datetime.fromtimestamp(self._first_s, UTC).strftime("%Y-%m-%d")
        name = f"{day}_{self._first_seq:012}-{self.last_seq:012}.jsonl.gz"
        self._part.replace(self._folder / name)
        self._add_sum(name)
        _sync(self._folder)
        return name

    def _begin(self, first: Delivery) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._first_seq, self._first_s = first.seq, first.stored_s
        self._raw = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY), "wb")
        self._packed = gzip.GzipFile("", "wb", _LEVEL, self._raw, mtime=0)

    def _add_sum(self, name: str) -> None:
        sums, new = self._folder / SUMS, self._folder / f".{SUMS}"
        before = ""
        with suppress(FileNotFoundError):
            before = sums.read_text()
        kept = [line for line in before.splitlines() if not line.endswith(f"  {name}")]
        new.write_text("\n".join([*kept, f"{self.sha256}  {name}"]) + "\n")
        _sync(new)
        new.replace(sums)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
