"""
Ports of the bus by use.

They are: log, rejections, snapshots, leases, work, requests, telemetry, output, series, shadows, code, replication.

Who calls the bus asks for the ports that it uses, and joins them in a protocol of its own where it uses several.
:class:`Bus` is all of them. Two adapters keep this contract, ``penstock_bus.nats`` and ``penstock_bus.memory``;
``tests/contract`` holds both to it, port by port.

Times are seconds. All methods raise :class:`BusError` or a child of it, and nothing else that the bus is to blame for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Optional, Protocol, Union

import msgspec

from penstock_bus.compat import timeout
from penstock_bus.errors import BatchRefused as BatchRefused
from penstock_bus.errors import BusError as BusError
from penstock_bus.errors import Conflict as Conflict
from penstock_bus.errors import LogFromFuture as LogFromFuture
from penstock_bus.errors import LogWentBack as LogWentBack
from penstock_bus.errors import NoResponders as NoResponders
from penstock_bus.errors import ServiceError as ServiceError
from penstock_bus.errors import StorageFull as StorageFull
from penstock_bus.errors import Timeout as Timeout
from penstock_bus.errors import TooLarge as TooLarge
from penstock_bus.errors import TrimDenied as TrimDenied
from penstock_bus.errors import Unanswered as Unanswered
from penstock_bus.errors import Unauthorized as Unauthorized
from penstock_bus.errors import Unavailable as Unavailable
from penstock_log.codec import Commit
from penstock_log.request_bodies import OutputEnd, OutputOffset
from penstock_log.views import StreamView


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """
    One commit to be appended.

    Attributes
    ----------
    expected : int or None
        Stream sequence of the subject's last message, 0 for a subject that must be new; None appends regardless.
    """

    subject: str
    commit: Commit
    expected: Optional[int]


MOST_AT_ONCE: Final = 1000
"""Commits that a server takes as one, at most."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """
    One commit as it stands in the log.

    Attributes
    ----------
    seq : int
        Sequence in the stream; rises from one delivery to the next, not always by one.
    stored_s : float
        Seconds since the epoch at which the bus stored it.
    pending : int
        Messages that the log held behind this one when it was delivered; 0 means caught up.
    """

    seq: int
    subject: str
    stored_s: float
    pending: int
    commit: Commit


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A fold's state up to ``last_seq``; ``schema`` names the layout of ``state`` and is compared for equality."""

    schema: str
    last_seq: int
    state: bytes


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of being the one owner of a name; ``token`` rises with every new owner (a fencing token)."""

    name: str
    owner: str
    token: int
    ttl_s: float


class Work(Protocol):
    """
    One message of the work queue; exactly one of ``ack``, ``retry`` and ``reject`` is called in the end.

    Attributes
    ----------
    seq : int
        Its sequence in the queue: the same at every delivery, and no other message's.
    user : str
        The person who submitted it, as the server knows them; empty where a service did.
    """

    seq: int
    subject: str
    body: bytes
    user: str

    async def ack(self) -> None:
        """It is done."""

    async def retry(self, delay_s: float = 0.0) -> None:
        """Not now: deliver it again. It counts: what was delivered too often goes to REJECTED."""

    async def hold(self) -> None:
        """It takes longer: no other worker gets it for another while. Does not count, and never fails."""

    async def reject(self, reason: str) -> None:
        """Never: move it to REJECTED with the reason."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler answers: a body, or an error where ``code`` is not 0 (HTTP-like: 400, 404, 409, 503)."""

    body: bytes = b""
    code: int = 0
    error: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """
    A request as a handler gets it.

    Attributes
    ----------
    user : str
        The person who asks, as the server knows them; empty where a service asks.
    subject : str
        Where it was asked, without the person: of interest where an endpoint's subject is a pattern.
    """

    body: bytes
    user: str = ""
    subject: str = ""


