"""
Requests of many users, served in turn, with a bound and a rate for each user.

One user's flood must not delay another user. :class:`UserQueues` gives slots to users in turn
(:class:`penstock_bus.fair_semaphore.FairSemaphore`) and bounds what may wait of each, :class:`RateLimit` says who has
sent too much of late, and :class:`OpenJobsLimit` refuses what would be too many jobs of one user. :func:`asker` says
whose a request is. :class:`RepeatedRequests` joins a request that is asked again to its first copy.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Generic, TypeVar

import msgspec

from penstock_bus import Unavailable
from penstock_bus.fair_semaphore import FairSemaphore
from penstock_gateway.endpoints import TOO_MANY, UNAVAILABLE, RequestRefused
from penstock_gateway.open_jobs import OpenJobs
from penstock_log.text import count, escaped
from penstock_log.views import View

V = TypeVar("V", bound=View)
NOBODY: Final = "nobody"
_WAIT: Final = "wait until some are over, cancel some, or ask"
_REMEDY: Final = (
    f"{_WAIT} an operator to raise `open_jobs` in [gateway], or an admin to give you more (`penstock user set`)"
)
_LONGEST_NAME: Final = 128
_MOST_RATES: Final = 10_000


class _Named(msgspec.Struct, frozen=True):
    """The user of a specification, as far as a body has one."""

    user: str = ""


class _Sweep(msgspec.Struct, frozen=True):
    """The job of a sweep, or a job."""

    id: str = ""
    user: str = ""
    job: _Named = _Named()


class _Asked(msgspec.Struct, frozen=True):
    """A job, a sweep, an act, or many jobs, bare or wrapped; all other fields are passed over unread."""

    id: str = ""
    user: str = ""
    by: str = ""
    job: _Named = _Named()
    spec: _Sweep = _Sweep()
    specs: tuple[_Sweep, ...] = ()


_asked: Final = msgspec.json.Decoder(_Asked)


def asker(body: bytes, caller: str = "") -> str:
    """
    Return whose a request is: the caller's, or if a service calls, that of the user of a job or a sweep, or who acts.

    A service's body that is no request is nobody's; whoever decodes it says what is wrong.

    Examples
    --------
    >>> asker(b'{"name": "a", "user": "alice"}'), asker(b'{"spec": {"job": {"user": "bob"}}}'), asker(b"{")
    ('alice', 'bob', '')
    """
    if caller:
        return caller
    asked = _decoded(body)
    name = asked.user or asked.spec.user or asked.spec.job.user or asked.job.user or asked.by
    return name[:_LONGEST_NAME]


def _decoded(body: bytes) -> _Asked:
    """Return what a body says of itself; nothing if it is no request."""
    try:
        return _asked.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Asked()


class RateLimit:
    """
    A bound on how many commands each user sends: many at once, and then so many in each second.

    It is the generic cell rate algorithm: of each user it keeps one time, at which all that was sent would have been
    sent at the lasting rate.

    Parameters
    ----------
    per_s : float
        The lasting rate.
    at_once : int
        Commands that may come at once after a while of silence.
    of : callable
        Gives the lasting rate that is set for a user, or None; what may come at once is then in the same proportion.

    Examples
    --------
    >>> limit = RateLimit(per_s=2.0, at_once=3)
    >>> [limit.wait_s("alice", 0.0) for _ in range(4)], limit.wait_s("bob", 0.0), limit.wait_s("alice", 0.5)
    ([0.0, 0.0, 0.0, 0.5], 0.0, 0.0)
    """

    def __init__(self, per_s: float, at_once: int, of: Callable[[str], float | None] = lambda _: None) -> None:
        self._per_s, self._ahead_s, self._of = per_s, at_once / per_s, of
        self._until_s: dict[str, float] = {}

    def most(self, user: str) -> str:
        """Return in words which rate a user may go on with, and who set it."""
        own = self._of(user)
        if own is None:
            return f"{self._per_s:g} a second for long are the most for one user"
        return f"{own:g} a second for long are what an admin has set for {escaped(user)} (`penstock user set --rate`)"

    def wait_s(self, user: str, now_s: float, commands: int = 1) -> float:
        """Count some commands and return 0, or return how long to wait before so many are taken, in seconds."""
        step_s = commands / (self._of(user) or self._per_s)
        until_s = max(self._until_s.get(user, now_s), now_s) + step_s
        if (over_s := until_s - now_s - max(self._ahead_s, step_s)) > 1e-9:
            return over_s
        if len(self._until_s) >= _MOST_RATES:
            self._until_s = {name: at_s for name, at_s in self._until_s.items() if at_s > now_s}
        self._until_s[user] = until_s
        return 0.0


class UserQueues:
    """
    The queues of all users before one kind of command.

    Parameters
    ----------
    what : str
        What waits here, for messages: ``submissions``.
    slots : int
        Commands under way at a time.
    most, most_bytes : int
        What may wait of one user.
    rate : RateLimit or None
        Shared by the queues of several kinds; None bounds no rate.
    now_s : callable
        Seconds of a clock that only goes on.
    """

    def __init__(
        self, what: str, *, slots: int, most: int, most_bytes: int, rate: RateLimit | None, now_s: Callable[[], float]
    ) -> None:
        self._what, self._most, self._most_bytes = what, most, most_bytes
        self._rate, self._now_s = rate, now_s
        self._slots = FairSemaphore(slots)
        self._waiting: dict[str, tuple[int, int]] = {}

    @asynccontextmanager
    async def slot(self, user: str, size_bytes: int) -> AsyncIterator[None]:
        """
        Hold a slot for one command of a user while the context is open.

        A request for many jobs is :meth:`queued` instead.

        Raises
        ------
        RequestRefused
            429 where the user has too much waiting or has sent too much of late; 503 where the gateway stops.
        """
        self._check(user, size_bytes)
        self.check_rate(user)
        self._count(user, 1, size_bytes)
        try:
            await self._slots.acquire(user)
        finally:
            self._count(user, -1, -size_bytes)
        try:
            yield
        finally:
            self._slots.release(user)

    @asynccontextmanager
    async def queued(self, user: str, size_bytes: int, commands: int) -> AsyncIterator[None]:
        """
        Count a request that is as good as many commands as waiting while the context is open; errors as of ``slot``.

        What it does takes a :meth:`turn` for each command, so that others' commands go in between.
        """
        self._check(user, size_bytes)
        self.check_rate(user, commands)
        self._count(user, 1, size_bytes)
        try:
            yield
        finally:
            self._count(user, -1, -size_bytes)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Hold a slot of a request that is counted as waiting already."""
        await self._slots.acquire(user)
        try:
            yield
        finally:
            self._slots.release(user)

    def waiting(self, user: str) -> int:
        """Return how many requests of a user wait."""
        return self._waiting.get(user, (0, 0))[0]

    def close(self) -> None:
        """Refuse what waits: the gateway stops, and nothing of it has begun."""
        self._slots.fail(
            lambda: RequestRefused(
                UNAVAILABLE, "the gateway stopped before this had its turn, and nothing was accepted; try again"
            )
        )

    def _check(self, user: str, size_bytes: int) -> None:
        waiting, waiting_bytes = self._waiting.get(user, (0, 0))
        name = escaped(user or NOBODY)
        if waiting >= self._most or waiting_bytes + size_bytes > self._most_bytes:
            raise RequestRefused(
                TOO_MANY,
                f"{name} has {waiting:,} {self._what} of {waiting_bytes:,} bytes waiting already, and "
                f"{self._most:,} of {self._most_bytes:,} bytes are the most for one user; try again once some are "
                "answered",
            )

    def check_rate(self, user: str, commands: int = 1) -> None:
        """Count a request, and refuse it with 429 if its user has sent too many of late."""
        if self._rate is not None and (wait_s := self._rate.wait_s(user, self._now_s(), commands)):
            raise RequestRefused(
                TOO_MANY,
                f"{escaped(user or NOBODY)} has sent too many commands of late; try again in {max(wait_s, 0.1):.1f} s, "
                f"and slower: {self._rate.most(user)}",
            )

    def _count(self, user: str, more: int, more_bytes: int) -> None:
        waiting, waiting_bytes = self._waiting.get(user, (0, 0))
        if waiting + more:
            self._waiting[user] = (waiting + more, waiting_bytes + more_bytes)
        else:
            self._waiting.pop(user, None)


