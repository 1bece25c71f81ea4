"""
The node's side of the token: connections, who is next, and tokens of processes that left.

A :class:`TokenBroker` gives processes their slots, names who is next, and takes the token back from processes that lose
it. It decides nothing: its owner polls it in its loop, and answers its events by giving slots and naming who is next.
The broker is not on the way of a hand-over: the holder gives the token straight to the process that was named while it
had its turn.

:class:`BrokerListener` and :class:`BrokerConnection` are its connections: who is let in, what is heard, and how the end
of a process is noticed.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Final

from penstock_sharing.token.lane_token import LaneToken, open_lane
from penstock_sharing.token.protocol import (
    VERSION,
    BadPacket,
    ClientGone,
    JoinLane,
    JoinRefused,
    JoinRequested,
    LaneClientId,
    LaneTokenView,
    Message,
    SlotPlace,
    SlotsAssigned,
    SlotsTaken,
    TokenEvent,
    peer,
    receive,
    send,
)
from penstock_sharing.token.shared_page import MOST_SLOTS, BadSharedPage, SharedPage
from penstock_sharing.token.slot_table import NoFreeSlot

TICK_S: Final = 0.004
UserCheck = Callable[[int, "LaneClientId | None"], bool]

_log = logging.getLogger("penstock.lanes")


class TokenBroker:
    """
    The lanes of a node.

    Parameters
    ----------
    path : Path
        Where its socket is; one that is there is replaced.
    may_speak : callable, optional
        ``may_speak(uid, who)``: whether a user's processes may speak for one that shares a lane; without ``who``, for
        any at all. By default only processes of this user may, and connect.

    Attributes
    ----------
    lanes : dict of str to LaneToken
        By name.

    Examples
    --------
    ::

        broker = TokenBroker(path)
        loop.add_reader(broker.fileno(), turn)     # and turn again after broker.wait_s

        def turn():
            for event in broker.poll():
                match event:
                    case JoinRequested(who, pid):        # is it who it says? then:
                        broker.open("cuda:0/0")
                        broker.assign_slots(who, ["cuda:0/0"])
                    case TurnRequested(lane, who): ...   # ask the policy who is next, and name that one
                    case TokenPassed(lane, giver, taker): ...
                    case ClientGone(who): ...
    """

    def __init__(self, path: Path, may_speak: UserCheck | None = None) -> None:
        self.lanes: dict[str, LaneToken] = {}
        self._may_speak = may_speak or of_this_user
        self._clients: dict[LaneClientId, BrokerConnection] = {}
        self._by_call_fd: dict[int, LaneToken] = {}
        self._events: list[TokenEvent] = []
        self._epoll = select.epoll()
        self._listener = BrokerListener(path, self._epoll, may_speak)
        self._again = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._again, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to :meth:`poll`."""
        return self._epoll.fileno()

    @property
    def wait_s(self) -> float | None:
        """How long :meth:`poll` may be left uncalled although :meth:`fileno` is quiet; None: as long as you like."""
        return TICK_S if any(lane.contended for lane in self.lanes.values()) else None

    def poll(self) -> list[TokenEvent]:
        """Return what has happened since, in order; never waits."""
        for fd, _ in self._epoll.poll(0):
            self._handle_readable(fd)
        now_ns = monotonic_ns()
        for lane in self.lanes.values():
            if lane.contended:
                self._events += lane.look(now_ns)
        events, self._events = self._events, []
        return events

    def open(self, lane: str, slots: int = MOST_SLOTS) -> None:
        """Open a lane, if there is none of this name."""
        if lane not in self.lanes:
            self._add_lane(open_lane(lane, slots))

    def close_lane(self, lane: str) -> None:
        """
        Close a lane that has no members any more.

        Raises
        ------
        ValueError
            If it has some.
        """
        closed = self._lane(lane)
        if closed.view().members:
            raise ValueError(f"lane {lane} has members; give them slots elsewhere before it is closed")
        self._drop_lane(closed)

    def assign_slots(self, who: LaneClientId, lanes: list[str]) -> None:
        """
        Give a process its slots, or move one: these are its lanes from now on.

        A process that moves gives up the token at its next boundary, and asks in its new lanes. In lanes that it leaves
        it is not named any more; in those where it stays it is. If it comes back before it has left, its
        ``TurnRequested`` comes again.

        Parameters
        ----------
        lanes : list of str
            In the order in which it takes them: lowest device first, the same order for everybody.

        Raises
        ------
        ValueError
            If the process is not there, or a lane is not open.
        """
        client, wanted = self._client(who), [self._lane(lane) for lane in lanes]
        if not lanes:
            raise ValueError(f"{who} is to have slots in no lane; expected one at least, or refuse() it")
        if client.number and wanted == client.lanes:
            return
        for lane in wanted:
            self._add_events(lane.look(0))  # before its head is written anew
        try:
            numbers = [lane.slot_for(who, client.pid) for lane in wanted]
        except NoFreeSlot as error:
            self.refuse(who, str(error))
            return
        before, client.lanes, client.number = client.lanes, wanted, client.number + 1
        for lane in self.lanes.values():
            lane.announce(who, client.number)
        places = tuple(SlotPlace(lane.name, number) for lane, number in zip(wanted, numbers, strict=True))
        fds = tuple(fd for lane in wanted for fd in (lane.page.fd, lane.call_fd))
        if not self._listener.send_message(client, SlotsAssigned(client.number, places), fds):
            self._disconnect(client)  # it comes back
            return
        for lane in before:
            self._add_events(lane.call(who, stays=lane in wanted))
        for lane in wanted:
            if lane not in before:
                self._add_events(lane.repeat_request(who))

    def refuse(self, who: LaneClientId, reason: str) -> None:
        """Hang up on a process, and say why; one that had slots loses them."""
        client = self._client(who)
        self._listener.send_message(client, JoinRefused(reason))
        self._disconnect(client)

    def name_next(self, lane: str, who: LaneClientId | None, least_ns: int = 0) -> None:
        """
        Name who has the token next, at the end of the holder's quantum; ``None``: the holder keeps it.

        Where the broker has it, the one that is named has it at once, or as soon as it asks. A holder that is long
        between two iterations loses it to the broker. What is said here stands until it is replaced, or until the next
        ``TokenPassed``; while a recall stands, nobody is named. One that has gone is nobody, though its ``ClientGone``
        may still be to come.

        Parameters
        ----------
        least_ns : int
            For how long the holder's turn goes on at least, counted from its beginning, whatever the quantum.

        Raises
        ------
        ValueError
            If the lane is not open.
        """
        self._add_events(self._lane(lane).name_next(who, least_ns))

    def recall(self, lane: str) -> None:
        """
        Let the holder give the token back at its next boundary, whatever the quantum; nobody is named then.

        It stands until the token has come back, of which a ``TokenPassed`` tells.
        """
        self._add_events(self._lane(lane).recall())

    def revoke(self, lane: str) -> None:
        """
        Take the token from its holder, wherever it is.

        Only for one whose process is stopped, which this broker sees by itself, or is killed: any other would go on
        with its iteration beside the next holder, and find out at its end.
        """
        self._add_events(self._lane(lane).revoke())

    def set_quantum(self, lane: str, iterations: int, held_ns: int = 0) -> None:
        """Let turns be over after so many iterations, or so many nanoseconds (0: no matter), whichever is first."""
        self._lane(lane).page.quantum = iterations, held_ns

    def view(self, lane: str) -> LaneTokenView:
        """Return what a lane looks like now."""
        return self._lane(lane).view()

    def close(self) -> None:
        """Hang up on everybody and stop listening; pages stay with those who have mapped them."""
        self._listener.close()
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()
        os.close(self._again)
        self._epoll.close()

    # --- what comes in
    def _handle_readable(self, fd: int) -> None:
        if fd in self._by_call_fd:
            drain(fd)
            self._events += self._by_call_fd[fd].look(0)
        elif fd == self._again:
            drain(fd)
        else:
            heard = self._listener.handle_readable(fd)
            if heard is not None:
                self._handle_message(*heard)

    def _handle_message(self, client: BrokerConnection, message: Message | None, descriptors: list[int]) -> None:
        match message:
            case None:
                self._disconnect(client)
            case JoinLane() if self._admit(client, message):
                self._take_back(client, message, descriptors)
            case SlotsTaken(number) if client.who is not None and number == client.number:
                for lane in self.lanes.values():
                    if lane not in client.lanes:
                        self._add_events(lane.leave(client.who))
            case _:
                pass
        for descriptor in descriptors:
            os.close(descriptor)

    def _admit(self, client: BrokerConnection, join: JoinLane) -> bool:
        problem = ""
        if join.version != VERSION:
            problem = f"it speaks version {join.version} of the lane protocol; this is {VERSION}"
        elif not self._may_speak(client.uid, join.who):
            problem = f"{join.who} is not of uid {client.uid}; only a run's own user may speak for it"
        elif client.who is not None or join.who in self._clients:
            problem = f"{join.who} has joined already"
        if problem:
            self._listener.send_message(client, JoinRefused(problem))
            self._disconnect(client)
            return False
        client.who = join.who
        self._clients[join.who] = client
        self._events.append(JoinRequested(join.who, client.pid))
        return True

    def _take_back(self, client: BrokerConnection, join: JoinLane, fds: list[int]) -> None:
        """Find the lanes of an earlier broker again, by the pages of their members."""
        for place, page, call_fd in zip(join.places, fds[::2], fds[1::2], strict=False):
            try:
                lane = self.lanes.get(place.lane)
                if lane is None or lane.is_untouched:
                    lane = self._recover_lane(place.lane, page, call_fd)
                if os.path.sameopenfile(lane.page.fd, page):
                    self._events += lane.take_back(join.who, client.pid, place.slot)
                    client.lanes.append(lane)
            except (BadSharedPage, OSError, ValueError) as error:
                words = str(error)  # whoever keeps the record would keep the page with the error itself
                _log.warning("lane_not_found_again lane=%s pid=%s error=%s", place.lane, client.pid, words)

    def _recover_lane(self, name: str, page: int, call_fd: int) -> LaneToken:
        found = SharedPage(os.dup(page))
        try:
            if not found.is_sealed:
                raise BadSharedPage(f"the page of lane {name} can be made shorter; expected one that is sealed")
            if os.get_blocking(call_fd):
                raise BadSharedPage(f"the eventfd of lane {name} can block; expected an eventfd that does not")
            if not found.is_plausible:
                raise BadSharedPage(f"nobody can have brought the token of lane {name} to where it is")
            os.eventfd_write(call_fd, 1)  # it is an eventfd; and there is something to look at
            lane = LaneToken(name, found, os.dup(call_fd))
        except BaseException:
            found.close()
            raise
        return self._add_lane(lane)

    def _add_lane(self, lane: LaneToken) -> LaneToken:
        """Keep a lane, in place of one of the same name."""
        try:
            self._epoll.register(lane.call_fd, select.EPOLLIN)
        except OSError:
            lane.close()
            raise
        if lane.name in self.lanes:
            self._drop_lane(self.lanes[lane.name])
        self.lanes[lane.name] = self._by_call_fd[lane.call_fd] = lane
        return lane

    def _drop_lane(self, lane: LaneToken) -> None:
        del self.lanes[lane.name], self._by_call_fd[lane.call_fd]
        self._epoll.unregister(lane.call_fd)
        lane.close()

    # --- what goes out
    def _disconnect(self, client: BrokerConnection) -> None:
        """A process is gone, or is to go."""
        self._listener.hang_up(client)
        if client.who is None:
            return
        self._clients.pop(client.who, None)
        for lane in self.lanes.values():
            self._add_events(lane.leave(client.who))
        self._add_events([ClientGone(client.who)])
        client.who = None

    def _add_events(self, events: list[TokenEvent]) -> None:
        """Keep events for the next poll, and have it called."""
        if events:
            self._events += events
            os.eventfd_write(self._again, 1)

    def _client(self, who: LaneClientId) -> BrokerConnection:
        if who not in self._clients:
            raise ValueError(f"{who} is not here; expected one that has asked to join and is not gone")
        return self._clients[who]

    def _lane(self, lane: str) -> LaneToken:
        if lane not in self.lanes:
            raise ValueError(f"there is no lane {lane!r}; expected one that was opened")
        return self.lanes[lane]


