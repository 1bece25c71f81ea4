"""The vocabulary of Penstock: facts, specifications, subjects, and the life of a job."""

from penstock_events.base import Event
from penstock_events.codec import AnyEvent, CodecError, Commit, decode, encode, tag_of
from penstock_events.job import JobCancelled, JobFinished, JobHeld, JobReleased, JobSubmitted
from penstock_events.lifecycle import ACTIVE, TERMINAL, Job, Jobs, State
from penstock_events.node import NodeJoined, NodeLeft
from penstock_events.policy import PolicySet, Setting
from penstock_events.profile import (
    KindSpeed,
    Sample,
    SamplesRequested,
    Scalability,
    Timing,
    WorkloadProfiled,
    WorkloadScaled,
)
from penstock_events.rank import JobsRanked, Rank
from penstock_events.request import NodeDrained, NodeRemoved, NodeResumed, SweepCancelled, SweepSubmitted
from penstock_events.round import Alternative, Cause, Placement, Preemption, RoundDecided, Slot, Wait
from penstock_events.run import LaneChanged, RunCheckpointed, RunEnded, RunMeasured, RunStarted, RunWarned
from penstock_events.scale import Demand, ScaleDecided
from penstock_events.spec import (
    Batch,
    Budget,
    Choice,
    Device,
    Dimension,
    Integers,
    JobSpec,
    MemoryNeed,
    Outcome,
    Param,
    SweepSpec,
    Uniform,
)
from penstock_events.states import Size
from penstock_events.sweep import (
    SweepFinished,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    TrialsScaled,
)

__all__ = [
    "ACTIVE",
    "TERMINAL",
    "Alternative",
    "AnyEvent",
    "Batch",
    "Budget",
    "Cause",
    "Choice",
    "CodecError",
    "Commit",
    "Demand",
    "Device",
    "Dimension",
    "Event",
    "Integers",
    "Job",
    "JobCancelled",
    "JobFinished",
    "JobHeld",
    "JobReleased",
    "JobSpec",
    "JobSubmitted",
    "Jobs",
    "JobsRanked",
    "KindSpeed",
    "LaneChanged",
    "MemoryNeed",
    "NodeDrained",
    "NodeJoined",
    "NodeLeft",
    "NodeRemoved",
    "NodeResumed",
    "Outcome",
    "Param",
    "Placement",
    "PolicySet",
    "Preemption",
    "Rank",
    "RoundDecided",
    "RunCheckpointed",
    "RunEnded",
    "RunMeasured",
    "RunStarted",
    "RunWarned",
    "Sample",
    "SamplesRequested",
    "Scalability",
    "ScaleDecided",
    "Setting",
    "Size",
    "Slot",
    "State",
    "SweepCancelled",
    "SweepFinished",
    "SweepSpec",
    "SweepSubmitted",
    "Timing",
    "Trial",
    "TrialFinished",
    "TrialGroupOpened",
    "TrialRetried",
    "TrialsMeasured",
    "TrialsScaled",
    "Uniform",
    "Wait",
    "WorkloadProfiled",
    "WorkloadScaled",
    "decode",
    "encode",
    "tag_of",
]
