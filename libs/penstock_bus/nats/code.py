"""
The files of folders in which jobs run, over NATS: a message for each part, under its own subject.

Parts are stored in atomic batches, of which the server syncs each once, and read by direct gets of many subjects at a
time. What there is, and what changes under its subject, is asked of the stream's leader, so that it is never stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock_bus.compat import aclosing
from penstock_bus.nats import direct_get
from penstock_bus.nats.atomic_batch import send_batch
from penstock_bus.nats.link import PAUSE_S, TRY_S, ConnectionLost, Link, NatsClient, ReplyRow, fault
from penstock_bus.port import CodePort, Timeout, Unauthorized, Unavailable
from penstock_log import subjects as names

_SIDE_BY_SIDE: Final = 32
_TOGETHER: Final = 500
"""Parts of a batch; a server takes a thousand."""
_ASKED: Final = 128
"""Subjects of one get."""
_ASKED_BYTES: Final = 8 << 20
_LISTED: Final = 100_000
"""Subjects that a server lists in one answer."""


class NatsCodeClient(NatsClient, CodePort):
    """Parts of code: stored, read, listed, removed."""

    async def put_code(self, items: Sequence[tuple[str, bytes]]) -> None:
        by_subject = list(dict(items).items())
        for some in _groups(by_subject, _TOGETHER):
            if len(some) == 1 or not await self._put_batch(some):
                await self._put_each(some)

    async def _put_batch(self, items: Sequence[tuple[str, bytes]]) -> bool:
        """Store parts as one batch; False where the server refuses it, such as one that takes none."""
        messages = [(subject, body, dict[str, str]()) for subject, body in items]
        for subject, body, _ in messages:
            self.link.check_size(subject, body)
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.link.timeout_s
        while True:
            try:
                await self.link.online(max(end_s - clock(), 0.0))
                return (await send_batch(self.link, self.new_id(), messages)).error is None
            except (ConnectionLost, Timeout):  # the same parts again do no harm
                if clock() >= end_s:
                    raise

    async def _put_each(self, items: Sequence[tuple[str, bytes]]) -> None:
        async def put(subject: str, body: bytes) -> None:
            ack = await self.link.store(subject, body, {})
            if ack.error is not None:
                raise fault(f"a part of the code on {subject}", ack.error)

        for some in _groups(items, _SIDE_BY_SIDE):
            await asyncio.gather(*(put(*item) for item in some))

    async def get_code(self, subjects: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for some in _groups(subjects, _ASKED):
            found |= await self._get(some)
        return found

    async def _get(self, subjects: Sequence[str]) -> dict[str, bytes]:
        """Return what is there of some subjects; asked again for the rest where the connection breaks."""
        clock = asyncio.get_running_loop().time
        end_s, found = clock() + self.link.timeout_s, dict[str, bytes]()
        while missing := [subject for subject in subjects if subject not in found]:
            await self.link.online(max(end_s - clock(), 0.0))
            before = len(found)
            try:
                async with aclosing(_newest_of_each(self.link, missing)) as messages:
                    async for message in messages:
                        found[message.subject] = message.body
            except (TimeoutError, Unavailable) as error:
                if clock() >= end_s:
                    raise Unavailable(f"cannot read the code: {str(error) or 'no answer'}") from error
                await asyncio.sleep(PAUSE_S)
                continue
            if len(found) == before:
                break  # the others are not there
        return found

    async def newest_code(self, subjects: Sequence[str]) -> dict[str, bytes]:
        async def get(subject: str) -> direct_get.StreamMessage | None:
            return await direct_get.from_leader(self.link, names.CODE, {"last_by_subj": subject})

        found: dict[str, bytes] = {}
        for some in _groups(subjects, _SIDE_BY_SIDE):
            messages = await asyncio.gather(*map(get, some))
            found |= {message.subject: message.body for message in messages if message is not None}
        return found

    async def list_code(self, pattern: str) -> list[str]:
        found: list[str] = []
        while True:
            ask = {"subjects_filter": pattern, "offset": len(found)}
            info = await self.link.api(f"STREAM.INFO.{names.CODE}", ask)
            some = info["state"].get("subjects") or {}
            found += some
            if len(some) < _LISTED:
                return found

    async def remove_code(self, subjects: Sequence[str]) -> None:
        async def remove(subject: str) -> None:
            await self.link.api(f"STREAM.PURGE.{names.CODE}", {"filter": subject})

        for some in _groups(subjects, _SIDE_BY_SIDE):
            await asyncio.gather(*map(remove, some))


def _groups(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + most] for at in range(0, len(items), most))


async def _newest_of_each(link: Link, subjects: Sequence[str]) -> AsyncGenerator[direct_get.StreamMessage, None]:
    """Yield the newest message of each subject, as many as one batch holds."""
    call = link.replies.open(ReplyRow, f"$JS.API.DIRECT.GET.{names.CODE}")
    try:
        await link.send(call, msgspec.json.encode({"multi_last": list(subjects), "max_bytes": _ASKED_BYTES}))
        while (msg := await call.next(TRY_S)).headers and "Status" not in msg.headers:
            yield direct_get.of_message(msg)
    finally:
        link.replies.close(call)
    end = msg.headers or {}
    status = end.get("Status", "")
    if status == direct_get.REFUSED:
        raise Unauthorized(end.get("Description", "this may not be read"))
    if status not in direct_get.ENDS:
        raise Unavailable(end.get("Description") or status or "no answer")
