"""
What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.

Times are seconds since the Unix epoch (``_s`` after a verb in the past) or durations in seconds; None where it has not
happened. Fields are only ever added.

In reading order:

* ``jobs``: Jobs: lines, details, sizes, why, story.
* ``cluster``: Nodes, services, lanes, sweeps.
"""

from penstock_log.views.cluster import (
    DeviceView,
    GoodputView,
    LanesView,
    NodesView,
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
    SweepsView,
    SweepView,
    TrialView,
)
from penstock_log.views.jobs import (
    ActAnswer,
    DryRunView,
    EventsView,
    EventView,
    JobDetail,
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

__all__ = [
    "ActAnswer",
    "DeviceView",
    "DryRunView",
    "EventView",
    "EventsView",
    "GoodputView",
    "JobDetail",
    "JobView",
    "JobsView",
    "LanesView",
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
    "SubmitAnswer",
    "SweepView",
    "SweepsView",
    "TrialView",
    "View",
    "WhyView",
]
