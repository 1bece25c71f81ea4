"""
What this node's clients have borrowed, and from whom.

A slab is looked for among the donors that were heard of late: two by chance, those that lend to the client already only
where there are no others, and the one of both with more free memory lends it. The borrower renews its clients' leases
at their donors; where a donor has one no more, or answers no more, the client is told that the slab goes.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import structlog

from penstock_bus.port import BusError
from penstock_log.memory_messages import (
    COPIES,
    LEASE_S,
    AgentWelcome,
    BorrowSlab,
    CheckActivity,
    CopiesKept,
    CopiesPlaced,
    CopyFound,
    EvictSlab,
    EvictSlabs,
    FindCopy,
    FindKept,
    KeepCopies,
    KeepSlabs,
    LeasesGone,
    MapSlab,
    NoCopies,
    PlaceCopies,
    QuerySlabs,
    RenewSlabs,
    SlabActivity,
    SlabAddress,
    SlabLent,
    SlabOffer,
    SlabRefused,
    SlabsFree,
    SlabUse,
    ToClient,
    UnmapSlabs,
)
from penstock_memory.client_listener import LocalClient
from penstock_memory.donor import AskAgent
from penstock_memory.machine import MemorySettings
from penstock_policies.slabs import better_donor, donor_choices

HEARD_S: Final = 5.0
"""A donor that was not heard of for so long is not asked."""
QUERY_S: Final = 1.0
MAP_S: Final = 3.0
RENEW_ANSWER_S: Final = 2.0
PLACED: Final = 1 << 40
"""The number of the first slab of a client's copies; it may call others by any number below."""
MOST_RENEWED: Final = 10_000
"""Leases in one request: 350 KB."""
_log = structlog.get_logger("penstock.memory")


class HeardOffer(msgspec.Struct, frozen=True):
    """What a donor last said, and when, in seconds that never jump."""

    offer: SlabOffer
    heard_s: float


class Loan:
    """
    A slab that a client has borrowed.

    Attributes
    ----------
    slab : int
        The client's number of it.
    activity : float
        Pages a second, as the client last said.
    renewed_s : float
        When its donor last confirmed the lease.
    going : bool
        Whether the donor takes it, or has taken it: then it is not told that the slab comes back.
    left : asyncio.Event
        Set once the client uses it no more.
    """

    def __init__(self, client: LocalClient, slab: int, address: SlabAddress, now_s: float) -> None:
        self.client, self.slab, self.address, self.renewed_s = client, slab, address, now_s
        self.activity, self.going = 0.0, False
        self.left = asyncio.Event()


class Search:
    """A slab that is looked for, until it is a :class:`Loan`."""


class Placed(NamedTuple):
    """The slabs that a client has for copies of a checkpoint, by copy, and the bytes of one."""

    size: int
    copies: tuple[tuple[SlabAddress, ...], ...]


class NoDonor(Exception):
    """Nobody lends a slab now; the message says why."""


