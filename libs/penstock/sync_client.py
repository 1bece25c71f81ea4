"""
The synchronous client: everything that :class:`penstock.Client` does, for scripts and notebooks.

Written by ``tools/sync_client.py`` from the methods of that client; a test compares. What is common to all of them is
in :mod:`penstock.sync_connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from penstock.client import Client
from penstock.retries import new_id
from penstock.sync_connection import SyncConnection, SyncSweep, awaited

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from penstock.code_upload import UploadedCode
    from penstock_bus.identity import logins
    from penstock_bus.port import LogLine
    from penstock_log import request_bodies, session_messages, views
    from penstock_log.allocation_spec import AllocationSpec
    from penstock_log.spec import JobSpec, NotifyKind, Role, Setting, SweepSpec


class SyncClient(SyncConnection):
    """
    A connection to a running Penstock whose methods return when they are answered.

    It has an event loop in a thread of its own, so it can be used where a loop runs already, as in a notebook, and by
    several threads at a time. Ctrl-C ends whatever it waits for. It is connected when it is first used, or by ``with``,
    and :meth:`close` ends the thread. A process that was forked makes a client of its own.

    Errors are those of :class:`penstock.Client`.

    Parameters
    ----------
    url, login, timeout_s, again_s, nobody_s, new_id
        As for :class:`penstock.Client`.

    Examples
    --------
    ::

        with penstock.SyncClient() as client:
            answer = client.submit(name="mnist", command=("python", "train.py"), gpus=2)
            for line in client.logs(answer.id, follow=True):
                print(line.data.decode(), end="")
            job = client.wait(answer.id)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        login: logins.Login | None = None,
        timeout_s: float = 30.0,
        again_s: float = 1.0,
        nobody_s: float = 5.0,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        super().__init__(
            Client(url, login=login, timeout_s=timeout_s, again_s=again_s, nobody_s=nobody_s, new_id=new_id)
        )

    def tune(
        self,
        spec: SweepSpec | Mapping[str, Any] | None = None,
        script: str = "",
        *,
        strict: bool = False,
        **fields: Any,
    ) -> SyncSweep:
        """
        Submit a sweep, given as a :class:`SweepSpec`, as its fields, or as a space and a script.

        It has the gateway's answer; ``for`` goes over its results as they come.

        Examples
        --------
        ::

            space = {"lr": Uniform(low=1e-4, high=1.0, log=True)}
            for result in client.tune(space, "train.py", metric="accuracy", search="tpe", trials=20):
                print(result.params, result.value)
        """
        self.connect()  # which tells the client whom the server knows
        return SyncSweep(
            self._result(lambda: awaited(self._client.tune(spec, script, strict=strict, **fields))), self.results
        )

    def node_token(self, valid_s: float = 3600.0, uses: int = 1) -> logins.Login:
        """Return the login by which so many new nodes ask for their own, for so many seconds."""
        return self._result(lambda: self._client.node_token(valid_s, uses))

    def node_logins(self) -> views.NodeLoginsView:
        """Return the logins of nodes that have joined, and the tokens."""
        return self._result(self._client.node_logins)

    def revoke_node(self, node: str, reason: str = "") -> views.ActAnswer:
        """
        Have the logins of a node count no more, or of all machines that came with one token.

        Returns once the servers refuse them.
        """
        return self._result(lambda: self._client.revoke_node(node, reason))

    def login(
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
        return self._result(
            lambda: self._client.login(user, after_seq=after_seq, valid_s=valid_s, revocation_s=revocation_s)
        )

    def sign_in(self) -> views.SignInView:
        """Return an address of the dashboard that signs one browser in as who asks."""
        return self._result(self._client.sign_in)

    def wait(self, job_id: str, *, timeout: Optional[float] = None) -> views.JobView:
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
        return self._result(lambda: self._client.wait(job_id, timeout=timeout))

    def wait_sweep(self, sweep_id: str, *, timeout: Optional[float] = None) -> views.SweepView:
        """Return the sweep once it has ended, as :meth:`wait` does a job."""
        return self._result(lambda: self._client.wait_sweep(sweep_id, timeout=timeout))

    def follow_sweep(self, sweep_id: str, every_s: float = 2.0) -> Iterator[views.SweepView]:
        """Yield a sweep as it is now, then again every so often while it runs, and once more when it has ended."""
        return self._iterate(self._client.follow_sweep(sweep_id, every_s))

    def results(self, sweep_id: str) -> Iterator[views.TrialView]:
        """Yield each run of a sweep's trials when it is over, until the sweep is."""
        return self._iterate(self._client.results(sweep_id))

    def follow_events(self, entity_id: str = "", *, after: int = 0) -> Iterator[views.EventView]:
        """Yield every fact about an entity, or all, behind a stream sequence and from then on for ever."""
        return self._iterate(self._client.follow_events(entity_id, after=after))

    def logs(self, job_id: str, *, follow: bool = False, tail: int | None = None) -> Iterator[LogLine]:
        """
        Yield a job's output, all or the last ``tail`` pieces; with ``follow`` go on until the job has ended.

        Pieces are as the processes wrote them: a piece may hold several lines, or a part of one. Output that the log
        does not have is fetched from the nodes that ran the job. Where no node has it either, a piece without data says
        so (``missing``).
        """
        return self._iterate(self._client.logs(job_id, follow=follow, tail=tail))

    def whoami(self) -> views.UserView:
        """Return as whom the gateway takes who asks; with an empty name where the server knows nobody."""
        return self._result(self._client.whoami)

    def submit(self, spec: JobSpec | None = None, *, strict: bool = False, **fields: Any) -> views.SubmitAnswer:
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
        return self._result(lambda: self._client.submit(spec, strict=strict, **fields))

    def submit_all(
        self, specs: Iterable[Union[JobSpec, Mapping[str, Any]]], *, strict: bool = False
    ) -> list[views.SubmittedJob]:
        """
        Submit many jobs, each given as a :class:`JobSpec` or as its fields; return what became of each, in their order.

        One that is refused keeps no other: its answer has a ``code`` and an ``error``. A thousand take one request.
        """
        return self._result(lambda: self._client.submit_all(specs, strict=strict))

    def upload(
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
        return self._result(lambda: self._client.upload(workdir, user=user, needed=needed))

    def cancel(self, job_id: str, reason: str = "") -> views.ActAnswer:
        """End a job; a running one is stopped first. The id may be cut to a unique beginning, here and below."""
        return self._result(lambda: self._client.cancel(job_id, reason))

    def hold(self, job_id: str) -> views.ActAnswer:
        """Keep a waiting job from being started."""
        return self._result(lambda: self._client.hold(job_id))

    def release(self, job_id: str) -> views.ActAnswer:
        """Let a held job be started again."""
        return self._result(lambda: self._client.release(job_id))

    def extend(self, job_id: str, add_s: float = 0.0, *, limit_s: Optional[float] = None) -> views.ActAnswer:
        """
        Let a job run for so many seconds more than it may so far; or for ``limit_s`` over all of its runs.

        Parameters
        ----------
        limit_s : float, optional
            In place of ``add_s``; 0: as long as it likes.
        """
        return self._result(lambda: self._client.extend(job_id, add_s, limit_s=limit_s))

    def enter(
        self, job_id: str, session_id: str, *, rank: int = 0, purpose: session_messages.Purpose = "exec"
    ) -> views.EnterAnswer:
        """Be let into a process of a running job; :class:`penstock.job_session.JobSession` does the rest."""
        return self._result(lambda: self._client.enter(job_id, session_id, rank=rank, purpose=purpose))

    def notify(
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
        return self._result(lambda: self._client.notify(url, on, waiting_s=waiting_s, about=about, name=name))

    def remove_notification(self, rule: str) -> views.ActAnswer:
        """Be told no more what a rule says."""
        return self._result(lambda: self._client.remove_notification(rule))

    def test_notification(self, rule: str) -> views.ActAnswer:
        """Send a message by a rule, now."""
        return self._result(lambda: self._client.test_notification(rule))

    def notifications(self) -> views.NotificationsView:
        """Return one's rules, and what has become of their messages; an operator gets those of all."""
        return self._result(self._client.notifications)

    def act_on_all(
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
        return self._result(
            lambda: self._client.act_on_all(
                verb, ids, where=where, state=state, reason=reason, dry_run=dry_run, limit_s=limit_s
            )
        )

    def cancel_sweep(self, sweep_id: str) -> views.ActAnswer:
        """End a sweep and its trials."""
        return self._result(lambda: self._client.cancel_sweep(sweep_id))

    def drain(
        self, node_id: str, reason: str = "", *, preempt: bool = False, device: Optional[int] = None
    ) -> views.ActAnswer:
        """Give a node, or one of its devices, no new jobs; with ``preempt`` move its running ones elsewhere."""
        return self._result(lambda: self._client.drain(node_id, reason, preempt=preempt, device=device))

    def resume(self, node_id: str, *, device: Optional[int] = None) -> views.ActAnswer:
        """Give a drained node jobs again; or one device that was drained, or has failed."""
        return self._result(lambda: self._client.resume(node_id, device=device))

    def remove(self, node_id: str, reason: str = "") -> views.ActAnswer:
        """Remove a node that is gone for good from the list of nodes."""
        return self._result(lambda: self._client.remove(node_id, reason))

    def set_policy(
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
        return self._result(lambda: self._client.set_policy(pool, settings, unset=unset, reset=reset, reason=reason))

    def set_class(
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
        return self._result(
            lambda: self._client.set_class(
                name, weight, preempts=preempts, most_gpus=most_gpus, teams=teams, pool=pool, reason=reason
            )
        )

    def remove_class(self, name: str, *, pool: str = "default", reason: str = "") -> views.ActAnswer:
        """Go back to what the settings file says of a class, or to none; refused while a job names the class."""
        return self._result(lambda: self._client.remove_class(name, pool=pool, reason=reason))

    def reserve(
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
        return self._result(
            lambda: self._client.reserve(
                team, gpus, until_s=until_s, from_s=from_s, kind=kind, pool=pool, reason=reason
            )
        )

    def unreserve(self, reservation_id: str, *, pool: str = "", reason: str = "") -> views.ActAnswer:
        """Cancel a reservation, whether or not it has begun; the pool need be named only where several have the id."""
        return self._result(lambda: self._client.unreserve(reservation_id, pool=pool, reason=reason))

    def add_allocation(self, name: str, spec: AllocationSpec) -> views.ActAnswer:
        """Add an allocation: from now on pilots are submitted where jobs wait that would run on them."""
        return self._result(lambda: self._client.add_allocation(name, spec))

    def remove_allocation(self, name: str, *, reason: str = "") -> views.ActAnswer:
        """Remove an allocation; its pilots are cancelled, and their runs go on elsewhere."""
        return self._result(lambda: self._client.remove_allocation(name, reason=reason))

    def pause_allocation(self, name: str, *, reason: str = "") -> views.ActAnswer:
        """Submit no more pilots of an allocation; those that there are go on."""
        return self._result(lambda: self._client.pause_allocation(name, reason=reason))

    def resume_allocation(self, name: str, *, reason: str = "") -> views.ActAnswer:
        """Submit pilots of an allocation again, whoever has paused it."""
        return self._result(lambda: self._client.resume_allocation(name, reason=reason))

    def set_user(
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
        return self._result(
            lambda: self._client.set_user(
                user,
                role=role,
                teams=teams,
                revoke=revoke,
                revocation_s=revocation_s,
                open_jobs=open_jobs,
                commands_per_s=commands_per_s,
                unset=unset,
            )
        )

    def remove_user(self, user: str, reason: str = "") -> views.ActAnswer:
        """Let a person not use the cluster any more; their jobs go on."""
        return self._result(lambda: self._client.remove_user(user, reason))

    def users(self) -> views.UsersView:
        """Return who may use the cluster."""
        return self._result(self._client.users)

    def jobs(
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
        return self._result(
            lambda: self._client.jobs(
                state=state,
                user=user,
                name=name,
                parent=parent,
                group=group,
                team=team,
                pool=pool,
                model=model,
                text=text,
                ids=ids,
                samples=samples,
                since_s=since_s,
                limit=limit,
                rows=rows,
                at=at,
            )
        )

    def jobs_page(self, ask: request_bodies.JobsRequest) -> views.JobsView:
        """Return one page of the list of jobs, as a request says it; less where one message has no room for it."""
        return self._result(lambda: self._client.jobs_page(ask))

    def job(self, job_id: str, at: request_bodies.At = None) -> views.JobDetail:
        """Return one job in full."""
        return self._result(lambda: self._client.job(job_id, at))

    def why(self, job_id: str, at: request_bodies.At = None) -> views.WhyView:
        """Return why a job is where it is."""
        return self._result(lambda: self._client.why(job_id, at))

    def story(self, job_id: str, at: request_bodies.At = None) -> views.StoryView:
        """Return a job's life, a sentence for each fact."""
        return self._result(lambda: self._client.story(job_id, at))

    def metrics(
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
        return self._result(lambda: self._client.metrics(job_id, names, most=most, at=at))

    def sweep_metrics(
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
        return self._result(lambda: self._client.sweep_metrics(sweep_id, names, most=most, at=at))

    def nodes(self, at: request_bodies.At = None) -> views.NodesView:
        """Return all nodes and their devices."""
        return self._result(lambda: self._client.nodes(at))

    def devices(self, at: request_bodies.At = None) -> views.DevicesView:
        """Return all devices by node, and the jobs that have them: less than ``nodes`` says, for very many."""
        return self._result(lambda: self._client.devices(at))

    def queue(self, **asked: Any) -> views.QueueView:
        """Return waiting jobs in rank order, as the fields of :class:`penstock_log.request_bodies.QueueRequest` say."""
        return self._result(lambda: self._client.queue(**asked))

    def aggregation(self, job_id: str = "", at: request_bodies.At = None) -> views.AggregationView:
        """Return all aggregators, and the jobs with aggregation that may be seen; or a job, and those that it is on."""
        return self._result(lambda: self._client.aggregation(job_id, at))

    def sweeps(
        self,
        at: request_bodies.At = None,
        *,
        user: str = "",
        team: str = "",
        state: Iterable[str] = (),
        limit: int = 100000,
    ) -> views.SweepsView:
        """
        Return the sweeps that match all given filters, without their trials.

        Of more than ``limit``, these are the open ones, and then the newest; they are asked for page by page.

        Parameters
        ----------
        state : iterable of str
            ``running``, ``cancelling``, or how they ended.
        """
        return self._result(lambda: self._client.sweeps(at, user=user, team=team, state=state, limit=limit))

    def sweep(self, sweep_id: str, at: request_bodies.At = None) -> views.SweepView:
        """Return one sweep with its trials."""
        return self._result(lambda: self._client.sweep(sweep_id, at))

    def profile(self, workload: str, at: request_bodies.At = None) -> views.ProfileView:
        """Return what is known of a workload: by its key, or by a job or a sweep of it."""
        return self._result(lambda: self._client.profile(workload, at))

    def timeline(
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
        return self._result(
            lambda: self._client.timeline(
                since=since, until=until, pool=pool, node=node, offset=offset, limit=limit, pixels=pixels, at=at
            )
        )

    def usage(
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
        return self._result(lambda: self._client.usage(by, since=since, until=until, order=order, limit=limit, at=at))

    def allocations(self, at: request_bodies.At = None) -> views.AllocationsView:
        """Return all allocations with their pilots, now or as they were at some moment."""
        return self._result(lambda: self._client.allocations(at))

    def try_pilot(self, name: str, spec: AllocationSpec) -> views.PilotTrialView:
        """Return what a pilot of an allocation would be, and what its provider says of it; nothing is submitted."""
        return self._result(lambda: self._client.try_pilot(name, spec))

    def policies(self, at: request_bodies.At = None) -> views.PoliciesView:
        """Return what is set live for each pool."""
        return self._result(lambda: self._client.policies(at))

    def events(
        self, entity_id: str = "", *, after: int | None = None, limit: int = 100, at: request_bodies.At = None
    ) -> views.EventsView:
        """Return the raw facts about an entity, or all; ``after`` a stream sequence, or the newest ``limit``."""
        return self._result(lambda: self._client.events(entity_id, after=after, limit=limit, at=at))

    def rejected(self) -> views.RejectedListView:
        """Return what could not be accepted, and why."""
        return self._result(self._client.rejected)

    def status(self, at: request_bodies.At = None) -> views.StatusView:
        """Return counts of jobs, devices and nodes, and the replicas that are alive."""
        return self._result(lambda: self._client.status(at))

    def moment(self, at: request_bodies.At = None) -> views.MomentView:
        """Return from when to when the log goes, and which commit is the last of a moment."""
        return self._result(lambda: self._client.moment(at))

    def stats(self, at: request_bodies.At = None) -> views.StatsView:
        """Return figures by pool and team, for metrics."""
        return self._result(lambda: self._client.stats(at))

    def streams(self) -> views.StreamsView:
        """Return on which NATS servers each stream is kept."""
        return self._result(self._client.streams)

    def dry_run(self, spec: JobSpec | None = None, *, strict: bool = False, **fields: Any) -> views.DryRunView:
        """Return where and when a job would start if it were submitted now, or why not."""
        return self._result(lambda: self._client.dry_run(spec, strict=strict, **fields))

    def schema(self) -> views.SchemaView:
        """Return the JSON Schemas of jobs and sweeps that the gateway holds."""
        return self._result(self._client.schema)
