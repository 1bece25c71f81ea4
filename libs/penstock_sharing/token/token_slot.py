"""
A process's slot in one lane: it takes the token before an iteration, and gives it on after it.

As long as no other process asks, an iteration costs two stores and two loads. The broker says in one word of the slot
(``named``) that there is something to do; the slot only compares whether this word has changed.

:class:`DeviceDrain` waits for the device between two iterations, by a thread of its own. A process that fetches its
next batch does not look at its slot, and its device may still be at work on the iteration before. The token cannot be
taken from it then. So where another process waits, this thread waits for the device in its place.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from penstock_sharing.token.shared_page import (
    ASKING,
    AWAY,
    BEGUN,
    BUSY,
    DRAINING,
    HASTE,
    HELD_NS,
    ITERATIONS,
    LEAST_NS,
    LETTER,
    NAMED,
    NOBODY,
    PACE_NS,
    RECALL,
    SINCE_NS,
    STATE,
    TURNS,
    FutexWord,
    SharedPage,
    following,
    slot_of,
    turn_of,
)
from penstock_sharing.token.slot_wait import SlotWait, SpinTuner

_CALL: Final = (1).to_bytes(8, "little")
_WORD: Final = (1 << 64) - 1


class TokenSlot:
    """
    One slot of this process.

    Parameters
    ----------
    lane : str
    page : SharedPage
    number : int
        Of the slot in it.
    call_fd : int
        Descriptor by which the broker is called; the slot keeps it.
    letter : int
        Number of the message that assigned it.

    Attributes
    ----------
    hastened : int
        The word of :meth:`haste` when the slot was taken: with another value, the slot was asked to drain since.
    """

    def __init__(
        self, lane: str, page: SharedPage, number: int, call_fd: int, letter: int = 0, *, done: int = 0
    ) -> None:
        self.lane, self.number = lane, number
        self._page, self._words, self._call_fd = page, page.words, call_fd
        first = page.first_word(number)
        self._named, self._state, self._iterations = first + NAMED, first + STATE, first + ITERATIONS
        self._first, self._row, self._mine = first, page.row, page.row + 1 + number
        self._wakeup = page.wakeup_word(number).value
        self._waiting = SlotWait(page, number, SpinTuner(len(os.sched_getaffinity(0))))
        self._nudged = False
        self._seen = self._words[self._named]
        self.hastened = self._words[first + HASTE]
        self._letter = letter
        self._token = 0
        self._given = 0
        self._done = self._begun = done
        self._words[self._iterations] = done
        self._since_ns = 0
        self._paces: deque[int] = deque(maxlen=3)

    @property
    def holds(self) -> bool:
        """Whether it had the token when it looked last."""
        return self._token != 0

    @property
    def done(self) -> int:
        """Iterations that this process has done."""
        return self._done

    @property
    def descriptors(self) -> tuple[int, int]:
        """Those of the page, and of the eventfd by which the broker is called."""
        return self._page.fd, self._call_fd

    @property
    def called(self) -> bool:
        """Whether the broker has sent something over the socket, or is about to, that was not :meth:`read`."""
        return self._words[self._first + LETTER] != self._letter

    def read(self, letter: int) -> None:
        """The message of this number has been read."""
        self._letter = letter

    def is_of(self, page: int) -> bool:
        """Return whether a descriptor is of this slot's page."""
        return os.path.sameopenfile(page, self._page.fd)

    def enter(self) -> bool:
        """
        Begin an iteration; return whether it has the token, or else has to :meth:`wait` for it.

        One that had it before, and has not been asked to give it up, has it.
        """
        self._words[self._state] = BUSY  # before the load: see LaneToken.recall of the broker
        if self._token and self._words[self._named] == self._seen:
            return True
        return self._look()

    def exit(self, away: int = AWAY) -> bool:
        """
        End an iteration; return whether somebody is to have the token, so that :meth:`give` is to be called.

        Parameters
        ----------
        away : int
            ``DRAINING`` where the device may still be at work.
        """
        words = self._words
        self._done += 1
        words[self._iterations] = self._done
        if words[self._named] != self._seen and self._due():
            return True
        words[self._state] = away
        return False

    @property
    def drains(self) -> bool:
        """Whether it is between two iterations and the device may still be at work."""
        return self._words[self._state] == DRAINING

    def drained(self) -> None:
        """The device is done: the token may be taken from here."""
        self._words[self._state] = AWAY
        self._call_broker()

    def haste(self) -> FutexWord:
        """Return the word on which the broker says that this slot is to drain."""
        return self._page.haste(self.number)

    def wait(self, timeout_s: float) -> bool:
        """
        Ask for the token, and sleep until it comes; return whether it has.

        Also returns where :attr:`called` or after a :meth:`nudge`.
        """
        words, deadline_ns = self._words, monotonic_ns() + int(timeout_s * 1e9)
        if words[self._state] != ASKING:
            self._waiting.begin()
            words[self._state] = ASKING
            self._call_broker()
        while True:
            seen = self._wakeup.value
            if self._look():
                return True
            if self._nudged or self.called or monotonic_ns() >= deadline_ns:
                self._nudged = False
                return False
            if self._waiting.until(deadline_ns, seen, self._look):
                return True

    def nudge(self) -> None:
        """Have :meth:`wait` return, from any thread."""
        self._nudged = True
        self._page.notify(self.number)

    def give(self) -> None:
        """Give the token to whoever is named, or back to the broker; what was begun on the device has ended."""
        token, words = self._token, self._words
        if token and words[self._row] <= token:  # only the broker takes it from who has it
            named = words[self._named]
            to = slot_of(named) if turn_of(named) == turn_of(token) else NOBODY
            self._pass(token, to if to < self._page.slots else NOBODY)  # so too where it is a recall
        elif token:  # it was taken while this process was stopped
            self._forget()
        words[self._state] = AWAY

    def rest(self) -> bool:
        """The loop pauses or ends: return whether somebody waits, so that :meth:`give` is to be called."""
        if self._words[self._state] == BUSY:  # left by break
            self._done += 1
            self._words[self._iterations] = self._done
        self._words[self._state] = BUSY
        named = self._words[self._named]
        if self._token and turn_of(named) == turn_of(self._token) and slot_of(named) != NOBODY:
            return True
        self._words[self._state] = AWAY
        return False

    def close(self) -> None:
        """Let go of the descriptors; the broker learns of it by the socket."""
        self._token = 0
        self._page.close()
        if self._call_fd >= 0:
            os.close(self._call_fd)
            self._call_fd = -1

    def _due(self) -> bool:
        """Whether this boundary is the one at which the token goes on."""
        words = self._words
        named = words[self._named]
        turns, to = turn_of(named) - turn_of(self._token), named & NOBODY
        if turns > 0:
            return True  # the token went away, and may have come back, while this process was stopped
        if turns < 0 or to == NOBODY:
            self._seen = named  # of a turn that is over: nothing to do until it changes
            return False
        if to == RECALL:
            return True
        return to < self._page.slots and words[self._page.first_word(to) + STATE] == ASKING and self._quantum_is_over()

    def _quantum_is_over(self) -> bool:
        held_ns = monotonic_ns() - self._since_ns
        if held_ns < self._words[self._first + LEAST_NS]:
            return False
        iterations, most_ns = self._page.quantum
        return self._done - self._begun >= iterations or 0 < most_ns <= held_ns

    def _look(self) -> bool:
        """Whether the token is here; if so, and it was not before, a turn begins."""
        words, top = self._words, self._page.token()
        if slot_of(top) != self.number or top <= self._given:
            self._forget()
            return False
        before, words[self._state] = words[self._state], BUSY  # before the load, here too: see LaneToken.recall
        named = words[self._named]
        recalled = turn_of(named) == turn_of(top) and slot_of(named) == RECALL
        if recalled or self._page.token() != top:  # in this order: named for a later turn only once the token has moved
            self._given = top
            self._forget()
            words[self._state] = before
            return False
        if top != self._token:
            self._begin(top)
        return True

    def _begin(self, token: int) -> None:
        words, first = self._words, self._first
        self._token, self._begun, self._since_ns = token, self._done, monotonic_ns()
        words[first + SINCE_NS], words[first + BEGUN] = self._since_ns, turn_of(token)
        words[first + TURNS] = words[first + TURNS] + 1 & _WORD

    def _forget(self) -> None:
        if self._token:
            words, turn_ns = self._words, monotonic_ns() - self._since_ns
            words[self._first + HELD_NS] = words[self._first + HELD_NS] + turn_ns & _WORD
            self._token = 0
            if self._done > self._begun:
                self._paces.append(turn_ns // (self._done - self._begun))
                words[self._first + PACE_NS] = sorted(self._paces)[len(self._paces) // 2]

    def _pass(self, token: int, to: int) -> None:
        word = following(token, to)
        self._words[self._mine] = word  # who spins sees it here; all else comes after that
        if to != NOBODY:
            self._page.wake(to, word)
        self._given = token
        self._forget()
        self._call_broker()

    def _call_broker(self) -> None:
        os.write(self._call_fd, _CALL)


_LOOK_S: Final = 5.0


class DeviceDrain:
    """
    The thread of one slot.

    Parameters
    ----------
    slot : TokenSlot
    settle : callable
        Returns once the device has done all that it was told.
    between : Lock
        Held while an iteration begins, and while the device is waited for.
    """

    def __init__(self, slot: TokenSlot, settle: Callable[[], object], between: threading.Lock) -> None:
        self._slot, self._settle, self._between = slot, settle, between
        self._over = False
        self._word = slot.haste()
        threading.Thread(target=self._watch, name="penstock-drain", daemon=True).start()

    def end(self) -> None:
        """Have the thread end."""
        with self._between:
            self._over = True
        self._word.wake()

    def _watch(self) -> None:
        seen = self._slot.hastened  # not what it is now: this thread may be late
        while not self._over:
            self._word.wait(seen, _LOOK_S)
            now = self._word.value.value
            if now != seen:
                seen = now
                self._finish()

    def _finish(self) -> None:
        with self._between:
            if not self._over and self._slot.drains:
                self._settle()
                self._slot.drained()
