"""What the page of a lane should say: who has the token, who has it next, and when. Pure."""

from __future__ import annotations

from typing import Final

from penstock_executor.sharing.orders import Wish
from penstock_executor.sharing.party import Party, Place
from penstock_executor.sharing.table import Table
from penstock_lanes.wire import Who

GANG_TURN_S: Final = 0.015
"""The shortest turn of a gang: its turns go through the executor, which takes some 300 microseconds, 2 % of this."""


def wish(table: Table, place: Place, least_turn_s: float) -> Wish:
    """
    Return what a lane's page should say now, by its board and the runs in it.

    A run of one process on one device hands its turn on by itself, to whoever its board says is next. All else comes
    home first: the turns of gangs, turns after which a lane changes, and those of runs that have turned out to need
    something else.

    Parameters
    ----------
    least_turn_s : float
        The shortest turn, such that handing over costs little of it.
    """
    party = table.holder(place)
    if party is None or not table.in_turn(party):
        return Wish()
    holder = next((who for who in party.whos_on(place.device) if who.rank in party.let), None)
    if holder is None:
        return Wish()
    if party.pending is not None:
        return Wish(holder, recall=party.alone or table.ends(party))
    if not party.known:  # nobody else has a turn before it is known what it needs
        return Wish(holder)
    if not party.alone:
        return Wish(holder, recall=table.ends(party), not_before_s=party.turn_s + max(GANG_TURN_S, least_turn_s))
    return _handed_on(table, place, party, holder, least_turn_s)


def _handed_on(table: Table, place: Place, party: Party, holder: Who, least_turn_s: float) -> Wish:
    ahead = table.boards[place.device].ahead(party.job_id, party.turn_s)
    if ahead is None:
        return Wish(holder, recall=table.is_due(place))
    heir = table.parties[ahead.job_id]
    if not heir.alone or not heir.known or heir.pending is not None:
        return Wish(holder, recall=True)
    (after,) = heir.whos_on(place.device)
    return Wish(holder, after, turn_s=max(ahead.lead_s, least_turn_s))
