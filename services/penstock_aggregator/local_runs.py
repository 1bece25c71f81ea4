"""
Runs with processes on this node: who is admitted, and what each process is told.

A reason for sending a process away begins with one word for its kind, such as ``token``; they are counted by it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock_aggregator.client_listener import LocalRank
from penstock_aggregator.fact_queue import FactQueue
from penstock_aggregator.machine import AggregatedRun, AggregatorState, rule_of, values_of
from penstock_bus.follower import FoldFollower
from penstock_bus.logger import get_logger
from penstock_bus.port import BusError, ServiceError
from penstock_log import AggregationAsked, AggregationLeft, AggregatorUnreachable, Job
from penstock_log.aggregation_messages import (
    VERSION,
    AggregationPending,
    AggregatorAddress,
    AskAggregation,
    LostAggregator,
    OpenLease,
    PartAt,
    PartsAt,
    VectorLayout,
    held_bytes,
    run_token,
)

LEFT_S: Final = 2.0
LEFT_ELSEWHERE_S: Final = 10.0
"""
So long after the first rank has gone its run is said to need no aggregation, at the earliest: where all of its ranks
are on this node, and where others are elsewhere, who fetch their last results. Those of this node are waited for.
"""
REJOIN_S: Final = 30.0
"""So long after its start an agent waits for the first ranks of runs that an earlier one has asked for."""
AGAIN_S: Final = 0.5
"""Between two requests for a lease that was not given."""
MOST_AT_ONCE: Final = 16
SLOW_S: Final = 10.0
"""
A run that has asked, or lost aggregators, so often is heard that much later: each time costs facts and processes of
others, and a job may do it on purpose.
"""
CONFIRM_S: Final = 8.0
"""An agent that has not answered for so long does not know better than who cannot reach its aggregator."""
NOT_READY: Final = 504
"""The answer of an agent about an aggregator that does not hold a run's parts yet, or does not answer."""
_KINDS: Final = frozenset({"message", "version", "rank", "token", "layout", "over", "refused", "replaced"})
_log = get_logger("penstock.aggregator")
RunKey = tuple[str, int]


class Changes:
    """A signal to all who wait for the next change; take :attr:`next` before you look, and wait for it after."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait."""
        self.next.set()
        self.next = asyncio.Event()


