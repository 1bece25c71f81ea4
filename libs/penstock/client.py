"""
The asynchronous client: everything that ``penstock`` does on the command line, from Python.

:class:`Client` submits, acts, queries and follows. :func:`facts` gives the facts that it follows in the form of the
query ``events``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Optional, TypeVar

import msgspec

from penstock import request, results, submission
from penstock.gateway_client import GatewayClient, given_spec, is_signed
from penstock.output_reader import OutputReader
from penstock.retries import RetriedAnswer, RetryPolicy, new_id
from penstock_bus.compat import aclosing, timeout
from penstock_bus.identity import logins
from penstock_bus.port import Bus, BusError, Delivery, LogLine, Timeout
from penstock_bus.settings import BusAddress, load
from penstock_log import (
    TERMINAL,
    Event,
    JobFinished,
    JobState,
    SweepFinished,
    SweepSpec,
    fields_of,
    request_bodies,
    subjects,
    tag_of,
    views,
)
from penstock_log.text import listed

T = TypeVar("T")
CONNECT_S: Final = 2.0
_TRY_S: Final = 3.0
_TRIES: Final = 4
_LOOK_S: Final = 0.1
_TOLD_S: Final = 30.0
_DOING: Final[dict[str, str]] = {
    JobState.RUNNING: "runs",
    JobState.PREEMPTING: "is being preempted",
    JobState.COMPLETING: "is being stopped",
}


class _BusAsker:
    """Asks on a client's event loop, over its bus."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def max_body_bytes(self) -> int:
        return self._client.bus.max_body_bytes

    async def answered(self, subject: str, body: bytes, policy: RetryPolicy) -> RetriedAnswer:
        return await request.answered(self._client.bus, subject, body, policy)


