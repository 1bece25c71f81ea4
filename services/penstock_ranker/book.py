"""
Each pool's jobs in order, beside the fold: worked out from it, kept up to date with it, and never saved.

The fold knows nothing of settings, so that one log gives one state whatever is set. What the settings make of it (when
the next threshold is crossed, which position is out of date) stands here, and is built anew from the fold after a
snapshot was loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock_events import Job, Setting
from penstock_policies.lengths import Lengths, blend
from penstock_policies.orders import NOTHING, Learnt
from penstock_policies.pools import Ordering, overlaid
from penstock_policies.ranking import Move, Phase, Ranking
from penstock_ranker.place import Place
from penstock_ranker.settings import Settings


@dataclass(frozen=True)
class Chosen:
    """
    What is set, and what the files that it names say.

    Attributes
    ----------
    priors_gpu_s : mapping of str to (P,) floats, GPU-seconds, rising
        By name of the file.
    """

    settings: Settings
    priors_gpu_s: Mapping[str, Sequence[float]]


class Book:
    """
    The rankings by pool.

    Parameters
    ----------
    chosen : Chosen
    jobs : iterable of Job
        Those to be ranked that are not over.
    places : mapping of str to Place
        As published.
    lengths : mapping of str to Lengths
        What each pool has learnt; read again whenever a job ends.
    live : mapping of str to mapping of str to Setting
        Pool → what is set live.
    """

    def __init__(
        self,
        chosen: Chosen,
        jobs: Iterable[Job],
        places: Mapping[str, Place],
        lengths: Mapping[str, Lengths],
        live: Mapping[str, Mapping[str, Setting]],
    ) -> None:
        self._chosen, self._lengths, self._live = chosen, lengths, live
        self.rankings: dict[str, Ranking] = {}
        for job in jobs:
            self.note(job)
            if job.id in places:
                self.put(job, places[job.id])

    def note(self, job: Job) -> None:
        """Follow a job that came, started or stopped."""
        ranking = self._ranking(job.spec.pool)
        if job.id not in ranking:
            ranking.add(
                job.id,
                gpus=job.spec.gpus,
                submitted_s=job.submitted_s,
                length_s=job.spec.duration_s,
                least=job.spec.widths[0],
            )
        phase, since_s = _phase(job)
        carried_s = job.carried_gpu_s / job.spec.gpus
        served_s = job.executed_s - job.forgone_s
        if job.share != 1.0:  # reckoned anew whenever somebody comes or goes beside it
            since_s = job.share_since_s
            served_s = job.served_by(since_s)
        ranking.note(
            job.id,
            phase,
            since_s,
            executed_s=served_s + carried_s,
            waited_s=job.waited_s,
            rate=job.share,
            gpus=job.spec.gpus,  # it may have been given another width
        )

    def put(self, job: Job, place: Place) -> None:
        """Follow a job's published place."""
        self._ranking(job.spec.pool).put(
            Move(job.id, place.queue, place.position, place.entered_s),
            executed_before_s=place.executed_before_s,
            waited_before_s=place.waited_before_s,
        )

    def remove(self, job: Job) -> None:
        """Drop a job that is over."""
        ranking = self._ranking(job.spec.pool)
        if job.id in ranking:
            ranking.remove(job.id)

    def learn(self, pool: str) -> None:
        """Follow a new edition of what a pool has learnt."""
        ranking = self._ranking(pool)
        ranking.learn(self._learnt(pool))

    def _ranking(self, pool: str) -> Ranking:
        found = self.rankings.get(pool)
        if found is None:
            found = self.rankings[pool] = Ranking(self._ordering(pool).ladder(), self._learnt(pool))
        return found

    def _learnt(self, pool: str) -> Learnt:
        ordering = self._ordering(pool)
        if not ordering.ladder().order.learns:
            return NOTHING
        edition = self._lengths[pool].edition_gpu_s if pool in self._lengths else []
        prior_gpu_s = self._chosen.priors_gpu_s.get(self._chosen.settings.of(pool).prior_file, ())
        return Learnt(ordering.thresholds_gpu_s, blend(edition, prior_gpu_s))

    def _ordering(self, pool: str) -> Ordering:
        return overlaid(self._chosen.settings.of(pool).ordering, self._live.get(pool, {}))


def _phase(job: Job) -> tuple[Phase, float]:
    if job.placement is not None:
        return ("running", job.started_s) if job.started_s else ("starting", 0.0)
    return "waiting", job.pending_since_s
