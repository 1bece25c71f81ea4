"""
What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.

Times are seconds since the Unix epoch (``_s`` after a verb in the past) or durations in seconds; None where it has not
happened. Fields are only ever added.

In reading order:

* ``jobs``: Jobs: lines, details, sizes, why, story.
* ``bulk``: Many jobs at a time: submissions, and commands about all that a filter names.
* ``cluster``: Nodes, services, lanes, sweeps.
* ``devices``: All devices and all waiting jobs, for who looks at them at once.
* ``aggregation``: Aggregators, and the runs that have parts on them.
* ``accounts``: Device time by user, team, pool, model, kind or job.
* ``stats``: Figures by pool and team, for metrics.
"""

from penstock_log.views.accounts import UsageRowView as UsageRowView
from penstock_log.views.accounts import UsageView as UsageView
from penstock_log.views.accounts import WaitsView as WaitsView
from penstock_log.views.aggregation import AggregatedJobView as AggregatedJobView
from penstock_log.views.aggregation import AggregationView as AggregationView
from penstock_log.views.aggregation import AggregatorUseView as AggregatorUseView
from penstock_log.views.bulk import BulkAnswer as BulkAnswer
from penstock_log.views.bulk import BulkView as BulkView
from penstock_log.views.bulk import SubmittedJob as SubmittedJob
from penstock_log.views.bulk import SubmittedJobsView as SubmittedJobsView
from penstock_log.views.cluster import DeviceView as DeviceView
from penstock_log.views.cluster import GoodputView as GoodputView
from penstock_log.views.cluster import LanesView as LanesView
from penstock_log.views.cluster import NodeLoginsView as NodeLoginsView
from penstock_log.views.cluster import NodeLoginView as NodeLoginView
from penstock_log.views.cluster import NodeMemoryView as NodeMemoryView
from penstock_log.views.cluster import NodesView as NodesView
from penstock_log.views.cluster import NodeTokenView as NodeTokenView
from penstock_log.views.cluster import NodeView as NodeView
from penstock_log.views.cluster import PoliciesView as PoliciesView
from penstock_log.views.cluster import PolicyView as PolicyView
from penstock_log.views.cluster import ReplicaView as ReplicaView
from penstock_log.views.cluster import RungView as RungView
from penstock_log.views.cluster import SchemaView as SchemaView
from penstock_log.views.cluster import SharedDeviceView as SharedDeviceView
from penstock_log.views.cluster import SharedLaneView as SharedLaneView
from penstock_log.views.cluster import SharedRunView as SharedRunView
from penstock_log.views.cluster import SignInView as SignInView
from penstock_log.views.cluster import StatusView as StatusView
from penstock_log.views.cluster import StreamPeerView as StreamPeerView
from penstock_log.views.cluster import StreamsView as StreamsView
from penstock_log.views.cluster import StreamView as StreamView
from penstock_log.views.cluster import SweepsView as SweepsView
from penstock_log.views.cluster import SweepView as SweepView
from penstock_log.views.cluster import TrialView as TrialView
from penstock_log.views.cluster import UsersView as UsersView
from penstock_log.views.cluster import UserView as UserView
from penstock_log.views.devices import DeviceOccupation as DeviceOccupation
from penstock_log.views.devices import DevicesView as DevicesView
from penstock_log.views.devices import HolderView as HolderView
from penstock_log.views.devices import NodeDevicesView as NodeDevicesView
from penstock_log.views.devices import QueuedJobView as QueuedJobView
from penstock_log.views.devices import QueueView as QueueView
from penstock_log.views.jobs import ActAnswer as ActAnswer
from penstock_log.views.jobs import DryRunView as DryRunView
from penstock_log.views.jobs import EventsView as EventsView
from penstock_log.views.jobs import EventView as EventView
from penstock_log.views.jobs import JobDetail as JobDetail
from penstock_log.views.jobs import JobRow as JobRow
from penstock_log.views.jobs import JobsView as JobsView
from penstock_log.views.jobs import JobView as JobView
from penstock_log.views.jobs import ProfileView as ProfileView
from penstock_log.views.jobs import RankView as RankView
from penstock_log.views.jobs import RejectedListView as RejectedListView
from penstock_log.views.jobs import RejectedView as RejectedView
from penstock_log.views.jobs import ResizeView as ResizeView
from penstock_log.views.jobs import SizedRunView as SizedRunView
from penstock_log.views.jobs import SizingView as SizingView
from penstock_log.views.jobs import StoryLine as StoryLine
from penstock_log.views.jobs import StoryView as StoryView
from penstock_log.views.jobs import SubmitAnswer as SubmitAnswer
from penstock_log.views.jobs import View as View
from penstock_log.views.jobs import WhyView as WhyView
from penstock_log.views.stats import DEVICE_STATES as DEVICE_STATES
from penstock_log.views.stats import PoolStatsView as PoolStatsView
from penstock_log.views.stats import StatsView as StatsView