class Client(GatewayClient):
    """
    A connection to a running Penstock.

    Every method raises a child of :class:`penstock_bus.BusError`: ``ServiceError`` with a ``code`` (400 bad input,
    404 unknown, 409 conflict, 413 too large, 503 not now), ``NoResponders`` where no gateway runs, ``Unavailable``
    where the server does not answer, ``Unauthorized`` where it refuses. What is not answered in time is asked again,
    which is as good as asking once: a submission carries its id from the first try. A command without any answer in the
    end raises ``Unanswered``, whose message says how to find out what became of it.

    Parameters
    ----------
    url : str, optional
        The address of the NATS server; by default ``PENSTOCK_URL`` or ``penstock.toml``, else the local one. The login
        is ``PENSTOCK_USER`` and ``PENSTOCK_PASSWORD``, or ``PENSTOCK_CREDENTIALS``; by default the one that
        ``penstock up`` has left for this user.
    login : Login, optional
        The login to come with, instead of those.
    bus : Bus, optional
        An open bus to use instead; it is not closed.
    timeout_s : float
        How long an answer may take over all tries: longer than three servers take to elect a leader and a gateway to
        be started again.
    again_s : float
        How long an answer may take before a command is asked again; a query gets twice as long.
    nobody_s : float
        How long to wait for a gateway where none runs.
    new_id : callable
        Gives the id of a submission that names none.

    Examples
    --------
    ::

        async with penstock.Client() as client:
            answer = await client.submit(name="mnist", command=("python", "train.py"), gpus=2)
            job = await client.wait(answer.id)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        login: logins.Login | None = None,
        bus: Bus | None = None,
        timeout_s: float = 30.0,
        again_s: float = 1.0,
        nobody_s: float = 5.0,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self.url = url or load(BusAddress, "").server(os.environ)
        self._given = bus
        self._login = login
        self._bus = bus
        retries = RetryPolicy(timeout_s=timeout_s, again_s=again_s, nobody_s=nobody_s)
        super().__init__(_BusAsker(self), retries, new_id)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Client:
        if self._given is None:
            from penstock_bus import nats  # noqa: PLC0415 - a client on a given bus needs no NATS

            async def connect(login: logins.Login | None) -> Bus:
                self.user = (login.user or "?") if login is not None and is_signed(login) else ""
                connection = nats.connect(
                    self.url,
                    login=login,
                    name="penstock client",
                    connect_timeout_s=CONNECT_S,
                    as_client=True,
                )
                return await self._stack.enter_async_context(connection)

            found = logins.LoginSearch(logins=(self._login,), looked=()) if self._login is not None else None
            found = found or load(BusAddress, "").logins("client", self.url)
            self._bus = await logins.first_accepted(connect, found, "client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        self._bus = self._given

    @property
    def bus(self) -> Bus:
        """The bus underneath; RuntimeError outside ``async with``."""
        if self._bus is None:
            raise RuntimeError("the client is not connected; use it inside `async with penstock.Client() as client:`")
        return self._bus

    async def _aside(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, act)

    def tune(
        self,
        spec: SweepSpec | Mapping[str, Any] | None = None,
        script: str = "",
        *,
        strict: bool = False,
        **fields: Any,
    ) -> results.SubmittedSweep:
        """
        Submit a sweep, given as a :class:`SweepSpec`, as its fields, or as a space and a script.

        Awaited, it is the gateway's answer; ``async for`` goes over its results as they come.

        Examples
        --------
        ::

            space = {"lr": Uniform(low=1e-4, high=1.0, log=True)}
            async for result in client.tune(space, "train.py", metric="accuracy", search="tpe", trials=20):
                print(result.params, result.value)
        """
        if spec is None or isinstance(spec, SweepSpec):
            given = given_spec(spec, fields, SweepSpec)
        else:
            given = given_spec(None, submission.sweep_fields(spec, script, fields), SweepSpec)
        filled = submission.fill_sweep(given, is_known=bool(self.user))
        return results.SubmittedSweep(self._submit_sweep(filled, strict=strict), self.results)

    async def _submit_sweep(self, sweep: SweepSpec, *, strict: bool) -> views.SubmitAnswer:
        (job,) = await self._with_code([sweep.job])
        filled = msgspec.structs.replace(sweep, job=job)
        return await self._submit("tune", filled, lambda one: request_bodies.TuneRequest(spec=one, strict=strict))

    async def node_token(self, valid_s: float = 3600.0, uses: int = 1) -> logins.Login:
        """Return the login by which so many new nodes ask for their own, for so many seconds."""
        ask = request_bodies.TokenRequest(valid_s=valid_s, uses=uses)
        body = await self.bus.request(subjects.command("token", "issuer"), msgspec.json.encode(ask), timeout_s=10.0)
        return msgspec.json.decode(body, type=logins.Login)

    async def node_logins(self) -> views.NodeLoginsView:
        """Return the logins of nodes that have joined, and the tokens."""
        body = await self._patiently(subjects.query("logins", "issuer"), b"{}")
        return msgspec.json.decode(body, type=views.NodeLoginsView)

    async def revoke_node(self, node: str, reason: str = "") -> views.ActAnswer:
        """
        Have the logins of a node count no more, or of all machines that came with one token.

        Returns once the servers refuse them.
        """
        ask = msgspec.json.encode(request_bodies.RevokeRequest(id=node, reason=reason))
        body = await self._patiently(subjects.command("revoke", "issuer"), ask)
        answer = msgspec.json.decode(body, type=views.ActAnswer)
        try:
            async with timeout(_TOLD_S):
                while (await self.node_logins()).told_seq < answer.seq:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(_LOOK_S)
        except (asyncio.TimeoutError, TimeoutError) as error:
            late = f"it is in the log, and the server was not told within {_TOLD_S:.0f} s; see the issuer's log"
            raise Timeout(late) from error
        return answer

    async def _patiently(self, subject: str, body: bytes) -> bytes:
        """Ask again where no answer comes: a server that is told of a revoked login drops those on their way."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(Timeout):
                return await self.bus.request(subject, body, timeout_s=_TRY_S)
        return await self.bus.request(subject, body, timeout_s=_TRY_S)

    async def login(
        self, user: str = "", *, after_seq: int = 0, valid_s: float = 0.0, revocation_s: float | None = None
    ) -> logins.Login:
        """
        Return a new login of a person; those that were issued before stay good.

        Parameters
        ----------
        user : str
            Whose; empty for one's own.
        after_seq : int
            Only once the log is known so far: the ``seq`` of the answer that added the person.
        valid_s : float
            For how long it counts, seconds; 0 for ever.
        revocation_s : float, optional
            Name of a revocation that is about to be commanded, from which on it counts: seconds since the epoch, later
            than the last one.
        """
        ask = request_bodies.LoginRequest(user=user, after_seq=after_seq, valid_s=valid_s, revocation_s=revocation_s)
        body = await self.bus.request(subjects.command("login", "issuer"), msgspec.json.encode(ask), timeout_s=10.0)
        return msgspec.json.decode(body, type=logins.Login)

    async def sign_in(self) -> views.SignInView:
        """Return an address of the dashboard that signs one browser in as who asks."""
        ask = msgspec.json.encode(request_bodies.EmptyRequest())
        body = await self.bus.request(subjects.command("sign_in", "dashboard"), ask)
        return msgspec.json.decode(body, type=views.SignInView)

    # --- following
    async def wait(self, job_id: str, *, timeout: Optional[float] = None) -> views.JobView:
        """
        Return the job once it has ended.

        It follows the job's own subject in the log, so it costs nothing while it waits and outlives restarts of the
        server and the gateway.

        Parameters
        ----------
        timeout : float, optional
            Wait no longer than this, in seconds; by default for as long as it takes. The job goes on.

        Raises
        ------
        TimeoutError
            If it has not ended by then; the message says what it is doing.
        ValueError
            If it is a profiler's sample: its end is not announced.
        """
        return await self._in_time(self._ended(job_id), timeout, lambda: self._doing(job_id))

    async def _ended(self, job_id: str) -> views.JobView:
        job = (await self.job(job_id)).job
        if job.sample:
            raise ValueError(f"{job.id} is a sample of the profiler; wait for the job that it is taken for")
        if job.state in TERMINAL:
            return job
        seq = await self._announced(subjects.job(job.id), JobFinished)
        job = (await self.job(job.id)).job
        return job if job.state in TERMINAL else (await self.job(job.id, at=seq)).job

    async def wait_sweep(self, sweep_id: str, *, timeout: Optional[float] = None) -> views.SweepView:
        """Return the sweep once it has ended, as :meth:`wait` does a job."""
        return await self._in_time(self._ended_sweep(sweep_id), timeout, lambda: self._doing_sweep(sweep_id))

    async def _ended_sweep(self, sweep_id: str) -> views.SweepView:
        sweep = await self.sweep(sweep_id)
        if sweep.finished_s is not None:
            return sweep
        seq = await self._announced(subjects.sweep(sweep.id), SweepFinished)
        sweep = await self.sweep(sweep.id)
        return sweep if sweep.finished_s is not None else await self.sweep(sweep.id, at=seq)

    async def _in_time(self, end: Awaitable[T], timeout_s: Optional[float], doing: Callable[[], Awaitable[str]]) -> T:
        """Return what is waited for; raise TimeoutError with what is ``doing`` where it takes too long."""
        ending = asyncio.ensure_future(end)
        try:
            over, _ = await asyncio.wait([ending], timeout=timeout_s)
            if over:
                return ending.result()
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        try:
            what = await doing()
        except BusError as error:
            what = f"what it is doing is not known: {error}"
        raise TimeoutError(f"waited {timeout_s:g} s: {what}")

    async def _doing(self, job_id: str) -> str:
        """Return in words what a job is doing that has not ended."""
        job = (await self.job(job_id)).job
        if job.state == JobState.PENDING:
            why = await self.why(job.id)
            return f"{job.id} ({job.name}) waits ({why.cause.replace('_', ' ')}): {why.evidence}"
        step = f", after step {job.steps}" if job.steps else ""
        what = _DOING.get(job.state, "has just ended")
        return f"{job.id} ({job.name}) {what}{f' on {listed(job.placed_on)}' if job.placed_on else ''}{step}"

    async def _doing_sweep(self, sweep_id: str) -> str:
        sweep = await self.sweep(sweep_id)
        return f"sweep {sweep.id} ({sweep.name}) is {sweep.state}: {sweep.done} of {sweep.wanted} trials are done"

    async def follow_sweep(self, sweep_id: str, every_s: float = 2.0) -> AsyncIterator[views.SweepView]:
        """Yield a sweep as it is now, then again every so often while it runs, and once more when it has ended."""
        yield (sweep := await self.sweep(sweep_id))
        ending = asyncio.ensure_future(self._announced(subjects.sweep(sweep.id), SweepFinished))
        try:
            while sweep.finished_s is None:
                over, _ = await asyncio.wait([ending], timeout=every_s)
                sweep = await self.sweep(sweep.id)
                if over and sweep.finished_s is None:  # the gateway has not heard yet
                    sweep = await self.sweep(sweep.id, at=ending.result())
                yield sweep
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def results(self, sweep_id: str) -> AsyncIterator[views.TrialView]:
        """Yield each run of a sweep's trials when it is over, until the sweep is."""
        sweep = await self.sweep(sweep_id)
        async for result in results.results(self.bus, sweep.id):
            yield result

    async def follow_events(self, entity_id: str = "", *, after: int = 0) -> AsyncIterator[views.EventView]:
        """Yield every fact about an entity, or all, behind a stream sequence and from then on for ever."""
        async for delivery in self.bus.follow(after_seq=after):
            for view in facts(delivery):
                if not entity_id or about(view, entity_id):
                    yield view

    async def logs(self, job_id: str, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[LogLine]:
        """
        Yield a job's output, all or the last ``tail`` pieces; with ``follow`` go on until the job has ended.

        Pieces are as the processes wrote them: a piece may hold several lines, or a part of one. Output that the log
        does not have is fetched from the nodes that ran the job. Where no node has it either, a piece without data says
        so (``missing``).
        """
        detail = await self.job(job_id)
        reader = OutputReader(self.bus, detail.job.id)
        if tail is not None:
            last: deque[LogLine] = deque(maxlen=tail)
            async for line in reader.stored():
                last.append(line)
            while last:
                yield last.popleft()
        if follow:
            async with aclosing(self.follow_output(detail, reader)) as lines:
                async for line in lines:
                    yield line
        elif tail is None:
            async with aclosing(reader.stored()) as lines:
                async for line in lines:
                    yield line

    async def follow_output(self, detail: views.JobDetail, reader: OutputReader) -> AsyncGenerator[LogLine, None]:
        """Yield the output that a reader has not yielded yet, until the job has ended."""
        if detail.job.state in TERMINAL or detail.job.sample:
            async with aclosing(reader.stored()) as lines:
                async for line in lines:
                    yield line
            return
        end = asyncio.ensure_future(self._announced(subjects.job(detail.job.id), JobFinished))
        try:
            async with aclosing(reader.follow(end)) as lines:
                async for line in lines:
                    yield line
        finally:  # who reads no further waits for nobody's end
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    async def _announced(self, subject: str, end: type[Event]) -> int:
        """Wait for the last fact of an entity, and return its sequence."""
        async for delivery in self.bus.follow(subjects=[subject]):
            if any(isinstance(fact, end) for fact in delivery.commit.facts):
                return delivery.seq
        raise AssertionError("a followed log does not end")


def facts(delivery: Delivery) -> list[views.EventView]:
    """Return a commit's facts, as the query ``events`` shows them."""
    return [_fact(delivery, event) for event in delivery.commit.facts]


def _fact(delivery: Delivery, event: Event) -> views.EventView:
    fact = fields_of(event)
    return views.EventView(
        seq=delivery.seq,
        stored_s=delivery.stored_s,
        subject=delivery.subject,
        actor=delivery.commit.actor,
        cause=delivery.commit.cause,
        type=tag_of(event),
        at_s=event.at_s,
        fact={key: value for key, value in fact.items() if key not in {"type", "at_s"}},
    )


def about(view: views.EventView, entity_id: str) -> bool:
    """Return whether a fact is of an entity, or names it: a round names the jobs it placed."""
    return subjects.entity_of(view.subject)[1] == entity_id or _names(view.fact, entity_id)


def _names(value: object, entity_id: str) -> bool:
    if isinstance(value, dict):
        return any(key == entity_id or _names(item, entity_id) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(_names(item, entity_id) for item in value)
    return value == entity_id
