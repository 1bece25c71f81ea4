"""The work queue: one durable consumer for each queue, shared by its workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg

from penstock_bus.compat import aclosing
from penstock_bus.logger import get_logger
from penstock_bus.nats.consumer import ConsumerPull, ConsumerStalled, consume, deliveries, position
from penstock_bus.nats.link import ServerRefusal, fault
from penstock_bus.nats.log import MSG_ID, NatsLogClient
from penstock_bus.port import AHEAD, BusError, Rejection, StorageFull, Unavailable, Work, WorkPort
from penstock_bus.stored_messages import undeliverable
from penstock_log import subjects as names

_AHEAD: Final = 64
_PER_SUBJECT: Final = "per subject"
"""What the server's refusal says where one subject has too many messages; it has no code of its own."""
_PAUSE_S: Final = 0.05
_S: Final = 10**9

_log = get_logger("penstock.bus")


class NatsWork(Work):
    """One delivery of a message of the work queue."""

    def __init__(self, client: NatsLogClient, msg: Msg) -> None:
        self.seq = position(msg.reply)[0]
        self.user, self.subject = names.asked_by(msg.subject)
        self.body = msg.data
        self._client = client
        self.deliveries, _ = deliveries(msg.reply)
        self._reply = msg.reply

    async def ack(self) -> None:
        await self._client.link.patiently(self._reply, b"+ACK")

    async def retry(self, delay_s: float = 0.0) -> None:
        delay = msgspec.json.encode({"delay": int(delay_s * _S)}) if delay_s > 0 else b""
        await self._client.link.patiently(self._reply, b"-NAK " + delay)

    async def reject(self, reason: str) -> None:
        what = self.subject.rpartition(".")[2]
        by = f" by {self.user}" if self.user else ""
        rejection = Rejection(reason=reason, origin=f"{names.INBOX} {self.subject}{by}", body=self.body)
        await self._client.reject(what, rejection)
        await self._client.link.patiently(self._reply, b"+TERM")

    async def hold(self) -> None:
        link = self._client.link
        with suppress(nats.errors.Error, OSError):
            if link.is_online:
                await link.client.publish(self._reply, b"+WPI")


class NatsWorkClient(NatsLogClient, WorkPort):
    """The work queue."""

    async def submit(self, subject: str, body: bytes) -> None:
        ack = await self.link.store(subject, body, {MSG_ID: self.new_id()})
        if ack.error is not None and _PER_SUBJECT in ack.error.description:
            raise StorageFull(
                "as many submissions as one user may have wait in the inbox already, and this one was not stored; try "
                "again once the gateway has taken some"
            )
        if ack.error is not None:
            raise fault(f"submission to {subject}", ack.error)

    async def work(self, queue: str, subjects: Sequence[str], ahead: int = AHEAD) -> AsyncIterator[Work]:
        while True:
            try:
                await self._create(queue, subjects, ahead)
                async with consume(self.link, names.INBOX, queue, _AHEAD, self._leave) as pull:
                    while True:
                        async with aclosing(self._each(pull, await pull.take())) as each:
                            async for work in each:
                                yield work
            except (ConsumerStalled, Unavailable) as reason:
                _log.info("consumer_made_again", stream=names.INBOX, queue=queue, reason=str(reason))
            await self.link.online()
            await asyncio.sleep(_PAUSE_S)

    async def _each(self, pull: ConsumerPull, taken: list[Msg]) -> AsyncGenerator[Work, None]:
        """Yield what was taken; keep the rest alive meanwhile, and give it back if nobody wants it."""
        waiting = deque(NatsWork(self, msg) for msg in taken)
        holding = asyncio.create_task(self._hold(pull, waiting))
        try:
            while waiting:
                work = waiting.popleft()
                if work.deliveries > self.options.max_deliver:
                    await work.reject(undeliverable(self.options.max_deliver))
                else:
                    yield work
        finally:
            holding.cancel()
            for work in waiting:
                self.in_background(_give_back(work))

    async def _hold(self, pull: ConsumerPull, waiting: deque[NatsWork]) -> None:
        while True:
            await asyncio.sleep(self.options.ack_wait_s / 3)
            for work in [*waiting, *(NatsWork(self, msg) for msg in pull.come)]:
                await work.hold()

    def _leave(self, msg: Msg) -> None:
        self.in_background(_give_back(NatsWork(self, msg)))

    async def _create(self, queue: str, subjects: Sequence[str], ahead: int) -> None:
        config: dict[str, Any] = {
            "durable_name": queue,
            "filter_subjects": [*subjects, *(names.by_anybody(subject) for subject in subjects)],
            "ack_policy": "explicit",
            "ack_wait": int(self.options.ack_wait_s * _S),
            "max_deliver": -1,  # counted by the workers, who move the message to REJECTED
            "max_ack_pending": ahead,
        }
        await self.link.online()
        request = {"stream_name": names.INBOX, "config": config}
        try:
            await self.link.api(f"CONSUMER.DURABLE.CREATE.{names.INBOX}.{queue}", request)
        except ServerRefusal as error:
            raise BusError(f"queue {queue!r} cannot take {', '.join(subjects)}: {error}") from error


async def _give_back(work: NatsWork) -> None:
    with suppress(BusError):  # its time will run out
        await work.retry()
