"""
Slots of a lane: who has which, which are free, and whether the holder of the token still runs.

:class:`SlotTable` has a lane's slots and what is counted at them. :class:`HolderWatch` tells at each tick whether a
holder for which others wait still uses its turn. :class:`ProcessPulse` reads from the kernel whether a process still
runs, is stopped, or ends.

The socket and the pidfd of a process report its end only once the kernel has freed its memory, a tenth of a second for
each GiB or more. Long before that, the process no longer runs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from penstock_sharing.token.protocol import LaneClientId, SlotCounters
from penstock_sharing.token.shared_page import (
    BEGUN,
    BUSY,
    HELD_NS,
    ITERATIONS,
    KEEN,
    LEAST_NS,
    NAMED,
    PACE_NS,
    SINCE_NS,
    STATE,
    TURNS,
    SharedPage,
    slot_of,
    turn_of,
)


class NoFreeSlot(Exception):
    """All slots of a lane are taken."""


@dataclass(slots=True, eq=False)
class SlotHolder:
    """A process in its slot; ``asks``: whether its request for a turn has been reported."""

    who: LaneClientId
    pulse: ProcessPulse
    asks: bool = False


class SlotTable:
    """
    The slots of a page, by their numbers.

    A slot that is left is free, unless the holder of this turn is to give the token there: it may still do so.
    """

    def __init__(self, page: SharedPage) -> None:
        self._page = page
        self._clients: dict[int, SlotHolder] = {}
        self._named: set[int] = set()
        self._left: deque[tuple[int, int]] = deque()  # turn that has to be over, slot

    def __contains__(self, number: int) -> bool:
        return number in self._clients

    def __getitem__(self, number: int) -> SlotHolder:
        return self._clients[number]

    def __iter__(self) -> Iterator[tuple[int, SlotHolder]]:
        return iter(self._clients.items())

    def number(self, who: LaneClientId) -> int | None:
        """Return the slot of a process; None if it has none."""
        return next((number for number, client in self._clients.items() if client.who == who), None)

    def who(self, number: int) -> LaneClientId | None:
        """Return the process in a slot; None if it is free."""
        return self._clients[number].who if number in self._clients else None

    def take(self, who: LaneClientId, pid: int, turn: int) -> int:
        """
        Give somebody a slot, in a turn; return its number.

        Raises
        ------
        NoFreeSlot
            If there is none left.
        """
        if self._left and self._left[0][0] < turn:
            number = self._left.popleft()[1]
        elif self._page.used < self._page.slots:
            number = self._page.used
            self._page.used = number + 1
        else:
            raise NoFreeSlot(f"the lane has {self._page.slots} slots, and all are taken; use another lane")
        self._clients[number] = SlotHolder(who, ProcessPulse(pid))
        return number

    def take_back(self, who: LaneClientId, pid: int, number: int) -> None:
        """
        Give a process the slot that it had before.

        Raises
        ------
        ValueError
            If there is no such slot, or it is taken.
        """
        if not 0 <= number < min(self._page.used, self._page.slots) or number in self._clients:
            raise ValueError(f"the lane has no free slot {number} that was ever given out")
        self._clients[number] = SlotHolder(who, ProcessPulse(pid))

    def leave(self, number: int, turn: int) -> None:
        """Somebody has left, in a turn."""
        self._clients.pop(number).pulse.close()
        if number in self._named:
            self._left.append((turn, number))
        else:
            self._left.appendleft((0, number))

    def named(self, number: int) -> None:
        """Note that the holder of this turn is to give the token to a slot."""
        self._named.add(number)

    def turned(self) -> None:
        """Another turn has begun."""
        self._named.clear()

    def close(self) -> None:
        """Let go of what is known of the processes."""
        for client in self._clients.values():
            client.pulse.close()

    def clear(self, number: int) -> None:
        """Count anew at a slot."""
        first = self._page.first_word(number)
        for word in (STATE, NAMED, ITERATIONS, HELD_NS, TURNS, SINCE_NS, LEAST_NS, PACE_NS, KEEN, BEGUN):
            self._page.words[first + word] = 0

    def counters(self) -> Iterator[SlotCounters]:
        """Yield what each member has counted."""
        words = self._page.words
        for number, client in self._clients.items():
            first = self._page.first_word(number)
            yield SlotCounters(
                who=client.who,
                iterations=words[first + ITERATIONS],
                busy=words[first + STATE] == BUSY,
                held_ns=words[first + HELD_NS],
                turns=words[first + TURNS],
            )


RETURN_NS: Final = 3_000_000_000
"""How long a broker that found a lane waits for the member that has its token."""
GRACE_NS: Final = 4_000_000
"""For how long a holder may be between two iterations while somebody waits."""
STOPPED_NS: Final = 20_000_000
"""How long a turn lasts before it is taken from a process that is stopped."""
ENDING_NS: Final = 3_000_000
"""For how long a process ends before its turn is taken; of most it is heard before that."""

Verdict = Literal["wait", "recall", "overrule", "tell and overrule"]


class HolderWatch:
    """
    The holder of a lane's token, as long as somebody waits for it.

    Parameters
    ----------
    page : SharedPage
    slots : SlotTable
    """

    def __init__(self, page: SharedPage, slots: SlotTable) -> None:
        self._page, self._words, self._slots = page, page.words, slots
        self._away: tuple[int, int] | None = None  # turn and iterations with which the holder was found away
        self._away_ns = self._found_ns = 0
        self._ends: tuple[int, int] | None = None  # turn in which the holder was found to end, and when

    def begin(self) -> None:
        """Somebody else waits from now on."""
        self._away = None

    def look(self, top: int, now_ns: int) -> Verdict:
        """
        Say what is to become of the holder's turn.

        Parameters
        ----------
        top : int
            The token.
        now_ns : int

        Returns
        -------
        str
            ``recall``: it is long between two iterations; ``overrule``: it has not come back to this broker;
            ``tell and overrule``: its process does not run.
        """
        holder = slot_of(top)
        if holder not in self._slots:
            self._found_ns = self._found_ns or now_ns
            return "overrule" if now_ns - self._found_ns >= RETURN_NS else "wait"
        if self._words[self._page.first_word(holder) + STATE] == BUSY:
            self._away = None
            return "wait" if self._runs(holder, turn_of(top), now_ns) else "tell and overrule"
        seen = turn_of(top), self._words[self._page.first_word(holder) + ITERATIONS]
        if self._away != seen:
            self._away, self._away_ns = seen, now_ns
        return "recall" if now_ns - self._away_ns >= GRACE_NS else "wait"

    def _runs(self, holder: int, turn: int, now_ns: int) -> bool:
        """Whether its process runs; one that ends is waited for: most are gone by the next tick."""
        state = self._slots[holder].pulse.read_state()
        if state != "ends":
            self._ends = None
        elif self._ends is None or self._ends[0] != turn:
            self._ends = turn, now_ns
        if self._ends is not None:
            return now_ns - self._ends[1] < ENDING_NS
        since_ns = self._words[self._page.first_word(holder) + SINCE_NS]
        return state != "stopped" or now_ns - since_ns <= STOPPED_NS


State = Literal["runs", "stopped", "ends"]

_EXITING: Final = 0x4
_DUMPS_CORE: Final = 0x200
_LINE_BYTES: Final = 1024


class ProcessPulse:
    """
    What the kernel says of one process. The file stays open: to read it again takes 3 µs.

    Parameters
    ----------
    pid : int
    """

    def __init__(self, pid: int) -> None:
        self._path, self._fd = f"/proc/{pid}/stat", -1

    def read_state(self) -> State:
        """Return its state; where nothing can be read it counts as running, since its end is noticed otherwise."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return state_of(os.pread(self._fd, _LINE_BYTES, 0))
        except OSError:
            return "runs"

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def state_of(line: bytes) -> State:
    """
    Return what a process's line in ``/proc`` says; its name, in parentheses, may contain anything.

    References
    ----------
    proc_pid_stat(5); the flags are those of ``include/linux/sched.h``.

    Examples
    --------
    >>> state_of(b"7 (a) T b) R 1 7 7 0 -1 4194304 0"), state_of(b"7 (python) T 1 7 7 0 -1 4194304 0")
    ('runs', 'stopped')
    >>> state_of(b"7 (python) R 1 7 7 0 -1 4194308 0")
    'ends'
    """
    words = line.rpartition(b")")[2].split(None, 7)
    if len(words) < 7:
        return "runs"
    if words[0] in b"ZX" or int(words[6]) & (_EXITING | _DUMPS_CORE):
        return "ends"
    return "stopped" if words[0] in b"tT" else "runs"
