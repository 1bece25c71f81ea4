"""The matcher on a bus, with the nodes' heartbeats: ``python -m penstock_matcher``."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock_bus import BusError, Decision, Delivery
from penstock_bus.follower import background
from penstock_bus.health import Metrics
from penstock_bus.replica import Replica
from penstock_bus.shell import Shell, main
from penstock_log import NodeJoined, RoundDecided, subjects
from penstock_log.request_bodies import NodeHeartbeat
from penstock_matcher.liveness import Liveness
from penstock_matcher.machine import MatcherState, decider
from penstock_scheduler.kernel_warmup import MatchingKernels
from penstock_scheduler.pool.pool_settings import MatcherSettings


async def run(shell: Shell, settings: MatcherSettings) -> None:
    """
    Match until the shell is stopping; one replica leads, the others keep a hot fold and listen as well.

    The matcher decides rounds before its kernels are compiled, so the first job does not wait for the compiler.
    """
    liveness, us = Liveness(shell.now_s()), f"{shell.service}/{shell.replica_id}"
    pure = decider(settings, lambda nodes, now_s: liveness.heard(nodes, now_s, replica.term_s))

    rounds = RoundCounts(shell.metrics)

    def decide(state: MatcherState, now_s: float) -> Decision:
        begun_s = shell.monotonic()
        decision = liveness.permitted(pure.decide(state, now_s), now_s)
        liveness.note_decision(decision)
        rounds.note(decision, shell.monotonic() - begun_s)
        return decision

    def on_delivery(delivery: Delivery) -> None:
        for fact in delivery.commit.facts:
            if isinstance(fact, NodeJoined):
                liveness.beat(fact.node_id, shell.now_s())
            elif isinstance(fact, RoundDecided) and fact.lost_nodes and replica.settled and delivery.commit.actor != us:
                liveness.bar(fact.pool, shell.now_s() + settings.node_timeout_s)

    replica = Replica(shell, replace(pure, decide=decide), on_delivery=on_delivery)
    async with (
        background(_hear_nodes(shell, liveness, replica), _hear_ourselves(shell, liveness)),
        MatchingKernels(shell) as kernels,
    ):
        await kernels.usable()
        await replica.run()


class RoundCounts:
    """What a replica counts of its rounds."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._time_s = metrics.histogram("penstock_round_seconds", "Time to decide rounds, of all pools together.")

    def note(self, decision: Decision, took_s: float) -> None:
        """Count the rounds of a decision; one that changes nothing is no round."""
        facts = [fact for proposal in decision.proposals for fact in proposal.facts]
        rounds = [fact for fact in facts if isinstance(fact, RoundDecided)]
        if not rounds:
            return
        self._time_s.observe(took_s)
        for fact in rounds:
            metrics, pool = self._metrics, fact.pool
            metrics.counter("penstock_rounds_total", "Rounds decided.", pool=pool).inc()
            metrics.counter("penstock_placements_total", "Placements decided.", pool=pool).inc(len(fact.placements))
            metrics.counter("penstock_evictions_total", "Preemptions decided.", pool=pool).inc(len(fact.preemptions))


_decoder = msgspec.json.Decoder(NodeHeartbeat)


async def _hear_nodes(shell: Shell, liveness: Liveness, replica: Replica[MatcherState]) -> None:
    """Note heartbeats for ever, and answer them while this replica leads."""
    async for subject, body in shell.bus.subscribe(subjects.HEARTBEATS):
        node_id = subject.rpartition(".")[2]
        liveness.beat(node_id, shell.now_s())
        try:
            beat = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        answer = liveness.answer(beat, node_id, replica.live.state.cluster) if replica.settled else None
        if answer is not None:
            try:
                await shell.bus.publish(subjects.heard(node_id), msgspec.json.encode(answer))
            except BusError as error:
                shell.log.debug("heartbeat_not_answered", node_id=node_id, error=str(error))


async def _hear_ourselves(shell: Shell, liveness: Liveness) -> None:
    async for _ in shell.bus.subscribe(subjects.replica(shell.service, shell.replica_id)):
        liveness.echo(shell.now_s())


if __name__ == "__main__":
    main("matcher", MatcherSettings, run)
