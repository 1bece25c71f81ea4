"""What readers of a replay have to know, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock_sim.history import History
from penstock_sim.replay import CONFIGURED, Replay
from penstock_sim.replaying.document import fates, unknown
from penstock_sim.replaying.score import Score

_NAMED: Final = 5


def of_log(history: History) -> Iterator[str]:
    """Yield what is missing in the log itself."""
    if history.seqs and history.seqs[0] > 1:
        yield (
            f"the log begins at sequence {history.seqs[0]:,}: jobs and nodes that are told of before it are unknown; "
            "save all of one with `penstock events --after 0 -f -o json`"
        )


def of_sharing(history: History) -> Iterator[str]:
    """Yield what a replay makes of jobs that shared devices."""
    ran = [job.id for job in history.jobs if job.spec.sharing != "exclusive" and history.runs.get(job.id)]
    if ran:
        number = f"{len(ran):,} job{'s' if len(ran) > 1 else ''}"
        yield (
            f"{number} shared devices: {_names(ran)}; each runs as long as it did, whoever is beside it in the replay, "
            "and in utilisation it counts with whole devices, so that may be more than 100%"
        )


def of_sizes(history: History) -> Iterator[str]:
    """Yield what a replay makes of elastic jobs."""
    ran = [job.id for job in history.jobs if job.spec.elastic and job.sample is None and history.runs.get(job.id)]
    if ran:
        number = f"{len(ran):,} job{'s are' if len(ran) > 1 else ' is'}"
        yield (
            f"{number} elastic: {_names(ran)}; in the replay each is a gang of the size that it had for longest, with "
            "as many samples to do, and nobody resizes it"
        )


def of_replay(replay: Replay) -> Iterator[str]:
    """Yield what cannot be known of the jobs."""
    found = unknown(replay)
    if found.censored:
        counts = {"cancelled": len(found.cancelled), "failed": len(found.failed), "still running": len(found.running)}
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        yield (
            f"{found.censored:,} of {len(replay.censored):,} jobs have no true length ({told}): they run as long as "
            "they did, and JCTs leave them out"
        )
    if replay.never_ran:
        told = ", ".join(f"{count:,} {what}" for what, count in fates(replay.never_ran).items())
        yield (
            f"{len(replay.never_ran):,} jobs never ran ({told}): {_names(list(found.never_ran))}; nothing is known of "
            "their length, and they take no devices in the replay, which makes it look better than it is"
        )


def of_scores(scores: Mapping[str, Score], seed: int) -> Iterator[str]:
    """Yield how the figures were found."""
    first = next(iter(scores.values()))
    yield (
        f"intervals: {first.level:.0%}, percentiles of {first.resamples:,} resamples of the jobs, paired, seed {seed}; "
        "they do not cover what a replay itself gets wrong"
    )
    for policy, score in scores.items():
        if score.unfinished:
            yield f"{policy}: {len(score.unfinished):,} jobs that completed do not here: {_names(score.unfinished)}"
    if CONFIGURED not in scores:
        yield f"how far a replay is off shows --policy {CONFIGURED}: the settings of the services once more"


def _names(ids: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more
