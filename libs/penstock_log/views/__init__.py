"""
What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.

Times are seconds since the Unix epoch (``_s`` after a verb in the past) or durations in seconds; None where it has not
happened. Fields are only ever added.

In reading order:

* ``jobs``: Jobs: lines, details, sizes, why, story.
* ``bulk``: Many jobs at a time: submissions, and commands about all that a filter names.
* ``cluster``: Nodes, services, lanes, sweeps.
* ``aggregation``: Aggregators, and the runs that have parts on them.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock_log.views.aggregation import (
        AggregatedJobView,
        AggregationView,
        AggregatorUseView,
    )
    from penstock_log.views.bulk import (
        BulkAnswer,
        BulkView,
        SubmittedJob,
        SubmittedJobsView,
    )
    from penstock_log.views.cluster import (
        DeviceView,
        GoodputView,
        LanesView,
        NodeLoginsView,
        NodeLoginView,
        NodeMemoryView,
        NodesView,
        NodeTokenView,
        NodeView,
        PoliciesView,
        PolicyView,
        ReplicaView,
        RungView,
        SchemaView,
        SharedDeviceView,
        SharedLaneView,
        SharedRunView,
        StatusView,
        StreamPeerView,
        StreamsView,
        StreamView,
        SweepsView,
        SweepView,
        TrialView,
        UsersView,
        UserView,
    )
    from penstock_log.views.jobs import (
        ActAnswer,
        DryRunView,
        EventsView,
        EventView,
        JobDetail,
        JobRow,
        JobsView,
        JobView,
        ProfileView,
        RankView,
        RejectedListView,
        RejectedView,
        ResizeView,
        SizedRunView,
        SizingView,
        StoryLine,
        StoryView,
        SubmitAnswer,
        View,
        WhyView,
    )
else:
    _HOMES = ("jobs", "bulk", "cluster", "aggregation")
    """Where a name may be, in the order in which they are asked: a list of jobs needs the first alone."""

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in _HOMES:
                found = getattr(import_module(f"penstock_log.views.{home}"), name, None)
                if found is not None:
                    globals()[name] = found
                    return found
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)


__all__ = [
    "ActAnswer",
    "AggregatedJobView",
    "AggregationView",
    "AggregatorUseView",
    "BulkAnswer",
    "BulkView",
    "DeviceView",
    "DryRunView",
    "EventView",
    "EventsView",
    "GoodputView",
    "JobDetail",
    "JobRow",
    "JobView",
    "JobsView",
    "LanesView",
    "NodeLoginView",
    "NodeLoginsView",
    "NodeMemoryView",
    "NodeTokenView",
    "NodeView",
    "NodesView",
    "PoliciesView",
    "PolicyView",
    "ProfileView",
    "RankView",
    "RejectedListView",
    "RejectedView",
    "ReplicaView",
    "ResizeView",
    "RungView",
    "SchemaView",
    "SharedDeviceView",
    "SharedLaneView",
    "SharedRunView",
    "SizedRunView",
    "SizingView",
    "StatusView",
    "StoryLine",
    "StoryView",
    "StreamPeerView",
    "StreamView",
    "StreamsView",
    "SubmitAnswer",
    "SubmittedJob",
    "SubmittedJobsView",
    "SweepView",
    "SweepsView",
    "TrialView",
    "UserView",
    "UsersView",
    "View",
    "WhyView",
]
