"""A semaphore that serves its users in turn, and gives none of them more than so many slots."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Optional


class FairSemaphore:
    """
    A semaphore that serves its users in turn (round robin, Nagle 1987).

    A slot that becomes free goes to the user who has waited longest for a turn, and to the oldest of this user's
    waiters. So a user with one waiter waits for one of each other user, however many those have.

    Parameters
    ----------
    slots : int
        Slots of all users.
    each : int, optional
        Slots that one user holds at most; a user who holds them for long leaves the rest to others. None: all.
    """

    def __init__(self, slots: int, each: Optional[int] = None) -> None:
        self._free, self._each = slots, slots if each is None else each
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, user: str) -> None:
        """Wait for a slot."""
        if self._free and self._may_hold_more(user) and user not in self._waiting:
            self._take(user)  # others who wait while a slot is free hold all that they may
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled() and slot.exception() is None:
                self.release(user)  # it came in the moment in which the waiter gave up
            raise

    def release(self, user: str) -> None:
        """Give a user's slot to the next who waits, or keep it free."""
        self._free += 1
        if self._held[user] == 1:
            del self._held[user]
        else:
            self._held[user] -= 1
        while self._free and (next_user := self._next_user()) is not None:
            waiters = self._waiting.pop(next_user)
            slot = waiters.popleft()
            if waiters:
                self._waiting[next_user] = waiters  # behind all others
            if not slot.done():
                self._take(next_user)
                slot.set_result(None)

    def fail(self, error: Callable[[], Exception]) -> None:
        """End all waiters with an error."""
        for waiters in self._waiting.values():
            for slot in waiters:
                if not slot.done():
                    slot.set_exception(error())
        self._waiting.clear()

    def _next_user(self) -> Optional[str]:
        return next((user for user in self._waiting if self._may_hold_more(user)), None)

    def _may_hold_more(self, user: str) -> bool:
        return self._held.get(user, 0) < self._each

    def _take(self, user: str) -> None:
        self._free -= 1
        self._held[user] = self._held.get(user, 0) + 1
