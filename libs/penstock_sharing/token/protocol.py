"""
Protocol between processes and the token broker: messages over the socket, and the broker's events.

A message is one JSON object in a packet of a Unix socket, with descriptors. The socket is of type ``SOCK_SEQPACKET``:
packets keep their bounds, and the end of a process ends its connection. The kernel says who is at the other end. The
events at the end of the module are what a broker reports to the code that decides whose turn it is.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, Union

VERSION: Final = 1
LONGEST: Final = 65_536
MOST_DESCRIPTORS: Final = 64


class BadPacket(Exception):
    """What came over the socket is none of the messages of this version."""


class LaneClientId(NamedTuple):
    """A process of a run: the name of a member."""

    job_id: str
    epoch: int
    rank: int


class SlotPlace(NamedTuple):
    """A slot in a lane. Its descriptors are the page's, and that of an eventfd by which the broker is called."""

    lane: str
    slot: int


class JoinLane(NamedTuple):
    """
    A process asks for its slots: the first packet of a connection.

    Attributes
    ----------
    version : int
    who : LaneClientId
    places : tuple of SlotPlace
        The slots that an earlier broker gave it, with two descriptors each: it may have the token of some.
    """

    version: int
    who: LaneClientId
    places: tuple[SlotPlace, ...] = ()


class SlotsAssigned(NamedTuple):
    """
    The slots of a process from now on, in the order in which it has to take them; two descriptors with each.

    It leaves those that are not named any more at its next boundary.

    Attributes
    ----------
    number : int
        How many of these it has been sent.
    places : tuple of SlotPlace
    """

    number: int
    places: tuple[SlotPlace, ...]


class SlotsTaken(NamedTuple):
    """The process has taken the slots of the message with this number, and has left all others."""

    number: int


class JoinRefused(NamedTuple):
    """There is no slot for it; the broker hangs up."""

    reason: str


Message = Union[JoinLane, SlotsAssigned, SlotsTaken, JoinRefused]
_KINDS: Final = {JoinLane: "join", SlotsAssigned: "seated", SlotsTaken: "sat", JoinRefused: "refused"}


class Peer(NamedTuple):
    """Who is at the other end, by the kernel's word."""

    pid: int
    uid: int


def encode(message: Message) -> bytes:
    """
    Return the packet of a message.

    Examples
    --------
    >>> encode(JoinRefused("nobody knows you"))
    b'{"kind":"refused","reason":"nobody knows you"}'
    """
    body = message._asdict()
    if isinstance(message, JoinLane):
        body = {"version": message.version, **message.who._asdict(), "places": message.places}
    return json.dumps({"kind": _KINDS[type(message)], **body}, separators=(",", ":")).encode()


def decode(packet: bytes) -> Message:
    """
    Return the message of a packet; fields that are not known are left alone.

    Raises
    ------
    BadPacket
        If it is none.
    """
    try:
        fields = json.loads(packet)
        kind = fields["kind"]
        if kind == "join":
            who = LaneClientId(str(fields["job_id"]), int(fields["epoch"]), int(fields["rank"]))
            return JoinLane(int(fields["version"]), who, _places(fields.get("places", ())))
        if kind == "seated":
            return SlotsAssigned(int(fields["number"]), _places(fields["places"]))
        if kind == "sat":
            return SlotsTaken(int(fields["number"]))
        if kind == "refused":
            return JoinRefused(str(fields["reason"]))
        raise BadPacket(f"a packet of kind {kind!r}; expected join, seated, sat or refused")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadPacket(f"{packet[:200]!r} is no message: {error!r}") from error


def _places(fields: Iterable[tuple[object, object]]) -> tuple[SlotPlace, ...]:
    return tuple(SlotPlace(str(lane), int(str(slot))) for lane, slot in fields)


def send(connection: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send a packet; the descriptors stay open here."""
    socket.send_fds(connection, [encode(message)], list(descriptors))


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """
    Return the next message with its descriptors, which are the caller's then; None where the other end is gone.

    Raises
    ------
    BadPacket
        If it is no message; its descriptors are closed.
    OSError
        As the socket raises it, ``BlockingIOError`` where nothing has come.
    """
    packet, descriptors, _, _ = socket.recv_fds(connection, LONGEST, MOST_DESCRIPTORS)
    if not packet:
        return None
    try:
        return decode(packet), descriptors
    except BadPacket:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def peer(connection: socket.socket) -> Peer:
    """Ask the kernel who is at the other end."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


class JoinRequested(NamedTuple):
    """A process asks for its slots; it is to be given them or refused, now or later. Its user has been checked."""

    who: LaneClientId
    pid: int


class TurnRequested(NamedTuple):
    """A member waits for its turn; reported once, until it has had one."""

    lane: str
    who: LaneClientId


class TokenPassed(NamedTuple):
    """The token went from one to another; ``None`` is the broker. From then on nobody is named."""

    lane: str
    giver: LaneClientId | None
    taker: LaneClientId | None


class TokenRevoked(NamedTuple):
    """
    The token was taken from a process in its turn; a ``TokenPassed`` follows.

    It is stopped (SIGSTOP), or ends and is long in giving back its memory: whatever it may hold, it holds still. Of its
    end ``ClientGone`` tells.
    """

    lane: str
    who: LaneClientId


class ClientGone(NamedTuple):
    """A process has left, or is dead; if it had a token, a ``TokenPassed`` came before."""

    who: LaneClientId


class PageCorrupted(NamedTuple):
    """
    On a lane's page stands what no turn can have left there: it is to be closed, and its members given slots elsewhere.

    If somebody had the token, a ``TokenPassed`` came before; nothing else is reported of this lane any more.

    Attributes
    ----------
    who : LaneClientId or None
        In whose word it stands; None where it cannot be said.
    """

    lane: str
    who: LaneClientId | None


TokenEvent = Union[JoinRequested, TurnRequested, TokenPassed, TokenRevoked, ClientGone, PageCorrupted]


class SlotCounters(NamedTuple):
    """
    What a member has counted since it took its slot.

    Attributes
    ----------
    who : LaneClientId
    iterations : int
        That its process has done, in other slots too.
    busy : bool
        Whether it is in another one.
    held_ns : int
        In turns that have ended.
    turns : int
    """

    who: LaneClientId
    iterations: int
    busy: bool
    held_ns: int
    turns: int


class LaneTokenView(NamedTuple):
    """
    What a lane looks like at this moment.

    Attributes
    ----------
    holder : LaneClientId or None
    since_ns : int
        By ``CLOCK_MONOTONIC``, when its turn began.
    begun : bool
        Whether the holder has woken up, and taken the token.
    busy : bool
        Whether the holder is in an iteration.
    iterations : int
        That the holder's process has done.
    turn : int
        How many times the token has changed hands.
    members : tuple of SlotCounters
    """

    holder: LaneClientId | None
    since_ns: int
    begun: bool
    busy: bool
    iterations: int
    turn: int
    members: tuple[SlotCounters, ...]
