"""What the server in memory keeps: streams of messages and the work queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from penstock_bus.matching import matches_any
from penstock_bus.port import Conflict


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One stored message; ``msg_id`` may be empty."""

    seq: int
    subject: str
    body: bytes
    msg_id: str
    stored_s: float


class Stream:
    """Messages that are only ever added, so that number n stands at index n - 1."""

    def __init__(self) -> None:
        """Start empty."""
        self.messages: list[Message] = []
        self._by_subject: defaultdict[str, list[Message]] = defaultdict(list)
        self._by_id: dict[str, Message] = {}

    def find(self, msg_id: str) -> Message | None:
        """Return the message that was stored under an id."""
        return self._by_id.get(msg_id)

    def put(self, subject: str, body: bytes, msg_id: str, expected: int | None, now_s: float) -> Message:
        """
        Store a message; the same id again returns the one that is there.

        Raises
        ------
        Conflict
            If the subject's last sequence is not the expected one.
        """
        if msg_id and (known := self._by_id.get(msg_id)) is not None:
            return known
        last = self.last(subject)
        if expected is not None and expected != (last.seq if last else 0):
            raise Conflict(subject, expected)
        message = Message(seq=len(self.messages) + 1, subject=subject, body=body, msg_id=msg_id, stored_s=now_s)
        self.messages.append(message)
        self._by_subject[subject].append(message)
        if msg_id:
            self._by_id[msg_id] = message
        return message

    def last(self, subject: str) -> Message | None:
        """Return the last message of one exact subject."""
        messages = self._by_subject.get(subject)
        return messages[-1] if messages else None

    def after(self, seq: int, patterns: Sequence[str] = ()) -> Iterator[Message]:
        """Yield what is stored after a sequence, also what is added while one reads."""
        while seq < len(self.messages):
            message = self.messages[seq]
            seq = message.seq
            if matches_any(patterns, message.subject):
                yield message

    def count_after(self, seq: int, patterns: Sequence[str] = ()) -> int:
        """Return how many messages that fit the patterns stand after a sequence."""
        if not patterns:
            return len(self.messages) - seq
        return sum(matches_any(patterns, message.subject) for message in self.messages[seq:])


class Job(msgspec.Struct, kw_only=True):
    """One message of the work queue: not to be delivered before ``due_s``."""

    subject: str
    body: bytes
    due_s: float
    deliveries: int = 0


class WorkQueue:
    """Messages that go away when they are done."""

    def __init__(self) -> None:
        """Start empty."""
        self._jobs: dict[int, Job] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, subject: str, body: bytes, now_s: float) -> None:
        """Add a message."""
        self._last_number += 1
        self._jobs[self._last_number] = Job(subject=subject, body=body, due_s=now_s)

    def take(self, subjects: Sequence[str], now_s: float, ack_wait_s: float) -> tuple[int, Job] | None:
        """Return the oldest message that is due and its number, and hide it for ``ack_wait_s``."""
        for number, job in self._jobs.items():
            if job.due_s <= now_s and matches_any(subjects, job.subject):
                job.due_s = now_s + ack_wait_s
                job.deliveries += 1
                return number, job
        return None

    def next_due_s(self) -> float | None:
        """Return when the next message is due."""
        return min((job.due_s for job in self._jobs.values()), default=None)

    def remove(self, number: int) -> None:
        """It is done, or never will be."""
        self._jobs.pop(number, None)

    def put_back(self, number: int, due_s: float) -> None:
        """Deliver it again at ``due_s``."""
        if number in self._jobs:
            self._jobs[number].due_s = due_s
