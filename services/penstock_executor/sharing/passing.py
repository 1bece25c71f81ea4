"""
Who has the token of each lane, as the pages tell it, and what that means for turns. Pure.

Tokens are ahead of what is known here: those of runs of one process go straight from one to the next. So somebody may
have a turn who was next a moment ago and is not any more. Such a *stray* gives the token back after one iteration, and
until then the board is left in the belief that it is the turn of whoever gave it. Tokens of gangs come from the keeper
and go back to it, so that none of a gang is ever astray.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_executor.sharing.party import Party, Place
from penstock_executor.sharing.table import Table
from penstock_lanes.wire import Who


@dataclass(frozen=True, slots=True)
class Stray:
    """
    Somebody who has the token in another's place.

    Attributes
    ----------
    who : Who
    of : Party or None
        Whose turn goes on, by the board, until it comes back: that one had the token before. None: nobody's.
    """

    who: Who
    of: Party | None


class Passing:
    """
    The tokens of a node's lanes.

    Attributes
    ----------
    tokens : dict of Place to Who
        Who has the token of a lane; without those that the keeper has.
    strays : dict of Place to Stray
    """

    def __init__(self, table: Table) -> None:
        self.tokens: dict[Place, Who] = {}
        self.strays: dict[Place, Stray] = {}
        self._table = table

    def passed(self, place: Place, giver: Who | None, taker: Who | None) -> None:
        """The token of a lane went from one to another; None is the keeper."""
        self._table.orders.touched.add(place)
        self.tokens.pop(place, None)
        if taker is not None:
            self.tokens[place] = taker
        stray = self.strays.get(place)
        if giver is not None and stray is not None and stray.who == giver:
            self._stray_home(place, stray)
            giver = None
        if giver is not None and taker is not None:
            if not self._hands_on(place, giver, taker):
                self._stray(place, giver, taker)
        elif giver is not None:
            self._gave(place, giver)
        elif taker is not None:
            self._has(place, taker)

    def held(self, party: Party, rank: int) -> list[Place]:
        """Return the lanes whose token a process has: one on several devices takes and gives them one by one."""
        who = party.who(rank)
        return [place for place in party.seats_of(rank) if self.tokens.get(place) == who]

    def is_taking(self, party: Party, rank: int) -> bool:
        """
        Whether a process asks for the lanes of its devices one after the other, for the turn that it has.

        Not so if it has given that of its first device back: that it has given the others will be heard after this.
        """
        if rank not in party.let or len(party.sharer.ranks[rank]) == 1:
            return False
        held = self.held(party, rank)
        return not held or min(place.device for place in held) == min(party.sharer.ranks[rank])

    def is_clear(self, party: Party) -> bool:
        """Whether a run can begin its turn on all of its devices, or has: no stray has the token of one of them."""
        return not any(place in self.strays for place in party.places) or any(
            self.held(party, rank) for rank in party.let
        )

    def home(self, giver: Who) -> None:
        """A process has given a token back, or is gone: when the last of its run has none, the turn is over."""
        party = self._table.party(giver)
        if party is None or giver.rank not in party.let or self.held(party, giver.rank):
            return
        party.let.discard(giver.rank)
        if not party.let and self._table.in_turn(party):
            self._table.end(party)

    def forget(self, job_id: str) -> None:
        """A run is over: what it had in another's place has come home, though the page may tell so only later."""
        for place, stray in list(self.strays.items()):
            if stray.who.job_id == job_id:
                self._stray_home(place, stray)

    def _gave(self, place: Place, giver: Who) -> None:
        party = self._table.party(giver)
        if party is not None and place in party.seats_of(giver.rank):  # else it is named elsewhere by now
            self.home(giver)

    def _hands_on(self, place: Place, giver: Who, taker: Who) -> bool:
        """Take in that a turn was handed straight on; False where the board would not have it."""
        table = self._table
        party, heir = table.holder(place), table.party(taker)
        if party is None or heir is None or party is not table.party(giver) or party.pending is not None:
            return False
        if not (party.alone and heir.alone and heir.lanes.get(place.device) == place.lane):
            return False
        party.let.clear()
        told = table.gangs.passed(giver.job_id, taker.job_id, table.now_s)
        table.begin(heir)
        table.let(heir, {taker.rank})
        table.digest(told)
        return True

    def _stray(self, place: Place, giver: Who, taker: Who) -> None:
        """A turn was handed to somebody whom the board would not have; or to whom it is giving it just now."""
        holder = self._table.holder(place)
        if holder is None or holder is not self._table.party(taker) or taker.rank not in holder.let:
            self.strays[place] = Stray(taker, of=holder if holder is self._table.party(giver) else None)

    def _has(self, place: Place, taker: Who) -> None:
        """A process has the token: as it should; or in place of whoever should, since it was named before."""
        party = self._table.party(taker)
        if party is not None and taker.rank in party.let:
            return
        holder = self._table.holder(place)
        if holder is not None and holder.alone and self._hands_on(place, holder.whos_on(place.device)[0], taker):
            holder.asking |= holder.joined
            self._table.want(holder)
        else:
            self.strays[place] = Stray(taker, of=None)

    def _stray_home(self, place: Place, stray: Stray) -> None:
        """
        Whoever had the token in somebody's place has given it back: now that one's turn is over, or begins.

        Only if it is that one's still: it may have left meanwhile, and another's, who has not had the token yet, begun.
        """
        del self.strays[place]
        party = self._table.holder(place)
        if party is not None and party is stray.of and party.alone and self._table.in_turn(party):
            self._table.end(party)
