"""The keeper's connections: who is let in, what is heard, and how it is known that somebody is gone."""

from __future__ import annotations

import logging
import os
import select
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock_lanes.lane import Lane
from penstock_lanes.wire import BadPacket, Message, Who, peer, receive, send

_BACKLOG: Final = 64

_log = logging.getLogger("penstock.lanes")


@dataclass(slots=True, eq=False)
class Guest:
    """
    A connection.

    Attributes
    ----------
    pid, pidfd : int
        Of the process at the other end.
    who : Who or None
        What it said it is.
    lanes : list of Lane
        Where it is to sit; until it has said that it does, it may sit elsewhere, too.
    number : int
        How often it has been told.
    """

    connection: socket.socket
    pid: int
    pidfd: int
    who: Who | None = None
    lanes: list[Lane] = field(default_factory=list)
    number: int = 0

    def close(self) -> None:
        """Close its descriptors."""
        self.connection.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Door:
    """
    A listening socket, and those who came in by it.

    Parameters
    ----------
    path : Path
        One that is there is replaced.
    epoll : select.epoll
        Where its descriptors are watched.
    """

    def __init__(self, path: Path, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._guests: dict[int, Guest] = {}
        self._listener = _listen(path)
        epoll.register(self._listener, select.EPOLLIN)

    def attend(self, fd: int) -> tuple[Guest, Message | None, list[int]] | None:
        """
        Look after a descriptor that is readable.

        Returns
        -------
        tuple or None
            Who said what, with which descriptors, which are the caller's then; ``None`` in place of what where it is
            gone. None where nothing was said.
        """
        guest = self._guests.get(fd)
        if guest is not None:
            return self._hear(guest, fd)
        if fd == self._listener.fileno():
            self._accept()
        return None  # else it went in this very poll

    def tell(self, guest: Guest, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """Send a packet; return False if it is not heard. That somebody is gone is heard of by itself."""
        try:
            send(guest.connection, message, descriptors)
        except BlockingIOError as error:  # it has not read what was sent before
            _log.warning("lane_message_lost pid=%s error=%s", guest.pid, error)
            return False
        except OSError:
            return True
        return True

    def hang_up(self, guest: Guest) -> None:
        """Let go of somebody."""
        for fd in (guest.connection.fileno(), guest.pidfd):
            if self._guests.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        guest.close()

    def close(self) -> None:
        """Close all descriptors; a forked child may do so without any harm to its parent's door."""
        for guest in set(self._guests.values()):
            guest.close()
        self._guests.clear()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            _log.warning("lane_connection_lost error=%s", error)
            return
        who = peer(connection)
        if who.uid != os.getuid():
            _log.warning("lane_connection_refused what=another_users_process pid=%s uid=%s", who.pid, who.uid)
            connection.close()
            return
        try:
            guest = Guest(connection, who.pid, os.pidfd_open(who.pid))
        except OSError:  # it has ended already
            connection.close()
            return
        connection.setblocking(False)
        for fd in (connection.fileno(), guest.pidfd):
            self._guests[fd] = guest
            self._epoll.register(fd, select.EPOLLIN)

    def _hear(self, guest: Guest, fd: int) -> tuple[Guest, Message | None, list[int]] | None:
        """Take in what a process says. Its death is told by two descriptors: a child may have kept the socket."""
        try:
            received = None if fd == guest.pidfd else receive(guest.connection)
        except BlockingIOError:
            return None
        except ConnectionError:  # it was killed
            received = None
        except (OSError, BadPacket) as error:
            _log.warning("lane_connection_refused what=%s pid=%s", error, guest.pid)
            received = None
        return guest, *(received or (None, []))


def _listen(path: Path) -> socket.socket:
    """Return the listening socket, readable and writable for this user alone from its first moment."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener
