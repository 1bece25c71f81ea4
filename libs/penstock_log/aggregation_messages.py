"""
What is said about aggregation: by a run's processes and the agent of their node, by agents, and to aggregators.

**Client and agent** speak over a Unix socket, one JSON object a line. A process of a run says :class:`AskAggregation`.
The agent answers :class:`AggregationPending` while its run has no aggregators yet, then :class:`PartsAt`, and again
whenever parts move; or :class:`AggregationDenied` and the end. The client says :class:`LostAggregator` where it cannot
reach one, and :class:`LeaveAggregation` at its end. One that hangs up has left.

**Agents** ask each other on ``penstock.aggregator.<node>``: :class:`OpenLease` is answered by
:class:`AggregatorAddress`.

**An agent and its aggregators** speak over a socket pair, one JSON object a line: :data:`ToAggregator` and
:data:`FromAggregator`. Bytes of vectors never come by here; they go between ranks and aggregators
(:mod:`penstock.aggregation.frames`).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Final, Literal, Union

import msgspec
from msgspec import Meta

from penstock_log.aggregation_facts import Dtype, OpenHow, RuleName

VERSION: Final = 1
COPY_RANK: Final = -1
"""The rank of a lease by which another aggregator sends copies."""
MOST_PARTS: Final = 4096
PART_BYTES: Final = 4 << 20
"""The longest part."""
PROFILE_STEPS: Final = 20
WATCH_STEPS: Final = 100
"""Steps of the first measurement, and of each later one."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=256)]
Hex16 = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


def run_token(secret: bytes, job_id: str, epoch: int) -> str:
    """
    Return what a run's processes prove to their node's agent that they are of it by, in hexadecimal digits.

    Examples
    --------
    >>> run_token(b"s", "j1", 1) == run_token(b"s", "j1", 2)
    False
    """
    return hmac.new(secret, f"{job_id}/{epoch}".encode(), hashlib.sha256).hexdigest()


