"""
Answers about streams, policies, lanes, sweeps and people.

:class:`LanesView` is a node's report of its
shared devices on ``subjects.lanes``, once a second while there are any. :class:`SweepView` is a sweep with its trials.
"""

from __future__ import annotations

from typing import Any, Optional

from penstock_log.decision_facts import Problem
from penstock_log.spec import MemoryNeed, Param, Role, Setting, SweepSpec
from penstock_log.views.answers import View


class StreamPeerView(View, frozen=True, kw_only=True):
    """
    One copy of a stream beside its leader's.

    Attributes
    ----------
    current : bool
        Whether it has all that the leader has.
    offline : bool
        Whether its server is gone.
    lag : int
        Operations that it is behind.
    heard_ago_s : float
        How long ago its server was last heard of.
    """

    server: str
    current: bool
    offline: bool = False
    lag: int = 0
    heard_ago_s: float = 0.0


class StreamView(View, frozen=True, kw_only=True):
    """
    On which NATS servers one stream is kept.

    Attributes
    ----------
    replicas : int
        On so many; 0 where that is not known.
    leader : str
        The server that takes what is written; empty while none does.
    error : str
        Why nothing is known of it.
    messages, bytes : int
        What it holds.
    max_bytes : int
        How much it may hold; 0: as much as the server has room for.
    """

    name: str
    replicas: int = 0
    leader: str = ""
    copies: tuple[StreamPeerView, ...] = ()
    error: str = ""
    messages: int = 0
    bytes: int = 0
    max_bytes: int = 0


class StreamsView(View, frozen=True, kw_only=True):
    """All streams, and on which NATS servers each is kept."""

    streams: tuple[StreamView, ...]


class MomentView(View, frozen=True, kw_only=True):
    """
    A moment of the log, and from when to when the log goes.

    Attributes
    ----------
    seq : int
        Of the last commit by the moment; 0 before the log's first.
    at_s : float
        The time that was asked for, or when that commit was stored.
    first_seq, first_s, last_seq, last_s : int, float
        Of the first and the last commit that the log holds, and when they were stored; 0 for an empty log.
    now_s : float
        The time by the server's clock.
    """

    seq: int
    at_s: float
    first_seq: int
    first_s: float
    last_seq: int
    last_s: float
    now_s: float


class ReservationView(View, frozen=True, kw_only=True):
    """
    Devices of a pool that are a team's own for a time.

    Attributes
    ----------
    state : {"to come", "in force"}
    from_s, until_s : float
        Seconds since the epoch.
    made_s : float
        When it was made.
    kind : str
        Of the devices; empty: of whatever kinds.
    """

    id: str
    team: str
    gpus: int
    pool: str
    state: str
    from_s: float
    until_s: float
    made_s: float
    by: str = ""
    reason: str = ""
    kind: str = ""


class ClassView(View, frozen=True, kw_only=True):
    """
    A priority class of a pool.

    Attributes
    ----------
    weight : int
        Jobs of a class with a higher weight come first; jobs without a class have 0.
    preempts : bool
        Whether runs of classes with a lower weight make way for its jobs.
    most_gpus : int
        Devices that its jobs of one user hold at once; 0: as many as there are.
    teams : tuple of str
        Who may use it; empty: everybody.
    """

    weight: int = 0
    preempts: bool = False
    most_gpus: int = 0
    teams: tuple[str, ...] = ()


class PolicyView(View, frozen=True, kw_only=True):
    """
    What is set live for one pool.

    Attributes
    ----------
    settings : dict of str to Setting
        By name; all others are as the services' own settings say.
    quotas : dict of str to int
        Team → devices: as set live, else as the gateway's settings file has them, with what is reserved at present;
        empty: there are none.
    classes : dict of str to ClassView
        Priority class → its rules, as set live, else as the gateway's settings file has them.
    alpha : float
        Share of the users whose jobs enter a round at first; with 1, fairness between users does not count.
    learnt_gpu_s : tuple of float
        GPU-seconds, rising: the thresholds that ``learnt`` stands for at present.
    reservations : tuple of ReservationView
        Those that are not over, the first to begin first.
    """

    pool: str
    settings: dict[str, Setting]
    quotas: dict[str, int] = {}
    classes: dict[str, ClassView] = {}
    alpha: float = 1.0
    learnt_gpu_s: tuple[float, ...] = ()
    reservations: tuple[ReservationView, ...] = ()


class PoliciesView(View, frozen=True, kw_only=True):
    """
    What is set live, by pool.

    Attributes
    ----------
    pools : tuple of PolicyView
        All pools that have or had a node, and those for which something is set.
    defaults : dict of str to Setting
        Every setting that can be set live, and what holds where neither the file nor anybody says otherwise.
    """

    pools: tuple[PolicyView, ...]
    defaults: dict[str, Setting]
    seq: int


class SchemaView(View, frozen=True, kw_only=True):
    """The published JSON Schemas."""

    job: dict[str, Any]
    sweep: dict[str, Any]


