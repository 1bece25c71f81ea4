"""
What is said about borrowed memory: by clients and the agent of their node, and by agents among themselves.

A *slab* is a piece of a node's idle memory. A node's memory agent is a *donor* of slabs to clients anywhere, and the
*agent* of the clients on its own node, which have no login of the bus. The bytes of a slab never come by here; they go
between client and donor directly (:mod:`penstock.memory.frames`).

**Client and agent** speak over a Unix socket, one JSON object a line. The client says :class:`ClientHello`, and is
answered :class:`AgentWelcome`, or :class:`ClientRefused` and the end. Then it asks for slabs, by numbers of its own
(:class:`BorrowSlab`; each is answered), gives them back (:class:`ReturnSlab`), and says once a second how it uses them
(:class:`SlabUse`). The agent may say at any time that a slab has to go (:class:`EvictSlab`); the client stops using it
and answers :class:`ReturnSlab`. A client whose connection ends has given everything back.

**Checkpoints** are copied into slabs of two other nodes, a whole copy on each, and these outlive their client: it asks
for the slabs of both copies (:class:`PlaceCopies`), fills them, and has their donors keep them for its job
(:class:`KeepCopies`). A later run's executor asks where one of them is (:class:`FindCopy`).

**Agents** ask each other by requests on ``penstock.slab.<node>``; :data:`AgentRequest` are the questions, and what each
is answered with stands in its docstring. Whoever lends, keeps a slab for :data:`LEASE_S` after it was last renewed.
"""

from __future__ import annotations

from typing import Annotated, Final, Optional, Union

import msgspec
from msgspec import Meta

VERSION: Final = 1
LEASE_S: Final = 10.0
"""A slab that is not renewed for so long is taken back."""
RENEW_S: Final = 3.0
COPIES: Final = 2
"""Copies of a checkpoint, on as many nodes, which count as saved without the disk."""
MOST_PEERS: Final = 8
Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=256)]
Hex16 = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class SlabAddress(msgspec.Struct, frozen=True, kw_only=True):
    """
    A slab that was lent, and where it is to be had.

    Attributes
    ----------
    donor : str
        The node that lends it.
    lease, token : str
        What names the lending, and what proves that one may use it: 16 and 32 bytes in hexadecimal digits.
    slab, generation : int
        The donor's number of the slab, and how often it was lent.
    slab_bytes : int
        Its size.
    host, port : str, int
        Where the donor listens.
    boot_id, socket : str
        Which boot of which machine the donor is on, and its Unix socket there; empty where it has none.
    """

    donor: Text
    lease: Hex16
    token: Hex32
    slab: Count
    generation: Count
    slab_bytes: Count
    host: Text
    port: Annotated[int, Meta(ge=1, le=65_535)]
    boot_id: Text = ""
    socket: Annotated[str, Meta(max_length=4096)] = ""


# --- from a client to its agent


class ClientHello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """
    First line of a client.

    Attributes
    ----------
    name : str
        What it calls its memory, for people to see.
    job_id, epoch : str, int
        The run that it is a process of, as its environment says; empty where it is none.
    """

    version: int
    pid: Count
    name: Text = ""
    job_id: Text = ""
    epoch: Count = 0


class BorrowSlab(msgspec.Struct, frozen=True, kw_only=True, tag="borrow"):
    """
    Ask for a slab, to be called ``slab`` between the two; answered by :class:`SlabLent` or :class:`SlabRefused`.

    Attributes
    ----------
    elsewhere : bool
        Whether it must not be on the client's own node: what it holds is to outlive that one.
    avoid : tuple of str
        Nodes that must not lend it.
    """

    slab: Count
    elsewhere: bool = False
    avoid: tuple[Text, ...] = ()


class ReturnSlab(msgspec.Struct, frozen=True, kw_only=True, tag="return"):
    """The client uses a slab no more."""

    slab: Count


class SlabUse(msgspec.Struct, frozen=True, kw_only=True, tag="use"):
    """How active slabs are: pages of 4 KiB a second, smoothed (``penstock_policies.slabs.smoothed``)."""

    activity: dict[int, float]


class PlaceCopies(msgspec.Struct, frozen=True, kw_only=True, tag="place"):
    """
    Lend slabs for two copies of ``size`` bytes, each on a node of its own; :class:`CopiesPlaced` or :class:`NoCopies`.

    A client places one checkpoint at a time: what it placed before and did not have kept is given back.
    """

    size: Count


