"""
A job's past: what the gateway remembers of a job beside its state.

:class:`JobHistory` has devices, rank, warnings, the last end of a run, and the commits that made the job what it is.
:func:`device_names` says what people call the devices of a grant.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_gateway import idle_runs
from penstock_gateway.job_sizes import JobSizes
from penstock_gateway.run_accounts import JobAccount
from penstock_gateway.totals_fold import JobTally
from penstock_log import (
    Event,
    Job,
    JobRank,
    JobSpec,
    JobState,
    Placement,
    RoundDecided,
    RunEnded,
    RunIdle,
    RunRewound,
    RunWarned,
)

MOST_WARNINGS: Final = 5


class JobHistory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    One job's past.

    Attributes
    ----------
    key : str
        Of its workload, when it was submitted.
    seq, last_seq : int
        Sequences of the commit that submitted the job and of the last one that changed it.
    state, since_s
        The job's state, and when it began.
    devices : list of str
        All devices that the job was placed on, in order of first use.
    warnings : list of str
        The last few warnings.
    announced : bool
        Whether the job's ``JobFinished`` is in the log.
    announced_seq : int
        Its sequence; 0 before.
    sizing : JobSizes or None
        The sizes of an elastic job.
    freed : dict of str to int
        Job → devices that it gives up for this job, until this job is placed.
    run_end : RunEnded or None
        The last end of one of its runs on a node.
    account : JobAccount
        Its runs, with the device time that each held.
    tally : JobTally
        What it has added to the totals.
    """

    seq: int
    last_seq: int
    key: str = ""
    state: JobState
    since_s: float
    devices: list[str] = msgspec.field(default_factory=list)
    rank: JobRank | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    announced: bool = False
    announced_seq: int = 0
    sizing: JobSizes | None = None
    freed: dict[str, int] = msgspec.field(default_factory=dict)
    run_end: RunEnded | None = None
    account: JobAccount = msgspec.field(default_factory=JobAccount)
    tally: JobTally = msgspec.field(default_factory=JobTally)

    @classmethod
    def begin(cls, job: Job, event: Event, seq: int) -> JobHistory:
        """Return the history of a job that was just submitted."""
        sizing = JobSizes(asked=job.spec, size=job.size) if job.spec.elastic else None
        return cls(seq=seq, last_seq=seq, state=job.state, since_s=event.at_s, sizing=sizing)

    @property
    def end_seq(self) -> int:
        """Sequence of the last commit that changed or announced the job."""
        return max(self.last_seq, self.announced_seq)

    def note(self, job: Job, event: Event, seq: int) -> None:
        """Note a fact that changed the job."""
        self.last_seq = seq
        if job.state is not self.state:
            self.state, self.since_s = job.state, event.at_s
        if isinstance(event, RunEnded):
            self.run_end = event
        if isinstance(event, RoundDecided) and job.placement is not None:
            self.devices += [name for name in device_names(job.placement) if name not in self.devices]
            self.freed = {}
        if self.sizing is not None:
            self.sizing.note(job, event)

    def asked(self, job: Job) -> JobSpec:
        """Return the specification as submitted; an elastic job's own one changes with its size."""
        return self.sizing.asked if self.sizing is not None else job.spec

    def warn(self, event: RunWarned | RunRewound | RunIdle) -> None:
        """Keep a warning."""
        match event:
            case RunRewound():
                warning = rewound(event)
            case RunIdle():
                warning = idle_runs.measured(event)
            case _:
                warning = event.warning
        self.warnings = [*self.warnings, warning][-MOST_WARNINGS:]


def rewound(event: RunRewound) -> str:
    """
    Return in a sentence from where a job goes on instead of its last checkpoint.

    Examples
    --------
    >>> rewound(RunRewound(at_s=0, job_id="j", epoch=2, node_id="n", step=0, lost_step=9, reason="it is on n1: gone"))
    'goes on from step 0 instead of 9: it is on n1: gone'
    """
    return f"goes on from step {event.step} instead of {event.lost_step}: {event.reason}"


def device_names(placement: Placement) -> list[str]:
    """
    Return the devices of a grant as people call them: node, kind and number.

    Examples
    --------
    >>> from penstock_log import Slot
    >>> slots = (Slot(node_id="n1", devices=(0, 1)),)
    >>> device_names(Placement(job_id="j", epoch=1, kind="fast", slots=slots))
    ['n1/fast0', 'n1/fast1']
    """
    return [f"{slot.node_id}/{placement.kind}{index}" for slot in placement.slots for index in slot.devices]