class SharedRunView(View, frozen=True, kw_only=True):
    """
    One run on a shared device.

    Attributes
    ----------
    state : {"turn", "idle", "parked", "waits", "leaving", "fraction"}
        ``turn``: it has its lane's token; ``idle``: it is in a lane and has not; ``waits``: it has not started;
        ``fraction``: it has a part of the device's memory and takes no turns.
    need : MemoryNeed or None
        As far as it is known.
    cap_bytes : int
        The most that it may hold of the device; 0 where nothing caps it.
    share : float
        Of the last second, for how long it had the turn: 0 to 1.
    reason : str
        Why it waits, is parked or has to leave.
    """

    job_id: str
    epoch: int
    state: str
    need: Optional[MemoryNeed] = None
    cap_bytes: int = 0
    share: float = 0.0
    reason: str = ""


class SharedLaneView(View, frozen=True, kw_only=True):
    """
    One lane.

    Attributes
    ----------
    holder : str
        The job that has the turn; empty where nobody has.
    switches_per_s : float
        How often the turn changed hands in the last second.
    """

    lane: int
    size_bytes: int
    holder: str
    switches_per_s: float
    members: tuple[SharedRunView, ...]


class SharedDeviceView(View, frozen=True, kw_only=True):
    """
    One shared device.

    Attributes
    ----------
    used_bytes : int
        What counts as used: what everybody keeps, and the lanes.
    outside : tuple of SharedRunView
        Those that share it and are in no lane.
    """

    device: int
    kind: str
    memory_bytes: int
    used_bytes: int
    lanes: tuple[SharedLaneView, ...]
    outside: tuple[SharedRunView, ...] = ()


class LanesView(View, frozen=True, kw_only=True):
    """The shared devices of one node at one moment."""

    node_id: str
    at_s: float
    devices: tuple[SharedDeviceView, ...]


class TrialView(View, frozen=True, kw_only=True):
    """
    One run of a trial; ``state`` is that of its job (empty before it is submitted).

    Attributes
    ----------
    gpus, packed : int
        Devices that its job asks for, and how many trials may take turns on its device; 1 where it has it to itself.
    number : int
        Of the trial: the same in all rungs.
    bracket, rung, budget : int
        Where it stands in a search that stops early; 0 elsewhere.
    promoted : bool
        Whether another run went on from it.
    problem : str
        Why it gave no value: crashed, diverged, no_report, refused.
    reason : str
        The same in a sentence, where there is more to say.
    """

    job_id: str
    params: dict[str, Param]
    gpus: int
    group: int
    state: str
    value: Optional[float]
    packed: int = 1
    number: int = 0
    bracket: int = 0
    rung: int = 0
    budget: int = 0
    promoted: bool = False
    problem: Problem = ""
    reason: str = ""


class RungView(View, frozen=True, kw_only=True):
    """
    One group of a search that stops early: so many trials opened, of which so many are over and were promoted.

    Attributes
    ----------
    best_value : float or None
        The best of those that are over.
    """

    bracket: int
    rung: int
    budget: int
    opened: int
    over: int
    promoted: int
    best_value: Optional[float]


class GoodputView(View, frozen=True, kw_only=True):
    """
    What became of the devices that a sweep's trials held, in device-seconds; all but the last of runs that are over.

    Attributes
    ----------
    useful_gpu_s : float
        Spent in iterations whose result reached the search, of runs that were promoted or are the best.
    stopped_gpu_s : float
        The same of runs that were not: what it costs to find out.
    failed_gpu_s : float
        Of runs that gave no value, iterations and all: crashed, diverged, cancelled.
    rescale_gpu_s : float
        Stopping and going on again, after a move, a preemption or a crash.
    overhead_gpu_s : float
        What else was no iteration: starting, loading and saving checkpoints, leaving.
    profile_gpu_s : float
        Samples that the profiler took of the workload while the sweep was there.
    allocated_gpu_s : float
        All of these.
    running_gpu_s : float
        Held so far by runs on their way.
    """

    useful_gpu_s: float
    stopped_gpu_s: float
    failed_gpu_s: float
    overhead_gpu_s: float
    allocated_gpu_s: float
    rescale_gpu_s: float = 0.0
    profile_gpu_s: float = 0.0
    running_gpu_s: float = 0.0

    @property
    def share(self) -> float:
        """The useful part of what was allocated, from 0 to 1."""
        return self.useful_gpu_s / self.allocated_gpu_s if self.allocated_gpu_s else 0.0


