"""Appending to the log: one commit, or many with a window of open acknowledgements."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock_bus.nats import get
from penstock_bus.nats.faults import NOT_YET, WRONG_LAST_SEQUENCE, Lost, fault
from penstock_bus.nats.link import PAUSE_S, TRY_S, Ack, Link, decode_ack
from penstock_bus.nats.replies import One
from penstock_bus.port import Append, Conflict, Unavailable
from penstock_events import encode
from penstock_events import subjects as names

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
WINDOW: Final = 1024

_NOBODY: Final = 0  # the code of the refusal that stands for "no stream answered"
_AGAIN: Final = NOT_YET | {_NOBODY}


def headers_of(item: Append) -> dict[str, str]:
    """Return what NATS itself reads of a commit."""
    if item.expected is None:
        return {MSG_ID: item.commit.id}
    return {MSG_ID: item.commit.id, EXPECTED: str(item.expected)}


async def append(link: Link, item: Append) -> int:
    """Append one commit."""
    ack = await link.store(item.subject, encode(item.commit), headers_of(item))
    return ack.seq if ack.error is None else await settled(link, item, ack)


async def settled(link: Link, item: Append, ack: Ack) -> int:
    """
    Return the sequence that an acknowledgement gives, looking closer where it is a refusal.

    After a retry the server may say "wrong last sequence" of one's own message: the first message behind the
    expected sequence tells.
    """
    if ack.error is None:
        return ack.seq
    if ack.error.err_code not in WRONG_LAST_SEQUENCE or item.expected is None:
        raise fault(f"append to {item.subject}", ack.error)
    request = {"seq": item.expected + 1, "next_by_subj": item.subject}
    rival = await get.from_leader(link, names.EVT, request)
    if rival is not None and rival.headers.get(MSG_ID) == item.commit.id:
        return rival.seq
    raise Conflict(item.subject, item.expected)


class Window:
    """
    Many commits on their way at once.

    Commits of one subject never overtake each other, even over a disconnect: the next is sent when the one before is
    acknowledged.
    """

    def __init__(self, link: Link, items: Sequence[Append]) -> None:
        """Prepare the commits."""
        self._link = link
        self._items = items
        self._bodies = [encode(item.commit) for item in items]
        self._seqs = [0] * len(items)
        self._open: deque[tuple[int, One]] = deque()
        self._subjects: dict[str, One] = {}
        self._again: list[int] = []

    async def run(self) -> list[int]:
        """Append all; after a loss, send what is not acknowledged again in the same order under the same ids."""
        for item, body in zip(self._items, self._bodies, strict=True):
            self._link.check_size(item.subject, body)
        clock = asyncio.get_running_loop().time
        todo, end_s = list(range(len(self._items))), clock() + self._link.timeout_s
        while todo:
            await self._link.online(max(end_s - clock(), 0.0))
            await self._round(todo)
            if len(self._again) < len(todo):
                end_s = clock() + self._link.timeout_s
            elif clock() >= end_s:
                raise Unavailable(f"{len(todo)} commits were not acknowledged; try again with the same ids")
            todo, self._again = self._again, []
            if todo:
                await asyncio.sleep(PAUSE_S)
        return self._seqs

    async def _round(self, todo: list[int]) -> None:
        try:
            for position, i in enumerate(todo):
                await self._make_way(self._items[i].subject)
                if self._again or not await self._send(i):
                    await self._settle_all()
                    self._again = sorted({*self._again, *todo[position:]})
                    return
            await self._settle_all()
        finally:
            for _, call in self._open:
                self._link.replies.close(call)
            self._open.clear()
            self._subjects.clear()

    async def _make_way(self, subject: str) -> None:
        before = self._subjects.get(subject)
        while self._open and (len(self._open) >= WINDOW or (before is not None and not before.future.done())):
            await self._settle()

    async def _send(self, i: int) -> bool:
        item = self._items[i]
        call = self._link.replies.one(item.subject)
        self._open.append((i, call))
        self._subjects[item.subject] = call
        try:
            await self._link.send(call, self._bodies[i], headers_of(item))
        except Lost:
            return False
        return self._link.is_online

    async def _settle_all(self) -> None:
        while self._open:
            await self._settle()

    async def _settle(self) -> None:
        """Take the oldest acknowledgement; once one is overdue the others are not waited for."""
        i, call = self._open.popleft()
        try:
            if not call.future.done():
                async with asyncio.timeout(0 if self._again else TRY_S):
                    await asyncio.shield(call.future)
            ack = decode_ack(call.future.result())
        except (TimeoutError, Lost):
            self._again.append(i)
            return
        finally:
            self._link.replies.close(call)
        if ack.error is not None and ack.error.err_code in _AGAIN:
            self._again.append(i)
            return
        self._seqs[i] = ack.seq if ack.error is None else await settled(self._link, self._items[i], ack)
