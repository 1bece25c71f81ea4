"""
Collection of code: what no job needs any more is removed from the bus, by one gateway at a time.

A tree is needed by jobs and sweeps that are not over, by the jobs from whose checkpoints these begin, and for
``code_keep_days`` after a job's end, so that it may be submitted again. :func:`needed` says which these are. A tree
that was uploaded or named a short while ago stays in any case: its job may be on its way. Parts that no tree has are
removed too: whoever sends parts has said before which tree they are for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from penstock_bus import BusError, LeasePort
from penstock_bus.follower import FoldFollower
from penstock_bus.port import CodePort
from penstock_bus.replica import LeaderElection
from penstock_bus.shell import Shell
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_log import TERMINAL, JobSpec, code_tree, subjects
from penstock_log.code_tree import BadTree, CodeRecord

if TYPE_CHECKING:
    from penstock_log.code_tree import TreePart

GRACE_S: Final = 3600.0
"""A tree that was uploaded or named within this time stays."""
DAY_S: Final = 86_400.0
LEASE: Final = "gateway_code"
_LOOK_S: Final = 300.0
_LONGEST_S: Final = 20.0
"""So long one user is looked at; what is left then is done with the next look."""
_TTL_S: Final = 60.0
_RENEW_S: Final = 5.0
_REMOVED: Final = 500
_record: Final = msgspec.json.Decoder(CodeRecord)
_log = structlog.get_logger("penstock.code")

Tree = tuple[str, str]
"""A user, and the digest of one of the user's trees."""


class CollectionBus(CodePort, LeasePort, Protocol):
    """What the collector uses."""


def needed(state: GatewayState, now_s: float, keep_s: float) -> set[Tree]:
    """Return the trees that jobs may still start with."""
    return {(spec.user, spec.code) for spec in _specs(state, now_s - keep_s) if spec.code}


def _specs(state: GatewayState, since_s: float) -> Iterator[JobSpec]:
    origins = {job.spec.begins_from for job in state.jobs if job.state not in TERMINAL}
    for job in state.jobs:
        if job.state not in TERMINAL or job.finished_s >= since_s or job.id in origins:
            yield job.spec
    for sweep in state.sweeps.values():
        if sweep.finished is None or sweep.finished.at_s >= since_s:
            yield sweep.spec.job


class _Collection(msgspec.Struct):
    """
    How far a collection of what one user does not need has come.

    Attributes
    ----------
    parts : int
        How many the user had when it began.
    unused : set of str
        Those of them that no tree needs which was read.
    read : set of str
        The records of the trees that were read.
    """

    parts: int = 0
    unused: set[str] = msgspec.field(default_factory=set)
    read: set[str] = msgspec.field(default_factory=set)


