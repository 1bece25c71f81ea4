"""A gateway that speaks the real requests and answers on a bus in memory, and does with jobs what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec

from penstock.client import Client
from penstock_bus import Append, Bus, Endpoint, Reply, Request
from penstock_bus.memory import MemoryBus
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobFinished,
    JobSpec,
    JobSubmitted,
    SweepFinished,
    SweepSpec,
    request_bodies,
    subjects,
    views,
)
from penstock_testing import subject_of

ENDINGS = {"CD": "completed", "F": "failed", "CA": "cancelled"}


def job_view(job_id: str = "j1", **fields: Any) -> views.JobView:
    default: dict[str, Any] = {
        "name": "train", "state": "PD", "user": "ann", "team": "", "parent": "", "pool": "default", "gpus": 1,
        "kinds": (), "submitted_s": 1000.0, "started_s": None, "finished_s": None, "wait_s": 12.0, "run_s": 0.0,
        "jct_s": None, "devices": (), "placed_on": (), "preemptions": 0, "attempts": 0, "steps": 0, "metrics": {},
        "reason": "", "exit_code": None, "queue": None, "held": False, "cause": "capacity",
    }  # fmt: skip
    return views.JobView(id=job_id, **{**default, **fields})


def why_view(job: views.JobView) -> views.WhyView:
    return views.WhyView(
        id=job.id,
        name=job.name,
        state=job.state,
        cause=job.cause,
        evidence="all 2 fast devices run jobs that rank higher",
        remedy="accept slow devices too",
        not_causes=("not its size: one free device would do", "not its profile: its speeds are known"),
        since_s=0.0,
        rank=views.RankView(queue=1, ahead=4),
    )


def node_view(node_id: str = "n1", **fields: Any) -> views.NodeView:
    devices = tuple(
        views.DeviceView(
            name=f"{node_id}/fast{i}",
            device=Device(index=i, kind="fast", memory_bytes=16 << 30, backend="emulated", speed=1.0),
            job_id="j1" if i == 0 else "",
        )
        for i in range(2)
    )
    default: dict[str, Any] = {"pool": "default", "state": "up", "devices": devices, "joined_s": 0.0}
    return views.NodeView(id=node_id, **{**default, **fields})


class FakeGateway:
    """
    Attributes
    ----------
    on_submit : callable
        Awaited with the gateway and the id of every job that was accepted.
    turns_until_cancelled : int
        Turns of the loop between the end of a job that is cancelled and the answer to who has asked for that.
    refusal : Reply or None
        Answers every request, where it is set.
    sweep_end : dict
        What a sweep is like as soon as it is submitted, if it is to have ended.
    on_sweep : callable
        Says what an asked-for sweep is like by then.
    asked : list
        What was asked, in order.
    refused : dict
        Name of a job → why it is refused where many are submitted.
    before : list of callable
        Awaited with the bus before a client gets it.
    """

    def __init__(self, *jobs: views.JobView) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.specs: dict[str, JobSpec] = {}
        self.nodes = [node_view()]
        self.memory: tuple[views.NodeMemoryView, ...] = ()
        self.aggregation = views.AggregationView(aggregators=(), jobs=(), seq=7)
        self.sweeps: dict[str, views.SweepView] = {}
        self.events: tuple[views.EventView, ...] = ()
        self.dry: views.DryRunView = views.DryRunView(starts=True, kind="fast", devices=("n1/fast0", "n1/fast1"))
        self.on_submit: Callable[[FakeGateway, str], Awaitable[None]] | None = None
        self.turns_until_cancelled = 0
        self.refusal: Reply | None = None
        self.sweep_end: dict[str, Any] = {}
        self.on_sweep: Callable[[views.SweepView], views.SweepView] = lambda sweep: sweep
        self.warnings: tuple[str, ...] = ()
        self.refused: dict[str, str] = {}
        self.rejected: tuple[views.RejectedView, ...] = ()
        self.asked: list[request_bodies.GatewayRequest] = []
        self.before: list[Callable[[Bus], Awaitable[None]]] = []
        self.sizings: dict[str, views.SizingView] = {}
        self.series: dict[str, views.SeriesView] = {}
        self.whys: dict[str, views.WhyView] = {}
        self.policies = views.PoliciesView(pools=(), defaults={}, seq=7)
        self.allocations = views.AllocationsView(allocations=(), seq=7)
        self.trial = views.PilotTrialView(accepted=True, said="it would start at once")
        self.users = views.UsersView(users=(), seq=7)
        self.usage: Callable[[request_bodies.UsageRequest], views.UsageView] | None = None
        self.url = ""
        self.timeout_s = 30.0
        self.bus: Bus
        self._ids = count(1)
        self._tasks: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def client(self, url: str = "") -> AsyncIterator[Client]:
        self.url = url
        async with MemoryBus() as bus, bus.serve("gateway", "0", self._endpoints()):
            self.bus = bus
            for prepare in self.before:
                await prepare(bus)
            async with Client(
                bus=bus, timeout_s=self.timeout_s, again_s=30.0, new_id=lambda: f"j{next(self._ids)}"
            ) as client:
                yield client

    async def append(self, fact: AnyEvent) -> None:
        commit = Commit(id=f"c{next(self._ids)}", actor="gateway/test", facts=(fact,))
        await self.bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))

    async def finish(self, job_id: str, state: str = "CD", exit_code: int | None = 0, reason: str = "") -> None:
        view = msgspec.structs.replace(self.jobs[job_id], state=state, exit_code=exit_code, reason=reason)
        self.jobs[job_id] = view
        ending: Any = ENDINGS[state]
        await self.append(JobFinished(at_s=9.0, job_id=job_id, name=view.name, state=ending, submitted_s=0.0))

    async def finish_sweep(self, sweep_id: str) -> None:
        view = msgspec.structs.replace(
            self.sweeps[sweep_id], state="completed", finished_s=9.0, best_job_id="s1-3", best_value=0.97
        )
        self.sweeps[sweep_id] = view
        await self.append(SweepFinished(at_s=9.0, sweep_id=sweep_id, state="completed"))

    def _endpoints(self) -> list[Endpoint]:
        commands: dict[str, tuple[type[request_bodies.GatewayRequest], Any]] = {
            "submit": (request_bodies.SubmitRequest, self._submit),
            "submit_all": (request_bodies.SubmitAllRequest, self._submit_all),
            "bulk": (request_bodies.BulkRequest, self._bulk),
            "tune": (request_bodies.TuneRequest, self._tune),
            **dict.fromkeys(("hold", "release", "remove", "cancel_sweep"), (request_bodies.ActRequest, self._act)),
            "cancel": (request_bodies.ActRequest, self._cancel),
            "drain": (request_bodies.DrainRequest, self._act),
            "resume": (request_bodies.NodeResumeRequest, self._act),
            "policy": (
                request_bodies.PolicyRequest,
                lambda ask: views.ActAnswer(id=ask.pool, changed=True, state="", message="set"),
            ),
            "reserve": (
                request_bodies.ReserveRequest,
                lambda ask: views.ActAnswer(id=f"{ask.team}-1", changed=True, state="reserved", message="reserved"),
            ),
            "unreserve": (
                request_bodies.UnreserveRequest,
                lambda ask: views.ActAnswer(id=ask.id, changed=True, state="cancelled", message="cancelled"),
            ),
            "add_allocation": (
                request_bodies.AllocationRequest,
                lambda ask: views.ActAnswer(id=ask.name, changed=True, state="active", message="added"),
            ),
            **{
                f"{verb}_allocation": (
                    request_bodies.ActRequest,
                    lambda ask: views.ActAnswer(id=ask.id, changed=True, state="", message="done"),
                )
                for verb in ("remove", "pause", "resume")
            },
            "set_user": (
                request_bodies.UserRequest,
                lambda ask: views.ActAnswer(id=ask.user, changed=True, state="user", message="set"),
            ),
        }
        queries: dict[str, tuple[type[request_bodies.GatewayRequest], Any]] = {
            "jobs": (request_bodies.JobsRequest, self._list),
            "job": (request_bodies.OneRequest, self._job),
            "why": (request_bodies.OneRequest, lambda ask: self._why(self._found(ask.id))),
            "story": (request_bodies.OneRequest, self._story),
            "series": (request_bodies.SeriesRequest, self._series),
            "aggregation": (request_bodies.AggregationRequest, lambda _: self.aggregation),
            "nodes": (
                request_bodies.AllRequest,
                lambda _: views.NodesView(nodes=tuple(self.nodes), seq=7, memory=self.memory),
            ),
            "policies": (request_bodies.AllRequest, lambda _: self.policies),
            "allocations": (request_bodies.AllRequest, lambda _: self.allocations),
            "try_pilot": (request_bodies.AllocationRequest, lambda _: self.trial),
            "usage": (request_bodies.UsageRequest, lambda ask: self.usage(ask) if self.usage is not None else None),
            "users": (request_bodies.AllRequest, lambda _: self.users),
            "sweeps": (
                request_bodies.SweepsRequest,
                lambda ask: views.SweepsView(
                    sweeps=tuple(self.sweeps.values())[::-1][ask.offset : ask.offset + ask.limit][::-1],
                    total=len(self.sweeps),
                    seq=7,
                ),
            ),
            "sweep": (request_bodies.OneRequest, lambda ask: self.on_sweep(self.sweeps[ask.id])),
            "events": (request_bodies.EventsRequest, lambda _: views.EventsView(events=self.events, seq=0)),
            "dryrun": (request_bodies.SubmitRequest, lambda _: self.dry),
            "status": (request_bodies.AllRequest, self._status),
            "rejected": (request_bodies.EmptyRequest, lambda _: views.RejectedListView(rejected=self.rejected)),
        }
        made = [self._endpoint(subjects.command(name), *how) for name, how in commands.items()]
        return made + [self._endpoint(subjects.query(name), *how) for name, how in queries.items()]

    def _endpoint(self, subject: str, ask_type: type[request_bodies.GatewayRequest], answer: Any) -> Endpoint:
        async def handle(request: Request) -> Reply:
            ask = msgspec.json.decode(request.body, type=ask_type)
            self.asked.append(ask)
            if self.refusal is not None:
                return self.refusal
            try:
                found = answer(ask)
                return Reply(body=msgspec.json.encode(await found if asyncio.iscoroutine(found) else found))
            except KeyError as error:
                return Reply(code=404, error=f"there is no job {error.args[0]!r}; list them with `penstock ps -a`")

        return Endpoint(name=subject.rpartition(".")[2], subject=subject, handler=handle)

    async def _submit(self, ask: request_bodies.SubmitRequest) -> views.SubmitAnswer:
        job_id = ask.spec.id or f"j{next(self._ids)}"
        created = job_id not in self.jobs
        self.jobs.setdefault(job_id, job_view(job_id, name=ask.spec.name, gpus=ask.spec.gpus))
        self.specs[job_id] = ask.spec
        await self.append(JobSubmitted(at_s=1.0, job_id=job_id, spec=ask.spec))
        self._start(job_id)
        return views.SubmitAnswer(id=job_id, seq=1, created=created, warnings=self.warnings)

    async def _submit_all(self, ask: request_bodies.SubmitAllRequest) -> views.SubmittedJobsView:
        asked = [request_bodies.SubmitRequest(spec=spec, strict=ask.strict) for spec in ask.specs]
        return views.SubmittedJobsView(answers=tuple([await self._submit_one(one) for one in asked]))

    async def _submit_one(self, ask: request_bodies.SubmitRequest) -> views.SubmittedJob:
        if problem := self.refused.get(ask.spec.name):
            return views.SubmittedJob(id=ask.spec.id, code=400, error=problem)
        return views.SubmittedJob.of(await self._submit(ask))

    async def _bulk(self, ask: request_bodies.BulkRequest) -> views.BulkView:
        where, changing = ask.where, [job.id for job in self.jobs.values() if job.state in {"PD", "R", "PR"}]
        matching = [i for i in changing if where is not None and where.user in {"", self.jobs[i].user}]
        answers = [await self._bulk_one(ask, job_id) for job_id in (ask.ids or matching)]
        refused = sum(one.code > 0 for one in answers)
        return views.BulkView(
            answers=tuple(answers), matched=len(answers), changed=len(answers) - refused, refused=refused
        )

    async def _bulk_one(self, ask: request_bodies.BulkRequest, job_id: str) -> views.BulkAnswer:
        one = request_bodies.ActRequest(id=job_id, by=ask.by, reason=ask.reason)
        try:
            self._found(job_id)
            if ask.dry_run:
                return views.BulkAnswer(id=job_id, changed=True, state="CA", message=f"{job_id}: done")
            return views.BulkAnswer.of(await self._cancel(one) if ask.verb == "cancel" else self._act(one))
        except KeyError:
            known = "list them with `penstock ps -a`"
            return views.BulkAnswer(id=job_id, code=404, error=f"there is no job {job_id!r}; {known}")

    def _start(self, job_id: str) -> None:
        if self.on_submit:
            self._tasks.add(asyncio.ensure_future(self.on_submit(self, job_id)))

    def _tune(self, ask: request_bodies.TuneRequest) -> views.SubmitAnswer:
        self.sweeps["s1"] = msgspec.structs.replace(sweep_view(ask.spec), **self.sweep_end)
        return views.SubmitAnswer(id="s1", seq=1, created=True)

    def _act(self, ask: request_bodies.ActRequest) -> views.ActAnswer:
        return views.ActAnswer(id=ask.id, changed=True, state="PD", message=f"{ask.id}: done")

    async def _cancel(self, ask: request_bodies.ActRequest) -> views.ActAnswer:
        job = self._found(ask.id)
        await self.finish(job.id, "CA", None, ask.reason)
        for _turn in range(self.turns_until_cancelled):
            await asyncio.sleep(0)
        return views.ActAnswer(id=job.id, changed=True, state="CA", message=f"{job.id} is cancelled")

    def _list(self, ask: request_bodies.JobsRequest) -> views.JobsView:
        jobs = tuple(job for job in self.jobs.values() if not ask.state or job.state in ask.state)
        page = jobs[: len(jobs) - ask.offset][-ask.limit :]
        if ask.rows:
            return views.JobsView(jobs=(), rows=tuple(map(views.JobRow.of, page)), total=len(jobs), seq=7)
        return views.JobsView(jobs=page, total=len(jobs), seq=7)

    def _job(self, ask: request_bodies.OneRequest) -> views.JobDetail:
        job = self._found(ask.id)
        spec = self.specs.get(job.id, JobSpec(name=job.name, command=("python", "train.py"), gpus=job.gpus))
        return views.JobDetail(
            job=job,
            spec=spec,
            why=self._why(job),
            workload="0123456789abcdef",
            speeds=(),
            seq=7,
            sizing=self.sizings.get(job.id),
        )

    def _why(self, job: views.JobView) -> views.WhyView:
        return self.whys.get(job.id) or why_view(job)

    def _story(self, ask: request_bodies.OneRequest) -> views.StoryView:
        job = self._found(ask.id)
        line = views.StoryLine(at_s=1001.5, after_s=1.5, text="placed on n1/fast0", seq=4, cause=2, actor="matcher/a")
        return views.StoryView(id=job.id, name=job.name, lines=(line,))

    def _series(self, ask: request_bodies.SeriesRequest) -> views.SeriesView:
        job = self._found(ask.id)
        return self.series.get(job.id) or views.SeriesView(id=job.id, name=job.name, state=job.state)

    def _status(self, _: request_bodies.AllRequest) -> views.StatusView:
        return views.StatusView(
            jobs={"R": 2, "PD": 1, "F": 0},
            devices={"fast": {"busy": 1, "idle": 1}},
            nodes={"up": 1},
            sweeps={},
            services=(views.ReplicaView(service="ranker", id="a", heard_s=1.0),),
            last_seq=7,
            backlog=0,
            version="0.1.0",
        )

    def _found(self, prefix: str) -> views.JobView:
        return next((job for job_id, job in self.jobs.items() if job_id.startswith(prefix)), None) or self.jobs[prefix]


def sweep_view(spec: SweepSpec) -> views.SweepView:
    trial = views.TrialView(job_id="s1-3", params={"lr": 0.1}, gpus=1, group=0, state="R", value=None)
    return views.SweepView(
        id="s1", name=spec.name, state="running", metric=spec.metric, mode=spec.mode, submitted_s=0.0,
        finished_s=None, wanted=spec.trials, done=0, best_job_id="", best_value=None, reason="", trials=(trial,),
        spec=spec,
    )  # fmt: skip
