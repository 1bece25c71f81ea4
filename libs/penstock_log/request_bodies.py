"""
Bodies of requests: what the gateway and the nodes are asked, as JSON.

A query's empty body stands for all defaults; a command always names what it is about. ``submit``, ``dryrun`` and
``tune`` also take a bare specification; :class:`SubmitRequest` and :class:`TuneRequest` wrap it where something is to
be said beside it. Every query takes ``at``: a stream sequence (a whole number below a thousand million), a time in
seconds since the epoch, or an RFC 3339 text; it is then answered as of that moment.

The second half says where a job's output is. A process writes two files, ``stdout`` and ``stderr``, on its node; each
is a *channel*. Its executor streams them to ``LOG`` in pieces, up to a bound. Each piece says from where in which
channel it is (:class:`OutputOffset`), and at the end the executor says how long the channels are (:class:`OutputEnd`).
So a reader of ``LOG`` knows what is missing there, and asks the node for it (:class:`OutputRequest`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Optional, Union

import msgspec
from msgspec import Meta

from penstock_log.allocation_spec import AllocationSpec
from penstock_log.session_messages import Purpose, SessionId
from penstock_log.spec import MOST_GPUS, JobSpec, Name, NotifyKind, Role, Seconds, Setting, SweepSpec

At = Optional[Union[int, float, str]]
Limit = Annotated[int, Meta(ge=1, le=1000)]
AllocationName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$", description="at most 40 letters, digits, - and _")
]
MOST_ROWS: Final = 10_000
MOST_AT_ONCE: Final = 1000
"""Jobs that one request submits or acts on at most; a client splits what is more."""
PersonName = Annotated[
    str,
    Meta(max_length=63, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", description="letters, digits and any of _ . @ + -"),
]
"""A login name, or an address."""
RevocationTime = Annotated[float, Meta(gt=0, le=1e11)]
Who = Annotated[str, Meta(max_length=128)]
Reason = Annotated[str, Meta(max_length=1000)]
"""It is shown wherever the job is."""


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of all requests."""


# --- commands


class SubmitRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    A job; ``strict`` refuses one that could not start on the present cluster, instead of having it wait.

    ``traceparent`` is the W3C trace context to which the job belongs; one of another form counts as none.
    """

    spec: JobSpec
    strict: bool = False
    traceparent: Annotated[str, Meta(max_length=128)] = ""


class UploadRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Ask which parts of a folder's files are missing here; asked again once they were sent, until nothing is.

    Attributes
    ----------
    user : str
        Whose code it is; empty: the asker's own.
    digest : str
        The SHA-256 of the list of files (:mod:`penstock_log.code_tree`); empty: ask only whether so much may be sent.
    parts : tuple of (str, int)
        The parts of the list of files: SHA-256 in hexadecimal, and size in bytes.
    files, size_bytes : int
        How many files there are, and their size together.
    """

    user: Who = ""
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$", description="a SHA-256 in hexadecimal")] = ""
    parts: Annotated[tuple[tuple[str, int], ...], Meta(max_length=1000)] = ()
    files: Annotated[int, Meta(ge=0)] = 0
    size_bytes: Annotated[int, Meta(ge=0, le=2**53)] = 0


class PartsRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Parts of files, or of a list of files; the one request that is MessagePack, and not JSON.

    Attributes
    ----------
    user : str
        As of :class:`UploadRequest`.
    """

    parts: tuple[bytes, ...]
    user: Who = ""


class TuneRequest(GatewayRequest, frozen=True, kw_only=True):
    """A sweep; ``strict`` as for a job."""

    spec: SweepSpec
    strict: bool = False


class ActRequest(GatewayRequest, frozen=True, kw_only=True):
    """The request of all commands that need no more than an id, or a unique beginning of one."""

    id: str
    by: Who = ""
    reason: Reason = ""


class JobFilter(GatewayRequest, frozen=True, kw_only=True):
    """
    Which jobs; all given filters must match.

    Attributes
    ----------
    state : tuple of str
        Two-letter states; empty means all.
    name : str
        Equal to it, or beginning with it where it ends in ``*``.
    parent : str
        Trials of this sweep.
    group : str
        Of this group, or of the array of this id.
    array : str
        Of the array of this id.
    text : str
        A part of the id or the name, in whatever case.
    """

    state: tuple[str, ...] = ()
    user: str = ""
    name: str = ""
    parent: str = ""
    team: str = ""
    pool: str = ""
    model: str = ""
    text: str = ""
    group: str = ""
    array: str = ""


Verb = Literal["cancel", "hold", "release", "extend", "retry"]


class BulkRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Cancel, hold, release, extend or retry many jobs, each as its own command would.

    Attributes
    ----------
    ids : tuple of str
        Ids, or unique beginnings of them; that of an array stands for all of its jobs.
    where : JobFilter or None
        The jobs that match, of those in which the verb would change something; None where ``ids`` says which. One that
        chooses by nothing is refused; ``name`` as ``*`` chooses all.
    state : tuple of str
        With ``ids``: leave out what is in none of these two-letter states; empty: nothing. Of an array, ``retry``
        leaves out in any case what neither failed nor was cancelled, and what was retried before.
    after : int
        With ``where``: only jobs that were submitted behind this stream sequence: ``next`` of the answer before. Where
        an array or a group is cancelled or held, the last jobs come first: before it.
    limit : int
        With ``where``: look at so many jobs at most.
    dry_run : bool
        Change nothing, and answer what would be changed.
    limit_s : float or None
        Of ``extend``: so long each may run over all of its runs, in seconds; 0: as long as it likes.
    """

    verb: Verb
    ids: Annotated[tuple[str, ...], Meta(max_length=MOST_AT_ONCE)] = ()
    where: Optional[JobFilter] = None
    state: tuple[str, ...] = ()
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = MOST_AT_ONCE
    dry_run: bool = False
    limit_s: Optional[Seconds] = None
    by: Who = ""
    reason: Reason = ""


class SubmitAllRequest(GatewayRequest, frozen=True, kw_only=True):
    """Many jobs, each accepted or refused by itself; ``strict`` as for one."""

    specs: Annotated[tuple[JobSpec, ...], Meta(min_length=1, max_length=MOST_AT_ONCE)]
    strict: bool = False


class ExtendRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Let a job run for another time.

    Attributes
    ----------
    limit_s : float
        So many seconds over all of its runs; 0: as long as it likes. It says what is to be, and not what is to be
        added, so that one which comes twice does no harm.
    """

    id: str
    limit_s: Seconds
    by: Who = ""


class EnterRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Let me into a process of a running job.

    Attributes
    ----------
    session_id : str
        Chosen by who asks, at random: with the same one, asking again is the same entry.
    """

    id: str
    session_id: SessionId
    rank: Annotated[int, Meta(ge=0)] = 0
    purpose: Purpose = "exec"
    by: Who = ""


class NotifyRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Tell the person who asks of what becomes of their jobs.

    Attributes
    ----------
    url : str
        Where messages go, as apprise has it. It is kept by the gateway, and never in the log.
    on : tuple of NotifyKind
        Of what; none of them and no ``waiting_s``: of what a job's own ``notify`` says.
    waiting_s : float
        Also of jobs that wait for longer, in seconds; 0: of none.
    id : str
        Of this job, or of the trials of this sweep; empty: of all jobs of the person.
    name : str
        What the address is called in lists; empty: as its service is.
    rule : str
        Wished id of the rule, chosen at random: asking again with it makes no second one. Empty: given by the gateway.
    """

    rule: Annotated[str, Meta(pattern=r"^([a-z0-9]{8,32})?$")] = ""
    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    on: tuple[NotifyKind, ...] = ()
    waiting_s: Seconds = 0.0
    id: str = ""
    name: Annotated[str, Meta(max_length=63, pattern=r"^[A-Za-z0-9_.@ -]*$")] = ""
    by: Who = ""


class DrainRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Take a node out of service; with ``preempt`` its running jobs are checkpointed and moved.

    Attributes
    ----------
    device : int, optional
        Only the device of this number.
    """

    id: str
    by: Who = ""
    reason: Reason = ""
    preempt: bool = False
    device: Optional[Annotated[int, Meta(ge=0)]] = None


class NodeResumeRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Give a drained node jobs again.

    Attributes
    ----------
    device : int, optional
        Only the device of this number, whether it was drained or had failed.
    """

    id: str
    by: Who = ""
    reason: Reason = ""
    device: Optional[Annotated[int, Meta(ge=0)]] = None


class PolicyRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Run a pool by other settings.

    Attributes
    ----------
    set : dict of str to Setting
        Names and values as in ``[ranker.pools.NAME]`` and ``[matcher.pools.NAME]``; what is not named stays.
    unset : tuple of str
        Settings that go back to what the services' own settings say.
    reset : bool
        All go back, but for those in ``set``.
    """

    pool: Name = "default"
    set: dict[str, Setting] = {}
    unset: tuple[str, ...] = ()
    reset: bool = False
    by: Who = ""
    reason: Reason = ""


class ReserveRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Reserve devices of a pool for a team and a time.

    Attributes
    ----------
    from_s, until_s : float
        Seconds since the epoch; a begin in the past is now.
    kind : str
        Of the devices; empty: of whatever kinds.
    """

    team: Name
    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)]
    until_s: float
    from_s: float = 0.0
    pool: Name = "default"
    by: Who = ""
    reason: Reason = ""
    kind: Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,62})?$")] = ""


class UnreserveRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Cancel a reservation.

    Attributes
    ----------
    pool : str
        Empty: whichever has a reservation of this id.
    """

    id: str
    pool: str = ""
    by: Who = ""
    reason: Reason = ""


class UserRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Let a person use the cluster, or change what they may do; what is left out stays.

    Attributes
    ----------
    user : str
        The name under which the server knows the person.
    role : Role or None
        ``user`` for somebody new.
    teams : tuple of str or None
        The first is the team of jobs that name none.
    revoke : bool
        Logins that were issued until now count no more.
    revocation_s : float or None
        With ``revoke``, the name of the revocation, for which a login may have been made before: later than the last
        one, seconds since the epoch. Commanding the same one again does nothing.
    open_jobs : int or None
        The most jobs that they may have open, in place of the gateway's setting; 0 lets them submit none.
    commands_per_s : float or None
        How many commands they may go on sending in each second, in place of the gateway's setting.
    unset : tuple of str
        Which of the two limits go back to the gateway's setting.
    """

    user: PersonName
    role: Optional[Role] = None
    teams: Optional[tuple[Name, ...]] = None
    revoke: bool = False
    revocation_s: Optional[RevocationTime] = None
    by: Who = ""
    open_jobs: Optional[Annotated[int, Meta(ge=0)]] = None
    commands_per_s: Optional[Annotated[float, Meta(gt=0)]] = None
    unset: tuple[Literal["open_jobs", "commands_per_s"], ...] = ()


class LoginRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    A new login, asked of the issuer.

    Attributes
    ----------
    user : str
        Whose; empty for one's own.
    after_seq : int
        Only once the issuer has read the log so far: the answer to the command that added the person.
    valid_s : float
        For how long it counts, seconds; 0 for ever.
    revocation_s : float or None
        For a login that counts once a revocation of this name has come, which is about to be commanded; so people can
        have their own logins refused, and hold a new one before.
    """

    user: str = ""
    after_seq: Annotated[int, Meta(ge=0)] = 0
    valid_s: Annotated[float, Meta(ge=0)] = 0.0
    revocation_s: Optional[RevocationTime] = None


class TokenRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    A token with which so many machines join as nodes, for so many seconds; asked of the issuer.

    Attributes
    ----------
    login_s : float
        So many seconds after a machine has joined, its logins end; 0: they stay until they are revoked.
    """

    valid_s: Annotated[float, Meta(gt=0, le=30 * 24 * 3600)] = 3600.0
    uses: Annotated[int, Meta(ge=1, le=10_000)] = 1
    login_s: Annotated[float, Meta(ge=0, le=400 * 24 * 3600)] = 0.0


class JoinRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    The login of a new node, asked of the issuer with a token.

    Attributes
    ----------
    key : str
        Public key that the machine has made; asked again with the same key, it is the same login.
    machine : str
        What the machine calls itself, for people.
    memory_key : str
        Public key for the login of its memory agent; empty: it wants none.
    aggregator_key : str
        The same of its aggregation agent.
    """

    node_id: Name
    key: Annotated[str, Meta(pattern=r"^U[A-Z2-7]{55}$")]
    machine: Who = ""
    memory_key: Annotated[str, Meta(pattern=r"^(U[A-Z2-7]{55})?$")] = ""
    aggregator_key: Annotated[str, Meta(pattern=r"^(U[A-Z2-7]{55})?$")] = ""


class RevokeRequest(GatewayRequest, frozen=True, kw_only=True):
    """Have all logins of a node count no more, or of all machines that came with one token; asked of the issuer."""

    id: str
    reason: Reason = ""


class AllocationRequest(GatewayRequest, frozen=True, kw_only=True):
    """Add an allocation: from now on pilots may be submitted; or, as a query, what a pilot of it would be."""

    name: AllocationName
    spec: AllocationSpec
    by: Who = ""


# --- queries


class OneRequest(GatewayRequest, frozen=True, kw_only=True):
    """The request of ``job``, ``why``, ``story`` and ``sweep``: an id or its unique beginning."""

    id: str
    at: At = None


class SeriesRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    The request of ``series``: the series of a job's metrics over all of its runs.

    Attributes
    ----------
    id : str
        Of the job, or its unique beginning.
    names : tuple of str
        Of metrics; empty for all.
    most : int
        The most rows, 2 to 10,000; there may be fewer where the answer would not fit into a message.
    """

    id: str
    names: tuple[str, ...] = ()
    most: Annotated[int, Meta(ge=2, le=MOST_ROWS)] = 1000
    at: At = None


class JobsRequest(JobFilter, frozen=True, kw_only=True):
    """
    The request of ``jobs``: which, how many, and in which form.

    Attributes
    ----------
    ids : tuple of str
        Whole ids.
    samples : bool
        Show the profiler's samples too.
    limit : int
        At most this many, the newest; more than 1,000 only as rows.
    offset : int
        Leave out so many of the newest: what the pages before have shown.
    rows : bool
        Answer with what a table shows, as ``rows`` of the answer in place of ``jobs``.
    since_s : float, optional
        Those that are not over, or ended then or later, in seconds since the epoch.
    """

    ids: tuple[str, ...] = ()
    samples: bool = False
    since_s: Optional[float] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 500
    offset: Annotated[int, Meta(ge=0)] = 0
    rows: bool = False
    at: At = None


class SweepsRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    The request of ``sweeps``: which, and how many.

    Attributes
    ----------
    state : tuple of str
        ``running``, ``cancelling``, or how they ended; empty means all.
    limit : int
        At most this many: the open ones, and then the newest.
    offset : int
        Leave out so many of these: what the pages before have shown.
    """

    user: str = ""
    team: str = ""
    state: tuple[str, ...] = ()
    limit: Limit = 500
    offset: Annotated[int, Meta(ge=0)] = 0
    at: At = None


