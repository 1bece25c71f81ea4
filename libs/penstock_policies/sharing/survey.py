"""How the shared devices that a job accepts stand for it, to say why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock_policies.sharing.devices import Shared
from penstock_policies.sharing.near import key_of
from penstock_policies.sharing.tenants import Tenant


@dataclass(frozen=True)
class Survey:
    """
    What there is.

    Attributes
    ----------
    number : int
        Shared devices that the job accepts, whoever shares them.
    refusals : mapping of str to int
        Reason → how many of them keep the job away for it.
    most : Shared or None
        Of those that do not, the one with most room.
    """

    number: int
    refusals: Mapping[str, int]
    most: Shared | None


def survey(there: Iterable[Shared], tenant: Tenant, number: int) -> Survey:
    """
    Return how things stand for a job.

    Parameters
    ----------
    there : iterable of Shared
        The devices that are near it; of the others, all is said by how many they are.
    number : int
        With the others.
    """
    refused = [(shared, shared.refuses(tenant)) for shared in there]
    refusals = Counter(why for _, why in refused if why)
    if number > len(refused):
        refusals["with jobs that it may not share with"] += number - len(refused)
    open_to = (shared for shared, why in refused if not why)
    return Survey(
        number, refusals, max(open_to, key=lambda shared: (shared.room_bytes, key_of(shared.at)), default=None)
    )
