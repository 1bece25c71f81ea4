"""What the gateway remembers of a job beside its life: devices, rank, warnings, and when it came to be as it is."""

from __future__ import annotations

import msgspec

from penstock_events import Event, Job, JobSpec, Placement, Rank, RoundDecided, RunRewound, RunWarned, State
from penstock_gateway import sizing
from penstock_gateway.sizing import Sizing

MOST_WARNINGS = 5


class History(msgspec.Struct, kw_only=True):
    """
    One job's past.

    Attributes
    ----------
    seq, last_seq : int
        Of the commit that submitted it and of the last one that changed it.
    state, since_s
        Its state and when that began.
    devices : list of str
        All devices that it was placed on, in order of first use.
    warnings : list of str
        The last few.
    announced : bool
        Whether its ``JobFinished`` is in the log.
    sizing : Sizing or None
        Of an elastic job: its sizes.
    freed : dict of str to int
        Job → devices that it gives up for this one, until this one is placed.
    """

    seq: int
    last_seq: int
    state: State
    since_s: float
    devices: list[str] = msgspec.field(default_factory=list)
    rank: Rank | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    announced: bool = False
    sizing: Sizing | None = None
    freed: dict[str, int] = msgspec.field(default_factory=dict)

    def note(self, job: Job, event: Event, seq: int) -> None:
        """Note that the event changed the job."""
        self.last_seq = seq
        if job.state is not self.state:
            self.state, self.since_s = job.state, event.at_s
        if isinstance(event, RoundDecided) and job.placement is not None:
            self.devices += [name for name in device_names(job.placement) if name not in self.devices]
            self.freed = {}
        if self.sizing is not None:
            self.sizing.note(job, event)

    def asked(self, job: Job) -> JobSpec:
        """Return what was submitted, where the job's own specification changes with its size."""
        return self.sizing.asked if self.sizing is not None else job.spec

    def warn(self, event: RunWarned | RunRewound) -> None:
        """Keep a warning."""
        said = rewound(event) if isinstance(event, RunRewound) else event.warning
        self.warnings = [*self.warnings, said][-MOST_WARNINGS:]


def begin(job: Job, event: Event, seq: int) -> History:
    """Return the history of a job that was just submitted."""
    return History(seq=seq, last_seq=seq, state=job.state, since_s=event.at_s, sizing=sizing.begin(job))


def rewound(event: RunRewound) -> str:
    """
    Say from where a job goes on instead of its last checkpoint.

    Examples
    --------
    >>> rewound(RunRewound(at_s=0, job_id="j", epoch=2, node_id="n", step=0, lost_step=9, reason="it is on n1: gone"))
    'goes on from step 0 instead of 9: it is on n1: gone'
    """
    return f"goes on from step {event.step} instead of {event.lost_step}: {event.reason}"


def device_names(placement: Placement) -> list[str]:
    """
    Return the devices of a lease as people call them: node, kind and number.

    Examples
    --------
    >>> from penstock_events import Slot
    >>> slots = (Slot(node_id="n1", devices=(0, 1)),)
    >>> device_names(Placement(job_id="j", epoch=1, kind="fast", slots=slots))
    ['n1/fast0', 'n1/fast1']
    """
    return [f"{slot.node_id}/{placement.kind}{index}" for slot in placement.slots for index in slot.devices]
