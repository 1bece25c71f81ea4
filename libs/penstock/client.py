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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock import request, results, submission
from penstock.output_reader import OutputReader
from penstock_bus.compat import aclosing, timeout
from penstock_bus.identity import logins
from penstock_bus.port import Bus, BusError, Delivery, LogLine, ServiceError, Timeout, Unanswered
from penstock_bus.settings import BusAddress, load
from penstock_log import (
    TERMINAL,
    Event,
    JobFinished,
    JobSpec,
    Setting,
    SweepFinished,
    SweepSpec,
    fields_of,
    request_bodies,
    subjects,
    tag_of,
    validation,
    views,
)
from penstock_log.facts import Role

CONNECT_S: Final = 2.0
_TRY_S: Final = 3.0
_TRIES: Final = 4
_LOOK_S: Final = 0.1
_TOLD_S: Final = 30.0
_IDS: Final = 3
_CONFLICT: Final = 409
_SHOWN_BY: Final = {
    "cancel_sweep": "penstock sweep show {}",
    **dict.fromkeys(("drain", "resume", "remove"), "penstock nodes"),
    "policy": "penstock policy show",
}
"""Commands about other things than jobs: how people see what became of them."""
V = TypeVar("V", bound=views.View)
S = TypeVar("S", JobSpec, SweepSpec)


def _is_signed(login: logins.Login) -> bool:
    """Say whether the server learns the name of a person from a login, and writes it itself."""
    return bool(login.user_jwt or login.token or login.token_file)