class KeepCopies(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """
    The copies that were placed last are whole: keep them for the job. :class:`CopiesKept`, or :class:`NoCopies`.

    Attributes
    ----------
    job_id : str
        The job, which has the checkpoint tier ``memory``.
    generation, step, digest : int, int, str
        Epoch of the run that wrote the checkpoint, the step after which it was, and the SHA-256 of its manifest.
    """

    job_id: Text
    generation: Count
    step: Count
    digest: Hex32


class FindCopy(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """Where is a copy of a job's checkpoint, on one of these nodes? :class:`CopyFound`, or :class:`NoCopies`."""

    job_id: Text
    step: Count
    digest: Hex32
    nodes: Annotated[tuple[Text, ...], Meta(max_length=MOST_PEERS)]


FromClient = Union[ClientHello, BorrowSlab, ReturnSlab, SlabUse, PlaceCopies, KeepCopies, FindCopy]


# --- from the agent to a client


class AgentWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The client is known; its slabs will have ``slab_bytes``."""

    node_id: Text
    slab_bytes: Count


class ClientRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The client is hung up on, with the reason."""

    reason: str


class SlabLent(msgspec.Struct, frozen=True, kw_only=True, tag="lent"):
    """A slab for the client, zeroed."""

    slab: Count
    address: SlabAddress


class SlabRefused(msgspec.Struct, frozen=True, kw_only=True, tag="none"):
    """No slab now; the reason is for people. The client may ask again when the slab is hot still."""

    slab: Count
    reason: str


class EvictSlab(msgspec.Struct, frozen=True, kw_only=True, tag="evict"):
    """The slab goes: its donor wants it back, or is gone. The client answers with :class:`ReturnSlab`."""

    slab: Count
    reason: str


class CopiesPlaced(msgspec.Struct, frozen=True, kw_only=True, tag="placed"):
    """Slabs for two copies, each in the order in which they are filled."""

    copies: tuple[tuple[SlabAddress, ...], ...]


class CopiesKept(msgspec.Struct, frozen=True, kw_only=True, tag="kept"):
    """Each of these nodes keeps a copy."""

    nodes: tuple[Text, ...]


class CopyFound(msgspec.Struct, frozen=True, kw_only=True, tag="found"):
    """
    The slabs of a copy, in order, and how many bytes of them count.

    Also what a donor's agent answers to :class:`FindKept`.
    """

    slabs: tuple[SlabAddress, ...]
    size: Count


class NoCopies(msgspec.Struct, frozen=True, kw_only=True, tag="no_copies"):
    """What was asked about copies of a checkpoint is not to be had; the reason is for people."""

    reason: str


ToClient = Union[
    AgentWelcome, ClientRefused, SlabLent, SlabRefused, EvictSlab, CopiesPlaced, CopiesKept, CopyFound, NoCopies
]


# --- between agents


class QuerySlabs(msgspec.Struct, frozen=True, kw_only=True, tag="query"):
    """How many slabs of a size could be lent now? Answered by :class:`SlabsFree`."""

    slab_bytes: Count


class SlabsFree(msgspec.Struct, frozen=True, kw_only=True):
    """So many, and so much memory the node has free beyond its head-room."""

    slabs: Count
    free_bytes: Count


class MapSlab(msgspec.Struct, frozen=True, kw_only=True, tag="map"):
    """
    Lend a slab. Answered by a :class:`SlabAddress`, or error 409 with the reason.

    Attributes
    ----------
    borrower : str
        The node whose agent asks, which renews the slab and answers for it.
    user, job_id : str
        For whom: the account of the client's process, as the kernel says, and the job that it says it is of.
    """

    slab_bytes: Count
    borrower: Text
    user: Text
    job_id: Text = ""


class RenewSlabs(msgspec.Struct, frozen=True, kw_only=True, tag="renew"):
    """These leases are used on. Answered by :class:`LeasesGone`: those that the donor does not have any more."""

    leases: tuple[Hex16, ...]


class UnmapSlabs(msgspec.Struct, frozen=True, kw_only=True, tag="unmap"):
    """These leases are over. Answered by :class:`LeasesGone`, as :class:`RenewSlabs` is."""

    leases: tuple[Hex16, ...]


class LeasesGone(msgspec.Struct, frozen=True, kw_only=True):
    """Leases that do not count any more."""

    leases: tuple[Hex16, ...]


class CheckActivity(msgspec.Struct, frozen=True, kw_only=True, tag="activity"):
    """The donor asks how active its slabs are at a borrower's clients. Answered by :class:`SlabActivity`."""

    leases: tuple[Hex16, ...]


class SlabActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Pages a second by lease; those that nobody uses any more are left out."""

    activity: dict[str, float]


class EvictSlabs(msgspec.Struct, frozen=True, kw_only=True, tag="evict"):
    """
    The donor wants slabs back. Answered by :class:`LeasesGone` (DONE in the paper) once clients have left them.

    Attributes
    ----------
    within_s : float
        The donor takes them after so long whether it is answered or not.
    """

    leases: tuple[Hex16, ...]
    reason: Text
    within_s: float


class KeepSlabs(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """
    These leases, in order, are a copy of a checkpoint, and outlive their client and its agent.

    Answered by an empty :class:`LeasesGone`, or error 409 with the reason; the fields are those of
    :class:`KeepCopies`. ``user`` is the account that wrote it.
    """

    leases: tuple[Hex16, ...]
    size: Count
    user: Text
    job_id: Text
    generation: Count
    step: Count
    digest: Hex32


class FindKept(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """
    Is a copy of this checkpoint kept here? Answered by :class:`CopyFound`, or error 409 with the reason.

    Attributes
    ----------
    user : str
        For which account; empty for root, or the account of the agent that asks, which may have those of all.
    """

    job_id: Text
    step: Count
    digest: Hex32
    user: Text = ""


AgentRequest = Union[QuerySlabs, MapSlab, RenewSlabs, UnmapSlabs, CheckActivity, EvictSlabs, KeepSlabs, FindKept]


class SlabOffer(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an agent says of its node once a second, as telemetry (``penstock.tel.memory.<node>``).

    Attributes
    ----------
    slab_bytes : int
        Size of its slabs.
    offered, lent : int
        Slabs that it would have lent at most by now, and those that are lent.
    free_bytes, headroom_bytes : int
        What the node has free (smoothed), and what of it stays untouched.
    lent_to : dict
        Borrowing job, or else user, to slabs.
    evicted : int
        Slabs taken back since the agent began.
    errors : dict
        What was refused on the data port since then, by :class:`penstock.memory.frames.Status`' names.
    """

    slab_bytes: Count
    offered: Count
    lent: Count
    free_bytes: Count
    headroom_bytes: Count
    boot_id: Text = ""
    lent_to: dict[str, int] = {}
    evicted: Count = 0
    errors: dict[str, int] = {}
    sent_bytes: Count = 0
    received_bytes: Count = 0
    host: Optional[str] = None