class SweepView(View, frozen=True, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    state : {"running", "cancelling", "completed", "failed", "cancelled"}
    trials : tuple of TrialView
        Runs opened so far.
    done : int
        Runs that are over.
    opened : int
        Trials opened so far; a trial that is promoted runs more than once.
    wanted : int
        Runs that there will be if nothing fails; 0 where the search finds out on the way.
    best_job_id, best_value
        So far: of the runs with the largest budget that gave a value, the best.
    eta_s : float or None
        Seconds to the end at the pace so far, as far as the search knows what is left.
    makespan_s : float
        Seconds from submission to the end, or so far.
    target_s : float or None
        Seconds from submission to the first value as good as the target of the specification.
    utilisation : float or None
        Device-seconds held over those of the devices that it could have used, from 0 to 1; None where there were none.
    failed : int
        Runs that should have given a value and gave none: they crashed, reported nothing or were refused. Those that
        diverged have shown something, and are not among them; nor are those that were cancelled.
    failed_promotions : int
        Of these, the runs that went on from another.
    first_failed, first_error : str
        The first of them, and why, in a sentence; empty where none has.
    rungs : tuple of RungView
    goodput : GoodputView or None
        None in a list of sweeps.
    """

    id: str
    name: str
    state: str
    metric: str
    mode: str
    submitted_s: float
    finished_s: Optional[float]
    wanted: int
    done: int
    best_job_id: str
    best_value: Optional[float]
    reason: str
    trials: tuple[TrialView, ...]
    spec: SweepSpec
    opened: int = 0
    eta_s: Optional[float] = None
    makespan_s: float = 0.0
    target_s: Optional[float] = None
    utilisation: Optional[float] = None
    failed: int = 0
    failed_promotions: int = 0
    first_failed: str = ""
    first_error: str = ""
    rungs: tuple[RungView, ...] = ()
    goodput: Optional[GoodputView] = None


class SweepsView(View, frozen=True, kw_only=True):
    """
    Sweeps, by submission, and the open ones last; their trials are left out (``sweep`` has them).

    Attributes
    ----------
    total : int
        Sweeps that match, whether they are shown or not.
    """

    sweeps: tuple[SweepView, ...]
    seq: int
    total: int = 0


class SignInView(View, frozen=True, kw_only=True):
    """
    An address that signs one browser in.

    Attributes
    ----------
    url : str
        Good for one use within ``valid_s`` seconds.
    dashboard : str
        The dashboard's own address.
    user : str
        As whom, as the server knows the person; empty where it knows nobody by name.
    """

    url: str
    dashboard: str
    valid_s: float
    user: str = ""


class UserView(View, frozen=True, kw_only=True):
    """
    A person who may use the cluster.

    Attributes
    ----------
    valid_from_s : float
        Logins that were issued earlier count no more, seconds since the epoch.
    is_owner : bool
        Whether they run the server, and are an admin whatever the log says.
    open_jobs, commands_per_s
        What an admin has set for them in place of the gateway's settings; None is as these say.
    """

    name: str
    role: Role
    teams: tuple[str, ...] = ()
    valid_from_s: float = 0.0
    is_owner: bool = False
    open_jobs: Optional[int] = None
    commands_per_s: Optional[float] = None


class NodeLoginView(View, frozen=True, kw_only=True):
    """
    The login with which the executor of a node that has joined comes to the server.

    Attributes
    ----------
    machine : str
        What the machine called itself when it joined.
    token : str
        Id of the token with which it joined.
    key : str
        Its public key.
    issued_s, revoked_s : float
        Seconds since the epoch; it counts unless it was revoked, which is 0 then.
    """

    node_id: str
    machine: str
    token: str
    key: str
    issued_s: float
    revoked_s: float = 0.0


class NodeTokenView(View, frozen=True, kw_only=True):
    """
    A token with which machines join.

    Attributes
    ----------
    used : int
        How many have joined with it, of ``uses``.
    expires_s, revoked_s : float
        Seconds since the epoch; the second is 0 unless it was ended before its time.
    """

    token: str
    by: str
    uses: int
    used: int
    expires_s: float
    revoked_s: float = 0.0


class NodeLoginsView(View, frozen=True, kw_only=True):
    """
    Logins of nodes that have joined, and tokens, in the order in which they were issued.

    Attributes
    ----------
    told_seq : int
        The servers refuse all logins that were revoked up to this sequence of the log.
    """

    logins: tuple[NodeLoginView, ...]
    tokens: tuple[NodeTokenView, ...]
    told_seq: int


class NotificationRuleView(View, frozen=True, kw_only=True):
    """
    A rule by which a person is told of what becomes of their jobs; its address is shown to nobody.

    Attributes
    ----------
    on, waiting_s, about, target
        As in the fact ``notify.rule_set.v1``.
    messages : int
        How many were sent.
    tried_s : float or None
        When one was last sent, or tried; None: never.
    left : int
        Of how many things is still to be told.
    failures : int
        Tries in vain since the last message.
    error : str
        Why the last one could not be sent; empty: it could.
    """

    id: str
    user: str
    target: str
    on: tuple[str, ...] = ()
    waiting_s: float = 0.0
    about: str = ""
    messages: int = 0
    tried_s: Optional[float] = None
    left: int = 0
    failures: int = 0
    error: str = ""


class NotificationsView(View, frozen=True, kw_only=True):
    """The rules of the person who asks; an operator gets those of all."""

    rules: tuple[NotificationRuleView, ...]
    seq: int


class UsersView(View, frozen=True, kw_only=True):
    """All people who may use the cluster, by name."""

    users: tuple[UserView, ...]
    seq: int
