"""
What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.

Times are seconds since the Unix epoch (``_s`` after a verb in the past) or durations in seconds; None where it has not
happened. Fields are only ever added.
"""

from penstock_events.views.base import View
from penstock_events.views.cluster import (
    DeviceView,
    NodesView,
    NodeView,
    PoliciesView,
    PolicyView,
    ReplicaView,
    SchemaView,
    StatusView,
)
from penstock_events.views.commands import ActAnswer, SubmitAnswer
from penstock_events.views.history import EventsView, EventView, RejectedListView, RejectedView, StoryLine, StoryView
from penstock_events.views.jobs import DryRunView, JobDetail, JobsView, JobView, ProfileView, RankView, WhyView
from penstock_events.views.lanes import LanesView, SharedDeviceView, SharedLaneView, SharerView
from penstock_events.views.sizes import ResizeView, RunView, SizingView
from penstock_events.views.sweeps import GoodputView, RungView, SweepsView, SweepView, TrialView

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
    "RunView",
    "RungView",
    "SchemaView",
    "SharedDeviceView",
    "SharedLaneView",
    "SharerView",
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