def names_itself(body: bytes) -> bool:
    """
    Say whether a submission has an id for all that it submits: then it is the same request as one of the same bytes.

    Examples
    --------
    >>> names_itself(b'{"id": "j1"}'), names_itself(b'{"specs": [{"id": "j1"}, {"name": "x"}]}'), names_itself(b"{}")
    (True, False, False)
    """
    asked = _decoded(body)
    return bool(asked.id or asked.spec.id or (asked.specs and all(one.id for one in asked.specs)))


class RepeatedRequests(Generic[V]):
    """
    Requests that are under way, so that one that is asked again gets the answer of its first copy.

    A client asks again what is not answered within a second. If each copy waited for a slot of its own, a user who
    submits a few thousand jobs at once would fill the own queue with copies, and a copy's refusal would be told of a
    job that is accepted. Only a submission that names its id is the same if its bytes are (:func:`names_itself`).

    Parameters
    ----------
    queues : UserQueues
        For whose rate a copy counts.
    """

    def __init__(self, queues: UserQueues) -> None:
        self._queues = queues
        self._under_way: dict[tuple[str, bytes], asyncio.Future[V]] = {}

    async def answer(self, user: str, body: bytes, answering: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """
        Return the answer to a request, and whether it is the answer to its first copy.

        Raises
        ------
        RequestRefused
            429 where the user has sent too much of late; and whatever ``answering`` raises.
        Unavailable
            If the first copy was broken off.
        """
        key = user, hashlib.sha256(body).digest()
        if (first := self._under_way.get(key)) is not None:
            self._queues.check_rate(user)
            return await asyncio.shield(first), True
        first = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            first.set_result(await answering())
        except BaseException as error:
            shown = error if isinstance(error, Exception) else Unavailable("the gateway stopped in the middle of it")
            first.set_exception(shown)
            first.exception()  # nobody may have asked again
            raise
        finally:
            del self._under_way[key]
        return first.result(), False


class OpenJobsLimit:
    """
    The most jobs that each user may have open.

    Several submissions are decided on before the read model has the first: the limit counts those that are being
    stored too. Replicas of the gateway do not count for each other what is being stored.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._storing: dict[str, dict[str, int]] = {}
        self._storing_jobs: Counter[str] = Counter()

    @contextmanager
    def storing(self, user: str, id_: str, jobs: int) -> Iterator[None]:
        """Count a submission while it is being stored."""
        self._storing.setdefault(user, {})[id_] = jobs
        self._storing_jobs[user] += jobs
        try:
            yield
        finally:
            self._storing_jobs[user] -= jobs
            self._storing[user].pop(id_, None)
            if not self._storing[user]:
                del self._storing[user], self._storing_jobs[user]

    def check(self, open_jobs: OpenJobs, user: str, more: int, own: int | None = None) -> None:
        """
        Refuse a user's further jobs with 429 where they would be too many.

        Parameters
        ----------
        own : int, optional
            The most that an admin has set for this user.
        """
        storing = self._storing.get(user, {})
        most = self._most if own is None else own
        there = open_jobs.count(user)
        if there + self._storing_jobs.get(user, 0) + more <= most:  # even if none of them was counted twice
            return
        there += sum(jobs for id_, jobs in storing.items() if not open_jobs.knows(user, id_))
        if there + more <= most:
            return
        name = escaped(user or NOBODY)
        whose, remedy = "for one user", _REMEDY
        if own is not None:
            whose, remedy = (
                f"that an admin has set for {name}",
                f"{_WAIT} an admin for more (`penstock user set --open-jobs`)",
            )
        has = f"{name} has {there:,} open {'job' if there == 1 else 'jobs'}"
        if more == 1:
            raise RequestRefused(TOO_MANY, f"{has}, and {most:,} are the most {whose}; {remedy}")
        raise RequestRefused(
            TOO_MANY,
            f"{has}, this sweep may have {count(more, 'trial')} open at a time, and {most:,} jobs are the most "
            f"{whose}; give it a lower `concurrency`, {remedy}",
        )
