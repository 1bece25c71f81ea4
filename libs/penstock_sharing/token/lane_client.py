"""A process's side of its lanes: it joins, takes its turns on all of its devices together, and leaves."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from penstock_sharing.token.protocol import (
    VERSION,
    JoinLane,
    JoinRefused,
    LaneClientId,
    SlotPlace,
    SlotsAssigned,
    SlotsTaken,
    receive,
    send,
)
from penstock_sharing.token.shared_page import AWAY, DRAINING, SharedPage, register_fences
from penstock_sharing.token.token_slot import DeviceDrain, TokenSlot

LOOK_S: Final = 0.25
"""How often who waits for its turn looks whether the broker is still there."""
RECONNECT_S: Final = 0.25

_log = logging.getLogger("penstock.lanes")


class LaneError(Exception):
    """Root of what keeps a process from taking turns."""


class NoTokenSlot(LaneError):
    """The broker has no slot for this process."""


class LaneClient:
    """
    A process's slots.

    Nothing waits but :meth:`enter`. The methods are called by one thread at a time, but for :meth:`interrupt`. A forked
    child has no slot and no token: there, :meth:`enter` returns at once and nothing else does anything.

    Parameters
    ----------
    path : str
        The broker's socket.
    who : LaneClientId
    settle : callable
        Called before the token is given to another process: returns once the device has done all that it was told.
        It may be called by another thread, between two iterations.
    works_on : callable
        Whether the device may be at work when an iteration is over, so that there is something to settle.

    Examples
    --------
    ::

        member = LaneClient(path, LaneClientId("j1", 1, 0), settle=torch.cuda.synchronize)
        for batch in loader:         # fetched before the token is taken
            member.enter()
            step(batch)
            member.exit()
        member.close()
    """

    def __init__(
        self,
        path: str,
        who: LaneClientId,
        settle: Callable[[], object] = lambda: None,
        works_on: Callable[[], bool] = lambda: False,
    ) -> None:
        self.slots: tuple[TokenSlot, ...] = ()
        self._path, self._who, self._settle, self._works_on = path, who, settle, works_on
        self._between = threading.Lock()  # so that no iteration begins while the device is waited for
        self._drains: dict[TokenSlot, DeviceDrain] = {}
        self._connection: socket.socket | None = None
        self._detached = False
        self._done = 0
        register_fences()
        self._connect()
        _clients.add(self)

    @property
    def holds(self) -> bool:
        """Whether it has the token of every slot."""
        return bool(self.slots) and all(slot.holds for slot in self.slots)

    def enter(self, attend: Callable[[], object] = lambda: None) -> bool:
        """
        Begin an iteration: return as soon as it is this process's turn on all of its devices.

        Parameters
        ----------
        attend : callable
            Called before it waits, and after each :meth:`interrupt`. It may raise, and it may :meth:`close` the member,
            which then asks for its slots anew.

        Returns
        -------
        bool
            Whether it had to wait.

        Raises
        ------
        NoTokenSlot
            If the broker has none for it.
        """
        if self._drains:
            with self._between:
                ready = self._begin()
        else:
            ready = self._begin()
        if ready:
            return False
        self._settle()
        attend()
        while not (self.slots and all(self._take(slot) or self._wait(slot) for slot in self.slots)):
            self.look(0.0 if self.slots else LOOK_S)
            attend()
        return True

    def interrupt(self) -> None:
        """Have a wait in :meth:`enter` attend to something now, or within :data:`LOOK_S`; from any thread."""
        for slot in self.slots:
            slot.nudge()

    def exit(self) -> None:
        """End an iteration; where somebody is to have the token, the device is waited for, and the token given."""
        works_on = self._works_on()
        away = DRAINING if works_on else AWAY
        due: list[TokenSlot] | None = None
        for slot in self.slots:
            if slot.exit(away):
                due = [slot] if due is None else [*due, slot]
        if due is not None:
            self._give(due)
        elif works_on and len(self._drains) < len(self.slots):
            self._drains = {
                slot: self._drains.get(slot) or DeviceDrain(slot, self._settle, self._between) for slot in self.slots
            }

    def rest(self) -> None:
        """Give the token on, whatever the quantum: the loop pauses or ends."""
        if self._works_on():
            self._settle()
        due = [slot for slot in self.slots if slot.rest()]
        if due:
            self._give(due)

    def look(self, timeout_s: float = 0.0) -> None:
        """
        Take in what the broker has sent, and look for a broker that went away; between iterations only.

        Raises
        ------
        NoTokenSlot
            If there is none for this process.
        """
        if self._connection is None and not self._connect():
            time.sleep(min(timeout_s, RECONNECT_S))
            return
        while self._connection is not None and _is_readable(self._connection, timeout_s):
            self._receive(self._connection)
            timeout_s = 0.0

    def close(self) -> None:
        """Leave: the token goes on, and the slots are free."""
        held = [slot for slot in self.slots if slot.holds]
        if held:
            self._give(held)
        self._hang_up()
        self._take_slots(0, ())

    def detach(self) -> None:
        """In a forked child: let go of what is the parent's. The child has no token, and no slot."""
        for slot in self.slots:
            slot.close()
        self.slots, self._drains = (), {}
        self._detached, self._between = True, threading.Lock()
        self._hang_up()

    def _begin(self) -> bool:
        """Whether it has all of its tokens: this is the path that has to be short."""
        for slot in self.slots:
            if not slot.enter():
                return False
        return bool(self.slots) or self._detached

    def _take(self, slot: TokenSlot) -> bool:
        """Enter a slot; not while another thread waits for its device, which then says that nobody is at work there."""
        with self._between:
            return slot.enter()

    def _wait(self, slot: TokenSlot) -> bool:
        """Wait for the turn; False where the slots may have changed, or the broker may be gone."""
        return slot.wait(LOOK_S) and not slot.called

    def _give(self, slots: list[TokenSlot]) -> None:
        """
        Give the tokens of some slots, the highest device first.

        Those of the others stay; but it is away there, so whoever asks for them has them soon. So it never waits for a
        device while it keeps a higher one from others.
        """
        self._settle()
        for slot in reversed(slots):
            slot.give()
        for slot in self.slots:
            if slot.drains:
                slot.drained()

    def _connect(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(self._path)
            places = tuple(SlotPlace(slot.lane, slot.number) for slot in self.slots)
            send(
                connection,
                JoinLane(VERSION, self._who, places),
                tuple(fd for slot in self.slots for fd in slot.descriptors),
            )
        except OSError as error:
            connection.close()
            _log.warning("lanes_keeper_not_there path=%s error=%s", self._path, error)
            return False
        self._connection = connection
        return True

    def _receive(self, connection: socket.socket) -> None:
        try:
            received = receive(connection)
        except OSError:
            received = None
        if received is None:
            self._hang_up()
            return
        message, descriptors = received
        if isinstance(message, SlotsAssigned):
            if len(descriptors) != 2 * len(message.places):
                raise ValueError(f"{len(descriptors)} descriptors came for {len(message.places)} slots, not two each")
            self._take_slots(message.number, tuple(zip(message.places, descriptors[::2], descriptors[1::2])))
            self._tell(connection, SlotsTaken(message.number))
        elif isinstance(message, JoinRefused):
            self._hang_up()
            if not self.slots:
                raise NoTokenSlot(f"{self._who.job_id} has no slot: {message.reason}")
            _log.warning("lanes_seat_lost reason=%s; asking again every %s s", message.reason, RECONNECT_S)
        else:
            for descriptor in descriptors:
                os.close(descriptor)

    def _take_slots(self, letter: int, places: tuple[tuple[SlotPlace, int, int], ...]) -> None:
        """
        Take the slots of these places, and leave all others; the token of a slot that stays is kept.

        But not behind a new one: it would be kept from others while this process waits for a lower device.
        """
        kept = {(slot.lane, slot.number): slot for slot in self.slots}
        self._done = max((slot.done for slot in self.slots), default=self._done)
        slots = []
        for place, page, call_fd in places:
            slot = kept.pop((place.lane, place.slot), None)
            if slot is not None and slot.is_of(page):
                os.close(page)
                os.close(call_fd)
                slot.read(letter)
                slots.append(slot)
            else:
                slots.append(TokenSlot(place.lane, SharedPage(page), place.slot, call_fd, letter, done=self._done))
        left = [slot for slot in self.slots if slot not in slots]
        new = next((i for i, slot in enumerate(slots) if slot not in self.slots), len(slots))
        behind = [slot for slot in slots[new:] if slot in self.slots]
        if any(slot.holds for slot in (*left, *behind)):
            self._settle()
        for slot in reversed(behind):
            slot.give()
        for slot in reversed(left):
            if slot in self._drains:
                self._drains.pop(slot).end()
            slot.give()
            slot.close()
        self.slots = tuple(slots)

    def _tell(self, connection: socket.socket, message: SlotsTaken) -> None:
        try:
            send(connection, message)
        except OSError:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_readable(connection: socket.socket, timeout_s: float) -> bool:
    """Wait for something to read; unlike ``select``, for a process that has many files open, too."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


_clients: Final[weakref.WeakSet[LaneClient]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for member in list(_clients):
        member.detach()


os.register_at_fork(after_in_child=_after_fork_in_child)
