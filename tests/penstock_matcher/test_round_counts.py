from penstock_bus import Decision, Proposal
from penstock_bus.health import Metrics
from penstock_log import Placement, Preemption, RoundDecided, Slot
from penstock_matcher.__main__ import RoundCounts


def decided(pool: str, *, placements: int = 0, preemptions: int = 0) -> Proposal:
    placed = tuple(
        Placement(job_id=f"j{n}", epoch=1, kind="fast", slots=(Slot(node_id="n1", devices=(n,)),))
        for n in range(placements)
    )
    evicted = tuple(Preemption(job_id=f"p{n}", epoch=1) for n in range(preemptions))
    fact = RoundDecided(at_s=0.0, pool=pool, placements=placed, preemptions=evicted)
    return Proposal(subject=f"penstock.evt.round.{pool}", facts=(fact,), cause=0)


def test_rounds_are_counted_by_pool_and_timed_together():
    metrics = Metrics()
    counts = RoundCounts(metrics)
    counts.note(Decision([decided("a", placements=2), decided("b", preemptions=3)]), took_s=0.02)
    counts.note(Decision([decided("a")]), took_s=0.02)
    counts.note(Decision(), took_s=0.02)
    lines = metrics.render().splitlines()
    assert 'penstock_rounds_total{pool="a"} 2' in lines
    assert 'penstock_placements_total{pool="a"} 2' in lines
    assert 'penstock_evictions_total{pool="b"} 3' in lines
    assert "penstock_round_seconds_count 2" in lines