Handler = Callable[[Request], Awaitable[Reply]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """
    One request subject of a service.

    People reach commands and queries too, each under their own name (:func:`penstock_log.subjects.by_person`).

    Attributes
    ----------
    concurrent : bool
        Whether the handler gets each request as it comes, instead of one at a time: it keeps its own queue, and its own
        bound on what waits.
    """

    name: str
    subject: str
    handler: Handler
    concurrent: bool = False


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """
    A piece of a process's output.

    Attributes
    ----------
    seq : int
        Orders a stream's pieces; 0 for a piece that is not from the stream.
    place : OutputOffset or OutputEnd or None
        From where in the output it is; or that a process's output is complete, with no data; None if nobody knows.
    missing : str
        Where there is no data because it is nowhere to be had: what is missing, and why.
    """

    seq: int
    job_id: str
    rank: int
    stored_s: float
    data: bytes
    place: Optional[Union[OutputOffset, OutputEnd]] = None
    missing: str = ""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a stream; ``seq`` orders it among all of the stream, and ``stored_s`` is when it was stored."""

    seq: int
    subject: str
    stored_s: float
    body: bytes


Shadowed = StoredMessage
"""What a shadow published."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be accepted and why. ``origin`` is where it came from, such as a subject and a sequence."""

    reason: str
    origin: str
    body: bytes
    stored_s: float = 0.0


class BodyLimit(Protocol):
    """How large a message may be."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the server takes."""


class Gathering:
    """
    How a follower that is in no hurry lets new messages gather, and is woken for many at once.

    Each message that is delivered by itself costs the server a packet and the reader a turn of its event loop, and they
    come just when somebody else has to act on the same fact.

    Parameters
    ----------
    most_s : callable
        For how long they may gather from now on, in seconds; 0: deliver each at once. Asked before each time.
    """

    def __init__(self, most_s: Callable[[], float]) -> None:
        self.most_s = most_s
        self.hurry = asyncio.Event()
        """While it is set nothing gathers: somebody waits for a certain message."""

    async def wait(self) -> None:
        """Wait until what has gathered is to be fetched."""
        if (most_s := self.most_s()) > 0 and not self.hurry.is_set():
            with suppress(TimeoutError):
                async with timeout(most_s):
                    await self.hurry.wait()


class LogReader(Protocol):
    """Reading the log: what a fold, a query or a client needs of it."""

    def follow(
        self, after_seq: int = 0, subjects: Sequence[str] = (), gathering: Gathering | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """
        Yield every commit after a sequence, then every new one, for ever, in order, each once.

        Goes on over disconnects, server restarts and stalled consumers. An undecodable message goes to REJECTED once;
        a delivery whose commit has no id and no facts keeps its place, so that readers catch up and writers know the
        subject's last sequence. ``subjects`` are patterns; empty means all. New ones come at once, or as many together
        as ``gathering`` lets gather.

        Raises
        ------
        LogWentBack
            If the log ends before what was read of it.
        """

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        """Return the stored commits of a subject or pattern, in order; those that cannot be decoded are left out."""

    async def last(self, subject: str) -> Delivery | None:
        """Return the last commit of one exact subject; one without an id stands for an undecodable one."""

    async def last_seq(self) -> int:
        """Return the sequence of the log's last message; 0 for an empty log."""

    async def now_s(self) -> float:
        """Return the time by the server's clock, in seconds since the epoch."""


class LogPort(LogReader, BodyLimit, Protocol):
    """The log, read and written."""

    async def append(self, item: Append) -> int:
        """
        Append one commit; return its sequence.

        A retry of the same commit id that was already stored returns the stored sequence.

        Raises
        ------
        Conflict
            If the subject's last sequence is not the expected one.
        TooLarge
            If the commit is over the server's limit.
        StorageFull, Unavailable
            If it was not stored; it may be tried again with the same id.
        """

    async def append_many(self, items: Sequence[Append]) -> list[int]:
        """
        Append many commits with a window of outstanding acknowledgements, keeping the order of equal subjects.

        Returns the sequences in the order of ``items``. On an error, some may have been stored: the same ids may be
        tried again.
        """

    async def append_all(self, items: Sequence[Append]) -> list[int]:
        """
        Append commits as one, and return their sequences, which follow each other: all are stored, or none is.

        A server that loses its power in the middle may keep the first of them. It takes as long as a few appends, and
        readers get them together. The same ids may be tried again.

        Parameters
        ----------
        items : sequence of Append
            :data:`MOST_AT_ONCE` at most, each of another subject and with an expected sequence.

        Raises
        ------
        BatchRefused
            If another was first on one of the subjects, or the server takes no commits as one. Appended one by one,
            with the same ids, each says what is wrong with it.
        TooLarge
            If one of the commits is over the server's limit.
        StorageFull, Unavailable
            As for :meth:`append`.
        """


class LogTrimPort(Protocol):
    """Removing from the log what was copied elsewhere; nothing else is ever removed from it."""

    async def trim(self, subject: str, before_seq: int) -> int:
        """
        Remove the commits of a subject or pattern before a sequence; return how many there were.

        The sequences of others stay, and so does the log's last one.

        Raises
        ------
        Unauthorized
            If this user may not.
        TrimDenied
            If the log is one from which nothing can be removed: of an earlier version.
        """

    async def holds(self, pattern: str) -> bool:
        """Say whether the log has a commit of a pattern of subjects."""


class RejectionPort(Protocol):
    """What the log, or the work queue, could not accept."""

    async def reject(self, what: str, rejection: Rejection) -> None:
        """Put something that cannot be accepted where people find it (``subjects.rejected(what)``)."""

    async def rejections(self) -> list[Rejection]:
        """Return what was rejected, oldest first (the newest thousand)."""


class SnapshotPort(Protocol):
    """States of folds, which make starting fast and nothing else."""

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Store the snapshot, replacing the one before; readers see the old or the new one, never a mix."""

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """Return the snapshot; None where there is none or where it is damaged (which is logged)."""

    async def delete_snapshots(self) -> None:
        """Delete all snapshots of all services; every state must then be the same after a restart."""


class LeasePort(Protocol):
    """Who leads: names that have one owner each."""

    async def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        """
        Become the owner of a name, if nobody is; None otherwise. The owner itself gets its lease again.

        The lease says how long it lasts: ``ttl_s``, or longer where the bus would lose a shorter one in a fail-over.
        """

    async def renew(self, lease: Lease) -> bool:
        """Stay the owner for as long again as the lease lasts; False if the lease is gone."""

    async def release(self, lease: Lease) -> None:
        """Stop being the owner at once."""


AHEAD: Final = 1000


class WorkPort(Protocol):
    """The work queue: messages that somebody has to deal with, each of them once."""

    async def submit(self, subject: str, body: bytes) -> None:
        """Put a message into the work queue; returns when it is stored."""

    def work(self, queue: str, subjects: Sequence[str], ahead: int = AHEAD) -> AsyncIterator[Work]:
        """
        Yield work; each message goes to one of the workers of ``queue``, and again if it is not acknowledged.

        The workers of a queue have ``ahead`` messages at most, all together, that are not acknowledged.
        """


class RequestPort(BodyLimit, Protocol):
    """Questions and their answers; nothing is stored."""

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        """
        Ask and return the answer's body.

        Raises
        ------
        ServiceError
            If the service answered with an error.
        NoResponders
            If nobody serves the subject.
        Timeout
            If no answer came in time.
        """

    def serve(
        self, name: str, version: str, endpoints: Sequence[Endpoint], metadata: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """
        Serve requests while the context is open, sharing them with other replicas of the same name.

        On NATS it is a micro service: ``nats micro ls``, ``info`` and ``stats`` know it. An exception in a handler
        becomes error 500.
        """


class RelayPort(Protocol):
    """Answering people's reads in the streams' place."""

    def relaying(self, may_read: Callable[[str, str], Awaitable[str]]) -> AbstractAsyncContextManager[None]:
        """
        Answer, while the context is open, what people read who may not read everything.

        Parameters
        ----------
        may_read : callable
            From a person's name and the subject of what they want to read: why not; empty where they may.
        """


class TelemetryPort(Protocol):
    """Messages that may be lost; nothing is stored."""

    async def publish(self, subject: str, body: bytes) -> None:
        """Publish without storing; it may be lost."""

    def subscribe(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield ``(subject, body)`` of what is published from now on; a slow reader loses the oldest."""


class CodePort(BodyLimit, Protocol):
    """
    The files of folders in which jobs run, in parts under subjects of their own, one message each.

    What was stored is seen by the next call, whichever server answers; :meth:`get_code` alone may miss what is new, or
    return what was there before.
    """

    async def put_code(self, items: Sequence[tuple[str, bytes]]) -> None:
        """
        Store bodies by their subjects, in place of what was there.

        Raises
        ------
        StorageFull, Unavailable
            If not all of them were stored; they may be stored again.
        """

    async def get_code(self, subjects: Sequence[str]) -> dict[str, bytes]:
        """Return the bodies of those subjects that are there."""

    async def newest_code(self, subjects: Sequence[str]) -> dict[str, bytes]:
        """Return what :meth:`get_code` does, but as it is now; each subject is asked for by itself."""

    async def list_code(self, pattern: str) -> list[str]:
        """Return the subjects that are there of a pattern."""

    async def remove_code(self, subjects: Sequence[str]) -> None:
        """Remove the bodies of some subjects."""


class OutputPort(BodyLimit, Protocol):
    """The output of jobs, as far as the bus keeps it."""

    async def write_output(
        self, job_id: str, rank: int, data: bytes, place: OutputOffset | OutputEnd | None = None
    ) -> None:
        """Store a piece of a process's output, and from where in it the piece is."""

    def read_output(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        """
        Yield what the stream holds of a job's output, then end, or go on with ``follow``.

        All behind ``after_seq``, or of that the last ``tail`` pieces. The stream drops its oldest; what is not there,
        the nodes have (:mod:`penstock.output_reader`).
        """


class SeriesPort(BodyLimit, Protocol):
    """The metrics of runs as series, in a stream of their own: of each run the newest message."""

    async def write_series(self, job_id: str, epoch: int, body: bytes) -> None:
        """
        Store a run's series in place of the one before.

        Raises
        ------
        TooLarge, StorageFull, Unavailable
        """

    def read_series(self, job_id: str) -> AsyncGenerator[StoredMessage, None]:
        """
        Yield what is kept of the runs of a job, then end; the stream drops its oldest.

        What an earlier version kept beside the job's output comes first: of a run that has two, the newer is last.
        """


class ShadowPort(Protocol):
    """What shadows would have done, stored beside the log."""

    async def write_shadow(self, subject: str, body: bytes, msg_id: str = "") -> None:
        """Store what a shadow would have done; the same id again, soon after, is stored once. The oldest is dropped."""

    def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
        """Yield what is stored of a subject or pattern, in order, then end."""

    async def last_shadow(self, subject: str) -> Shadowed | None:
        """Return the newest of a subject or pattern."""


class ReplicationPort(Protocol):
    """On which servers the streams are kept."""

    async def replication(self) -> list[StreamView]:
        """Return each stream's copies; one that does not answer is in it too, with the reason."""


class Bus(
    LogPort,
    LogTrimPort,
    RejectionPort,
    SnapshotPort,
    LeasePort,
    WorkPort,
    RequestPort,
    TelemetryPort,
    OutputPort,
    SeriesPort,
    ShadowPort,
    CodePort,
    ReplicationPort,
    RelayPort,
    Protocol,
):
    """All ports of one connection: what a process connects, and hands out in parts."""

    async def close(self) -> None:
        """Flush and disconnect."""
