"""
What a member and its lanes' keeper say to each other: one JSON object in a packet of a Unix socket, with descriptors.

The socket is of type ``SOCK_SEQPACKET``: packets keep their bounds, and the end of a process ends its connection. The
kernel says who is at the other end.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

VERSION: Final = 1
LONGEST: Final = 65_536
MOST_DESCRIPTORS: Final = 64


class BadPacket(Exception):
    """What came over the socket is none of the messages of this version."""


class Who(NamedTuple):
    """A process of a run: the name of a member."""

    job_id: str
    epoch: int
    rank: int


class Place(NamedTuple):
    """A seat in a lane. Its descriptors are the page's, and that of an eventfd by which the keeper is called."""

    lane: str
    seat: int


class Join(NamedTuple):
    """
    A process asks for its seats: the first packet of a connection.

    Attributes
    ----------
    version : int
    who : Who
    places : tuple of Place
        The seats that an earlier keeper gave it, with two descriptors each: it may have the token of some.
    """

    version: int
    who: Who
    places: tuple[Place, ...] = ()


class Seated(NamedTuple):
    """
    The seats of a process from now on, in the order in which it has to take them; two descriptors with each.

    It leaves those that are not named any more at its next boundary.

    Attributes
    ----------
    number : int
        How many of these it has been sent.
    places : tuple of Place
    """

    number: int
    places: tuple[Place, ...]


class Sat(NamedTuple):
    """
    The process has taken the seats that it was told of, and has left all others.

    Attributes
    ----------
    number : int
        Of the message that told it.
    """

    number: int


class Refused(NamedTuple):
    """There is no seat for it; the keeper hangs up."""

    reason: str


Message: TypeAlias = Join | Seated | Sat | Refused


class Peer(NamedTuple):
    """Who is at the other end, by the kernel's word."""

    pid: int
    uid: int


def encode(message: Message) -> bytes:
    """
    Return the packet of a message.

    Examples
    --------
    >>> encode(Refused("nobody knows you"))
    b'{"kind":"refused","reason":"nobody knows you"}'
    """
    match message:
        case Join(version, who, places):
            told: dict[str, object] = {"kind": "join", "version": version, **who._asdict(), "places": places}
        case Seated(number, places):
            told = {"kind": "seated", "number": number, "places": places}
        case Sat(number):
            told = {"kind": "sat", "number": number}
        case Refused(reason):
            told = {"kind": "refused", "reason": reason}
    return json.dumps(told, separators=(",", ":")).encode()


def decode(packet: bytes) -> Message:
    """
    Return the message of a packet; fields that are not known are left alone.

    Raises
    ------
    BadPacket
        If it is none.
    """
    try:
        told = json.loads(packet)
        match told["kind"]:
            case "join":
                who = Who(str(told["job_id"]), int(told["epoch"]), int(told["rank"]))
                return Join(int(told["version"]), who, _places(told.get("places", ())))
            case "seated":
                return Seated(int(told["number"]), _places(told["places"]))
            case "sat":
                return Sat(int(told["number"]))
            case "refused":
                return Refused(str(told["reason"]))
            case kind:
                raise BadPacket(f"a packet of kind {kind!r}; expected join, seated, sat or refused")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadPacket(f"{packet[:200]!r} is no message: {error!r}") from error


def _places(told: Iterable[tuple[object, object]]) -> tuple[Place, ...]:
    return tuple(Place(str(lane), int(str(seat))) for lane, seat in told)


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
