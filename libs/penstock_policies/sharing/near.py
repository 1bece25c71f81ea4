"""The shared devices of a pool as a round changes them, by whose jobs may join them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain

from penstock_policies.placement import Located
from penstock_policies.sharing.devices import Shared
from penstock_policies.sharing.tenants import Party, Tenant

At = tuple[str, int]
"""A node's id and the number of one of its devices."""


class Near:
    """
    Shared devices, so that a job need not look at those of other teams.

    A device that all share with anyone is near everybody who does so too; one on which all are of one team is near the
    jobs of this team. No other is near anybody: whoever shares has to suit all.

    Parameters
    ----------
    devices : mapping of At to Shared

    Attributes
    ----------
    opened : list of At
        Those that were opened since, in order.
    """

    def __init__(self, devices: Mapping[At, Shared]) -> None:
        self._devices = devices
        self._changed: dict[At, Shared] = {}
        self.opened: list[At] = []
        self._of_team: defaultdict[str, dict[At, None]] = defaultdict(dict)
        self._of_anyone: dict[At, None] = {}
        self._most: dict[tuple[str, bool], tuple[int, int]] = {}
        for at, shared in devices.items():
            self._file(at, shared)

    def __len__(self) -> int:
        return len(self._devices) + len(self.opened)

    def __contains__(self, at: At) -> bool:
        return at in self._devices or at in self._changed

    def __getitem__(self, at: At) -> Shared:
        return self._changed.get(at) or self._devices[at]

    def __iter__(self) -> Iterator[Shared]:
        return (self[at] for at in chain(self._devices, self.opened))

    def put(self, shared: Shared) -> None:
        """Note that a device has one more job, or has been opened."""
        at = key_of(shared.at)
        if at not in self._devices and at not in self._changed:
            self.opened.append(at)
            self._file(at, shared)
            self._most.clear()
        self._changed[at] = shared

    def to(self, party: Party, since: int = 0) -> Iterator[Shared]:
        """Yield the devices that are near; with ``since``, of those only that were opened after as many others."""
        team = self._of_team.get(party.team, {})
        if since:
            return (self[at] for at in self.opened[since - 1 :])
        others = (at for at in self._of_anyone if at not in team) if party.share_with == "anyone" else ()
        return (self[at] for at in chain(list(team), others))

    def could(self, tenant: Tenant) -> bool:
        """Say whether any device that is near may have room for a job: none has if this says so."""
        party, need = tenant.party, tenant.need
        if tenant.mode == "fraction" or need is None:
            return True
        near = party.team, party.share_with == "anyone"
        if near not in self._most:  # devices only fill up from now on
            loads = [shared.load for shared in self.to(party)]
            lane = max((load.usable_bytes - load.resident_bytes for load in loads), default=-1)
            self._most[near] = max((load.room_bytes for load in loads), default=-1), lane
        room_bytes, lane_bytes = self._most[near]
        return need.resident_bytes <= room_bytes and need.alone_bytes <= lane_bytes

    def changed(self, at: At) -> bool:
        """Say whether a device has one more job by now."""
        return at in self._changed

    def _file(self, at: At, shared: Shared) -> None:
        teams = {party.team for party in shared.parties}
        if len(teams) == 1:
            self._of_team[teams.pop()][at] = None
        if all(party.share_with == "anyone" for party in shared.parties):
            self._of_anyone[at] = None


def key_of(located: Located) -> At:
    """Return a device's node and number."""
    return located[0], located[1].index
