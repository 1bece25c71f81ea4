"""
Commands, by request and by inbox.

:class:`Commands` decodes a request, decides on the read model by the rules of :mod:`penstock_gateway.acceptance`,
appends the fact, and answers once the read model has it. Several commands are stored at a time, of all users in turn
(:mod:`penstock_gateway.user_queues`), but of one entity only one. :func:`take_submissions` does the same for
submissions that were published to an inbox and wait for no answer; errors of these go to REJECTED.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from penstock_bus import (
    Append,
    BatchRefused,
    BusError,
    Conflict,
    Endpoint,
    LogPort,
    Timeout,
    TooLarge,
    Unavailable,
    Work,
    WorkPort,
)
from penstock_bus.fair_semaphore import FairSemaphore
from penstock_bus.follower import FoldFollower
from penstock_gateway import acceptance, allocation_requests, dependencies, job_entry, people, team_reservations
from penstock_gateway.archived_ids import ArchivedIds
from penstock_gateway.authority import SERVICE, Admit, Caller
from penstock_gateway.code_store import CodeStore
from penstock_gateway.endpoints import RequestRefused, endpoint, job_asked, sweep_asked
from penstock_gateway.job_fit import NodeFit
from penstock_gateway.log_reader import catch_up
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.open_jobs import most_trials
from penstock_gateway.pilot_outlooks import PilotOutlooks
from penstock_gateway.user_queues import OpenJobsLimit, RateLimit, RepeatedRequests, UserQueues, asker, names_itself
from penstock_log import AnyEvent, Commit, JobSpec, SweepSpec, request_bodies, subjects, tracing, validation
from penstock_log.validation import BadInput
from penstock_log.views import ActAnswer, EnterAnswer, SubmitAnswer, View
from penstock_scheduler.pool.pool_settings import MatcherSettings

A = TypeVar("A", bound=request_bodies.GatewayRequest)
D = TypeVar("D", acceptance.Acceptable, acceptance.JobAction, job_entry.JobEntry)
T = TypeVar("T")
Answering = Callable[[bytes, Caller], Awaitable[View]]
_TRIES: Final = 5
_AT_A_STRETCH: Final = 25
"""So many decisions are made before others have their turn: a few milliseconds."""
_ENVELOPE_BYTES: Final = 1024
_HOLD_S: Final = 5.0
"""Less than the time after which the bus delivers a submission again that nobody holds."""
_GIVE_BACK_S: Final = 2.0
_LOOK_S: Final = 1.0
_log = structlog.get_logger("penstock.gateway")


class Commands:
    """
    The commands of users and operators.

    Parameters
    ----------
    bus, live
        The log, and the read model that follows it.
    actor : str
        The name under which the gateway commits.
    now_s : callable
        Seconds since the epoch.
    new_id : callable
        Returns a fresh short id for a job or a sweep.
    new_commit_id : callable
        Returns a fresh unique id for a commit.
    ticks : callable
        Seconds of a clock that only goes on.
    admit : Admit
        Says who asks, or refuses them.
    code : CodeStore
        What users have uploaded.
    matcher : MatcherSettings, optional
        Settings of the matcher, which may have priority classes.
    """

    def __init__(
        self,
        bus: LogPort,
        live: FoldFollower[GatewayState],
        settings: GatewaySettings,
        *,
        actor: str,
        now_s: Callable[[], float],
        new_id: Callable[[], str],
        new_commit_id: Callable[[], str],
        ticks: Callable[[], float],
        admit: Admit,
        code: CodeStore,
        matcher: MatcherSettings | None = None,
    ) -> None:
        self._bus, self._live, self._settings = bus, live, settings
        self._actor, self._now_s, self._admit, self._code = actor, now_s, admit, code
        self._new_id, self._new_commit_id = new_id, new_commit_id
        self._matcher = matcher or MatcherSettings()
        self._limit = OpenJobsLimit(settings.open_jobs)
        self._archived = ArchivedIds(Path(settings.archive_dir)) if settings.archive_dir else None
        self._storing: dict[str, asyncio.Event] = {}
        self._coming: dict[str, asyncio.Event] = {}
        """Job that is being submitted by itself → set when that is over."""
        self._fit, self._fit_seq = NodeFit(live.state.cluster), -1
        self._outlooks = PilotOutlooks(live.state, 0.0, self._matcher)
        rate = RateLimit(settings.commands_per_s, settings.commands_at_once, of=self._rate_of)
        self.submissions, self.acts = (
            UserQueues(
                what,
                slots=settings.concurrent_commands,
                most=settings.waiting_commands,
                most_bytes=settings.waiting_bytes,
                rate=rate,
                now_s=ticks,
            )
            for what in ("submissions", "acts")
        )

    def _rate_of(self, user: str) -> float | None:
        record = self._live.state.users.by_name.get(user)
        return record.commands_per_s if record is not None else None

    def _most_open(self, user: str) -> int | None:
        record = self._live.state.users.by_name.get(user)
        return record.open_jobs if record is not None else None

    @property
    def state(self) -> GatewayState:
        """The read model that is decided on."""
        return self._live.state

    def close(self) -> None:
        """Refuse the requests that wait for their turn."""
        self.submissions.close()
        self.acts.close()

    def endpoints(self) -> list[Endpoint]:
        """Return the commands as endpoints."""
        handlers: dict[str, Answering] = {
            "submit": self._submitting(self.submit_job),
            "tune": self._submitting(self.submit_sweep),
            **{verb: self._acting(act, request_bodies.ActRequest) for verb, act in acceptance.JOB_ACTS.items()},
            "extend": self._acting(acceptance.extend, request_bodies.ExtendRequest),
            "enter": self._enter,
            "drain": self._acting(acceptance.drain, request_bodies.DrainRequest),
            "resume": self._acting(acceptance.resume, request_bodies.NodeResumeRequest),
            "remove": self._acting(acceptance.remove, request_bodies.ActRequest),
            "policy": self._acting(
                partial(acceptance.set_policy, settings=self._matcher), request_bodies.PolicyRequest
            ),
            "reserve": self._acting(team_reservations.reserve, request_bodies.ReserveRequest),
            "unreserve": self._acting(team_reservations.unreserve, request_bodies.UnreserveRequest),
            "add_allocation": self._acting(allocation_requests.add, request_bodies.AllocationRequest),
            "remove_allocation": self._acting(allocation_requests.remove, request_bodies.ActRequest),
            "pause_allocation": self._acting(allocation_requests.pause, request_bodies.ActRequest),
            "resume_allocation": self._acting(allocation_requests.resume, request_bodies.ActRequest),
            "cancel_sweep": self._acting(acceptance.cancel_sweep, request_bodies.ActRequest),
            "set_user": self._acting(people.set_user, request_bodies.UserRequest),
            "remove_user": self._acting(people.remove_user, request_bodies.ActRequest),
        }
        most_bytes = self._bus.max_body_bytes
        return [
            endpoint(name, subjects.command(name), self._admit, handler, most_bytes, concurrent=True)
            for name, handler in handlers.items()
        ]

    def _submitting(self, submit: Callable[[bytes, Caller], Awaitable[SubmitAnswer]]) -> Answering:
        repeated: RepeatedRequests[SubmitAnswer] = RepeatedRequests(self.submissions)

        async def answer(body: bytes, caller: Caller) -> View:
            user = asker(body, caller.name)

            async def in_turn() -> SubmitAnswer:
                async with self.submissions.slot(user, len(body)):
                    return await submit(body, caller)

            if not names_itself(body):
                return await in_turn()
            found, is_copy = await repeated.answer(user, body, in_turn)
            return msgspec.structs.replace(found, created=False) if is_copy else found

        return answer

    @property
    def most_bytes(self) -> int:
        """Size of the largest specification that is accepted: its commit must fit the server's limit too."""
        return min(self._settings.max_spec_bytes, self._bus.max_body_bytes - _ENVELOPE_BYTES)

    async def submit_job(self, body: bytes, caller: Caller = SERVICE, new_id: str = "") -> SubmitAnswer:
        """
        Store the job that a body holds unless it is stored already; ``new_id`` is its id if it names none.

        Its user is who submits it, whatever the body says.

        Raises
        ------
        BadInput, RequestRefused
            See :func:`penstock_gateway.acceptance.job`.
        BusError
            If it could not be stored.
        """
        asked = job_asked(body, self.most_bytes)
        trace = tracing.parsed(asked.traceparent)
        return await self.submit_spec(
            asked.spec, caller, strict=asked.strict, new_id=new_id, trace=trace.text if trace is not None else ""
        )

    async def submit_spec(
        self, spec: JobSpec, caller: Caller, *, strict: bool, new_id: str = "", trace: str = ""
    ) -> SubmitAnswer:
        """Store a job as :meth:`submit_job` does; ``trace`` as ``Commit.trace`` has it."""
        spec = self.named(caller.stamp(spec), new_id)
        before = [one for one in (self._under_way(need) for need in dependencies.needs(spec)) if one is not None]
        over = asyncio.Event()
        is_first = self._coming.setdefault(spec.id, over) is over
        try:
            await self._check_archived([(spec.id, spec.user)])
            await self._check_code(spec)
            for submission in before:  # all of them came before this one, so none waits for it
                await submission.wait()
            return await self._submit(lambda: self._job(spec, caller, strict=strict), spec.user, 1, trace)
        finally:
            if is_first:
                del self._coming[spec.id]
                over.set()

    def _under_way(self, id_: str) -> asyncio.Event | None:
        """Return the end of what is being done about a job or a sweep, if anything is."""
        storing = self._storing.get(subjects.job(id_)) or self._storing.get(subjects.request(id_))
        return self._coming.get(id_) or storing

    def named(self, spec: JobSpec, new_id: str = "") -> JobSpec:
        """Return a job with its id, the given one, or a fresh one."""
        return msgspec.structs.replace(spec, id=spec.id or new_id or self._unused_id())

    async def submit_specs(
        self, specs: Sequence[JobSpec], caller: Caller, *, strict: bool
    ) -> list[SubmitAnswer | Exception | None]:
        """
        Store those of many jobs that can be stored as one, and return what became of each, in order.

        Parameters
        ----------
        specs : sequence of JobSpec
            As many as the log takes as one, with ids, and stamped by the caller.

        Returns
        -------
        list
            An answer; or the exception with which it is refused; or None for a job that :meth:`submit_spec` is still
            to be called with: others are storing something that it depends on, or the log refused them as one.
        """
        try:
            await self._check_archived([(spec.id, spec.user) for spec in specs])
            for spec in specs:
                await self._check_code(spec)
        except (BadInput, RequestRefused):  # one by one, which says what is wrong with which
            return [None] * len(specs)

        left: set[str] = set()

        def deciding(spec: JobSpec) -> Callable[[], acceptance.Acceptable | None]:
            def decide() -> acceptance.Acceptable | None:
                if any(need in left or self._under_way(need) for need in dependencies.needs(spec)):
                    left.add(spec.id)
                    return None
                return self._job(spec, caller, strict=strict)

            return decide

        users = {spec.id: spec.user for spec in specs}

        def counting(decided: acceptance.Acceptable) -> AbstractContextManager[None]:
            return self._limit.storing(users[decided.id], decided.id, 1)

        found = await self._commit_all([deciding(spec) for spec in specs], counting)
        return [_submitted(*one) if isinstance(one, tuple) else one for one in found]

    def _job(self, spec: JobSpec, caller: Caller, *, strict: bool) -> acceptance.Acceptable:
        """Decide on a job by the present read model; errors as of :func:`penstock_gateway.acceptance.job`."""
        state = self._live.state
        if self._fit_seq != self._live.last_seq or self._fit.cluster is not state.cluster:
            self._fit, self._fit_seq = NodeFit(state.cluster), self._live.last_seq
            self._outlooks = PilotOutlooks(state, 0.0, self._matcher)
        now_s = self._now_s()
        decided = acceptance.job(
            state,
            spec,
            strict=strict,
            now_s=now_s,
            caller=caller,
            fit=self._fit,
            outlooks=self._outlooks.at(now_s),
            settings=self._matcher,
        )
        if decided.fact is not None and not state.open_jobs.covers(spec):
            self._limit.check(state.open_jobs, spec.user, 1, self._most_open(spec.user))
        return decided

    async def submit_sweep(self, body: bytes, caller: Caller = SERVICE, new_id: str = "") -> SubmitAnswer:
        """Store a sweep as :meth:`submit_job` stores a job, unless its trials would be refused."""
        asked = sweep_asked(body, self.most_bytes)
        spec = caller.stamp_sweep(asked.spec)
        spec = msgspec.structs.replace(spec, id=spec.id or new_id or self._unused_id())
        await self._check_archived([(spec.id, spec.job.user)])
        if spec.id not in self._live.state.sweeps:
            await self._check_code(spec.job)

        def decide() -> acceptance.Acceptable:
            decided = acceptance.sweep(
                self._live.state,
                spec,
                strict=asked.strict,
                now_s=self._now_s(),
                caller=caller,
                settings=self._matcher,
            )
            self._check_trial(spec)
            if decided.fact is not None:
                user = spec.job.user
                self._limit.check(self._live.state.open_jobs, user, trials, self._most_open(user))
            return decided

        trials = most_trials(spec)
        return await self._submit(decide, spec.job.user, trials)

    async def accept_job(self, work: Work) -> SubmitAnswer:
        """Store a job of the inbox as :meth:`submit_job` does, as its submitter's."""
        return await self.submit_job(work.body, await self._admit("submit", work.user), given_id(work))

    async def accept_sweep(self, work: Work) -> SubmitAnswer:
        """Store a sweep of the inbox as :meth:`submit_sweep` does, as its submitter's."""
        return await self.submit_sweep(work.body, await self._admit("tune", work.user), given_id(work))

    async def _check_archived(self, wanted: Sequence[tuple[str, str]]) -> None:
        """
        Refuse an id of another user's archived job or sweep: output and checkpoints are still kept under it.

        Parameters
        ----------
        wanted : sequence of (str, str)
            Ids, each with the user who wants it.
        """
        if self._archived is None or not self._live.state.archive.jobs:
            return
        owners = await asyncio.to_thread(self._archived.owners, [one for one, _ in wanted])
        for one, user in wanted:
            if owners.get(one, user) != user:
                raise acceptance.id_taken(one)

    async def _check_code(self, spec: JobSpec) -> None:
        """Refuse a job whose code is not here; one that is there already is only submitted again."""
        if spec.code and self._live.state.jobs.get(spec.id) is None:
            acceptance.check(spec)
            await self._code.require(spec.user, spec.code)

    def _check_trial(self, spec: SweepSpec) -> None:
        try:
            asked = job_asked(msgspec.json.encode(acceptance.largest_trial(spec)), self.most_bytes)
            acceptance.check(asked.spec)
        except (BadInput, RequestRefused) as error:
            raise BadInput(f"$.job: with a point of the space, it would be refused as a trial: {error}") from error

    async def _submit(
        self, decide: Callable[[], acceptance.Acceptable], user: str, jobs: int, trace: str = ""
    ) -> SubmitAnswer:
        decided, seq = await self._commit(decide, lambda decided: self._limit.storing(user, decided.id, jobs), trace)
        if seq:
            _log.info("accepted", id=decided.id, seq=seq, subject=decided.subject)
        return _submitted(decided, seq)

    def _acting(
        self, act: Callable[[GatewayState, A, float, Caller], acceptance.JobAction], type_: type[A]
    ) -> Answering:
        async def answer(body: bytes, caller: Caller) -> ActAnswer:
            async with self.acts.slot(asker(body, caller.name), len(body)):
                asked = validation.decode(body, type_)
                if not caller.is_service:
                    asked = msgspec.structs.replace(asked, by=caller.name)
                await self.catch_up()
                return await self.act(act, asked, caller)

        return answer

    async def _enter(self, body: bytes, caller: Caller) -> EnterAnswer:
        async with self.acts.slot(asker(body, caller.name), len(body)):
            asked = validation.decode(body, request_bodies.EnterRequest)
            if not caller.is_service:
                asked = msgspec.structs.replace(asked, by=caller.name)
            await self.catch_up()
            now_s = self._now_s()
            entry, seq = await self._commit(
                lambda: job_entry.enter(self.state, asked, now_s, caller), naming=lambda decided: decided.commit_id
            )
            _log.info("entered", id=entry.id, by=asked.by, purpose=asked.purpose, node_id=entry.node_id, seq=seq)
            return EnterAnswer.of(entry, seq=seq)

    async def catch_up(self) -> None:
        """Wait until the read model has all that is in the log now: what another gateway accepted is there too."""
        await catch_up(self._bus, self._live)

    async def act(
        self, act: Callable[[GatewayState, A, float, Caller], acceptance.JobAction], asked: A, caller: Caller
    ) -> ActAnswer:
        """Carry out a command about something that is there, on the present read model."""
        done, seq = await self._commit(lambda: act(self._live.state, asked, self._now_s(), caller))
        if seq:
            _log.info("acted", message=done.message, seq=seq)
        return _acted(done, seq)

    async def act_all(
        self,
        act: Callable[[GatewayState, A, float, Caller], acceptance.JobAction],
        asked: Sequence[A],
        caller: Caller,
    ) -> list[ActAnswer | Exception | None]:
        """Carry out commands about different things as one; return what became of each as :meth:`submit_specs` does."""

        def deciding(one: A) -> Callable[[], acceptance.JobAction]:
            return lambda: act(self._live.state, one, self._now_s(), caller)

        found = await self._commit_all([deciding(one) for one in asked])
        return [_acted(*one) if isinstance(one, tuple) else one for one in found]

    async def _commit_all(
        self,
        decides: Sequence[Callable[[], D | None]],
        counting: Callable[[D], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> list[tuple[D, int] | Exception | None]:
        """
        Return decisions with the sequences of their facts, which are appended as one; 0 where there is no fact.

        A decision that is refused has its exception, and so has one whose fact could not be stored. None stands for
        one that :meth:`_commit` is to make: something is being stored of the same entity, or the log took no batch.
        """
        found: list[D | Exception | None] = []
        items: dict[int, Append] = {}
        seqs: dict[int, int] = {}
        stored = asyncio.Event()
        with ExitStack() as counted:
            try:
                for place, decide in enumerate(decides):
                    if place % _AT_A_STRETCH == _AT_A_STRETCH - 1:
                        await asyncio.sleep(0)
                    decided = self._decision(decide)
                    found.append(decided)
                    if decided is None or isinstance(decided, Exception) or decided.fact is None:
                        continue
                    items[place] = self._item(decided.subject, decided.fact)
                    self._storing[decided.subject] = stored
                    counted.enter_context(counting(decided))
                seqs = await self._store_all(items)
            except (Unavailable, BatchRefused, TooLarge) as error:
                outcome = await self._of_batch(error)
                found = [outcome if place in items else decided for place, decided in enumerate(found)]
            finally:
                for item in items.values():
                    del self._storing[item.subject]
                stored.set()
        return [
            one if one is None or isinstance(one, Exception) else (one, seqs.get(place, 0))
            for place, one in enumerate(found)
        ]

    def _decision(self, decide: Callable[[], D | None]) -> D | Exception | None:
        """Return a decision, or its refusal; None where something is being stored of the same entity."""
        try:
            decided = decide()
        except (BadInput, RequestRefused) as error:
            return error
        return None if decided is None or decided.subject in self._storing else decided

    async def _store_all(self, items: Mapping[int, Append]) -> dict[int, int]:
        """Append facts as one, wait until the read model has them, and return the sequence of each."""
        if not items:
            return {}
        seqs = await self._in_time(self._bus.append_all(list(items.values())))
        _log.info("stored_as_one", commits=len(items), first_seq=seqs[0], last_seq=seqs[-1])
        await self._folded(seqs[-1])
        return dict(zip(items, seqs, strict=True))

    async def _of_batch(self, error: Exception) -> Exception | None:
        """Return what has become of each fact of a batch that failed; None where it is to be tried by itself."""
        if isinstance(error, Unavailable):
            return error
        _log.info("batch_refused", reason=str(error))
        await self._live.caught_up()
        return None

    async def _commit(
        self,
        decide: Callable[[], D],
        counting: Callable[[D], AbstractContextManager[None]] = lambda _: nullcontext(),
        trace: str = "",
        naming: Callable[[D], str] = lambda _: "",
    ) -> tuple[D, int]:
        """
        Return a decision and the sequence of its fact; 0 if there is nothing to append.

        ``naming`` gives its commit an id by which the log has it once, where that is not to be another one each time.
        What others are storing of the same entity is waited for, and decided on anew: that is no conflict.
        """
        tries = 0
        while tries < _TRIES:
            decided = decide()
            if decided.fact is None:
                return decided, 0
            if decided.subject in self._storing:
                await self._stored(decided.subject)
                continue
            tries += 1
            stored = self._storing[decided.subject] = asyncio.Event()
            try:
                with counting(decided):
                    seq = await self._store(self._item(decided.subject, decided.fact, trace, naming(decided)))
            finally:
                del self._storing[decided.subject]
                stored.set()
            if seq:
                return decided, seq
        raise Conflict(decided.subject, 0)

    async def _stored(self, subject: str) -> None:
        """Wait until nothing of an entity is being stored."""
        while (storing := self._storing.get(subject)) is not None:
            await storing.wait()

    async def _store(self, item: Append) -> int:
        """Append a fact and wait until the read model has it; return 0 if somebody else was first: decide again."""
        try:
            seq = await self._in_time(self._bus.append(item))
        except Conflict:
            await self._live.caught_up()
            return 0
        await self._folded(seq)
        return seq

    def _item(self, subject: str, fact: AnyEvent, trace: str = "", commit_id: str = "") -> Append:
        """Return what to append now that a fact is decided on."""
        commit = Commit(id=commit_id or self._new_commit_id(), actor=self._actor, facts=(fact,), trace=trace)
        return Append(subject=subject, commit=commit, expected=self._live.heads.get(subject, 0))

    async def _in_time(self, appending: Awaitable[T]) -> T:
        """Return what an append returns; raise Timeout if the log takes too long."""
        try:
            async with asyncio.timeout(self._settings.append_timeout_s):
                return await appending
        except TimeoutError as error:
            raise Timeout(await self._why_unconfirmed()) from error

    async def _folded(self, seq: int) -> None:
        """Wait until the read model has what is stored."""
        try:
            await self._live.reached(seq, self._settings.append_timeout_s)
        except Timeout:
            _log.warning("read_model_behind", seq=seq, at=self._live.last_seq)  # it is stored all the same

    async def _why_unconfirmed(self) -> str:
        """Return what to say of an unanswered append: a log that answers looks but no appends has a full disk."""
        waited = f"nothing was confirmed within {self._settings.append_timeout_s:g} s"
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._bus.last_seq()
        except (TimeoutError, Unavailable):
            return f"{waited}: its servers elect a leader, for ten seconds at most, or are gone. See `penstock doctor`"
        return f"{waited}, though it can be read; is its disk full? See `penstock doctor`"

    def _unused_id(self) -> str:
        taken = self._live.state
        return next(i for i in iter(self._new_id, "") if i not in taken.jobs.by_id and i not in taken.sweeps)


def _submitted(decided: acceptance.Acceptable, seq: int) -> SubmitAnswer:
    return SubmitAnswer.of(decided, seq=seq or decided.seq, created=decided.fact is not None)


def _acted(done: acceptance.JobAction, seq: int) -> ActAnswer:
    return ActAnswer.of(done, changed=done.fact is not None, seq=seq)


Accept = Callable[[Work], Awaitable[SubmitAnswer]]
"""Accepts a submission, under an id of the bus if it names none."""


async def take_submissions(bus: WorkPort, queue: str, subject: str, accept: Accept, settings: GatewaySettings) -> None:
    """
    Accept the submissions of an inbox, of all users in turn, for ever.

    The gateway looks at as many submissions as the settings say before the first is stored, so that a user's single
    submission does not wait behind those of another user.
    """
    inbox = _Inbox(accept, settings)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(inbox.hold())
            async for work in bus.work(queue, [subject], settings.inbox_ahead):
                await inbox.room()
                inbox.add(work, group)
    finally:
        await inbox.give_back()


def given_id(work: Work) -> str:
    """Return the id of a submission that names none: every delivery of the same message has the same id."""
    return f"q{work.seq}-{hashlib.sha256(work.body).hexdigest()[:6]}"


class _Inbox:
    """The submissions of an inbox that have come and are not done."""

    def __init__(self, accept: Accept, settings: GatewaySettings) -> None:
        self._accept, self._settings = accept, settings
        self._slots = FairSemaphore(settings.concurrent_commands)
        self._open: dict[int, Work] = {}
        self._bytes = 0
        self._fewer = asyncio.Event()

    async def room(self) -> None:
        """Wait while what has come takes too much memory."""
        while self._open and self._bytes > self._settings.waiting_bytes:
            self._fewer.clear()
            await self._fewer.wait()

    def add(self, work: Work, group: asyncio.TaskGroup) -> None:
        """Begin to accept a submission; one that is here already is only another delivery of the same."""
        if work.seq in self._open:
            return
        self._open[work.seq] = work
        self._bytes += len(work.body)
        group.create_task(self._take(work))

    async def hold(self) -> None:
        """Keep what waits here from being delivered again."""
        while True:
            await asyncio.sleep(_HOLD_S)
            for work in list(self._open.values()):
                await work.hold()

    async def give_back(self) -> None:
        """Leave what is not done to other gateways."""
        with suppress(BusError, TimeoutError):  # its time will run out
            async with asyncio.timeout(_GIVE_BACK_S):
                await asyncio.gather(*(work.retry() for work in self._open.values()))

    async def _take(self, work: Work) -> None:
        """
        Accept or reject one submission, however long the log is away or full.

        Meanwhile the gateway holds the submission and does not put it back: the bus counts deliveries, and the gateway
        must not give up a stored submission for want of room.
        """
        while not await self._tried(work):
            await asyncio.sleep(self._settings.retry_s)
            await work.hold()
        del self._open[work.seq]
        self._bytes -= len(work.body)
        self._fewer.set()

    async def _tried(self, work: Work) -> bool:
        user = asker(work.body, work.user)
        await self._slots.acquire(user)
        try:
            await _decide(work, self._accept)
        except (Unavailable, Conflict) as error:
            _log.warning("submission_waits", subject=work.subject, error=str(error), retry_s=self._settings.retry_s)
            return False
        finally:
            self._slots.release(user)
        return True


async def _decide(work: Work, accept: Accept) -> None:
    try:
        answer = await accept(work)
    except (BadInput, RequestRefused, TooLarge) as error:
        _log.info("submission_rejected", subject=work.subject, reason=str(error))
        await work.reject(str(error))
    else:
        _log.debug("submission_taken", id=answer.id, created=answer.created)
        await work.ack()
