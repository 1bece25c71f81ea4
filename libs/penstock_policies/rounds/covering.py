"""What quotas make of a round: which jobs they cover, and why those wait whom they do not."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_policies import quotas
from penstock_policies.order import Outlook, Ranked
from penstock_policies.quotas import Coverage
from penstock_policies.rounds.pool import Pool, can_be_stopped
from penstock_policies.waiting import Reason


def of_pool(pool: Pool, ready: Sequence[Ranked], outlook: Outlook) -> Coverage:
    """Return which of the pool's jobs its quotas cover."""
    going_on = [run.ranked for run in pool.roster.runs() if can_be_stopped(run.ranked.job)]
    ranked = [pool.ranked_by(one, outlook.now_s) for one in going_on]
    return quotas.coverage(ready, ranked, outlook.rules.quotas, outlook.manner, pool.roster.sharing.parts())


def reasons(left: Sequence[Ranked], covered: Coverage) -> dict[str, Reason]:
    """Return why those wait whom no quota covers."""
    rule = "more goes to it only while nobody whom a quota covers wants it"
    remedy = "raise its team's quota, or wait for devices that nobody else claims"
    return {
        ranked.job_id: Reason("fairness", f"{covered.taken(ranked.job.spec.team)}; {rule}", remedy)
        for ranked in left
        if ranked.job_id in covered.borrowers
    }
