"""
Facts about the archive: what of the log was copied, which jobs are forgotten, what was removed.

The gateway writes them on ``evt.archive.log``, in this order. A stretch of the log is in a file and on disk
(:class:`LogCopied`); then jobs that ended long ago within it are forgotten (:class:`JobsArchived`); then their facts
are removed from the log (:class:`LogTrimmed`). Whoever dies in between goes on from the last of these facts: a copy is
made again under the same name, and what was removed can be removed again.
"""

from __future__ import annotations

from typing import Final, Optional

import msgspec

from penstock_log.facts import Event
from penstock_log.totals import ClusterTotals
from penstock_log.usage import DayUsage

ARCHIVE: Final = "log"
"""The one archive of a cluster."""


class LogCopied(Event, frozen=True, kw_only=True, tag="archive.log_copied.v1"):
    """
    A stretch of the log is in a file of the archive: every commit that a reader of the log takes.

    Attributes
    ----------
    file : str
        Its name in the folder of archives.
    first_seq, last_seq : int
        The stretch begins behind the one before.
    until_s : float
        All that was stored before this time is copied.
    commits, bytes : int
        How many there are, and the size of the file.
    sha256 : str
        Of the file.
    """

    archive: str
    file: str
    first_seq: int
    last_seq: int
    until_s: float
    commits: int = 0
    bytes: int = 0
    sha256: str = ""


class PoolLearnt(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is known of a pool's finished jobs, which need not be kept for it.

    Attributes
    ----------
    finished_s : tuple of float
        Service that the last finished jobs needed, seconds at speed 1.
    completed : int
        Jobs that completed so far.
    kept : tuple of (float, float)
        The sample of their lengths: priority and GPU-seconds, as :class:`penstock_policies.job_lengths.Lengths` has it.
    edition_gpu_s, edition_count
        The edition in force.
    """

    finished_s: tuple[float, ...] = ()
    completed: int = 0
    kept: tuple[tuple[float, float], ...] = ()
    edition_gpu_s: tuple[float, ...] = ()
    edition_count: int = 0


class JobsArchived(Event, frozen=True, kw_only=True, tag="archive.jobs_archived.v1"):
    """
    These jobs ended long ago, and all that happened to them is in files of the archive: every fold forgets them.

    A fold that has not seen the end of such a job, because it was away for so long that the end was removed meanwhile,
    takes it for cancelled.

    Attributes
    ----------
    sweep_ids : tuple of str
        Sweeps that are forgotten with their last trials.
    workloads : tuple of str
        Keys of workloads that no job is left of: what was measured of them is forgotten too.
    learnt : dict of str to PoolLearnt
        Pool → what its finished jobs have taught, these among them; it takes the place of what a fold knows.
    usage : tuple of DayUsage
        The device time of these jobs, by UTC day, user, team, pool, model and kind: it stays in accounts.
    totals : ClusterTotals or None
        What all archived jobs have added to the totals, these among them; None in facts of earlier versions.
    """

    archive: str
    job_ids: tuple[str, ...]
    sweep_ids: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    learnt: dict[str, PoolLearnt] = {}
    usage: tuple[DayUsage, ...] = ()
    totals: Optional[ClusterTotals] = None


class LogTrimmed(Event, frozen=True, kw_only=True, tag="archive.log_trimmed.v1"):
    """
    The facts of archived jobs are no longer in the log.

    Attributes
    ----------
    archived_seq : int
        Sequence of the last :class:`JobsArchived` of whose jobs this is true.
    before_seq : int
        Ranks, sizes and rounds before it were removed too, but for the last of each pool.
    nodes : tuple of str
        Nodes, forgotten before, whose facts were removed as well.
    removed : int
        Commits that were removed.
    """

    archive: str
    archived_seq: int
    before_seq: int = 0
    nodes: tuple[str, ...] = ()
    removed: int = 0
