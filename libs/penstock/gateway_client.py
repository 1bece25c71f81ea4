"""
What is one request to the gateway and its answer: submissions, acts and queries, on an event loop or without one.

:class:`GatewayClient` makes the request, has a :class:`GatewayRequester` ask it, and reads the answer. It needs no
event loop, no NATS library and no facts, so that a command line is quick: :class:`penstock.Client` adds the connection
and everything that goes on for longer, and :mod:`penstock.blocking` asks one thing after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Optional, Protocol, TypeVar, Union

import msgspec

from penstock.retries import RetriedAnswer, RetryPolicy, is_open, new_id
from penstock_bus.errors import BusError, ServiceError, Unanswered
from penstock_log import request_bodies, subjects, views
from penstock_log.spec import JobSpec, SweepSpec
from penstock_log.text import listed

if TYPE_CHECKING:
    from types import ModuleType

    from penstock.code_upload import UploadedCode
    from penstock_bus.identity import logins
    from penstock_log import session_messages
    from penstock_log.allocation_spec import AllocationSpec
    from penstock_log.spec import NotifyKind, Role, Setting

_IDS: Final = 3
_BAD: Final = 400
_CONFLICT: Final = 409
_TOO_LARGE: Final = 413
_IN_FULL: Final = 1000
_ROWS: Final = 5000
_PATIENCE_S: Final = 4.0
"""Before a request about many jobs is asked again."""
TRACE_VARIABLE: Final = "TRACEPARENT"
"""Where programs that start others leave the trace to which they belong."""
_HEADROOM: Final = 4096
_NOT_FOUND: Final = 404
_NAMED: Final = 20
_SHOWN_BY: Final = {
    "cancel_sweep": "penstock sweep show {}",
    **dict.fromkeys(("drain", "resume", "remove"), "penstock nodes"),
    "policy": "penstock policy show",
    **dict.fromkeys(("reserve", "unreserve"), "penstock reservations"),
    **dict.fromkeys((f"{verb}_allocation" for verb in ("add", "remove", "pause", "resume")), "penstock alloc ls"),
}
"""Commands about other things than jobs: how people see what became of them."""
T = TypeVar("T")
V = TypeVar("V", bound="views.View")
S = TypeVar("S", JobSpec, SweepSpec)


class GatewayRequester(Protocol):
    """Asks until there is an answer."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request."""

    async def answered(self, subject: str, body: bytes, policy: RetryPolicy) -> RetriedAnswer:
        """Return the answer; errors as of :func:`penstock.request.answered`."""