class CodeCollector:
    """Removes the code that no job needs, while it has the lease."""

    def __init__(
        self, shell: Shell, bus: CollectionBus, live: FoldFollower[GatewayState], settings: GatewaySettings
    ) -> None:
        self._shell, self._bus, self._live, self._settings = shell, bus, live, settings
        self.election = LeaderElection(
            bus, LEASE, shell.replica_id, lambda: None, ttl_s=_TTL_S, renew_s=_RENEW_S, clock=shell.monotonic
        )
        self._left: dict[str, int] = {}
        """User → how many parts were left, of those who were looked at; only uploads change that."""
        self._listed_s = float("-inf")
        self._begun: dict[str, _Collection] = {}
        """User → what is known already, where a collection broke off."""

    async def run(self) -> None:
        """Remove what is not needed until the service is to stop; what cannot be done now is tried again."""
        async with self.election.kept():
            await self.election.repeat(_LOOK_S, self._shell.stopping, self._look)

    async def _look(self) -> None:
        try:
            await self._live.caught_up()
            await self.collect(self._shell.now_s())
        except BusError as error:
            _log.warning("code_collection_waits", error=str(error))

    async def collect(self, now_s: float) -> int:
        """Remove what is not needed as of a time, in seconds since the epoch; return how many parts that were."""
        keep = needed(self._live.state, now_s, self._settings.code_keep_days * DAY_S)
        records = await self._records(await self._bus.list_code(subjects.CODE_RECORDS))
        users = {subjects.code_owner(subject) for subject in self._stale(records, keep, now_s)}
        users |= {subjects.code_owner(subject) for subject in records} - {*self._left}  # what a crash has left
        users |= {subjects.code_owner(mark) for mark in await self._bus.list_code(subjects.CODE_MARKS)}
        users |= {*self._begun}
        removed = await self._collect_of_each(users, keep, now_s)
        return removed + await self._collect_of_each(await self._with_other_parts(now_s), keep, now_s)

    async def _with_other_parts(self, now_s: float) -> set[str]:
        """Return the users who have other parts than were left to them; now and then only, as all are listed."""
        if now_s < self._listed_s + GRACE_S:
            return set()
        parts = Counter(map(subjects.code_owner, await self._bus.list_code(subjects.CODE_PARTS)))
        self._listed_s = now_s
        return {user for user, count in parts.items() if count != self._left.get(user)} - {*self._begun}

    async def _collect_of_each(self, users: Iterable[str], keep: set[Tree], now_s: float) -> int:
        removed = 0
        for user in sorted(users):
            if not self.election.held:  # another gateway collects now
                break
            begun = self._begun.setdefault(user, _Collection())  # until all is done: what is left may name nobody
            try:
                async with asyncio.timeout(_LONGEST_S):
                    removed += await self._collect_of(user, begun, keep, now_s)
            except TimeoutError:
                _log.info("code_collection_goes_on_later", user=user)
        return removed

    async def _collect_of(self, user: str, begun: _Collection, keep: set[Tree], now_s: float) -> int:
        """Read the trees of a user first; only what has come since is read while the user is marked, and waits."""
        if not begun.parts:
            begun.unused = set(await self._bus.list_code(subjects.code_pattern(user, "part")))
            begun.parts = len(begun.unused)
        records = await self._records(await self._bus.list_code(subjects.code_pattern(user, "tree")))
        await self._read(user, begun, {one: records[one] for one in records.keys() - self._stale(records, keep, now_s)})
        await self._bus.put_code([(subjects.code_mark(user), b"")])
        try:
            removed = await self._remove(user, begun, keep, now_s)
        finally:
            await self._bus.remove_code([subjects.code_mark(user)])
        self._left[user] = begun.parts - removed
        del self._begun[user]
        return removed

    async def _remove(self, user: str, begun: _Collection, keep: set[Tree], now_s: float) -> int:
        there = await self._bus.newest_code(await self._bus.list_code(subjects.code_pattern(user, "tree")))
        records = {subject: _record.decode(body) for subject, body in there.items()}
        stale = self._stale(records, keep, now_s) - begun.read  # whose parts count as used now: they go next time
        gone = [subjects.code_ready(user, _digest(subject)) for subject in stale]
        await self._bus.remove_code([*gone, *stale])  # in this order: a mark without a record would be believed
        await self._read(user, begun, {one: records[one] for one in records.keys() - stale})
        unused = sorted(begun.unused)
        for at in range(0, len(unused), _REMOVED):
            await self._bus.remove_code(unused[at : at + _REMOVED])
        if stale or unused:
            _log.info("code_removed", user=user, trees=len(stale), parts=len(unused))
        return len(unused)

    async def _read(self, user: str, begun: _Collection, records: Mapping[str, CodeRecord]) -> None:
        """
        Note as used what trees need, of those that were not read before: a digest's tree is the same for good.

        As long as a tree's list of files is not there, that list alone is used, and it is read again.
        """
        for subject, record in records.items():
            if subject in begun.read:
                continue
            listed = _subjects(user, record.parts)
            begun.unused.difference_update(listed)
            found = await self._bus.get_code(listed)
            found |= await self._bus.newest_code([one for one in listed if one not in found])
            manifest = b"".join(found.get(one, b"") for one in listed)
            if code_tree.digest_of(manifest) == _digest(subject):
                begun.unused.difference_update(await asyncio.to_thread(_used, user, manifest))
                begun.read.add(subject)

    @staticmethod
    def _stale(records: Mapping[str, CodeRecord], keep: set[Tree], now_s: float) -> set[str]:
        """Return the subjects of the records of trees that are not needed, and were not named a short while ago."""
        old = (subject for subject, record in records.items() if record.noted_s < now_s - GRACE_S)
        return {subject for subject in old if (subjects.code_owner(subject), _digest(subject)) not in keep}

    async def _records(self, wanted: list[str]) -> dict[str, CodeRecord]:
        """Return records, perhaps as they were a moment ago: that does for where to look."""
        return {subject: _record.decode(body) for subject, body in (await self._bus.get_code(wanted)).items()}


def _used(user: str, manifest: bytes) -> list[str]:
    """Return the subjects of the parts of a tree's files; none where its list of files is none."""
    try:
        return _subjects(user, code_tree.all_parts(code_tree.decode(manifest)))
    except BadTree as error:
        _log.warning("code_not_readable", user=user, digest=code_tree.digest_of(manifest), error=str(error))
        return []


def _digest(record: str) -> str:
    return record.rpartition(".")[2]


def _subjects(user: str, parts: Iterable[TreePart]) -> list[str]:
    return [subjects.code_part(user, part.digest, part.size) for part in parts]
