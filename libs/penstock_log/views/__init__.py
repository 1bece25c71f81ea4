"""
What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.

Times are seconds since the Unix epoch (``_s`` after a verb in the past) or durations in seconds; None where it has not
happened. Fields are only ever added.

In reading order:

* ``answers``: The root of all answers; answers to commands, lists of jobs, stories and facts.
* ``jobs``: Jobs: details, sizes, why.
* ``bulk``: Many jobs at a time: submissions, and commands about all that a filter names.
* ``nodes``: Nodes, services, and the whole at one glance.
* ``cluster``: Streams, policies, lanes, sweeps, people.
* ``devices``: All devices and all waiting jobs, for who looks at them at once.
* ``allocations``: Allocations, their pilots, and what a pilot would be.
* ``timeline``: Who held which device when.
* ``aggregation``: Aggregators, and the runs that have parts on them.
* ``series``: The metrics of a job over its runs.
* ``accounts``: Device time by user, team, pool, model, kind or job.
* ``stats``: Figures by pool and team, for metrics.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock_log.views.accounts import (
        UsageRowView,
        UsageView,
        WaitsView,
    )
    from penstock_log.views.aggregation import (
        AggregatedJobView,
        AggregationView,
        AggregatorUseView,
    )
    from penstock_log.views.allocations import (
        AllocationsView,
        AllocationView,
        PilotOutlook,
        PilotTrialView,
        PilotView,
    )
    from penstock_log.views.answers import (
        ActAnswer,
        EnterAnswer,
        EventsView,
        EventView,
        JobRow,
        JobsView,
        JobView,
        RejectedListView,
        RejectedView,
        StoryLine,
        StoryView,
        SubmitAnswer,
        UploadView,
        View,
    )
    from penstock_log.views.bulk import (
        BulkAnswer,
        BulkView,
        SubmittedJob,
        SubmittedJobsView,
    )
    from penstock_log.views.cluster import (
        ClassView,
        GoodputView,
        LanesView,
        MomentView,
        NodeLoginsView,
        NodeLoginView,
        NodeTokenView,
        NotificationRuleView,
        NotificationsView,
        PoliciesView,
        PolicyView,
        ReservationView,
        RungView,
        SchemaView,
        SharedDeviceView,
        SharedLaneView,
        SharedRunView,
        SignInView,
        StreamPeerView,
        StreamsView,
        StreamView,
        SweepsView,
        SweepView,
        TrialView,
        UsersView,
        UserView,
    )
    from penstock_log.views.devices import (
        DeviceOccupation,
        DevicesView,
        HolderView,
        NodeDevicesView,
        QueuedJobView,
        QueueView,
    )
    from penstock_log.views.jobs import (
        DryRunView,
        JobDetail,
        ProfileView,
        RankView,
        ResizeView,
        RunView,
        SizedRunView,
        SizingView,
        WhyView,
    )
    from penstock_log.views.nodes import (
        DeviceView,
        NodeMemoryView,
        NodesView,
        NodeView,
        ReplicaView,
        StatusView,
    )
    from penstock_log.views.series import SeriesView, SweepSeriesView, TrialSeries
    from penstock_log.views.stats import (
        DEVICE_STATES,
        PILOT_ENDS,
        PILOT_STATES,
        AllocationStatsView,
        PoolStatsView,
        StatsView,
    )
    from penstock_log.views.timeline import (
        TimelineDevice,
        TimelineJobView,
        TimelineNodeView,
        TimelineSpan,
        TimelineView,
    )
else:
    _NAMES = {
        "accounts": "UsageRowView UsageView WaitsView",
        "aggregation": "AggregatedJobView AggregationView AggregatorUseView",
        "allocations": "AllocationView AllocationsView PilotOutlook PilotTrialView PilotView",
        "answers": (
            "ActAnswer EnterAnswer EventsView EventView JobRow JobsView JobView RejectedListView RejectedView "
            "StoryLine StoryView SubmitAnswer UploadView View"
        ),
        "bulk": "BulkAnswer BulkView SubmittedJob SubmittedJobsView",
        "cluster": (
            "ClassView GoodputView LanesView MomentView NodeLoginsView NodeLoginView NodeTokenView PoliciesView "
            "PolicyView ReservationView RungView SchemaView SharedDeviceView SharedLaneView SharedRunView SignInView "
            "StreamPeerView StreamsView StreamView SweepsView SweepView TrialView UsersView UserView "
            "NotificationRuleView NotificationsView"
        ),
        "devices": "DeviceOccupation DevicesView HolderView NodeDevicesView QueuedJobView QueueView",
        "jobs": "DryRunView JobDetail ProfileView RankView ResizeView RunView SizedRunView SizingView WhyView",
        "nodes": "DeviceView NodeMemoryView NodesView NodeView ReplicaView StatusView",
        "series": "SeriesView SweepSeriesView TrialSeries",
        "stats": "DEVICE_STATES PILOT_ENDS PILOT_STATES AllocationStatsView PoolStatsView StatsView",
        "timeline": "TimelineDevice TimelineJobView TimelineNodeView TimelineSpan TimelineView",
    }
    """The names of each module, which is loaded when one of them is used: a list of jobs needs one of them."""
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


__all__ = [
    "DEVICE_STATES",
    "PILOT_ENDS",
    "PILOT_STATES",
    "ActAnswer",
    "AggregatedJobView",
    "AggregationView",
    "AggregatorUseView",
    "AllocationStatsView",
    "AllocationView",
    "AllocationsView",
    "BulkAnswer",
    "BulkView",
    "ClassView",
    "DeviceOccupation",
    "DeviceView",
    "DevicesView",
    "DryRunView",
    "EnterAnswer",
    "EventView",
    "EventsView",
    "GoodputView",
    "HolderView",
    "JobDetail",
    "JobRow",
    "JobView",
    "JobsView",
    "LanesView",
    "MomentView",
    "NodeDevicesView",
    "NodeLoginView",
    "NodeLoginsView",
    "NodeMemoryView",
    "NodeTokenView",
    "NodeView",
    "NodesView",
    "NotificationRuleView",
    "NotificationsView",
    "PilotOutlook",
    "PilotTrialView",
    "PilotView",
    "PoliciesView",
    "PolicyView",
    "PoolStatsView",
    "ProfileView",
    "QueueView",
    "QueuedJobView",
    "RankView",
    "RejectedListView",
    "RejectedView",
    "ReplicaView",
    "ReservationView",
    "ResizeView",
    "RunView",
    "RungView",
    "SchemaView",
    "SeriesView",
    "SharedDeviceView",
    "SharedLaneView",
    "SharedRunView",
    "SignInView",
    "SizedRunView",
    "SizingView",
    "StatsView",
    "StatusView",
    "StoryLine",
    "StoryView",
    "StreamPeerView",
    "StreamView",
    "StreamsView",
    "SubmitAnswer",
    "SubmittedJob",
    "SubmittedJobsView",
    "SweepSeriesView",
    "SweepView",
    "SweepsView",
    "TimelineDevice",
    "TimelineJobView",
    "TimelineNodeView",
    "TimelineSpan",
    "TimelineView",
    "TrialSeries",
    "TrialView",
    "UploadView",
    "UsageRowView",
    "UsageView",
    "UserView",
    "UsersView",
    "View",
    "WaitsView",
    "WhyView",
]
