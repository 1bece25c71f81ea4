"""What readers of a replay have to know, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock_sim.history import History
from penstock_sim.replay import CONFIGURED, Replay
from penstock_sim.replaying.document import fates, unknown
from penstock_sim.replaying.score import Check, Score

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
            f"{number} elastic: {_names(ran)}; the autoscaler sizes them in the replay, and with a size that one never "
            "had it is as fast as its profile says"
        )


def of_trials(history: History) -> Iterator[str]:
    """Yield what a replay makes of the trials of sweeps."""
    ran = [job.id for job in history.jobs if job.spec.parent and job.sample is None and history.runs.get(job.id)]
    if ran:
        number = f"{len(ran):,} job{'s are trials' if len(ran) > 1 else ' is a trial'}"
        yield (
            f"{number} of a sweep: {_names(ran)}; they are submitted when they were, also where those before them end "
            "at other times"
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
            "their length; they wait in the replay as well, and are cancelled when they were, or with the log's end"
        )


def of_scores(scores: Mapping[str, Score], seed: int, check: Check | None = None) -> Iterator[str]:
    """Yield how the figures were found."""
    first = next(iter(scores.values()))
    if check is None or check.holds:
        yield (
            f"intervals: {first.level:.0%}, percentiles of {first.resamples:,} resamples of the jobs, paired, "
            f"seed {seed}; they do not cover what a replay itself gets wrong"
        )
    for policy, score in scores.items():
        if score.unfinished:
            yield f"{policy}: {len(score.unfinished):,} jobs that completed do not here: {_names(score.unfinished)}"
    if CONFIGURED not in scores and check is None:
        yield f"how far a replay is off shows --policy {CONFIGURED}: the settings of the services once more"


def _names(ids: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more
