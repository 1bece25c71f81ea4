"""The keeper's side of one lane's page."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Final, assert_never

from penstock_sharing.token.protocol import (
    LaneClientId,
    LaneTokenView,
    News,
    PageCorrupted,
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
    MOST_SEATS,
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
    regenerated,
    seat_of,
    told,
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
        A new one, or one that an earlier keeper made: then its members come back, each for its seat. If the one that
        has the token does not, the token is the keeper's after :data:`penstock_sharing.token.slot_table.RETURN_NS`.
    bell : int
        The eventfd by which members call.
    """

    def __init__(self, name: str, page: SharedPage, bell: int) -> None:
        self.name, self.page, self.bell = name, page, bell
        self._words = page.words
        page.used, page.lease = page.used, page.lease  # from here on they are the keeper's, whatever a member writes
        self._spoilt = False
        self._seating = SlotTable(page)
        self._top = page.token()
        self._heir: int | None = None
        self._watch = HolderWatch(page, self._seating)
        self._recalled = self._fenced = False

    @property
    def contended(self) -> bool:
        """Whether somebody waits for the holder, so that :meth:`look` has to be called every few milliseconds."""
        holder = seat_of(self._top)
        return holder != NOBODY and (self._heir is not None or self._recalled or holder not in self._seating)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has ever sat here."""
        return self.page.used == 0

    def seat_for(self, who: LaneClientId, pid: int) -> int:
        """
        Return the number of a process's seat; it is given one if it has none.

        Raises
        ------
        NoRoom
            If there is none left.
        """
        self.page.mend()
        number = self._seating.number(who)
        return self._seating.take(who, pid, turn_of(self._top)) if number is None else number

    def take_back(self, who: LaneClientId, pid: int, number: int) -> list[News]:
        """
        Take in a member that an earlier keeper seated.

        Raises
        ------
        ValueError
            If there is no such seat, or somebody sits there.
        """
        self._seating.take_back(who, pid, number)
        return [TokenPassed(self.name, None, who)] if seat_of(self._top) == number else []

    def announce(self, who: LaneClientId, letter: int) -> None:
        """Let a member know which message it has to read."""
        number = self._seating.number(who)
        if number is not None:
            self._words[self.page.seat(number) + LETTER] = letter

    def hear_anew(self, who: LaneClientId) -> list[News]:
        """A member comes: that it asks is told again of one that left, and was called back before it had gone."""
        number = self._seating.number(who)
        if number is not None:
            self._seating[number].asks = False
        return self.look(0)

    def call(self, who: LaneClientId, *, stays: bool) -> list[News]:
        """
        Have a member read what was sent to it: at its next boundary, where it gives up the token for that.

        Parameters
        ----------
        stays : bool
            Whether it has a seat here still: then it is next if it was next.
        """
        number = self._seating.number(who)
        if number is None:
            return []
        news = self.look(0)
        if self._heir == number and not stays:
            news += self.name_next(None)
        if seat_of(self._top) == number:
            news += self.recall()
        self.page.call(number)
        return news

    def leave(self, who: LaneClientId) -> list[News]:
        """A process has left its seat, or is dead."""
        number = self._seating.number(who)
        if number is None:
            return []
        news = self.look(0)
        self._seating.clear(number)
        if self._heir == number:
            news += self.name_next(None)
        if seat_of(self._top) == number:
            news += self._give(regenerated(self._top, NOBODY))
        self._seating.leave(number, turn_of(self._top))
        return [*news, *self._serve()]

    def name_next(self, who: LaneClientId | None, least_ns: int = 0) -> list[News]:
        """Name who is next, once it asks. If nobody has the token, it has it at once; one that is gone is nobody."""
        number = None if who is None else self._seating.number(who)
        news = self.look(0)
        self.page.mend()
        if self._spoilt:
            return news
        if self._recalled and seat_of(self._top) != NOBODY:  # its holder may have seen it, and given up this turn
            return news
        heir = number if number != seat_of(self._top) else None
        changed = heir != self._heir
        if changed:
            self._heir = heir
            self._watch.begin()
        holder = seat_of(self._top)
        if holder != NOBODY:
            self._words[self.page.seat(holder) + LEAST_NS] = least_ns
            self._tell(holder, NOBODY if self._heir is None else self._heir)
            if changed and heir is not None and self._wants_to_know(heir):
                self.page.call(heir)
        return [*news, *self._serve()]

    def recall(self) -> list[News]:
        """
        Let the holder give the token back at its next boundary, whatever its lease; nobody is named then.

        Notes
        -----
        If it is between two iterations, the token is taken from it. It stores that it is busy before it looks whether
        it has been recalled; here it is recalled before it is looked whether it is busy. With a fence between the two,
        or a tick, at least one of both sees the other.
        """
        news = self.look(0)
        holder = seat_of(self._top)
        if holder != NOBODY:
            self._heir, self._recalled = None, True
            self._tell(holder, RECALL)
            self._fenced = fence()
            if self._state(holder) == DRAINING:
                self.page.hasten(holder)
            news += [*self._collect(), *self._asks()]
        return news

    def overrule(self) -> list[News]:
        """Take the token from its holder, wherever it is: one that is stopped, or is about to be killed."""
        news = self.look(0)
        if seat_of(self._top) != NOBODY:
            self._tell(seat_of(self._top), RECALL)
            news += [*self._give(regenerated(self._top, NOBODY)), *self._asks()]
        return news

    def look(self, now_ns: int) -> list[News]:
        """
        See what has changed.

        Parameters
        ----------
        now_ns : int
            By ``CLOCK_MONOTONIC``; 0: only see, and take the token from nobody.
        """
        news = self._follow()
        if self._recalled:
            self._fenced = self._fenced or now_ns > 0
            news += self._collect()
        news += self._asks()  # whoever lost the token just now may wait for it already, and calls no second time
        if now_ns and self.contended:
            news += self._press(now_ns)
        return [*news, *self._serve()]

    def view(self) -> LaneTokenView:
        """Return what it looks like now."""
        number, members = seat_of(self._top), tuple(self._seating.counters())
        holder, turn = self._seating.who(number), Token.of(self._top).turn
        if holder is None:
            return LaneTokenView(None, 0, False, False, 0, turn, members)
        words, first = self._words, self.page.seat(number)
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
        self._seating.close()
        self.page.close()
        os.close(self.bell)

    def _follow(self) -> list[News]:
        """Tell how the token has come to where it is: one successor is named, so it made two steps at most."""
        top = self.page.token()
        if top == self._top or self._spoilt:
            return []
        if not follows(self._top, top, self.page.used):
            return self._spoil(top)
        way = [seat_of(self._top), seat_of(top)]
        if turn_of(top) - turn_of(self._top) == 2 and self._heir is not None:
            way.insert(1, self._heir)
        self._top = top
        self._seating.turned()
        news: list[News] = [self._passed(giver, taker) for giver, taker in pairwise(way)]
        if seat_of(top) != NOBODY and seat_of(top) not in self._seating:  # it had left when it was given the token
            news += self._give(following(top, NOBODY))
        return news

    def _spoil(self, top: int) -> list[News]:
        """Somebody has written what no turn can have left there: the token is nobody's, and never will be again."""
        words, holder = self.page.row_words()[1:], self._seating.who(seat_of(self._top))
        by = next((self._seating.who(number) for number, word in enumerate(words) if word == top), None)
        for number, _ in self._seating:
            self._words[self.page.seat(number) + NAMED] = _NEVER
        self._spoilt, self._heir, self._recalled = True, None, False
        self._top = self._top | NOBODY
        news: list[News] = [] if holder is None else [TokenPassed(self.name, holder, None)]
        return [*news, PageCorrupted(self.name, by)]

    def _asks(self) -> list[News]:
        """Tell of those who wait, each once."""
        news: list[News] = []
        if self._spoilt:
            return news
        for number, sitter in self._seating:
            if not sitter.asks and number != seat_of(self._top) and self._state(number) == ASKING:
                sitter.asks = True
                news.append(TurnRequested(self.name, sitter.who))
        return news

    def _passed(self, giver: int, taker: int) -> TokenPassed:
        self._heir, self._recalled = None, False
        if taker in self._seating:
            self._seating[taker].asks = False
        return TokenPassed(self.name, self._seating.who(giver), self._seating.who(taker))

    def _give(self, word: int) -> list[News]:
        """Store the token; what was held is over."""
        giver, taker = seat_of(self._top), seat_of(word)
        self._words[self.page.row] = self._top = word
        self._seating.turned()
        if taker != NOBODY:
            self.page.ring(taker, word)
        return [self._passed(giver, taker)]

    def _serve(self) -> list[News]:
        """Give a token that nobody has to whoever is named, if it asks."""
        if self._heir is None or seat_of(self._top) != NOBODY or self._state(self._heir) != ASKING:
            return []
        return self._give(following(self._top, self._heir))

    def _collect(self) -> list[News]:
        """Take a recalled token from a holder that is not busy."""
        holder = seat_of(self._top)
        if not self._fenced or holder == NOBODY or self._state(holder) in (BUSY, DRAINING):
            return []
        return self._give(following(self._top, NOBODY))

    def _press(self, now_ns: int) -> list[News]:
        """Somebody waits for the holder: take the token from one that does not use it."""
        verdict = self._watch.look(self._top, now_ns)
        match verdict:
            case "wait":
                return []
            case "recall":
                return self.recall()
            case "overrule":
                return self.overrule()
            case "tell and overrule":
                return [TokenRevoked(self.name, self._seating[seat_of(self._top)].who), *self.overrule()]
            case _:
                assert_never(verdict)

    def _tell(self, holder: int, to: int) -> None:
        self._words[self.page.seat(holder) + NAMED] = told(turn_of(self._top), to)
        self._seating.named(to)

    def _wants_to_know(self, heir: int) -> bool:
        return self._state(heir) == ASKING and self._words[self.page.seat(heir) + KEEN] != 0

    def _state(self, number: int) -> int:
        return self._words[self.page.seat(number) + STATE]


def open_lane(name: str, seats: int = MOST_SEATS) -> LaneToken:
    """Return a new lane."""
    return LaneToken(name, SharedPage.make(seats), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