class LocalRuns:
    """
    The processes of runs on a node, as a :class:`~penstock_aggregator.client_listener.RankHandler`.

    Parameters
    ----------
    live : FoldFollower
    changes : Changes
        Notified after each change of the fold that matters.
    secret : bytes
        By which the node's executor derives the tokens of runs.
    run_bytes : int
        The most memory that aggregators may hold of one run.
    open_lease : callable
        Asks an aggregator's agent.
    spawn : callable
        Runs a coroutine as long as the agent works.

    Attributes
    ----------
    denied : Counter of str
        How many processes were sent away, by the kind of reason.
    """

    def __init__(
        self,
        node_id: str,
        pool: str,
        live: FoldFollower[AggregatorState],
        changes: Changes,
        facts: FactQueue,
        *,
        secret: bytes,
        run_bytes: int,
        open_lease: Callable[[OpenLease], Awaitable[AggregatorAddress]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        now_s: Callable[[], float],
    ) -> None:
        self._node_id, self._pool, self._live, self._changes, self._facts = node_id, pool, live, changes, facts
        self._run_bytes = run_bytes
        self._secret, self._open_lease, self._spawn, self._now_s = secret, open_lease, spawn, now_s
        self._ranks: dict[RunKey, dict[int, LocalRank]] = {}
        self._following: dict[LocalRank, asyncio.Task[None]] = {}
        self._asking: dict[RunKey, asyncio.Future[int]] = {}
        self._leaving: set[RunKey] = set()
        self._lost: set[tuple[str, str, int, int]] = set()
        self._causes: dict[RunKey, set[object]] = {}
        """Run → what it has made others work for so far: each time that it asked, and generations that it has lost."""
        self.denied: Counter[str] = Counter()

    # --- who is admitted
    async def admit(self, rank: LocalRank, asked: AskAggregation) -> str:
        """Take a process in that has said who it is; return why not, empty where it is welcome."""
        if why := self._why_not(asked):
            return why
        await self._live.caught_up()  # the run's placement is in the log: its process has been started
        if over := self._live.state.why_over(asked.job_id, asked.epoch):
            return f"over: {over}"
        key = (asked.job_id, asked.epoch)
        others = self._ranks.setdefault(key, {})
        if (before := others.get(asked.rank)) is not None:
            self._drop(before)
            before.dismiss(f"replaced: rank {asked.rank} of run {asked.epoch} has connected anew")
        for other in others.values():
            if other.asked is not None and (why := _difference(asked, other.asked)):
                return f"layout: rank {other.asked.rank} has said other {why}; expected the same on all ranks"
        others = self._ranks.setdefault(key, {})
        others[asked.rank] = rank
        self._following[rank] = asyncio.create_task(self._follow(rank, asked))
        return ""

    def _why_not(self, asked: AskAggregation) -> str:
        if asked.version != VERSION:
            return f"version: this agent speaks version {VERSION}, and the process {asked.version}; update one"
        if asked.rank >= asked.world_size:
            return f"rank: there is no rank {asked.rank} of {asked.world_size}; expected one below"
        if not hmac.compare_digest(asked.token, run_token(self._secret, asked.job_id, asked.epoch)):
            return (
                f"token: it is not that of run {asked.epoch} of job {asked.job_id}; expected what the node's executor "
                "gave to the run's processes"
            )
        if (needed := held_bytes(asked.layout, asked.rule, asked.world_size)) > self._run_bytes:
            return (
                f"memory: aggregators would hold {needed:,} bytes of this run, and may hold {self._run_bytes:,}; "
                "aggregate fewer parameters, or set run_bytes under [aggregator] higher"
            )
        return ""

    # --- what a process is told
    async def _follow(self, rank: LocalRank, asked: AskAggregation) -> None:
        """Tell a process what becomes of its run, until one of both ends."""
        try:
            while not rank.gone:
                changed = self._changes.next
                if why := self._why_end(asked):
                    rank.dismiss(why)
                    return
                run = self._live.state.run(asked.job_id, asked.epoch)
                if run is None and asked.rank == 0:
                    await self._ask(asked)
                    continue
                told = rank.generation
                if run is None or not run.generation:
                    why = "the run waits for aggregators" if run is not None else "the run's rank 0 has not asked yet"
                    if why != rank.pending:
                        rank.pending = why
                        rank.send(AggregationPending(reason=why))
                elif run.generation != told and (parts := await self._parts(rank, asked, run.generation)) is not None:
                    rank.generation = parts.generation
                    rank.send(parts)
                    continue
                await changed.wait()
        except Exception:  # of one process, which must not end the others
            _log.exception("aggregation_client_failed", job_id=asked.job_id, rank=asked.rank)
            rank.dismiss("message: the agent failed; its log says how")

    def _why_end(self, asked: AskAggregation) -> str:
        state = self._live.state
        if over := state.why_over(asked.job_id, asked.epoch):
            return f"over: {over}"
        if (refused := state.refused.get(asked.job_id)) is not None:
            return f"refused: {refused}"
        run = state.run(asked.job_id, asked.epoch)
        if run is not None and (difference := _difference(asked, _asked_of(run, asked))):
            return f"layout: rank 0 has said other {difference}; expected the same on all ranks"
        return ""

    async def _ask(self, asked: AskAggregation) -> None:
        """Have the log know that a run asks for aggregation."""
        await self._keep_pace((asked.job_id, asked.epoch), object())
        job = self._live.state.jobs.get(asked.job_id)
        layout = asked.layout
        fact = AggregationAsked(
            at_s=self._now_s(),
            node_id=self._node_id,
            job_id=asked.job_id,
            epoch=asked.epoch,
            pool=job.spec.pool if job is not None else self._pool,
            world_size=asked.world_size,
            parts=tuple(count * layout.itemsize for count in layout.parts),
            servers=asked.servers,
            mode=asked.mode,
            rule=asked.rule.name,
            rule_values=values_of(asked.rule),
            dtype=layout.dtype,
            values=layout.values,
            nodes=_nodes_of(job),
        )
        key = (asked.job_id, asked.epoch)
        if key not in self._asking:  # by a former connection of the same rank
            self._asking[key] = self._facts.put(fact)
        try:
            await self._live.reached(await asyncio.shield(self._asking[key]))
        except BusError:
            self._asking.pop(key, None)
            raise
        self._asking.pop(key, None)

    async def _keep_pace(self, key: RunKey, cause: object) -> None:
        """Wait where a run has made others work often."""
        self._causes = {of: causes for of, causes in self._causes.items() if not self._live.state.why_over(*of)}
        causes = self._causes.setdefault(key, set())
        causes.add(cause)
        if len(causes) > MOST_AT_ONCE:
            await asyncio.sleep(SLOW_S)

    async def _parts(self, rank: LocalRank, asked: AskAggregation, generation: int) -> PartsAt | None:
        """Return where a run's parts are in a generation; None once there is a newer one, or the run is over."""
        while not rank.gone:
            run = self._live.state.run(asked.job_id, asked.epoch)
            if run is None or run.generation != generation:
                return None
            parts = tuple(
                PartAt(part=one.part, aggregator=one.aggregator, generation=one.generation, how=one.how)
                for one in run.placed
            )
            leases = [
                self._open_lease(
                    OpenLease(
                        aggregator=name,
                        job_id=asked.job_id,
                        epoch=asked.epoch,
                        rank=asked.rank,
                        generation=generation,
                    )
                )
                for name in run.aggregators()
            ]
            changed = self._changes.next
            answers = await asyncio.gather(*leases, return_exceptions=True)
            addresses = [answer for answer in answers if isinstance(answer, AggregatorAddress)]
            if len(addresses) == len(leases):
                return PartsAt(generation=generation, parts=parts, aggregators=tuple(addresses))
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, BusError):
                    raise answer
            problem = next(str(answer) for answer in answers if isinstance(answer, BusError))
            _log.info("aggregator_lease_not_given", job_id=asked.job_id, rank=asked.rank, error=problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await changed.wait()
        return None

    # --- aggregators that a process cannot reach
    def note_lost(self, rank: LocalRank, lost: LostAggregator) -> str:
        """Take note that a process cannot reach an aggregator; return why to hang up, empty where not."""
        if rank.asked is None:
            return "message: it has not asked for aggregation"
        about = (lost.aggregator, rank.asked.job_id, rank.asked.epoch, lost.generation)
        # where there is a newer assignment, the process is told of that; what it has lost may be of an earlier agent's
        run = self._run_at(rank.asked, lost)
        if about not in self._lost and run is not None and run.uses(lost.aggregator):
            self._lost.add(about)
            self._spawn(self._confirm(rank.asked, lost))
        return ""

    async def _confirm(self, asked: AskAggregation, lost: LostAggregator) -> None:
        """Have the log know of an aggregator that cannot be reached, unless its own agent knows better."""
        about = (lost.aggregator, asked.job_id, asked.epoch, lost.generation)
        try:
            await self._keep_pace((asked.job_id, asked.epoch), lost.generation)
            if not await self._is_lost(asked, lost):
                return
            fact = AggregatorUnreachable(
                at_s=self._now_s(),
                node_id=self._node_id,
                aggregator=lost.aggregator,
                job_id=asked.job_id,
                epoch=asked.epoch,
                generation=lost.generation,
                reason=lost.reason,
            )
            await self._live.reached(await asyncio.shield(self._facts.put(fact)))
            while self._run_at(asked, lost) is not None:  # one fact is enough, however many ranks say it
                await self._changes.next.wait()
        finally:
            self._lost.discard(about)

    async def _is_lost(self, asked: AskAggregation, lost: LostAggregator) -> bool:
        request = OpenLease(
            aggregator=lost.aggregator,
            job_id=asked.job_id,
            epoch=asked.epoch,
            rank=asked.rank,
            generation=lost.generation,
        )
        loop = asyncio.get_running_loop()
        until_s = loop.time() + CONFIRM_S
        while self._run_at(asked, lost) is not None and loop.time() < until_s:
            changed = self._changes.next
            try:
                await self._open_lease(request)
            except ServiceError as error:
                _log.info("aggregator_lease_not_given", aggregator=lost.aggregator, error=str(error))
                if error.code != NOT_READY:
                    return False  # its agent knows better: it has ended, or it is not the run's any more
            except BusError as error:
                _log.info("aggregator_agent_silent", aggregator=lost.aggregator, error=str(error))
            else:
                break  # it runs and answers its agent
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await changed.wait()
        return self._run_at(asked, lost) is not None

    def _run_at(self, asked: AskAggregation, lost: LostAggregator) -> AggregatedRun | None:
        """Return the run where its assignment is still the one that a process speaks of."""
        run = self._live.state.run(asked.job_id, asked.epoch)
        return run if run is not None and run.generation == lost.generation else None

    # --- its end
    def note_gone(self, rank: LocalRank) -> None:
        """Take note that a process needs no aggregation any more, or is gone; it may be told both."""
        asked = rank.asked
        if self._drop(rank) and asked is not None and asked.rank == 0:
            run = self._live.state.run(asked.job_id, asked.epoch)
            is_here = run is None or set(run.asked.nodes) <= {self._node_id}
            self._spawn(self._leave((asked.job_id, asked.epoch), LEFT_S if is_here else LEFT_ELSEWHERE_S))

    def note_denied(self, reason: str) -> None:
        """Take note of why a process was sent away."""
        kind = reason.partition(":")[0]
        self.denied[kind if kind in _KINDS else "message"] += 1

    def leave_unclaimed(self) -> None:
        """Have runs left whose first rank an earlier agent of this node has served, if it does not come again."""
        for run in self._live.state.runs.values():
            if run.asked.node_id == self._node_id:
                self._spawn(self._leave((run.asked.job_id, run.epoch), REJOIN_S))

    async def _leave(self, key: RunKey, after_s: float) -> None:
        if key in self._leaving:
            return
        self._leaving.add(key)
        try:
            await asyncio.sleep(after_s)
            while self._live.state.run(*key) is not None and (ranks := self._ranks.get(key)):
                if 0 in ranks:
                    return
                await asyncio.sleep(LEFT_S)
            if self._live.state.run(*key) is None:
                return
            fact = AggregationLeft(at_s=self._now_s(), node_id=self._node_id, job_id=key[0], epoch=key[1])
            await self._live.reached(await asyncio.shield(self._facts.put(fact)))
        finally:
            self._leaving.discard(key)

    def _drop(self, rank: LocalRank) -> bool:
        """Forget a process; return whether it was known."""
        if (following := self._following.pop(rank, None)) is None or rank.asked is None:
            return False
        if following is not asyncio.current_task():
            following.cancel()
        key = (rank.asked.job_id, rank.asked.epoch)
        ranks = self._ranks.get(key, {})
        if ranks.get(rank.asked.rank) is rank:
            del ranks[rank.asked.rank]
        if not ranks:
            self._ranks.pop(key, None)
        return True


def _difference(asked: AskAggregation, other: AskAggregation) -> str:
    """Return in what two ranks of a run differ that is the same on all; empty where in nothing."""
    if asked.world_size != other.world_size:
        return f"world size: {other.world_size}, and this one {asked.world_size}"
    if asked.layout != other.layout:
        return _layout_in_words(other.layout, asked.layout)
    if asked.rule != other.rule:
        return f"rule: {_rule_in_words(other, asked)}, and this one {_rule_in_words(asked, other)}"
    if (asked.mode, asked.servers) != (other.mode, other.servers):
        return f"wishes: {other.servers} {other.mode} servers, and this one {asked.servers} {asked.mode}"
    return ""


def _layout_in_words(other: VectorLayout, asked: VectorLayout) -> str:
    if asked.dtype != other.dtype:
        return f"dtype: {other.dtype}, and this one {asked.dtype}"
    if asked.parts != other.parts:
        shapes = [f"{len(one.parts)} parts, {sum(one.parts)} elements" for one in (other, asked)]
        return f"parts: {shapes[0]}, and this one {shapes[1]}"
    return "names or shapes of values, or has them in another order"


def _rule_in_words(asked: AskAggregation, other: AskAggregation) -> str:
    """Return a rank's rule, and those of its numbers that another rank has not."""
    mine, theirs = (msgspec.structs.asdict(each.rule) for each in (asked, other))
    differ = (f"{name} {value}" for name, value in mine.items() if name != "name" and value != theirs[name])
    return f"{asked.rule.name} {', '.join(differ)}".rstrip()


def _asked_of(run: AggregatedRun, asked: AskAggregation) -> AskAggregation:
    """Return what rank 0 has said of a run, for comparison with another rank."""
    fact = run.asked
    size = 4 if fact.dtype == "f4" else 8
    parts = tuple(count // size for count in fact.parts)
    layout = VectorLayout(dtype=fact.dtype, parts=parts, values=fact.values)
    return msgspec.structs.replace(
        asked,
        world_size=fact.world_size,
        layout=layout,
        rule=rule_of(fact),
        mode=fact.mode,
        servers=fact.servers,
    )


def _nodes_of(job: Job | None) -> tuple[str, ...]:
    if job is None or job.placement is None:
        return ()
    return tuple(dict.fromkeys(slot.node_id for slot in job.placement.slots))
