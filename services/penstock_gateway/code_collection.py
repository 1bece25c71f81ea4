"""
Collection of code: what no job needs any more is removed from the bus, by one gateway at a time.

A tree is needed by jobs and sweeps that are not over, by the jobs from whose checkpoints these begin, and for
``code_keep_days`` after a job's end, so that it may be submitted again. :func:`needed` says which these are. A tree
that was uploaded or named a short while ago stays in any case: its job may be on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
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
"""So long what belongs to one user is marked; what is left then goes with the next look."""
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


class CodeCollector:
    """Removes the code that no job needs, while it has the lease."""

    def __init__(
        self, shell: Shell, bus: CollectionBus, live: FoldFollower[GatewayState], settings: GatewaySettings
    ) -> None:
        self._shell, self._bus, self._live, self._settings = shell, bus, live, settings
        self.election = LeaderElection(
            bus, LEASE, shell.replica_id, lambda: None, ttl_s=_TTL_S, renew_s=_RENEW_S, clock=shell.monotonic
        )
        self._looked: set[str] = set()

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
        users = {
            subjects.code_owner(subject)
            for subject, one in records.items()
            if self._is_stale(subject, one, keep, now_s)
        }
        users |= {subjects.code_owner(subject) for subject in records} - self._looked  # what a crash has left
        self._looked |= users
        return sum([await self._collect_of(user, keep, now_s) for user in sorted(users)])

    async def _collect_of(self, user: str, keep: set[Tree], now_s: float) -> int:
        await self._bus.put_code([(subjects.code_mark(user), b"")])
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await self._remove(user, keep, now_s)
        except TimeoutError:
            _log.info("code_collection_goes_on_later", user=user)
            self._looked.discard(user)
            return 0
        finally:
            await self._bus.remove_code([subjects.code_mark(user)])

    async def _remove(self, user: str, keep: set[Tree], now_s: float) -> int:
        records = await self._records(await self._bus.list_code(subjects.code_pattern(user, "tree")))
        stale = {subject for subject, one in records.items() if self._is_stale(subject, one, keep, now_s)}
        gone = [subjects.code_ready(user, _digest(subject)) for subject in stale]
        await self._bus.remove_code([*gone, *stale])  # in this order: a mark without a record would be believed
        used = set[str]()
        for subject, record in records.items():
            if subject not in stale:
                used |= await self._used(user, _digest(subject), record)
        parts = await self._bus.list_code(subjects.code_pattern(user, "part"))
        unused = [subject for subject in parts if subject not in used]
        for at in range(0, len(unused), _REMOVED):
            await self._bus.remove_code(unused[at : at + _REMOVED])
        if stale or unused:
            _log.info("code_removed", user=user, trees=len(stale), parts=len(unused))
        return len(unused)

    @staticmethod
    def _is_stale(subject: str, record: CodeRecord, keep: set[Tree], now_s: float) -> bool:
        tree = subjects.code_owner(subject), _digest(subject)
        return tree not in keep and record.noted_s < now_s - GRACE_S

    async def _used(self, user: str, digest: str, record: CodeRecord) -> set[str]:
        """Return the subjects of what a tree needs; as long as its list of files is not there, of that list alone."""
        listed = _subjects(user, record.parts)
        found = await self._bus.get_code(listed)
        manifest = b"".join(found.get(subject, b"") for subject in listed)
        if code_tree.digest_of(manifest) != digest:
            return set(listed)
        try:
            parts = await asyncio.to_thread(lambda: code_tree.all_parts(code_tree.decode(manifest)))
        except BadTree as error:
            _log.warning("code_not_readable", user=user, digest=digest, error=str(error))
            return set(listed)
        return {*listed, *_subjects(user, parts)}

    async def _records(self, wanted: list[str]) -> dict[str, CodeRecord]:
        return {subject: _record.decode(body) for subject, body in (await self._bus.get_code(wanted)).items()}


def _digest(record: str) -> str:
    return record.rpartition(".")[2]


def _subjects(user: str, parts: Iterable[TreePart]) -> list[str]:
    return [subjects.code_part(user, part.digest, part.size) for part in parts]