class QueueRequest(JobFilter, frozen=True, kw_only=True):
    """
    The request of ``queue``: which waiting jobs, and which part of them.

    Attributes
    ----------
    cause : str
        Only those that wait for this cause, as the round says it.
    offset, limit : int
        The part that is wanted, in rank order.
    """

    cause: str = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 200
    at: At = None


class AggregationRequest(GatewayRequest, frozen=True, kw_only=True):
    """The request of ``aggregation``: an id of a job or its unique beginning; empty: all aggregators and jobs."""

    id: str = ""
    at: At = None


UsageBy = Literal["user", "team", "pool", "model", "kind", "job"]
UsageOrder = Literal["held", "requested", "waited", "used", "idle", "unmeasured", "lost", "name"]


class UsageRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Device time by group within a window.

    Attributes
    ----------
    by : {"user", "team", "pool", "model", "kind", "job"}
        What a row is.
    since, until : int, float or str
        Bounds of the window: seconds since the epoch, a span before now (``7d``), a UTC day (``2026-01-31``), or an
        RFC 3339 time. It begins with the first fact and ends now, where it is not said.
    order : str
        The column by which rows are sorted, the largest first; ``name`` sorts by name.
    limit : int
        At most this many rows; what is beyond is one row more.
    """

    by: UsageBy = "user"
    since: At = None
    until: At = None
    order: UsageOrder = "held"
    limit: Limit = 1000
    at: At = None


class TimelineRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Who held which device when.

    Attributes
    ----------
    since, until : int, float or str
        Bounds of the window, as for ``usage``; it ends now and begins six hours before its end, unless told otherwise.
    pool, node : str
        Only nodes of this pool, and those whose ids begin so.
    offset, limit : int
        The part of the nodes that is wanted, by pool and id.
    pixels : int
        What is shorter than the window divided by this is merged.
    """

    since: At = None
    until: At = None
    pool: str = ""
    node: str = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 40
    pixels: Annotated[int, Meta(ge=10, le=4000)] = 1000
    at: At = None


class AllRequest(GatewayRequest, frozen=True, kw_only=True):
    """The request of ``nodes``, ``devices``, ``policies``, ``moment`` and ``status``."""

    at: At = None


class EventsRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    Raw facts.

    Attributes
    ----------
    id : str
        Facts about this job, sweep, node, pool or workload; empty means all.
    after : int or None
        Only behind this stream sequence; None means the newest ``limit``.
    """

    id: str = ""
    after: Optional[Annotated[int, Meta(ge=0)]] = None
    limit: Limit = 100
    at: At = None


class EmptyRequest(GatewayRequest, frozen=True, kw_only=True):
    """The request of ``rejected`` and ``schema``."""


Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")
Count = Annotated[int, Meta(ge=0, le=2**53)]
MOST_BYTES: Final = 512 * 1024
"""Of one answer: half of what a server takes in one message by default."""


class OutputChannel(msgspec.Struct, frozen=True, order=True):
    """One output file: of one stream of one process in one of its job's runs."""

    epoch: int
    node_id: str
    rank: int
    stream: Stream


class OutputOffset(msgspec.Struct, frozen=True):
    """The place of a piece: its channel, and its ``offset`` in bytes from the channel's beginning."""

    channel: OutputChannel
    offset: int


class OutputEnd(msgspec.Struct, frozen=True):
    """
    A process has ended: how many bytes its standard output and its standard error have.

    ``processes`` is how many its run has on that node.
    """

    epoch: int
    node_id: str
    rank: int
    stdout_bytes: int
    stderr_bytes: int
    processes: int = 1

    @property
    def sizes(self) -> dict[OutputChannel, int]:
        """Its channels with their sizes."""
        sizes = {"stdout": self.stdout_bytes, "stderr": self.stderr_bytes}
        return {OutputChannel(self.epoch, self.node_id, self.rank, stream): sizes[stream] for stream in STREAMS}