class Client:
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
        new_id: Callable[[], str] = request.new_id,
    ) -> None:
        self.url = url or load(BusAddress, "").server(os.environ)
        self._given = bus
        self._login = login
        self._bus = bus
        self.user = ""
        """Under which name the server knows who asks; empty before it was asked, and where it knows nobody."""
        self._retries = request.RetryPolicy(timeout_s=timeout_s, again_s=again_s, nobody_s=nobody_s)
        self._new_id = new_id
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Client:
        if self._given is None:
            from penstock_bus import nats  # noqa: PLC0415 - a client on a given bus needs no NATS

            async def connect(login: logins.Login | None) -> Bus:
                self.user = (login.user or "?") if login is not None and _is_signed(login) else ""
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

    async def whoami(self) -> views.UserView:
        """Return as whom the gateway takes who asks; with an empty name where the server knows nobody."""
        return await self._query("whoami", request_bodies.EmptyRequest(), views.UserView)

    # --- commands
    async def submit(self, spec: JobSpec | None = None, *, strict: bool = False, **fields: Any) -> views.SubmitAnswer:
        """
        Submit a job, given as a :class:`JobSpec` or as its fields.

        Id, user, working directory, script digest and a minimal environment are filled in where they are empty.

        Parameters
        ----------
        strict : bool
            Refuse a job that could never start on the present cluster, instead of having it wait.
        """
        filled = submission.fill(_given(spec, fields, JobSpec), is_known=bool(self.user))
        return await self._submit("submit", filled, lambda job: request_bodies.SubmitRequest(spec=job, strict=strict))

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
            given = _given(spec, fields, SweepSpec)
        else:
            given = _given(None, submission.sweep_fields(spec, script, fields), SweepSpec)
        filled = submission.fill_sweep(given, is_known=bool(self.user))
        asking = self._submit("tune", filled, lambda sweep: request_bodies.TuneRequest(spec=sweep, strict=strict))
        return results.SubmittedSweep(asking, self.results)

    async def cancel(self, job_id: str, reason: str = "") -> views.ActAnswer:
        """End a job; a running one is stopped first. The id may be cut to a unique beginning, here and below."""
        return await self._act("cancel", job_id, reason)

    async def hold(self, job_id: str) -> views.ActAnswer:
        """Keep a waiting job from being started."""
        return await self._act("hold", job_id)

    async def release(self, job_id: str) -> views.ActAnswer:
        """Let a held job be started again."""
        return await self._act("release", job_id)

    async def cancel_sweep(self, sweep_id: str) -> views.ActAnswer:
        """End a sweep and its trials."""
        return await self._act("cancel_sweep", sweep_id)

    async def drain(
        self, node_id: str, reason: str = "", *, preempt: bool = False, device: int | None = None
    ) -> views.ActAnswer:
        """Give a node, or one of its devices, no new jobs; with ``preempt`` move its running ones elsewhere."""
        ask = request_bodies.DrainRequest(
            id=node_id, by=submission.user_name(), reason=reason, preempt=preempt, device=device
        )
        return await self._command("drain", ask, views.ActAnswer)

    async def resume(self, node_id: str, *, device: int | None = None) -> views.ActAnswer:
        """Give a drained node jobs again; or one device that was drained, or has failed."""
        ask = request_bodies.NodeResumeRequest(id=node_id, by=submission.user_name(), device=device)
        return await self._command("resume", ask, views.ActAnswer)

    async def remove(self, node_id: str, reason: str = "") -> views.ActAnswer:
        """Remove a node that is gone for good from the list of nodes."""
        return await self._act("remove", node_id, reason)

    async def set_policy(
        self,
        pool: str = "default",
        settings: Mapping[str, Setting] | None = None,
        *,
        unset: Iterable[str] = (),
        reset: bool = False,
        reason: str = "",
    ) -> views.ActAnswer:
        """
        Run a pool by other settings from now on.

        Parameters
        ----------
        settings : mapping of str to Setting
            Names and values as in ``[ranker.pools.NAME]`` and ``[matcher.pools.NAME]``; what is not named stays.
        unset : iterable of str
            Settings that go back to what the services' own settings say; with ``reset``, all of them.
        """
        ask = request_bodies.PolicyRequest(
            pool=pool,
            set=dict(settings or {}),
            unset=tuple(unset),
            reset=reset,
            by=submission.user_name(),
            reason=reason,
        )
        return await self._command("policy", ask, views.ActAnswer)

    async def set_user(
        self,
        user: str,
        *,
        role: Role | None = None,
        teams: Iterable[str] | None = None,
        revoke: bool = False,
        revocation_s: float | None = None,
        open_jobs: int | None = None,
        commands_per_s: float | None = None,
        unset: Iterable[Literal["open_jobs", "commands_per_s"]] = (),
    ) -> views.ActAnswer:
        """
        Let a person use the cluster, or change what they may do; what is left out stays.

        Parameters
        ----------
        revoke : bool
            Logins that were issued until now count no more.
        revocation_s : float, optional
            With ``revoke``, the name of the revocation: what :meth:`login` was given.
        open_jobs, commands_per_s
            The most jobs that they may have open, and commands that they may go on sending in each second, in place of
            the gateway's settings.
        unset : iterable of str
            Which of the two go back to the gateway's settings.
        """
        named = tuple(teams) if teams is not None else None
        ask = request_bodies.UserRequest(
            user=user,
            role=role,
            teams=named,
            revoke=revoke,
            revocation_s=revocation_s,
            open_jobs=open_jobs,
            commands_per_s=commands_per_s,
            unset=tuple(unset),
        )
        return await self._command("set_user", ask, views.ActAnswer)

    async def remove_user(self, user: str, reason: str = "") -> views.ActAnswer:
        """Let a person not use the cluster any more; their jobs go on."""
        return await self._act("remove_user", user, reason)

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

    async def users(self) -> views.UsersView:
        """Return who may use the cluster."""
        return await self._query("users", request_bodies.AllRequest(), views.UsersView)

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

    # --- queries
    async def jobs(
        self,
        *,
        state: Iterable[str] = (),
        user: str = "",
        name: str = "",
        parent: str = "",
        ids: Iterable[str] = (),
        samples: bool = False,
        limit: int = 500,
        at: request_bodies.At = None,
    ) -> views.JobsView:
        """Return the jobs that match all given filters, the newest ``limit``, oldest first."""
        ask = request_bodies.JobsRequest(
            state=tuple(state),
            user=user,
            name=name,
            parent=parent,
            ids=tuple(ids),
            samples=samples,
            limit=limit,
            at=at,
        )
        return await self._query("jobs", ask, views.JobsView)

    async def job(self, job_id: str, at: request_bodies.At = None) -> views.JobDetail:
        """Return one job in full."""
        return await self._query("job", request_bodies.OneRequest(id=job_id, at=at), views.JobDetail)

    async def why(self, job_id: str, at: request_bodies.At = None) -> views.WhyView:
        """Return why a job is where it is."""
        return await self._query("why", request_bodies.OneRequest(id=job_id, at=at), views.WhyView)

    async def story(self, job_id: str, at: request_bodies.At = None) -> views.StoryView:
        """Return a job's life, a sentence for each fact."""
        return await self._query("story", request_bodies.OneRequest(id=job_id, at=at), views.StoryView)

    async def nodes(self, at: request_bodies.At = None) -> views.NodesView:
        """Return all nodes and their devices."""
        return await self._query("nodes", request_bodies.AllRequest(at=at), views.NodesView)

    async def devices(self, at: request_bodies.At = None) -> views.DevicesView:
        """Return all devices by node, and the jobs that have them: less than ``nodes`` says, for very many."""
        return await self._query("devices", request_bodies.AllRequest(at=at), views.DevicesView)

    async def queue(self, **asked: Any) -> views.QueueView:
        """Return waiting jobs in rank order, as the fields of :class:`penstock_log.request_bodies.QueueRequest` say."""
        return await self._query("queue", request_bodies.QueueRequest(**asked), views.QueueView)

    async def aggregation(self, job_id: str = "", at: request_bodies.At = None) -> views.AggregationView:
        """Return all aggregators, and the jobs with aggregation that may be seen; or a job, and those that it is on."""
        ask = request_bodies.AggregationRequest(id=job_id, at=at)
        return await self._query("aggregation", ask, views.AggregationView)

    async def sweeps(self, at: request_bodies.At = None) -> views.SweepsView:
        """Return all sweeps, without their trials."""
        return await self._query("sweeps", request_bodies.AllRequest(at=at), views.SweepsView)

    async def sweep(self, sweep_id: str, at: request_bodies.At = None) -> views.SweepView:
        """Return one sweep with its trials."""
        return await self._query("sweep", request_bodies.OneRequest(id=sweep_id, at=at), views.SweepView)

    async def profile(self, workload: str, at: request_bodies.At = None) -> views.ProfileView:
        """Return what is known of a workload: by its key, or by a job or a sweep of it."""
        return await self._query("profile", request_bodies.OneRequest(id=workload, at=at), views.ProfileView)

    async def policies(self, at: request_bodies.At = None) -> views.PoliciesView:
        """Return what is set live for each pool."""
        return await self._query("policies", request_bodies.AllRequest(at=at), views.PoliciesView)

    async def events(
        self, entity_id: str = "", *, after: int | None = None, limit: int = 100, at: request_bodies.At = None
    ) -> views.EventsView:
        """Return the raw facts about an entity, or all; ``after`` a stream sequence, or the newest ``limit``."""
        ask = request_bodies.EventsRequest(id=entity_id, after=after, limit=limit, at=at)
        return await self._query("events", ask, views.EventsView)

    async def rejected(self) -> views.RejectedListView:
        """Return what could not be accepted, and why."""
        return await self._query("rejected", request_bodies.EmptyRequest(), views.RejectedListView)

    async def status(self, at: request_bodies.At = None) -> views.StatusView:
        """Return counts of jobs, devices and nodes, and the replicas that are alive."""
        return await self._query("status", request_bodies.AllRequest(at=at), views.StatusView)

    async def streams(self) -> views.StreamsView:
        """Return on which NATS servers each stream is kept."""
        return await self._query("streams", request_bodies.EmptyRequest(), views.StreamsView)

    async def dry_run(self, spec: JobSpec | None = None, *, strict: bool = False, **fields: Any) -> views.DryRunView:
        """Return where and when a job would start if it were submitted now, or why not."""
        filled = submission.fill(_given(spec, fields, JobSpec), is_known=bool(self.user))
        return await self._query("dryrun", request_bodies.SubmitRequest(spec=filled, strict=strict), views.DryRunView)

    async def schema(self) -> views.SchemaView:
        """Return the JSON Schemas of jobs and sweeps that the gateway holds."""
        return await self._query("schema", request_bodies.EmptyRequest(), views.SchemaView)

    # --- following
    async def wait(self, job_id: str) -> views.JobView:
        """
        Return the job once it has ended.

        It follows the job's own subject in the log, so it costs nothing while it waits and outlives restarts of the
        server and the gateway.

        Raises
        ------
        ValueError
            If it is a profiler's sample: its end is not announced.
        """
        job = (await self.job(job_id)).job
        if job.sample:
            raise ValueError(f"{job.id} is a sample of the profiler; wait for the job that it is taken for")
        if job.state in TERMINAL:
            return job
        seq = await self._announced(subjects.job(job.id), JobFinished)
        job = (await self.job(job.id)).job
        return job if job.state in TERMINAL else (await self.job(job.id, at=seq)).job

    async def wait_sweep(self, sweep_id: str) -> views.SweepView:
        """Return the sweep once it has ended, as :meth:`wait` does a job."""
        sweep = await self.sweep(sweep_id)
        if sweep.finished_s is not None:
            return sweep
        seq = await self._announced(subjects.sweep(sweep.id), SweepFinished)
        sweep = await self.sweep(sweep.id)
        return sweep if sweep.finished_s is not None else await self.sweep(sweep.id, at=seq)

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

    # --- asking
    async def _act(self, name: str, entity_id: str, reason: str = "") -> views.ActAnswer:
        ask = request_bodies.ActRequest(id=entity_id, by=submission.user_name(), reason=reason)
        return await self._command(name, ask, views.ActAnswer)

    async def _submit(
        self, name: str, spec: S, ask: Callable[[S], request_bodies.GatewayRequest]
    ) -> views.SubmitAnswer:
        """Submit under the given id, or else under one that is chosen now and kept over all tries."""
        for _ in range(_IDS):
            identified = spec if spec.id else msgspec.structs.replace(spec, id=self._new_id())
            shown = f"penstock {'sweep show' if name == 'tune' else 'show'} {identified.id}"
            again = f"under the id {identified.id} it is the same one, and not submitted twice"
            try:
                body, tries = await self._carried_out(name, ask(identified), shown, again)
            except ServiceError as error:
                if spec.id or error.code != _CONFLICT:
                    raise
                continue  # somebody else has the id that was chosen
            answer = _read(subjects.command(name), body, views.SubmitAnswer)
            if spec.id or answer.created:
                return answer
            if tries > 1:  # a try before this one has created it
                return msgspec.structs.replace(answer, created=True)
        raise BusError(f"{_IDS} ids that were chosen belong to others already; submit it under an id of your own")

    async def _command(self, name: str, ask: request_bodies.GatewayRequest, answer: type[V]) -> V:
        entity_id = str(getattr(ask, "id", "") or getattr(ask, "pool", ""))
        again = f"giving the command about {entity_id} again does no harm"
        body, _ = await self._carried_out(name, ask, _SHOWN_BY.get(name, "penstock show {}").format(entity_id), again)
        return _read(subjects.command(name), body, answer)

    async def _carried_out(
        self, name: str, ask: request_bodies.GatewayRequest, shown: str, again: str
    ) -> tuple[bytes, int]:
        subject = subjects.command(name)
        try:
            found = await request.answered(self.bus, subject, msgspec.json.encode(ask), self._retries)
        except BusError as error:
            if not request.is_open(error):
                raise
            advice = f"whether it was carried out is unknown: ask with `{shown}`; {again}"
            if isinstance(error, ServiceError):
                raise ServiceError(error.code, f"{error}. {advice[0].upper()}{advice[1:]}") from error
            raise Unanswered(f"no answer to {name} within {self._retries.timeout_s:g} s, {advice}") from error
        return found.body, found.tries

    async def _query(self, name: str, ask: request_bodies.GatewayRequest, answer: type[V]) -> V:
        retries = msgspec.structs.replace(self._retries, again_s=2 * self._retries.again_s, not_now=False)
        found = await request.answered(self.bus, subjects.query(name), msgspec.json.encode(ask), retries)
        return _read(subjects.query(name), found.body, answer)


def _read(subject: str, body: bytes, answer: type[V]) -> V:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        problem = f"the gateway answered on {subject} what this version cannot read: {error}"
        raise BusError(f"{problem}; use the version of penstock that the gateway has") from error


def _given(spec: S | None, fields: dict[str, Any], wanted: type[S]) -> S:
    if spec is not None and fields:
        raise TypeError(f"a specification and the fields {', '.join(fields)} were given; give one or the other")
    if spec is not None:
        return spec
    return validation.convert(validation.written_out(msgspec.to_builtins(fields, enc_hook=str), wanted), wanted)


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
