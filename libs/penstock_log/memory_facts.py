"""
Facts about memory that nodes lend each other, for people: nothing is decided by them.

The memory agent of a node writes them on ``evt.memory.<node>``, a commit a second at most: what its node offers, and
how many slabs it has lent to whom, got back, and taken back.
"""

from __future__ import annotations

from typing import Literal

from penstock_log.facts import Event


class MemoryOffered(Event, frozen=True, kw_only=True, tag="memory.offered.v1"):
    """
    The node would lend so many slabs from now on, those that are lent already among them.

    Attributes
    ----------
    free_bytes, headroom_bytes : int
        What the node had free, lent memory included, and what of it stays untouched.
    """

    node_id: str
    slabs: int
    slab_bytes: int
    free_bytes: int = 0
    headroom_bytes: int = 0


class SlabsLent(Event, frozen=True, kw_only=True, tag="memory.lent.v1"):
    """
    The node has lent slabs.

    Attributes
    ----------
    borrower : str
        The node of the client.
    user, job_id : str
        The account of the client's process, and the job that it says it is of; empty where it is of none.
    """

    node_id: str
    borrower: str
    slabs: int
    user: str = ""
    job_id: str = ""


class SlabsReturned(Event, frozen=True, kw_only=True, tag="memory.returned.v1"):
    """
    Slabs are the node's own again, without its asking; the fields are those of :class:`SlabsLent`.

    Attributes
    ----------
    why : {"returned", "expired", "damaged"}
        The client gave them back, its agent renewed them no more, or a write to them came with a wrong checksum.
    """

    node_id: str
    borrower: str
    slabs: int
    user: str = ""
    job_id: str = ""
    why: Literal["returned", "expired", "damaged"] = "returned"


class SlabsEvicted(Event, frozen=True, kw_only=True, tag="memory.evicted.v1"):
    """The node took slabs back that were in use, and says why; the other fields are those of :class:`SlabsLent`."""

    node_id: str
    borrower: str
    slabs: int
    user: str = ""
    job_id: str = ""
    reason: str = ""
