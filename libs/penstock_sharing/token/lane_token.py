"""The broker's side of one lane's page."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Final, assert_never

from penstock_sharing.token.protocol import (
    LaneClientId,
    LaneTokenView,
    PageCorrupted,
    TokenEvent,
    TokenPassed,
    TokenRevoked,
    TurnRequested,
)
from penstock_sharing.token.shared_page import (
    ASKING,
    BEGUN,
    BUSY,
    DRAINING,
    ITERATIONS,
    KEEN,
    LEAST_NS,
    LETTER,
    MOST_SLOTS,
    NAMED,
    NOBODY,
    RECALL,
    SINCE_NS,
    STATE,
    SharedPage,
    Token,
    fence,
    following,
    follows,
    named_word,
    regenerated,
    slot_of,
    turn_of,
)
from penstock_sharing.token.slot_table import HolderWatch, SlotTable

_NEVER: Final = (1 << 64) - 1
"""Named in a turn after all turns: whoever has the token gives it back, and nobody begins a turn."""


class LaneToken:
    """
    One lane.

    Parameters
    ----------
    name : str
    page : SharedPage
        A new one, or one that an earlier broker made: then its members come back, each for its slot. If the one that
        has the token does not, the token is the broker's after :data:`penstock_sharing.token.slot_table.RETURN_NS`.
    call_fd : int
        The eventfd by which members call.
    """

    def __init__(self, name: str, page: SharedPage, call_fd: int) -> None:
        self.name, self.page, self.call_fd = name, page, call_fd
        self._words = page.words
        # from here on these are the broker's, whatever a member writes
        page.used, page.quantum = page.used, page.quantum
        self._corrupted = False
        self._slots = SlotTable(page)
        self._top = page.token()
        self._successor: int | None = None
        self._watch = HolderWatch(page, self._slots)
        self._recalled = self._fenced = False

    @property
    def contended(self) -> bool:
        """Whether somebody waits for the holder, so that :meth:`look` has to be called every few milliseconds."""
        holder = slot_of(self._top)
        return holder != NOBODY and (self._successor is not None or self._recalled or holder not in self._slots)

    @property
    def is_untouched(self) -> bool:
        """Whether no slot has ever been given out here."""
        return self.page.used == 0

    def slot_for(self, who: LaneClientId, pid: int) -> int:
        """
        Return the number of a process's slot; it is given one if it has none.

        Raises
        ------
        NoRoom
            If there is none left.
        """
        self.page.mend()
        number = self._slots.number(who)
        return self._slots.take(who, pid, turn_of(self._top)) if number is None else number

    def take_back(self, who: LaneClientId, pid: int, number: int) -> list[TokenEvent]:
        """
        Take in a member to which an earlier broker gave its slot.

        Raises
        ------
        ValueError
            If there is no such slot, or it is taken.
        """
        self._slots.take_back(who, pid, number)
        return [TokenPassed(self.name, None, who)] if slot_of(self._top) == number else []

    def announce(self, who: LaneClientId, letter: int) -> None:
        """Let a member know which message it has to read."""
        number = self._slots.number(who)
        if number is not None:
            self._words[self.page.first_word(number) + LETTER] = letter

    def repeat_request(self, who: LaneClientId) -> list[TokenEvent]:
        """Report the request of a member that comes back before it had gone as a new one."""
        number = self._slots.number(who)
        if number is not None:
            self._slots[number].asks = False
        return self.look(0)

    def call(self, who: LaneClientId, *, stays: bool) -> list[TokenEvent]:
        """
        Have a member read what was sent to it: at its next boundary, where it gives up the token for that.

        Parameters
        ----------
        stays : bool
            Whether it has a slot here still: then it is next if it was next.
        """
        number = self._slots.number(who)
        if number is None:
            return []
        events = self.look(0)
        if self._successor == number and not stays:
            events += self.name_next(None)
        if slot_of(self._top) == number:
            events += self.recall()
        self.page.notify(number)
        return events

    def leave(self, who: LaneClientId) -> list[TokenEvent]:
        """A process has left its slot, or is dead."""
        number = self._slots.number(who)
        if number is None:
            return []
        events = self.look(0)
        self._slots.clear(number)
        if self._successor == number:
            events += self.name_next(None)
        if slot_of(self._top) == number:
            events += self._give(regenerated(self._top, NOBODY))
        self._slots.leave(number, turn_of(self._top))
        return [*events, *self._give_if_asked()]

    def name_next(self, who: LaneClientId | None, least_ns: int = 0) -> list[TokenEvent]:
        """Name who is next, once it asks. If nobody has the token, it has it at once; one that is gone is nobody."""
        number = None if who is None else self._slots.number(who)
        events = self.look(0)
        self.page.mend()
        if self._corrupted:
            return events
        if self._recalled and slot_of(self._top) != NOBODY:  # its holder may have seen it, and given up this turn
            return events
        successor = number if number != slot_of(self._top) else None
        changed = successor != self._successor
        if changed:
            self._successor = successor
            self._watch.begin()
        holder = slot_of(self._top)
        if holder != NOBODY:
            self._words[self.page.first_word(holder) + LEAST_NS] = least_ns
            self._write_named(holder, NOBODY if self._successor is None else self._successor)
            if changed and successor is not None and self._wants_to_know(successor):
                self.page.notify(successor)
        return [*events, *self._give_if_asked()]

    def recall(self) -> list[TokenEvent]:
        """
        Let the holder give the token back at its next boundary, whatever the quantum; nobody is named then.

        Notes
        -----
        If it is between two iterations, the token is taken from it. It stores that it is busy before it looks whether
        it has been recalled; here it is recalled before it is looked whether it is busy. With a fence between the two,
        or a tick, at least one of both sees the other.
        """
        events = self.look(0)
        holder = slot_of(self._top)
        if holder != NOBODY:
            self._successor, self._recalled = None, True
            self._write_named(holder, RECALL)
            self._fenced = fence()
            if self._state(holder) == DRAINING:
                self.page.hasten(holder)
            events += [*self._take_recalled(), *self._new_requests()]
        return events

    def revoke(self) -> list[TokenEvent]:
        """Take the token from its holder, wherever it is: one that is stopped, or is about to be killed."""
        events = self.look(0)
        if slot_of(self._top) != NOBODY:
            self._write_named(slot_of(self._top), RECALL)
            events += [*self._give(regenerated(self._top, NOBODY)), *self._new_requests()]
        return events

    def look(self, now_ns: int) -> list[TokenEvent]:
        """
        See what has changed.

        Parameters
        ----------
        now_ns : int
            By ``CLOCK_MONOTONIC``; 0: only see, and take the token from nobody.
        """
        events = self._follow()
        if self._recalled:
            self._fenced = self._fenced or now_ns > 0
            events += self._take_recalled()
        events += self._new_requests()  # who lost the token just now may wait for it already, and calls no second time
        if now_ns and self.contended:
            events += self._check_holder(now_ns)
        return [*events, *self._give_if_asked()]

    def view(self) -> LaneTokenView:
        """Return what it looks like now."""
        number, members = slot_of(self._top), tuple(self._slots.counters())
        holder, turn = self._slots.who(number), Token.of(self._top).turn
        if holder is None:
            return LaneTokenView(None, 0, False, False, 0, turn, members)
        words, first = self._words, self.page.first_word(number)
        begun, state = words[first + BEGUN], words[first + STATE]
        return LaneTokenView(
            holder=holder,
            since_ns=words[first + SINCE_NS],
            begun=begun == turn_of(self._top) if begun else state != ASKING,  # there are clients that do not say
            busy=state == BUSY,
            iterations=words[first + ITERATIONS],
            turn=turn,
            members=members,
        )

    def close(self) -> None:
        """Let go of all descriptors; the page stays with those who have mapped it."""
        self._slots.close()
        self.page.close()
        os.close(self.call_fd)

    def _follow(self) -> list[TokenEvent]:
        """Tell how the token has come to where it is: one successor is named, so it made two steps at most."""
        top = self.page.token()
        if top == self._top or self._corrupted:
            return []
        if not follows(self._top, top, self.page.used):
            return self._mark_corrupted(top)
        way = [slot_of(self._top), slot_of(top)]
        if turn_of(top) - turn_of(self._top) == 2 and self._successor is not None:
            way.insert(1, self._successor)
        self._top = top
        self._slots.turned()
        events: list[TokenEvent] = [self._passed(giver, taker) for giver, taker in pairwise(way)]
        if slot_of(top) != NOBODY and slot_of(top) not in self._slots:  # it had left when it was given the token
            events += self._give(following(top, NOBODY))
        return events

    def _mark_corrupted(self, top: int) -> list[TokenEvent]:
        """Somebody has written what no turn can have left there: the token is nobody's, and never will be again."""
        words, holder = self.page.row_words()[1:], self._slots.who(slot_of(self._top))
        by = next((self._slots.who(number) for number, word in enumerate(words) if word == top), None)
        for number, _ in self._slots:
            self._words[self.page.first_word(number) + NAMED] = _NEVER
        self._corrupted, self._successor, self._recalled = True, None, False
        self._top = self._top | NOBODY
        events: list[TokenEvent] = [] if holder is None else [TokenPassed(self.name, holder, None)]
        return [*events, PageCorrupted(self.name, by)]

    def _new_requests(self) -> list[TokenEvent]:
        """Tell of those who wait, each once."""
        events: list[TokenEvent] = []
        if self._corrupted:
            return events
        for number, client in self._slots:
            if not client.asks and number != slot_of(self._top) and self._state(number) == ASKING:
                client.asks = True
                events.append(TurnRequested(self.name, client.who))
        return events

    def _passed(self, giver: int, taker: int) -> TokenPassed:
        self._successor, self._recalled = None, False
        if taker in self._slots:
            self._slots[taker].asks = False
        return TokenPassed(self.name, self._slots.who(giver), self._slots.who(taker))

    def _give(self, word: int) -> list[TokenEvent]:
        """Store the token; what was held is over."""
        giver, taker = slot_of(self._top), slot_of(word)
        self._words[self.page.row] = self._top = word
        self._slots.turned()
        if taker != NOBODY:
            self.page.wake(taker, word)
        return [self._passed(giver, taker)]

    def _give_if_asked(self) -> list[TokenEvent]:
        """Give a token that nobody has to whoever is named, if it asks."""
        if self._successor is None or slot_of(self._top) != NOBODY or self._state(self._successor) != ASKING:
            return []
        return self._give(following(self._top, self._successor))

    def _take_recalled(self) -> list[TokenEvent]:
        """Take a recalled token from a holder that is not busy."""
        holder = slot_of(self._top)
        if not self._fenced or holder == NOBODY or self._state(holder) in (BUSY, DRAINING):
            return []
        return self._give(following(self._top, NOBODY))

    def _check_holder(self, now_ns: int) -> list[TokenEvent]:
        """Somebody waits for the holder: take the token from one that does not use it."""
        verdict = self._watch.look(self._top, now_ns)
        match verdict:
            case "wait":
                return []
            case "recall":
                return self.recall()
            case "overrule":
                return self.revoke()
            case "tell and overrule":
                return [TokenRevoked(self.name, self._slots[slot_of(self._top)].who), *self.revoke()]
            case _:
                assert_never(verdict)

    def _write_named(self, holder: int, to: int) -> None:
        self._words[self.page.first_word(holder) + NAMED] = named_word(turn_of(self._top), to)
        self._slots.named(to)

    def _wants_to_know(self, successor: int) -> bool:
        return self._state(successor) == ASKING and self._words[self.page.first_word(successor) + KEEN] != 0

    def _state(self, number: int) -> int:
        return self._words[self.page.first_word(number) + STATE]


def open_lane(name: str, slots: int = MOST_SLOTS) -> LaneToken:
    """Return a new lane."""
    return LaneToken(name, SharedPage.make(slots), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