def drain(fd: int) -> None:
    """
    Take what is in an eventfd, and never wait: a member may have had it block, and have emptied it by itself.

    Linux before 5.8 cannot read one in that way: there, such a member keeps the broker waiting.
    """
    with suppress(BlockingIOError):
        try:
            os.preadv(fd, [bytearray(8)], -1, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            os.eventfd_read(fd)


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """
    A connection.

    Attributes
    ----------
    pid, uid, pidfd : int
        Of the process at the other end.
    who : LaneClientId or None
        What it said it is.
    lanes : list of LaneToken
        Where it is to have slots; until it has said that it has them, it may have others, too.
    number : int
        Number of the last message about its slots.
    """

    connection: socket.socket
    pid: int
    uid: int
    pidfd: int
    who: LaneClientId | None = None
    lanes: list[LaneToken] = field(default_factory=list)
    number: int = 0

    def close(self) -> None:
        """Close its descriptors."""
        self.connection.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class BrokerListener:
    """
    A listening socket, and those who came in by it.

    Parameters
    ----------
    path : Path
        One that is there is replaced.
    epoll : select.epoll
        Where its descriptors are watched.
    may_speak : callable or None
        Who is let in; None: processes of this user.
    """

    def __init__(self, path: Path, epoll: select.epoll, may_speak: UserCheck | None = None) -> None:
        self._epoll, self._may_speak = epoll, may_speak or of_this_user
        self._clients: dict[int, BrokerConnection] = {}
        self._listener = listen(path, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, for_all=may_speak is not None)
        epoll.register(self._listener, select.EPOLLIN)

    def handle_readable(self, fd: int) -> tuple[BrokerConnection, Message | None, list[int]] | None:
        """
        Look after a descriptor that is readable.

        Returns
        -------
        tuple or None
            Who said what, with which descriptors, which are the caller's then; ``None`` in place of what where it is
            gone. None where nothing was said.
        """
        client = self._clients.get(fd)
        if client is not None:
            return self._receive(client, fd)
        if fd == self._listener.fileno():
            self._accept()
        return None  # else it went in this very poll

    def send_message(self, client: BrokerConnection, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """Send a packet; return False if it is not heard. That somebody is gone is heard of by itself."""
        try:
            send(client.connection, message, descriptors)
        except BlockingIOError as error:  # it has not read what was sent before
            _log.warning("lane_message_lost pid=%s error=%s", client.pid, error)
            return False
        except OSError:
            return True
        return True

    def hang_up(self, client: BrokerConnection) -> None:
        """Let go of somebody."""
        for fd in (client.connection.fileno(), client.pidfd):
            if self._clients.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        client.close()

    def close(self) -> None:
        """Close all descriptors; a forked child may do so without any harm to its parent's listener."""
        for client in set(self._clients.values()):
            client.close()
        self._clients.clear()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            _log.warning("lane_connection_lost error=%s", error)
            return
        who = peer(connection)
        if not self._may_speak(who.uid, None):
            _log.warning("lane_connection_refused what=another_users_process pid=%s uid=%s", who.pid, who.uid)
            with suppress(OSError):
                send(connection, JoinRefused(f"uid {who.uid} has no run on this node"), ())
            connection.close()
            return
        try:
            client = BrokerConnection(connection, who.pid, who.uid, os.pidfd_open(who.pid))
        except OSError:  # it has ended already
            connection.close()
            return
        connection.setblocking(False)
        for fd in (connection.fileno(), client.pidfd):
            self._clients[fd] = client
            self._epoll.register(fd, select.EPOLLIN)

    def _receive(self, client: BrokerConnection, fd: int) -> tuple[BrokerConnection, Message | None, list[int]] | None:
        """Receive a packet. Two descriptors tell of a process's death: a child may have kept the socket."""
        try:
            received = None if fd == client.pidfd else receive(client.connection)
        except BlockingIOError:
            return None
        except ConnectionError:  # it was killed
            received = None
        except (OSError, BadPacket) as error:
            _log.warning("lane_connection_refused what=%s pid=%s", error, client.pid)
            received = None
        return client, *(received or (None, []))


def of_this_user(uid: int, who: LaneClientId | None) -> bool:
    """Return whether it is a process of the broker's own user."""
    del who
    return uid == os.getuid()


def listen(path: Path, kind: int, *, for_all: bool = False) -> socket.socket:
    """
    Return a listening Unix socket, readable and writable for this user alone from its first moment.

    Parameters
    ----------
    path : Path
        One that is there is replaced.
    kind : int
        ``SOCK_SEQPACKET`` or ``SOCK_STREAM``, with flags.
    for_all : bool
        Whether every user may connect, to be told by the kernel's word on each connection.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o111 if for_all else 0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(128)
    return listener