class GatewayClient:
    """
    Everything that is one request to the gateway.

    Every method raises a child of :class:`penstock_bus.BusError`, as :class:`penstock.Client` says.

    Parameters
    ----------
    retries : RetryPolicy
        How patiently commands are asked; a query gets twice as long before it is asked again.
    make_id : callable
        Gives the id of a submission that names none.
    """

    def __init__(self, asker: GatewayRequester, retries: RetryPolicy, make_id: Callable[[], str] = new_id) -> None:
        self._asker, self._retries, self._new_id = asker, retries, make_id
        self.user = ""
        """Under which name the server knows who asks; empty before it was asked, and where it knows nobody."""
        self.on_upload: Callable[[UploadedCode], object] = lambda _: None
        """Called after each upload of a job's folder."""
        self.on_submit: Callable[[Sequence[str]], object] = lambda _: None
        """Called with the ids of jobs, or of a sweep, right before the gateway is asked to take them."""

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

        The job belongs to the trace in the variable ``TRACEPARENT``, where it is set. A folder that it names as its
        ``workdir`` is uploaded first, as far as the cluster does not have it.

        Raises
        ------
        BadInput
            If the folder cannot be uploaded; the message says why.
        """
        filled = _filler().fill(given_spec(spec, fields, JobSpec), is_known=bool(self.user))
        (filled,) = await self._with_code([filled])
        trace = os.environ.get(TRACE_VARIABLE, "")[:128]
        return await self._submit(
            "submit", filled, lambda job: request_bodies.SubmitRequest(spec=job, strict=strict, traceparent=trace)
        )

    async def submit_all(
        self, specs: Iterable[Union[JobSpec, Mapping[str, Any]]], *, strict: bool = False
    ) -> list[views.SubmittedJob]:
        """
        Submit many jobs, each given as a :class:`JobSpec` or as its fields; return what became of each, in their order.

        One that is refused keeps no other: its answer has a ``code`` and an ``error``. A thousand take one request.
        """
        given = [_given_job(one) for one in specs]
        filled = [_filler().fill(one, is_known=bool(self.user)) for one in given]
        filled = await self._with_code(filled)
        answers: list[views.SubmittedJob] = []
        for some in self._parts(filled):
            answers += await self._submit_part(some, strict=strict)
        return answers

    async def upload(
        self, workdir: Union[str, os.PathLike[str]], *, user: str = "", needed: Sequence[str] = ()
    ) -> UploadedCode:
        """
        Upload what the cluster does not have of a folder, for jobs that name it as their ``code``.

        Parameters
        ----------
        user : str
            Whose jobs these are; empty: the asker's.
        needed : sequence of str
            Files of the folder that must not be left out.

        Raises
        ------
        BadInput
            If the folder cannot be uploaded as it is; the message says why.
        """
        from penstock import code_upload  # noqa: PLC0415 - most commands upload nothing

        async def ask(name: str, body: bytes) -> views.UploadView:
            subject = subjects.command(name)
            retries = msgspec.structs.replace(self._retries, again_s=max(self._retries.again_s, _PATIENCE_S))
            found = await self._asker.answered(subject, body, retries)
            return read_answer(subject, found.body, views.UploadView)

        whose = user or ("" if self.user else _filler().user_name())
        done = await code_upload.upload(ask, workdir, whose, self._asker.max_body_bytes, needed, aside=self._aside)
        self.on_upload(done)
        return done

    async def _aside(self, act: Callable[[], T]) -> T:
        """Return what a function returns that may take long, such as to read a folder."""
        return act()

    async def _with_code(self, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """Return jobs with their folders uploaded, each of them once."""
        needed: dict[tuple[str, str], list[str]] = {}
        for spec in specs:
            if spec.workdir:
                needed.setdefault((spec.workdir, spec.user), []).extend(_filler().own_files(spec))
        known = {
            key: (await self.upload(key[0], user=key[1], needed=needed_of_one)).digest
            for key, needed_of_one in needed.items()
        }
        return [
            msgspec.structs.replace(spec, workdir="", code=known[spec.workdir, spec.user]) if spec.workdir else spec
            for spec in specs
        ]

    def _parts(self, specs: Sequence[JobSpec]) -> Iterable[list[JobSpec]]:
        """Yield as many jobs at a time as one request has room for."""
        room, size = self._asker.max_body_bytes - _HEADROOM, 0
        some: list[JobSpec] = []
        for spec in specs:
            more = len(msgspec.json.encode(spec)) + 16
            if some and (size + more > room or len(some) == request_bodies.MOST_AT_ONCE):
                yield some
                some, size = [], 0
            some.append(spec)
            size += more
        if some:
            yield some

    async def _submit_part(self, specs: list[JobSpec], *, strict: bool) -> list[views.SubmittedJob]:
        """Submit what fits one request; a chosen id that somebody else has is chosen anew."""
        answers: dict[int, views.SubmittedJob] = {}
        left = list(range(len(specs)))
        for _ in range(_IDS):
            some = [specs[i] if specs[i].id else msgspec.structs.replace(specs[i], id=self._new_id()) for i in left]
            ask = request_bodies.SubmitAllRequest(specs=tuple(some), strict=strict)
            again = "each has its id, under which it is not submitted twice"
            ids = f"{some[0].id}{' and so on' if len(some) > 1 else ''}"
            self.on_submit([spec.id for spec in some])
            body, tries = await self._carried_out("submit_all", ask, f"penstock show {ids}", again, _PATIENCE_S)
            found = read_answer(subjects.command("submit_all"), body, views.SubmittedJobsView).answers
            for i, answer in zip(left, found):
                known = bool(answer.id) and not answer.code and not answer.created and not specs[i].id
                answers[i] = msgspec.structs.replace(answer, created=True) if known and tries > 1 else answer
            left = [i for i in left if not specs[i].id and answers[i].code == _CONFLICT]
            if not left:
                break
        return [answers[i] for i in range(len(specs))]

    async def cancel(self, job_id: str, reason: str = "") -> views.ActAnswer:
        """End a job; a running one is stopped first. The id may be cut to a unique beginning, here and below."""
        return await self._act("cancel", job_id, reason)

    async def hold(self, job_id: str) -> views.ActAnswer:
        """Keep a waiting job from being started."""
        return await self._act("hold", job_id)

    async def release(self, job_id: str) -> views.ActAnswer:
        """Let a held job be started again."""
        return await self._act("release", job_id)

    async def extend(self, job_id: str, add_s: float = 0.0, *, limit_s: Optional[float] = None) -> views.ActAnswer:
        """
        Let a job run for so many seconds more than it may so far; or for ``limit_s`` over all of its runs.

        Parameters
        ----------
        limit_s : float, optional
            In place of ``add_s``; 0: as long as it likes.
        """
        if limit_s is None:
            limit_s = (await self.job(job_id)).time_limit_s + add_s
            if limit_s == add_s:
                raise ServiceError(_BAD, f"job {job_id} has no time limit to add to; to give it one, name it in full")
        ask = request_bodies.ExtendRequest(id=job_id, limit_s=limit_s, by=_filler().user_name())
        return await self._command("extend", ask, views.ActAnswer)

    async def enter(
        self, job_id: str, session_id: str, *, rank: int = 0, purpose: session_messages.Purpose = "exec"
    ) -> views.EnterAnswer:
        """Be let into a process of a running job; :class:`penstock.job_session.JobSession` does the rest."""
        ask = request_bodies.EnterRequest(
            id=job_id, session_id=session_id, rank=rank, purpose=purpose, by=_filler().user_name()
        )
        return await self._command("enter", ask, views.EnterAnswer)

    async def notify(
        self, url: str, on: Iterable[NotifyKind] = (), *, waiting_s: float = 0.0, about: str = "", name: str = ""
    ) -> views.ActAnswer:
        """
        Be told of what becomes of one's jobs; the answer has the id of the rule.

        Parameters
        ----------
        url : str
            Where messages go, as apprise has it; kept by the gateway, and never in the log.
        on : iterable of {"started", "completed", "failed", "timed_out", "cancelled", "preempted"}
            Of what; without any, of what a job's own ``notify`` says.
        waiting_s : float
            Also of jobs that wait for longer.
        about : str
            Of this job, or of the trials of this sweep alone.
        name : str
            What the address is called in lists.
        """
        ask = request_bodies.NotifyRequest(
            rule=f"n{self._new_id()}",
            url=url,
            on=tuple(on),
            waiting_s=waiting_s,
            id=about,
            name=name,
            by=_filler().user_name(),
        )
        return await self._command("notify", ask, views.ActAnswer)

    async def remove_notification(self, rule: str) -> views.ActAnswer:
        """Be told no more what a rule says."""
        return await self._act("remove_notification", rule)

    async def test_notification(self, rule: str) -> views.ActAnswer:
        """Send a message by a rule, now."""
        return await self._act("test_notification", rule)

    async def notifications(self) -> views.NotificationsView:
        """Return one's rules, and what has become of their messages; an operator gets those of all."""
        return await self._query("notifications", request_bodies.AllRequest(), views.NotificationsView)

    async def act_on_all(
        self,
        verb: request_bodies.Verb,
        ids: Iterable[str] = (),
        *,
        where: Optional[request_bodies.JobFilter] = None,
        state: Iterable[str] = (),
        reason: str = "",
        dry_run: bool = False,
        limit_s: Optional[float] = None,
    ) -> views.BulkView:
        """
        Cancel, hold, release, extend or retry many jobs, each with the rights of its own command.

        The answer says what became of each.

        Parameters
        ----------
        ids : iterable of str
            Ids, or unique beginnings of them.
        where : JobFilter, optional
            In place of ids: all jobs that match, and in which the verb would change something.
        state : iterable of str
            With ids: leave out what is in none of these two-letter states. Of an array, ``retry`` leaves out in any
            case what neither failed nor was cancelled, and what was retried before.
        dry_run : bool
            Change nothing, and return what would be changed.
        limit_s : float, optional
            Of ``extend``: so long each may run over all of its runs; 0: as long as it likes.
        """
        wanted = tuple(ids)
        ask = request_bodies.BulkRequest(
            verb=verb,
            where=where,
            state=tuple(state),
            reason=reason,
            dry_run=dry_run,
            limit_s=limit_s,
            by=_filler().user_name(),
        )
        found: list[views.BulkView] = []
        if where is None:
            most = request_bodies.MOST_AT_ONCE
            parts = (wanted[first : first + most] for first in range(0, len(wanted), most))
            found = [await self._bulk(msgspec.structs.replace(ask, ids=part)) for part in parts]
        else:
            found.append(await self._bulk(ask))
            while found[-1].next:
                found.append(await self._bulk(msgspec.structs.replace(ask, after=found[-1].next)))
        return views.BulkView(
            answers=tuple(answer for one in found for answer in one.answers),
            matched=sum(one.matched for one in found) if where is None else found[0].matched,
            changed=sum(one.changed for one in found),
            refused=sum(one.refused for one in found),
        )

    async def _bulk(self, ask: request_bodies.BulkRequest) -> views.BulkView:
        again = f"giving the command to {ask.verb} them again does no harm"
        body, _ = await self._carried_out("bulk", ask, "penstock ps -a", again, _PATIENCE_S)
        return read_answer(subjects.command("bulk"), body, views.BulkView)

    async def cancel_sweep(self, sweep_id: str) -> views.ActAnswer:
        """End a sweep and its trials."""
        return await self._act("cancel_sweep", sweep_id)

    async def drain(
        self, node_id: str, reason: str = "", *, preempt: bool = False, device: Optional[int] = None
    ) -> views.ActAnswer:
        """Give a node, or one of its devices, no new jobs; with ``preempt`` move its running ones elsewhere."""
        ask = request_bodies.DrainRequest(
            id=node_id, by=_filler().user_name(), reason=reason, preempt=preempt, device=device
        )
        return await self._command("drain", ask, views.ActAnswer)

    async def resume(self, node_id: str, *, device: Optional[int] = None) -> views.ActAnswer:
        """Give a drained node jobs again; or one device that was drained, or has failed."""
        ask = request_bodies.NodeResumeRequest(id=node_id, by=_filler().user_name(), device=device)
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
            by=_filler().user_name(),
            reason=reason,
        )
        return await self._command("policy", ask, views.ActAnswer)

    async def set_class(
        self,
        name: str,
        weight: int,
        *,
        preempts: bool = False,
        most_gpus: int = 0,
        teams: Iterable[str] = (),
        pool: str = "default",
        reason: str = "",
    ) -> views.ActAnswer:
        """
        Give a pool a priority class, or change it, from now on.

        Parameters
        ----------
        weight : int
            Jobs of a class with a higher weight come first; jobs without a class have 0.
        preempts : bool
            Whether runs of classes with a lower weight make way for its jobs.
        most_gpus : int
            Devices that its jobs of one user hold at once; 0: as many as there are.
        teams : iterable of str
            Who may use it; none: everybody.
        """
        rules: dict[str, Setting] = {
            "weight": weight,
            "preempts": preempts,
            "most_gpus": most_gpus,
            "teams": list(teams),
        }
        settings = {f"class.{name}.{field}": value for field, value in rules.items()}
        return await self.set_policy(pool, settings, reason=reason)

    async def remove_class(self, name: str, *, pool: str = "default", reason: str = "") -> views.ActAnswer:
        """Go back to what the settings file says of a class, or to none; refused while a job names the class."""
        unset = [f"class.{name}.{field}" for field in ("weight", "preempts", "most_gpus", "teams")]
        return await self.set_policy(pool, unset=unset, reason=reason)

    async def reserve(
        self,
        team: str,
        gpus: int,
        *,
        until_s: float,
        from_s: float = 0.0,
        kind: str = "",
        pool: str = "default",
        reason: str = "",
    ) -> views.ActAnswer:
        """
        Reserve devices of a pool for a team; the answer's id is the reservation's.

        Parameters
        ----------
        gpus : int
            Devices that are the team's own meanwhile, beside its quota.
        from_s, until_s : float
            Seconds since the epoch; without a begin it is now.
        kind : str
            Of the devices; empty: of whatever kinds.
        """
        ask = request_bodies.ReserveRequest(
            team=team,
            gpus=gpus,
            from_s=from_s,
            until_s=until_s,
            kind=kind,
            pool=pool,
            by=_filler().user_name(),
            reason=reason,
        )
        return await self._command("reserve", ask, views.ActAnswer)

    async def unreserve(self, reservation_id: str, *, pool: str = "", reason: str = "") -> views.ActAnswer:
        """Cancel a reservation, whether or not it has begun; the pool need be named only where several have the id."""
        ask = request_bodies.UnreserveRequest(id=reservation_id, pool=pool, by=_filler().user_name(), reason=reason)
        return await self._command("unreserve", ask, views.ActAnswer)

    async def add_allocation(self, name: str, spec: AllocationSpec) -> views.ActAnswer:
        """Add an allocation: from now on pilots are submitted where jobs wait that would run on them."""
        ask = request_bodies.AllocationRequest(name=name, spec=spec, by=_filler().user_name())
        return await self._command("add_allocation", ask, views.ActAnswer)

    async def remove_allocation(self, name: str, *, reason: str = "") -> views.ActAnswer:
        """Remove an allocation; its pilots are cancelled, and their runs go on elsewhere."""
        return await self._act("remove_allocation", name, reason)

    async def pause_allocation(self, name: str, *, reason: str = "") -> views.ActAnswer:
        """Submit no more pilots of an allocation; those that there are go on."""
        return await self._act("pause_allocation", name, reason)

    async def resume_allocation(self, name: str, *, reason: str = "") -> views.ActAnswer:
        """Submit pilots of an allocation again, whoever has paused it."""
        return await self._act("resume_allocation", name, reason)

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

    async def users(self) -> views.UsersView:
        """Return who may use the cluster."""
        return await self._query("users", request_bodies.AllRequest(), views.UsersView)

    # --- queries
    async def jobs(
        self,
        *,
        state: Iterable[str] = (),
        user: str = "",
        name: str = "",
        parent: str = "",
        group: str = "",
        team: str = "",
        pool: str = "",
        model: str = "",
        text: str = "",
        ids: Iterable[str] = (),
        samples: bool = False,
        since_s: float = 0.0,
        limit: int = 500,
        rows: bool = False,
        at: request_bodies.At = None,
    ) -> views.JobsView:
        """
        Return the jobs that match all given filters, the newest ``limit``, oldest first; more than a page is asked for
        page by page.

        Parameters
        ----------
        text : str
            A part of the id or the name.
        group : str
            A group, or the id of an array.
        since_s : float
            Leave out those that ended before, in seconds since the epoch.
        rows : bool
            Return what a table shows, as ``rows`` of the answer: ten thousand jobs take two pages.
        """
        ask = request_bodies.JobsRequest(
            state=tuple(state),
            user=user,
            name=name,
            parent=parent,
            group=group,
            team=team,
            pool=pool,
            model=model,
            text=text,
            ids=tuple(ids),
            samples=samples,
            since_s=since_s or None,
            rows=rows,
            at=at,
        )
        page = _ROWS if rows else _IN_FULL
        found = await self._jobs_page(ask, min(limit, page), 0)
        while (there := len(found.jobs) + len(found.rows)) < min(limit, found.total):
            older = await self._jobs_page(ask, min(limit - there, page), there)
            if not (older.jobs or older.rows):
                break  # some have been archived meanwhile
            found = msgspec.structs.replace(found, jobs=older.jobs + found.jobs, rows=older.rows + found.rows)
        return found

    async def jobs_page(self, ask: request_bodies.JobsRequest) -> views.JobsView:
        """Return one page of the list of jobs, as a request says it; less where one message has no room for it."""
        return await self._jobs_page(ask, ask.limit, ask.offset)

    async def _jobs_page(self, ask: request_bodies.JobsRequest, limit: int, offset: int) -> views.JobsView:
        """Return a page, or less of it where it is too long for one message."""
        return await self._page_that_fits(
            "jobs", lambda most: msgspec.structs.replace(ask, limit=most, offset=offset), limit, views.JobsView
        )

    async def _page_that_fits(
        self, name: str, ask: Callable[[int], request_bodies.GatewayRequest], limit: int, answer: type[V]
    ) -> V:
        """Return a page of at most so many, or of half as many until the answer fits into a message."""
        while True:
            try:
                return await self._query(name, ask(limit), answer)
            except ServiceError as error:
                if error.code != _TOO_LARGE or limit == 1:
                    raise
                limit = max(limit // 2, 1)

    async def job(self, job_id: str, at: request_bodies.At = None) -> views.JobDetail:
        """Return one job in full."""
        return await self._query("job", request_bodies.OneRequest(id=job_id, at=at), views.JobDetail)

    async def why(self, job_id: str, at: request_bodies.At = None) -> views.WhyView:
        """Return why a job is where it is."""
        return await self._query("why", request_bodies.OneRequest(id=job_id, at=at), views.WhyView)

    async def story(self, job_id: str, at: request_bodies.At = None) -> views.StoryView:
        """Return a job's life, a sentence for each fact."""
        return await self._query("story", request_bodies.OneRequest(id=job_id, at=at), views.StoryView)

    async def metrics(
        self, job_id: str, names: Iterable[str] = (), *, most: int = 1000, at: request_bodies.At = None
    ) -> views.SeriesView:
        """
        Return the metrics of a job as series over all of its runs; ``pandas.DataFrame(view.columns())`` takes them.

        Parameters
        ----------
        names : iterable of str
            Of metrics; empty for all.
        most : int
            The most rows, 2 to 10,000: of more, each row is the last of a stretch.
        """
        ask = request_bodies.SeriesRequest(id=job_id, names=tuple(names), most=most, at=at)
        return await self._query("series", ask, views.SeriesView)

    async def sweep_metrics(
        self, sweep_id: str, names: Iterable[str] = (), *, most: int = 1000, at: request_bodies.At = None
    ) -> views.SweepSeriesView:
        """
        Return what the trials of a sweep reported; ``pandas.DataFrame(view.columns())`` takes them as one table.

        Each trial is a request.

        Parameters
        ----------
        names, most
            As for :meth:`metrics`, of each trial.

        Raises
        ------
        ServiceError
            With code 404 where no trial has a metric of one of the names, though they have others.
        """
        sweep, wanted = await self.sweep(sweep_id, at), dict.fromkeys(names)
        found, known = [], dict[str, None]()
        for trial in sweep.trials:
            if trial.state:
                series = await self.metrics(trial.job_id, most=most, at=at)
                known.update(dict.fromkeys(series.metrics))
                chosen = {name: values for name, values in series.metrics.items() if not wanted or name in wanted}
                series = msgspec.structs.replace(series, metrics=chosen)
                found.append(views.TrialSeries(trial=trial.number, params=trial.params, series=series))
        unknown = [name for name in wanted if name not in known]
        if unknown and known:
            has = f"{listed([*known][:_NAMED])}{', …' if len(known) > _NAMED else ''}"
            raise ServiceError(
                _NOT_FOUND, f"sweep {sweep.id} has no series of {listed(unknown)}; its trials have {has}"
            )
        return views.SweepSeriesView(id=sweep.id, name=sweep.name, trials=tuple(found))

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

    async def sweeps(
        self,
        at: request_bodies.At = None,
        *,
        user: str = "",
        team: str = "",
        state: Iterable[str] = (),
        limit: int = 100_000,
    ) -> views.SweepsView:
        """
        Return the sweeps that match all given filters, without their trials.

        Of more than ``limit``, these are the open ones, and then the newest; they are asked for page by page.

        Parameters
        ----------
        state : iterable of str
            ``running``, ``cancelling``, or how they ended.
        """
        ask = request_bodies.SweepsRequest(user=user, team=team, state=tuple(state), at=at)
        found = await self._sweeps_page(ask, min(limit, _IN_FULL), 0)
        while (there := len(found.sweeps)) < min(limit, found.total):
            older = await self._sweeps_page(ask, min(limit - there, _IN_FULL), there)
            if not older.sweeps:
                break  # some have been archived meanwhile
            found = msgspec.structs.replace(found, sweeps=older.sweeps + found.sweeps)
        return found

    async def _sweeps_page(self, ask: request_bodies.SweepsRequest, limit: int, offset: int) -> views.SweepsView:
        """Return a page, or less of it where it is too long for one message."""
        return await self._page_that_fits(
            "sweeps",
            lambda most: msgspec.structs.replace(ask, limit=most, offset=offset),
            limit,
            views.SweepsView,
        )

    async def sweep(self, sweep_id: str, at: request_bodies.At = None) -> views.SweepView:
        """Return one sweep with its trials."""
        return await self._query("sweep", request_bodies.OneRequest(id=sweep_id, at=at), views.SweepView)

    async def profile(self, workload: str, at: request_bodies.At = None) -> views.ProfileView:
        """Return what is known of a workload: by its key, or by a job or a sweep of it."""
        return await self._query("profile", request_bodies.OneRequest(id=workload, at=at), views.ProfileView)

    async def timeline(
        self,
        *,
        since: request_bodies.At = None,
        until: request_bodies.At = None,
        pool: str = "",
        node: str = "",
        offset: int = 0,
        limit: int = 40,
        pixels: int = 1000,
        at: request_bodies.At = None,
    ) -> views.TimelineView:
        """Return who held the devices of some nodes when; what is shorter than the window over ``pixels`` is merged."""
        ask = request_bodies.TimelineRequest(
            since=since, until=until, pool=pool, node=node, offset=offset, limit=limit, pixels=pixels, at=at
        )
        return await self._query("timeline", ask, views.TimelineView)

    async def usage(
        self,
        by: request_bodies.UsageBy = "user",
        *,
        since: request_bodies.At = None,
        until: request_bodies.At = None,
        order: request_bodies.UsageOrder = "held",
        limit: int = 1000,
        at: request_bodies.At = None,
    ) -> views.UsageView:
        """
        Return device time by group within a window, in GPU-seconds: asked for, waited, held, and what came of it.

        Parameters
        ----------
        by : {"user", "team", "pool", "model", "kind", "job"}
            What a row is.
        since, until : int, float or str, optional
            Seconds since the epoch, a span before now (``7d``), a UTC day (``2026-01-31``), or an RFC 3339 time.
        order : str
            The column by which rows are sorted, the largest first; ``name`` sorts by name.
        limit : int
            At most this many rows, up to 1,000; what is beyond is one row more.
        at : optional
            Answer as of this moment.
        """
        ask = request_bodies.UsageRequest(by=by, since=since, until=until, order=order, limit=limit, at=at)
        return await self._query("usage", ask, views.UsageView)

    async def allocations(self, at: request_bodies.At = None) -> views.AllocationsView:
        """Return all allocations with their pilots, now or as they were at some moment."""
        return await self._query("allocations", request_bodies.AllRequest(at=at), views.AllocationsView)

    async def try_pilot(self, name: str, spec: AllocationSpec) -> views.PilotTrialView:
        """Return what a pilot of an allocation would be, and what its provider says of it; nothing is submitted."""
        return await self._query(
            "try_pilot", request_bodies.AllocationRequest(name=name, spec=spec), views.PilotTrialView
        )

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

    async def moment(self, at: request_bodies.At = None) -> views.MomentView:
        """Return from when to when the log goes, and which commit is the last of a moment."""
        return await self._query("moment", request_bodies.AllRequest(at=at), views.MomentView)

    async def stats(self, at: request_bodies.At = None) -> views.StatsView:
        """Return figures by pool and team, for metrics."""
        return await self._query("stats", request_bodies.AllRequest(at=at), views.StatsView)

    async def streams(self) -> views.StreamsView:
        """Return on which NATS servers each stream is kept."""
        return await self._query("streams", request_bodies.EmptyRequest(), views.StreamsView)

    async def dry_run(self, spec: JobSpec | None = None, *, strict: bool = False, **fields: Any) -> views.DryRunView:
        """Return where and when a job would start if it were submitted now, or why not."""
        filled = _filler().fill(given_spec(spec, fields, JobSpec), is_known=bool(self.user))
        filled = msgspec.structs.replace(filled, workdir="")
        return await self._query("dryrun", request_bodies.SubmitRequest(spec=filled, strict=strict), views.DryRunView)

    async def schema(self) -> views.SchemaView:
        """Return the JSON Schemas of jobs and sweeps that the gateway holds."""
        return await self._query("schema", request_bodies.EmptyRequest(), views.SchemaView)

    # --- asking
    async def _act(self, name: str, entity_id: str, reason: str = "") -> views.ActAnswer:
        ask = request_bodies.ActRequest(id=entity_id, by=_filler().user_name(), reason=reason)
        return await self._command(name, ask, views.ActAnswer)

    async def _submit(
        self, name: str, spec: S, ask: Callable[[S], request_bodies.GatewayRequest]
    ) -> views.SubmitAnswer:
        """Submit under the given id, or else under one that is chosen now and kept over all tries."""
        for _ in range(_IDS):
            identified = spec if spec.id else msgspec.structs.replace(spec, id=self._new_id())
            shown = f"penstock {'sweep show' if name == 'tune' else 'show'} {identified.id}"
            again = f"under the id {identified.id} it is the same one, and not submitted twice"
            self.on_submit([identified.id])
            try:
                body, tries = await self._carried_out(name, ask(identified), shown, again)
            except ServiceError as error:
                if spec.id or error.code != _CONFLICT:
                    raise
                continue  # somebody else has the id that was chosen
            answer = read_answer(subjects.command(name), body, views.SubmitAnswer)
            if spec.id or answer.created:
                return answer
            if tries > 1:  # a try before this one has created it
                return msgspec.structs.replace(answer, created=True)
        raise BusError(f"{_IDS} ids that were chosen belong to others already; submit it under an id of your own")

    async def _command(self, name: str, ask: request_bodies.GatewayRequest, answer: type[V]) -> V:
        entity_id = str(getattr(ask, "id", "") or getattr(ask, "pool", ""))
        again = f"giving the command about {entity_id} again does no harm"
        body, _ = await self._carried_out(name, ask, _SHOWN_BY.get(name, "penstock show {}").format(entity_id), again)
        return read_answer(subjects.command(name), body, answer)

    async def _carried_out(
        self, name: str, ask: request_bodies.GatewayRequest, shown: str, again: str, patience_s: float = 0.0
    ) -> tuple[bytes, int]:
        """Return the answer to a command and after how many tries it came; ``patience_s`` is for what takes longer."""
        subject = subjects.command(name)
        retries = self._retries
        if patience_s > retries.again_s:
            retries = msgspec.structs.replace(retries, again_s=patience_s)
        try:
            found = await self._asker.answered(subject, msgspec.json.encode(ask), retries)
        except BusError as error:
            if not is_open(error):
                raise
            advice = f"whether it was carried out is unknown: ask with `{shown}`; {again}"
            if isinstance(error, ServiceError):
                raise ServiceError(error.code, f"{error}. {advice[0].upper()}{advice[1:]}") from error
            raise Unanswered(f"no answer to {name} within {self._retries.timeout_s:g} s, {advice}") from error
        return found.body, found.tries

    async def _query(self, name: str, ask: request_bodies.GatewayRequest, answer: type[V]) -> V:
        retries = msgspec.structs.replace(self._retries, again_s=2 * self._retries.again_s, not_now=False)
        found = await self._asker.answered(subjects.query(name), msgspec.json.encode(ask), retries)
        return read_answer(subjects.query(name), found.body, answer)


def is_signed(login: logins.Login) -> bool:
    """Say whether the server learns the name of a person from a login, and writes it itself."""
    return bool(login.user_jwt or login.token or login.token_file)


def _filler() -> ModuleType:
    """Return what fills specifications in, and knows the user's name; a query needs none of it."""
    from penstock import submission  # noqa: PLC0415

    return submission


def read_answer(subject: str, body: bytes, answer: type[V]) -> V:
    """Return an answer's view; BusError where it is of another version."""
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        problem = f"the gateway answered on {subject} what this version cannot read: {error}"
        raise BusError(f"{problem}; use the version of penstock that the gateway has") from error


def _given_job(one: Union[JobSpec, Mapping[str, Any]]) -> JobSpec:
    """Return one of many jobs, which are given as specifications or as their fields."""
    return given_spec(None, dict(one), JobSpec) if isinstance(one, Mapping) else given_spec(one, {}, JobSpec)


def given_spec(spec: S | None, fields: dict[str, Any], wanted: type[S]) -> S:
    """
    Return the specification that is given as one, or as its fields.

    Raises
    ------
    TypeError
        If it is something else, such as the name of a script, or both.
    """
    if spec is not None and not isinstance(spec, wanted):
        example = 'command=("python", "train.py")'
        expected = f"a {wanted.__name__}, or its fields by name" + (f": {example}" if wanted is JobSpec else "")
        raise TypeError(f"expected {expected}; got {ascii(spec)[:100]}")
    if spec is not None and fields:
        raise TypeError(f"a specification and the fields {', '.join(fields)} were given; give one or the other")
    if spec is not None:
        return spec
    from penstock_log import validation  # noqa: PLC0415 - only what is given as fields is checked here

    return validation.convert(validation.written_out(msgspec.to_builtins(fields, enc_hook=str), wanted), wanted)