class Borrower:
    """
    The agent of one node's clients, as a :class:`~penstock_memory.client_listener.ClientHandler`.

    Parameters
    ----------
    ask : AskAgent
    spawn : callable
        Has a coroutine run beside everything else.
    """

    def __init__(
        self,
        node_id: str,
        settings: MemorySettings,
        *,
        ask: AskAgent,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        ticking: Callable[[], float],
        rng: np.random.Generator,
    ) -> None:
        self._node_id, self._settings = node_id, settings
        self._ask, self._spawn, self._ticking, self._rng = ask, spawn, ticking, rng
        self._loans: dict[str, Loan] = {}
        self._of_client: defaultdict[LocalClient, dict[int, Loan | Search]] = defaultdict(dict)
        self._placed: dict[LocalClient, Placed] = {}
        self.heard: dict[str, HeardOffer] = {}

    def hear(self, node_id: str, offer: SlabOffer) -> None:
        """Take note of what a donor says."""
        self.heard[node_id] = HeardOffer(offer, self._ticking())

    # --- what clients ask
    def welcome(self) -> AgentWelcome:
        """Return what a client is told at first."""
        return AgentWelcome(node_id=self._node_id, slab_bytes=self._settings.slab_bytes)

    def borrow(self, client: LocalClient, asked: BorrowSlab) -> Coroutine[Any, Any, ToClient]:
        """
        Return what finds a slab for a client.

        That the client has asked is noted at once, so that a return which comes right after it is not missed.
        """
        slabs = self._of_client[client]
        why = self._over_limit(client)
        if asked.slab in slabs:
            why = f"slab {asked.slab} is borrowed already; return it first"
        search = Search()
        if not why:
            slabs[asked.slab] = search
        return self._borrow(client, asked, search, why)

    async def _borrow(self, client: LocalClient, asked: BorrowSlab, search: Search, why: str) -> ToClient:
        if why:
            return SlabRefused(slab=asked.slab, reason=why)
        slabs, address = self._of_client[client], None
        try:
            address = await self._find(client, asked)
        except NoDonor as error:
            why = str(error)
        finally:
            wanted = slabs.get(asked.slab) is search and not client.gone
            if wanted:
                del slabs[asked.slab]
        if address is None:
            return SlabRefused(slab=asked.slab, reason=why)
        if not wanted:
            self._spawn(self._unmap(address.donor, [address.lease]))
            return SlabRefused(slab=asked.slab, reason="it was returned before it was lent")
        loan = Loan(client, asked.slab, address, self._ticking())
        slabs[asked.slab] = self._loans[address.lease] = loan
        return SlabLent(slab=asked.slab, address=address)

    def give_back(self, client: LocalClient, slab: int) -> None:
        """Take note that a client uses a slab no more."""
        loan = self._of_client[client].pop(slab, None)
        if isinstance(loan, Loan):
            self._end([loan])

    def note_use(self, client: LocalClient, use: SlabUse) -> None:
        """Take note of how a client uses its slabs."""
        for slab, activity in use.activity.items():
            loan = self._of_client[client].get(slab)
            if isinstance(loan, Loan) and activity >= 0:
                loan.activity = activity

    def give_back_all(self, client: LocalClient) -> None:
        """Take note that a client is gone."""
        self._placed.pop(client, None)
        self._end([loan for loan in self._of_client.pop(client, {}).values() if isinstance(loan, Loan)])

    def _end(self, loans: Iterable[Loan]) -> None:
        back: defaultdict[str, list[str]] = defaultdict(list)
        for loan in loans:
            loan.left.set()
            self._loans.pop(loan.address.lease, None)
            if not loan.going:
                back[loan.address.donor].append(loan.address.lease)
        for donor, leases in back.items():
            self._spawn(self._unmap(donor, leases))

    async def _unmap(self, donor: str, leases: list[str]) -> None:
        try:
            await self._ask(donor, UnmapSlabs(leases=tuple(leases)), LeasesGone, RENEW_ANSWER_S)
        except BusError as error:  # nobody renews them, so the donor takes them back by itself
            _log.info("slabs_not_returned", donor=donor, count=len(leases), error=str(error))

    def _over_limit(self, client: LocalClient, more: int = 1) -> str:
        most = self._settings.user_bytes
        have = sum(len(slabs) for other, slabs in self._of_client.items() if other.uid == client.uid)
        if not most or (have + more) * self._settings.slab_bytes <= most:
            return ""
        return (
            f"{client.user} has borrowed {have} slabs on node {self._node_id}, and may have {most} bytes: "
            "user_bytes under [memory]"
        )

    # --- copies of checkpoints
    async def answer_copies(self, client: LocalClient, asked: PlaceCopies | KeepCopies | FindCopy) -> ToClient:
        """Answer a client about copies of a checkpoint."""
        try:
            match asked:
                case PlaceCopies():
                    return await self._place(client, asked)
                case KeepCopies():
                    return await self._keep(client, asked)
                case FindCopy():
                    return await self._find_copy(client, asked)
        except NoDonor as error:
            return NoCopies(reason=str(error))

    async def _place(self, client: LocalClient, asked: PlaceCopies) -> ToClient:
        self._drop_placed(client)
        count = max(1, -(-asked.size // self._settings.slab_bytes))
        if why := self._over_limit(client, COPIES * count):
            raise NoDonor(why)
        donors, problems = self._donors({self._node_id}), dict[str, str]()
        placed: list[list[SlabAddress]] = []
        while len(placed) < COPIES and (chosen := donor_choices(donors, (), self._rng)):
            free = await self._query(chosen, problems, least=count)
            best = better_donor(free)
            if best is not None and (addresses := await self._map_all(best, client, count, problems)):
                placed.append(addresses)
            for node_id in chosen:
                if node_id == best or node_id not in free:
                    del donors[node_id]
        addresses = [address for copy in placed for address in copy]
        if len(placed) < COPIES or client.gone:
            self._unmap_all(addresses)
            said = "; ".join(f"{node_id}: {why}" for node_id, why in sorted(problems.items()))
            raise NoDonor(
                f"a copy of {count} slabs on each of {COPIES} other nodes is wanted, and {len(placed)} can have one"
                f"{f' ({said})' if said else ''}"
            )
        loans = [Loan(client, PLACED + at, address, self._ticking()) for at, address in enumerate(addresses)]
        self._of_client[client] |= {loan.slab: loan for loan in loans}
        self._loans |= {loan.address.lease: loan for loan in loans}
        self._placed[client] = Placed(asked.size, tuple(map(tuple, placed)))
        return CopiesPlaced(copies=self._placed[client].copies)

    async def _map_all(
        self, donor: str, client: LocalClient, count: int, problems: dict[str, str]
    ) -> list[SlabAddress] | None:
        """Borrow so many slabs of one donor, or none."""
        answers = await asyncio.gather(*(self._map(donor, client) for _ in range(count)), return_exceptions=True)
        lent = [answer for answer in answers if isinstance(answer, SlabAddress)]
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if not failed:
            return lent
        self._unmap_all(lent)
        for error in failed:
            if not isinstance(error, BusError):
                raise error
        problems[donor] = str(failed[0])
        return None

    async def _keep(self, client: LocalClient, asked: KeepCopies) -> ToClient:
        placed = self._placed.pop(client, None)
        if placed is None:
            raise NoDonor("no copies were placed before")
        requests = [
            KeepSlabs(
                leases=tuple(address.lease for address in copy),
                size=placed.size,
                user=client.user,
                job_id=asked.job_id,
                generation=asked.generation,
                step=asked.step,
                digest=asked.digest,
            )
            for copy in placed.copies
        ]
        nodes = [copy[0].donor for copy in placed.copies]
        answers = await asyncio.gather(
            *(self._ask(node_id, each, LeasesGone, MAP_S) for node_id, each in zip(nodes, requests, strict=True)),
            return_exceptions=True,
        )
        self._forget_loans(client, [lease for each in requests for lease in each.leases])
        for node_id, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, BaseException):
                self._unmap_all([address for copy in placed.copies for address in copy])
                if not isinstance(answer, BusError):
                    raise answer
                raise NoDonor(f"node {node_id} does not keep its copy: {answer}")
        return CopiesKept(nodes=tuple(nodes))

    async def _find_copy(self, client: LocalClient, asked: FindCopy) -> ToClient:
        user = "" if client.uid in (0, os.geteuid()) else client.user
        request = FindKept(job_id=asked.job_id, step=asked.step, digest=asked.digest, user=user)
        problems = []
        for node_id in sorted(asked.nodes, key=lambda node_id: node_id != self._node_id):
            try:
                return await self._ask(node_id, request, CopyFound, QUERY_S)
            except BusError as error:
                problems.append(f"node {node_id}: {error}")
        raise NoDonor("; ".join(problems) or "no node is said to have a copy")

    def _drop_placed(self, client: LocalClient) -> None:
        """Give back what a client has placed and not had kept."""
        if (placed := self._placed.pop(client, None)) is not None:
            addresses = [address for copy in placed.copies for address in copy]
            self._forget_loans(client, [address.lease for address in addresses])
            self._unmap_all(addresses)

    def _forget_loans(self, client: LocalClient, leases: Iterable[str]) -> None:
        """Renew these leases no more."""
        for lease in leases:
            if (loan := self._loans.pop(lease, None)) is not None:
                loan.left.set()
                self._of_client[client].pop(loan.slab, None)

    def _unmap_all(self, addresses: Iterable[SlabAddress]) -> None:
        back: defaultdict[str, list[str]] = defaultdict(list)
        for address in addresses:
            back[address.donor].append(address.lease)
        for donor, leases in back.items():
            self._spawn(self._unmap(donor, leases))

    # --- looking for a donor
    async def _find(self, client: LocalClient, asked: BorrowSlab) -> SlabAddress:
        donors = self._donors({*asked.avoid, *((self._node_id,) if asked.elsewhere else ())})
        loans = self._of_client[client].values()
        lending = {loan.address.donor for loan in loans if isinstance(loan, Loan)}
        problems: dict[str, str] = {}
        while chosen := donor_choices(donors, lending, self._rng):
            free = await self._query(chosen, problems)
            while (best := better_donor(free)) is not None:
                try:
                    return await self._map(best, client)
                except BusError as error:
                    problems[best] = str(error)
                    del free[best]
            for node_id in chosen:
                del donors[node_id]
        said = "; ".join(f"{node_id}: {why}" for node_id, why in sorted(problems.items()))
        raise NoDonor(f"no node has memory to lend{f' ({said})' if said else ''}")

    def _donors(self, without: Collection[str]) -> dict[str, int]:
        """Return how many free slabs each donor has that was heard of late."""
        if not self._settings.lend_to_own_node:
            without = {*without, self._node_id}
        since_s = self._ticking() - HEARD_S
        return {
            node_id: max(0, heard.offer.offered - heard.offer.lent)
            for node_id, heard in self.heard.items()
            if heard.heard_s >= since_s
            and node_id not in without
            and heard.offer.slab_bytes == self._settings.slab_bytes
        }

    async def _query(self, chosen: Iterable[str], problems: dict[str, str], least: int = 1) -> dict[str, int]:
        request = QuerySlabs(slab_bytes=self._settings.slab_bytes)
        free: dict[str, int] = {}

        async def ask(node_id: str) -> None:
            try:
                answer = await self._ask(node_id, request, SlabsFree, QUERY_S)
            except BusError as error:
                problems[node_id] = str(error)
                return
            if answer.slabs >= least:
                free[node_id] = max(1, answer.free_bytes)

        await asyncio.gather(*map(ask, chosen))
        return free

    async def _map(self, donor: str, client: LocalClient) -> SlabAddress:
        job_id = client.hello.job_id if client.hello is not None else ""
        request = MapSlab(slab_bytes=self._settings.slab_bytes, borrower=self._node_id, user=client.user, job_id=job_id)
        return await self._ask(donor, request, SlabAddress, MAP_S)

    # --- what donors ask, and what becomes of leases
    async def answer(self, request: CheckActivity | EvictSlabs) -> SlabActivity | LeasesGone:
        """Answer a donor; about an eviction, once the clients have left the slabs, or after the time that it gives."""
        loans = {lease: loan for lease in request.leases if (loan := self._loans.get(lease)) is not None}
        match request:
            case CheckActivity():
                return SlabActivity(activity={lease: loan.activity for lease, loan in loans.items()})
            case EvictSlabs():
                for loan in loans.values():
                    self._lose(loan, request.reason)
                waits = [asyncio.ensure_future(loan.left.wait()) for loan in loans.values()]
                if waits:
                    _, late = await asyncio.wait(waits, timeout=min(max(request.within_s, 0.0), LEASE_S))
                    for wait in late:
                        wait.cancel()
                return LeasesGone(
                    leases=tuple(lease for lease in request.leases if lease not in loans or loans[lease].left.is_set())
                )

    async def renew(self) -> None:
        """Renew all leases at their donors, once; tell clients which slabs go."""
        by_donor: defaultdict[str, list[Loan]] = defaultdict(list)
        for loan in self._loans.values():
            by_donor[loan.address.donor].append(loan)
        await asyncio.gather(
            *(
                self._renew_at(donor, loans[begin : begin + MOST_RENEWED])
                for donor, loans in by_donor.items()
                for begin in range(0, len(loans), MOST_RENEWED)
            )
        )
        since_s = self._ticking() - LEASE_S
        for loan in [loan for loan in self._loans.values() if loan.renewed_s < since_s]:
            self._lose(loan, f"node {loan.address.donor} does not answer")

    async def _renew_at(self, donor: str, loans: list[Loan]) -> None:
        asked_s = self._ticking()
        request = RenewSlabs(leases=tuple(loan.address.lease for loan in loans))
        try:
            answer = await self._ask(donor, request, LeasesGone, RENEW_ANSWER_S)
        except BusError as error:
            _log.info("slabs_not_renewed", donor=donor, count=len(loans), error=str(error))
            return
        gone = set(answer.leases)
        for loan in loans:
            loan.renewed_s = asked_s
            if loan.address.lease in gone and not loan.left.is_set():
                self._lose(loan, f"node {donor} has it no more")

    def _lose(self, loan: Loan, reason: str) -> None:
        """Tell a client once that a slab goes; it answers by returning it, and may then ask for another one."""
        if loan.going:
            return
        loan.going = True
        self._loans.pop(loan.address.lease, None)
        loan.client.send(EvictSlab(slab=loan.slab, reason=reason))