def header_of(place: OutputOffset | OutputEnd) -> str:
    """
    Return a place as a message's header has it.

    Examples
    --------
    >>> header_of(OutputOffset(OutputChannel(1, "n1", 0, "stdout"), 300)), header_of(OutputEnd(1, "n1", 0, 300, 0))
    ('1 n1 0 stdout 300', '1 n1 0 end 300 0 1')
    """
    if isinstance(place, OutputOffset):
        at = place.channel
        return f"{at.epoch} {at.node_id} {at.rank} {at.stream} {place.offset}"
    numbers = f"{place.stdout_bytes} {place.stderr_bytes} {place.processes}"
    return f"{place.epoch} {place.node_id} {place.rank} end {numbers}"


def of_header(text: str) -> OutputOffset | OutputEnd | None:
    """
    Return the place that a header tells; None where there is no header, or one that is not understood.

    Examples
    --------
    >>> of_header("1 n1 0 stdout 300")
    OutputOffset(channel=OutputChannel(epoch=1, node_id='n1', rank=0, stream='stdout'), offset=300)
    >>> of_header("1 n1 0 end 300 0 1"), of_header("something else")
    (OutputEnd(epoch=1, node_id='n1', rank=0, stdout_bytes=300, stderr_bytes=0, processes=1), None)
    """
    try:
        epoch, node_id, rank, what, *numbers = text.split(" ")
        if what == "end":
            stdout_bytes, stderr_bytes, processes = map(int, numbers)
            return OutputEnd(int(epoch), node_id, int(rank), stdout_bytes, stderr_bytes, processes)
        (offset,) = map(int, numbers)
        stream = next(stream for stream in STREAMS if stream == what)
        return OutputOffset(OutputChannel(int(epoch), node_id, int(rank), stream), offset)
    except (ValueError, StopIteration):
        return None


class OutputRequest(GatewayRequest, frozen=True, kw_only=True):
    """
    A request to a node for a job's output, as JSON: for its list of channels, or for a piece of one.

    Attributes
    ----------
    epoch : int
        The run; 0 asks for the list of channels.
    offset : int
        The place of the piece, in bytes; the answer has at most ``most_bytes`` from there.
    """

    job_id: str
    epoch: Count = 0
    rank: Count = 0
    stream: Stream = "stdout"
    offset: Count = 0
    most_bytes: Annotated[int, Meta(ge=1, le=MOST_BYTES)] = MOST_BYTES


class OutputAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """
    A node's answer, as MessagePack.

    Attributes
    ----------
    data : bytes
        The piece; empty at the channel's end.
    sizes : list of (OutputChannel, int)
        The channels that were asked for, and how many bytes each has by now.
    """

    data: bytes = b""
    sizes: list[tuple[OutputChannel, int]] = []


class OutputGrown(msgspec.Struct, frozen=True, kw_only=True):
    """Telemetry, as JSON: the size of a channel that has more than is streamed."""

    channel: OutputChannel
    size: int


class NodeHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """
    Telemetry, as JSON: an executor is alive.

    Attributes
    ----------
    incarnation : str
        Of the node, as its executor has announced it last.
    ticks_s : float
        The node's own clock when it was sent; it has a meaning for that node alone.
    """

    node_id: str = ""
    incarnation: str = ""
    at_s: float = 0.0
    ticks_s: float = 0.0


class NodeHeard(msgspec.Struct, frozen=True, kw_only=True):
    """Telemetry, as JSON: the matcher's answer to a heartbeat of a node that is not lost, with what the node sent."""

    incarnation: str
    ticks_s: float


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """
    Telemetry, as JSON: what the first process of a run last reported, in the fields of its loop's report.

    ``epoch`` is 0 if an old executor left it out.
    """

    job_id: str = ""
    epoch: int = 0
    step: int = 0
    metrics: dict[str, float] = {}
    loop_s: float = 0.0
    loop_steps: int = 0
    waited_s: float = 0.0
    batch_size: int = 0
    samples: int = 0
    iteration_s: float = 0.0
    error_s: float = 0.0