class UpdateRule(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an aggregator does with the mean of a step's pushes.

    Attributes
    ----------
    name : {"mean", "sgd", "momentum", "adamw"}
        ``mean`` answers it; the others take it as a gradient, and answer the updated parameters.
    lr, momentum, weight_decay, beta1, beta2, eps : float
        As those of ``torch.optim.SGD`` and ``torch.optim.AdamW``.
    """

    name: RuleName = "mean"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class VectorLayout(msgspec.Struct, frozen=True, kw_only=True):
    """
    A run's flat vector.

    Attributes
    ----------
    dtype : {"f4", "f8"}
    parts : tuple of int
        Elements of each part, in order.
    values : str
        Digest of the names and shapes of the values that the vector is made of, by which ranks are compared.
    """

    dtype: Dtype
    parts: Annotated[tuple[Annotated[int, Meta(ge=1, le=PART_BYTES)], ...], Meta(min_length=1, max_length=MOST_PARTS)]
    values: Annotated[str, Meta(max_length=64)] = ""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self.dtype == "f4" else 8


STATE_VECTORS: Final = {"mean": 0, "sgd": 0, "momentum": 1, "adamw": 2}
"""Rule → vectors of its optimizer's state, each as long as the parameters."""


def held_bytes(layout: VectorLayout, rule: UpdateRule, world_size: int) -> int:
    """
    Return the bytes that aggregators hold of a run: a push of each rank, two results or parameters, and the state.

    Examples
    --------
    >>> held_bytes(VectorLayout(dtype="f4", parts=(1000,)), UpdateRule(name="adamw"), world_size=2)
    24000
    """
    return sum(layout.parts) * layout.itemsize * (world_size + 2 + STATE_VECTORS[rule.name])


class AggregatorAddress(msgspec.Struct, frozen=True, kw_only=True):
    """
    An aggregator, and a lease by which one rank of one run may use it.

    Attributes
    ----------
    aggregator : str
    lease, token : str
        What names the lease, and what proves that one may use it: 16 and 32 bytes in hexadecimal digits.
    host, port : str, int
        Where it listens.
    boot_id, socket : str
        Which boot of which machine it is on, and its Unix socket there; empty where it has none.
    """

    aggregator: Text
    lease: Hex16
    token: Hex32
    host: Text
    port: Annotated[int, Meta(ge=1, le=65_535)]
    boot_id: Text = ""
    socket: Annotated[str, Meta(max_length=4096)] = ""


# --- from a client to its agent


class AskAggregation(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """
    First line of a process: its run, its rank, and what it aggregates; the same on all ranks.

    Attributes
    ----------
    token : str
        As from :func:`run_token`.
    mode : {"shared", "own"}
    servers : int
        Aggregators that the job would have of its own.
    """

    version: int
    pid: Count
    job_id: Text
    epoch: Count
    rank: Count
    world_size: Annotated[int, Meta(ge=1, le=65_536)]
    token: Hex32
    layout: VectorLayout
    rule: UpdateRule = UpdateRule()
    mode: Literal["shared", "own"] = "shared"
    servers: Annotated[int, Meta(ge=1, le=MOST_PARTS)] = 1


class LostAggregator(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The client cannot reach an aggregator any more, and says why."""

    aggregator: Text
    generation: Count
    reason: Annotated[str, Meta(max_length=1000)] = ""


class LeaveAggregation(msgspec.Struct, frozen=True, kw_only=True, tag="leave"):
    """The client needs no aggregation any more."""


# --- from an agent to its client


class AggregationPending(msgspec.Struct, frozen=True, kw_only=True, tag="pending"):
    """The run has no aggregators yet, and why."""

    reason: str


class PartAt(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A part, the aggregator that it is on, since which generation, and how it began there."""

    part: int
    aggregator: str
    generation: int
    how: OpenHow = "join"


class PartsAt(msgspec.Struct, frozen=True, kw_only=True, tag="parts"):
    """All parts of the run, in order, and the aggregators that they are on."""

    generation: int
    parts: tuple[PartAt, ...]
    aggregators: tuple[AggregatorAddress, ...]


class AggregationDenied(msgspec.Struct, frozen=True, kw_only=True, tag="denied"):
    """The last line to a client: why there is no aggregation for it."""

    reason: str


AggregationFromClient = Union[AskAggregation, LostAggregator, LeaveAggregation]
AggregationToClient = Union[AggregationPending, PartsAt, AggregationDenied]


# --- between agents


class OpenLease(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """
    Let a rank of a run, or the aggregator that its parts come from (:data:`COPY_RANK`), use an aggregator.

    Answered by :class:`AggregatorAddress` once the assignment of that generation is known and its parts are open there.
    """

    aggregator: Text
    job_id: Text
    epoch: Count
    rank: Annotated[int, Meta(ge=COPY_RANK)]
    generation: Count


# --- from an agent to its aggregator


class OpenPart(msgspec.Struct, frozen=True, kw_only=True, tag="open_part"):
    """Hold a part from now on; ``how`` says what it begins with."""

    job_id: str
    epoch: int
    part: int
    generation: int
    elements: int
    dtype: Dtype
    world_size: int
    rule: UpdateRule
    how: OpenHow


class GrantLease(msgspec.Struct, frozen=True, kw_only=True, tag="grant"):
    """Let who proves this lease speak for a rank of a run."""

    job_id: str
    epoch: int
    rank: int
    lease: Hex16
    token: Hex32


class SendPart(msgspec.Struct, frozen=True, kw_only=True, tag="send_part"):
    """
    Send a part's state to another aggregator, between two steps; ranks push there from then on.

    ``generation`` is that in which the other one has it. A step that not all ranks have pushed begins anew there.
    """

    job_id: str
    epoch: int
    part: int
    generation: int
    to: AggregatorAddress


class DropPart(msgspec.Struct, frozen=True, kw_only=True, tag="drop_part"):
    """Forget a part in this generation: its run goes on elsewhere without its state."""

    job_id: str
    epoch: int
    part: int
    generation: int


class CloseRun(msgspec.Struct, frozen=True, kw_only=True, tag="close_run"):
    """Forget a run, and say why to ranks that wait."""

    job_id: str
    epoch: int
    reason: str


class RunSlots(msgspec.Struct, frozen=True, kw_only=True, tag="slots"):
    """
    How the aggregator divides its cycle: each run's iteration time alone, and the cost of its parts here.

    Attributes
    ----------
    iteration_s, cost_s : dict of str to float
        By ``JOB/EPOCH``; runs that are not in it are not held back.
    """

    iteration_s: dict[str, float]
    cost_s: dict[str, float]


class PingAggregator(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """Answer :class:`AggregatorPong`."""

    number: int


# --- from an aggregator to its agent


class AggregatorReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The aggregator listens."""

    port: int


class AggregatorPong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """
    The aggregator is alive.

    Attributes
    ----------
    busy_s : float
        Processor seconds since its start.
    refused : dict of str to int
        Frames and connections that were refused, by name.
    received_bytes, sent_bytes : int
    """

    number: int
    busy_s: float = 0.0
    refused: dict[str, int] = {}
    received_bytes: int = 0
    sent_bytes: int = 0


class RunMeasuredHere(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """What was measured of a run; the fields are those of the fact ``aggregator.measured.v1``."""

    job_id: str
    epoch: int
    generation: int
    steps: int
    iteration_s: float
    costs_s: dict[int, float]
    not_finite: int = 0
    held_s: float = 0.0


class PartCopied(msgspec.Struct, frozen=True, kw_only=True, tag="copied"):
    """A part's copy is whole here; the fields are those of the fact ``aggregator.moved.v1``."""

    job_id: str
    epoch: int
    part: int
    generation: int
    step: int
    copied_bytes: int
    pause_s: float


class CopyFailed(msgspec.Struct, frozen=True, kw_only=True, tag="copy_failed"):
    """A part could not be sent to another aggregator, which begins without it."""

    job_id: str
    epoch: int
    part: int
    generation: int
    reason: str


# --- telemetry of a node


class AggregatorReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    One aggregator of a node, as its agent has it.

    Attributes
    ----------
    parts : int
        Parts that it holds.
    busy_s, refused, received_bytes, sent_bytes
        As in :class:`AggregatorPong`.
    """

    aggregator: str
    parts: int = 0
    busy_s: float = 0.0
    refused: dict[str, int] = {}
    received_bytes: int = 0
    sent_bytes: int = 0


class AggregatorLoads(msgspec.Struct, frozen=True, kw_only=True):
    """
    All aggregators of a node, each second while there are some, and otherwise when something has changed.

    Attributes
    ----------
    most : int
        Aggregators that the node would run at most.
    denied : dict of str to int
        Clients that the agent sent away, by the kind of reason.
    """

    node_id: str
    most: int
    loads: tuple[AggregatorReport, ...] = ()
    denied: dict[str, int] = {}


ToAggregator = Union[OpenPart, GrantLease, SendPart, DropPart, CloseRun, RunSlots, PingAggregator]
FromAggregator = Union[AggregatorReady, AggregatorPong, RunMeasuredHere, PartCopied, CopyFailed]
