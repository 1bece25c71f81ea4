"""The work queue in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock_bus.memory.client import Client
from penstock_bus.memory.store import Job
from penstock_bus.port import Rejection, Work
from penstock_bus.reading import undeliverable
from penstock_events import subjects as names


class MemoryWork:
    """One delivery of a message of the work queue."""

    def __init__(self, client: Client, number: int, job: Job) -> None:
        """Hold the message until it is acknowledged or its time is over."""
        self.seq = number
        self.subject = job.subject
        self.body = job.body
        self._client = client
        self._number = number

    async def ack(self) -> None:
        """It is done."""
        await self._client.ready()
        self._client.server.work.remove(self._number)

    async def retry(self, delay_s: float = 0.0) -> None:
        """Deliver it again."""
        await self._client.ready()
        self._client.server.work.put_back(self._number, self._client.server.now() + delay_s)
        self._client.server.changed.notify()

    async def hold(self) -> None:
        """No other worker gets it for another while."""
        self._client.server.work.put_back(self._number, self._client.server.now() + self._client.ack_wait_s)

    async def reject(self, reason: str) -> None:
        """Move it to REJECTED with the reason."""
        await self._client.ready()
        what = self.subject.rpartition(".")[2]
        rejection = Rejection(reason=reason, origin=f"{names.INBOX} {self.subject}", body=self.body)
        self._client.server.put_rejection(names.rejected(what), rejection)
        self._client.server.work.remove(self._number)


class WorkClient(Client):
    """The part of the port that hands out work."""

    async def submit(self, subject: str, body: bytes) -> None:
        """Put a message into the work queue."""
        await self.ready(len(body))
        self.server.submit(subject, body)

    async def work(self, queue: str, subjects: Sequence[str]) -> AsyncIterator[Work]:  # noqa: ARG002 - one queue serves all
        """Yield work; each message goes to one worker."""
        while True:
            await self._until_online()
            taken = self.server.work.take(subjects, self.server.now(), self.ack_wait_s)
            if taken is None:
                due_s = self.server.work.next_due_s()
                await self.server.changed.wait(None if due_s is None else max(due_s - self.server.now(), 0.001))
                continue
            number, job = taken
            work = MemoryWork(self, number, job)
            if job.deliveries > self.max_deliver:
                await work.reject(undeliverable(self.max_deliver))
            else:
                yield work

    async def _until_online(self) -> None:
        while not self.online():
            await self.server.changed.wait()
