"""
The vocabulary of Penstock: facts, specifications, subjects, and the life of a job.

In reading order:

* ``spec``: What people ask for: the specifications of a job and a sweep, a device, and their schema.
* ``validation``: Strict reading of what people write; every problem with its path.
* ``services``: The services, and the facts that each writes.
* ``subjects``: All subjects and streams.
* ``facts``: Facts that are asked for, happen or are measured: job, run, node, request, policy, profile.
* ``decision_facts``: Facts that deciders write: rank, round, scale, sweep.
* ``totals``: Totals since the log began, by pool and team.
* ``archive_facts``: Facts about what of the log was copied to files, forgotten and removed.
* ``allocation_spec``: What is asked of an allocation of another cluster's nodes.
* ``allocation_facts``: Facts about nodes taken for a while of another cluster: allocations and their pilots.
* ``login_facts``: Facts about the logins of nodes, and their fold.
* ``notification_facts``: Facts about notifications.
* ``memory_facts``: Facts about memory that nodes lend each other.
* ``aggregation_facts``: Facts about aggregators, what jobs ask of them, and what is assigned.
* ``codec``: Facts to bytes and back; old tags; unknown facts.
* ``job_state``: One job with its state, size and checkpoint.
* ``lifecycle``: The fold of all jobs, with the shares of those that share devices.
* ``usage``: The account of a run, and the device time that follows from it.
* ``usage_csv``: Device time as CSV, in GPU-hours.
* ``workload``: Which jobs are one workload, and how skewed their model is.
* ``agent_protocol``: What a job's process and its executor say to each other.
* ``memory_messages``: What clients of borrowed memory, the agent of their node, and agents say to each other.
* ``aggregation_messages``: What clients of aggregation, agents and aggregators say to each other.
* ``run_series``: The metrics of a run as a bounded table, and those of a job's runs joined.
* ``device_samples``: How busy a node's devices are, and how well.
* ``request_bodies``: Bodies of requests to the gateway and to nodes.
* ``session_messages``: What those who enter a job and its executor say to each other.
* ``records``: Records made of other records, by the names of their fields.
* ``text``: Sizes and durations in words; text of others made harmless.
* ``views/``: What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock_log.aggregation_facts import (
        AggregationAsked,
        AggregationAssigned,
        AggregationLeft,
        AggregationMeasured,
        AggregationRefused,
        AggregatorEnded,
        AggregatorsAllocated,
        AggregatorsOffered,
        AggregatorsRecycled,
        AggregatorStarted,
        AggregatorUnreachable,
        PartMoved,
        PartPlaced,
    )
    from penstock_log.allocation_facts import (
        AllocationAdded,
        AllocationPaused,
        AllocationRemoved,
        AllocationResumed,
        PilotEnded,
        PilotPlanned,
        PilotsPaused,
        PilotStarted,
        PilotSubmitted,
        PilotWaits,
        PilotWithdrawn,
    )
    from penstock_log.allocation_spec import AllocationSpec
    from penstock_log.archive_facts import ARCHIVE, JobsArchived, LogCopied, LogTrimmed, PoolLearnt
    from penstock_log.codec import (
        LOG_FORMAT,
        AnyEvent,
        CodecError,
        Commit,
        LoggedFact,
        MisplacedFact,
        belongs,
        decode,
        decode_at,
        encode,
        fields_of,
        kind_of,
        read_as,
        subject_of,
        tag_of,
    )
    from penstock_log.decision_facts import (
        Alternative,
        Cause,
        Demand,
        JobRank,
        JobsRanked,
        Placement,
        Preemption,
        RoundDecided,
        ScaleDecided,
        Slot,
        SweepFinished,
        Trial,
        TrialFinished,
        TrialGroupOpened,
        TrialRetried,
        TrialsMeasured,
        TrialsScaled,
        Wait,
    )
    from penstock_log.facts import (
        DeviceDrained,
        DeviceFailed,
        DeviceRecovered,
        DeviceResumed,
        Event,
        JobCancelled,
        JobEntered,
        JobFinished,
        JobHeld,
        JobReleased,
        JobSubmitted,
        JobTimedOut,
        JobTimeSet,
        JobUnblocked,
        KindSpeed,
        LaneChanged,
        NodeDrained,
        NodeJoined,
        NodeLeaving,
        NodeLeft,
        NodeRemoved,
        NodeResumed,
        PolicySet,
        ProfileSample,
        ReservationCancelled,
        ReservationMade,
        RunBusyAgain,
        RunCheckpointed,
        RunEnded,
        RunIdle,
        RunMeasured,
        RunRewound,
        RunStarted,
        RunUnparked,
        RunWarned,
        SamplesRequested,
        Scalability,
        SweepCancelled,
        SweepSubmitted,
        Timing,
        UnknownFact,
        UserRemoved,
        UserSet,
        WorkloadProfiled,
        WorkloadScaled,
    )
    from penstock_log.job_state import ACTIVE, TERMINAL, Checkpoint, Job, JobState, Size
    from penstock_log.lifecycle import JobTable, last_checkpoint
    from penstock_log.login_facts import NodeLoginIssued, NodeLoginRevoked, NodeLogins, NodeTokenIssued
    from penstock_log.memory_facts import MemoryOffered, SlabsEvicted, SlabsLent, SlabsReturned
    from penstock_log.notification_facts import NotificationRuleRemoved, NotificationRuleSet, NotificationSent
    from penstock_log.spec import (
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
        Setting,
        SweepSpec,
        Uniform,
    )
else:
    _NAMES = {
        "aggregation_facts": (
            "AggregationAsked AggregationAssigned AggregationLeft AggregationMeasured AggregationRefused "
            "AggregatorEnded AggregatorStarted AggregatorUnreachable AggregatorsAllocated AggregatorsOffered "
            "AggregatorsRecycled PartMoved PartPlaced"
        ),
        "allocation_facts": (
            "AllocationAdded AllocationPaused AllocationRemoved AllocationResumed PilotEnded "
            "PilotPlanned PilotStarted PilotSubmitted PilotWaits PilotWithdrawn PilotsPaused"
        ),
        "allocation_spec": "AllocationSpec",
        "archive_facts": "ARCHIVE JobsArchived LogCopied LogTrimmed PoolLearnt",
        "codec": (
            "AnyEvent CodecError Commit LOG_FORMAT LoggedFact MisplacedFact belongs decode decode_at encode "
            "fields_of kind_of read_as subject_of tag_of"
        ),
        "decision_facts": (
            "Alternative Cause Demand JobRank JobsRanked Placement Preemption RoundDecided ScaleDecided Slot "
            "SweepFinished Trial TrialFinished TrialGroupOpened TrialRetried TrialsMeasured TrialsScaled Wait"
        ),
        "facts": (
            "DeviceDrained DeviceFailed DeviceRecovered DeviceResumed RunBusyAgain RunIdle "
            "Event JobCancelled JobEntered JobFinished JobHeld JobReleased JobSubmitted JobTimeSet JobTimedOut "
            "JobUnblocked KindSpeed LaneChanged "
            "NodeDrained NodeJoined NodeLeaving NodeLeft NodeRemoved NodeResumed PolicySet ProfileSample "
            "ReservationCancelled ReservationMade RunCheckpointed "
            "RunEnded RunMeasured RunRewound RunStarted RunUnparked RunWarned SamplesRequested Scalability "
            "SweepCancelled SweepSubmitted Timing UnknownFact UserRemoved UserSet WorkloadProfiled "
            "WorkloadScaled"
        ),
        "job_state": "ACTIVE Checkpoint Job JobState Size TERMINAL",
        "lifecycle": "JobTable last_checkpoint",
        "notification_facts": "NotificationRuleRemoved NotificationRuleSet NotificationSent",
        "login_facts": "NodeLoginIssued NodeLoginRevoked NodeLogins NodeTokenIssued",
        "memory_facts": "MemoryOffered SlabsEvicted SlabsLent SlabsReturned",
        "spec": (
            "Batch Budget Choice Device Dimension Integers JobSpec MemoryNeed Outcome Param Setting SweepSpec Uniform"
        ),
    }
    """The names of each module, which is loaded when one of them is used: a command line needs few of them."""
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


__all__ = [
    "ACTIVE",
    "ARCHIVE",
    "LOG_FORMAT",
    "TERMINAL",
    "AggregationAsked",
    "AggregationAssigned",
    "AggregationLeft",
    "AggregationMeasured",
    "AggregationRefused",
    "AggregatorEnded",
    "AggregatorStarted",
    "AggregatorUnreachable",
    "AggregatorsAllocated",
    "AggregatorsOffered",
    "AggregatorsRecycled",
    "AllocationAdded",
    "AllocationPaused",
    "AllocationRemoved",
    "AllocationResumed",
    "AllocationSpec",
    "Alternative",
    "AnyEvent",
    "Batch",
    "Budget",
    "Cause",
    "Checkpoint",
    "Choice",
    "CodecError",
    "Commit",
    "Demand",
    "Device",
    "DeviceDrained",
    "DeviceFailed",
    "DeviceRecovered",
    "DeviceResumed",
    "Dimension",
    "Event",
    "Integers",
    "Job",
    "JobCancelled",
    "JobEntered",
    "JobFinished",
    "JobHeld",
    "JobRank",
    "JobReleased",
    "JobSpec",
    "JobState",
    "JobSubmitted",
    "JobTable",
    "JobTimeSet",
    "JobTimedOut",
    "JobUnblocked",
    "JobsArchived",
    "JobsRanked",
    "KindSpeed",
    "LaneChanged",
    "LogCopied",
    "LogTrimmed",
    "LoggedFact",
    "MemoryNeed",
    "MemoryOffered",
    "MisplacedFact",
    "NodeDrained",
    "NodeJoined",
    "NodeLeaving",
    "NodeLeft",
    "NodeLoginIssued",
    "NodeLoginRevoked",
    "NodeLogins",
    "NodeRemoved",
    "NodeResumed",
    "NodeTokenIssued",
    "NotificationRuleRemoved",
    "NotificationRuleSet",
    "NotificationSent",
    "Outcome",
    "Param",
    "PartMoved",
    "PartPlaced",
    "PilotEnded",
    "PilotPlanned",
    "PilotStarted",
    "PilotSubmitted",
    "PilotWaits",
    "PilotWithdrawn",
    "PilotsPaused",
    "Placement",
    "PolicySet",
    "PoolLearnt",
    "Preemption",
    "ProfileSample",
    "ReservationCancelled",
    "ReservationMade",
    "RoundDecided",
    "RunBusyAgain",
    "RunCheckpointed",
    "RunEnded",
    "RunIdle",
    "RunMeasured",
    "RunRewound",
    "RunStarted",
    "RunUnparked",
    "RunWarned",
    "SamplesRequested",
    "Scalability",
    "ScaleDecided",
    "Setting",
    "Size",
    "SlabsEvicted",
    "SlabsLent",
    "SlabsReturned",
    "Slot",
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
    "UnknownFact",
    "UserRemoved",
    "UserSet",
    "Wait",
    "WorkloadProfiled",
    "WorkloadScaled",
    "belongs",
    "decode",
    "decode_at",
    "encode",
    "fields_of",
    "kind_of",
    "last_checkpoint",
    "read_as",
    "subject_of",
    "tag_of",
]
