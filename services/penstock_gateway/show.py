"""Jobs and nodes as people see them: from the read model to the gateway's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from penstock_events import ACTIVE, TERMINAL, Job, asks, workload
from penstock_events.views import (
    JobDetail,
    JobsView,
    JobView,
    NodesView,
    NodeView,
    PoliciesView,
    PolicyView,
    ProfileView,
    SizingView,
    StatusView,
)
from penstock_gateway import holding, sizing
from penstock_gateway.history import device_names
from penstock_gateway.machine import State
from penstock_gateway.sizing import Told
from penstock_gateway.why import Why
from penstock_policies import pools
from penstock_policies.cluster import Node, taken_devices
from penstock_policies.rounds.settings import Settings
from penstock_policies.sharing.near import At

_NAMES: Final = 5


@dataclass(frozen=True)
class Scene:
    """
    One moment: the read model up to ``seq``, the time, and what was heard outside the log (nothing, in the past).

    Attributes
    ----------
    told : mapping of str to Told
        By job id.
    heard : mapping of str to float
        Node id → time of its last heartbeat.
    settings : Settings
        By which the matcher decides.
    """

    state: State
    now_s: float
    seq: int
    told: Mapping[str, Told] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)

    @cached_property
    def why(self) -> Why:
        """Explains the moment's jobs."""
        return Why(self.state, self.now_s, self.settings)


def job(scene: Scene, job: Job) -> JobView:
    """Return one job's line."""
    past, spec = scene.state.histories[job.id], job.spec
    told = _told(scene, job)
    over = job.state in TERMINAL
    return JobView(
        id=job.id,
        name=spec.name,
        state=job.state,
        user=spec.user,
        team=spec.team,
        parent=spec.parent,
        pool=spec.pool,
        gpus=spec.gpus,
        kinds=spec.kinds,
        submitted_s=job.submitted_s,
        started_s=job.first_started_s or None,
        finished_s=job.finished_s if over else None,
        wait_s=job.waited_by(scene.now_s),
        run_s=job.executed_by(scene.now_s),
        jct_s=job.finished_s - job.submitted_s if over else None,
        devices=tuple(past.devices),
        placed_on=tuple(device_names(job.placement)) if job.placement is not None else (),
        preemptions=job.preemptions,
        attempts=job.attempts,
        steps=max(job.steps, told.step),
        metrics={**job.metrics, **told.metrics},
        reason=job.reason,
        exit_code=job.exit_code,
        queue=past.rank.queue if past.rank is not None else None,
        held=job.held,
        cause=scene.why.cause(job),
        sample=job.sample is not None,
        model=spec.model,
        epoch=job.epoch,
        warnings=tuple(past.warnings),
        sharing=spec.sharing,
        share=job.share,
        min_gpus=spec.min_gpus,
        max_gpus=spec.max_gpus,
        batch_size=spec.batch_size,
        batches=(spec.batch.min, spec.batch.max) if spec.batch is not None else None,
        samples=max(job.samples, told.samples),
        cpus=spec.cpus,
        host_memory_bytes=spec.host_memory_bytes,
    )


def _told(scene: Scene, job: Job) -> Told:
    """Return what a job's present run has told of itself; the last words of an earlier one no longer count."""
    told = scene.told.get(job.id, Told())
    return told if job.state in ACTIVE and told.epoch in (0, job.epoch) else Told()


def jobs(scene: Scene, ask: asks.JobsAsk) -> JobsView:
    """Return the jobs that match all filters."""
    tests = _tests(ask)
    found = [job for job in _candidates(scene.state, ask) if all(test(job) for test in tests)]
    return JobsView(jobs=tuple(job(scene, one) for one in found[-ask.limit :]), total=len(found), seq=scene.seq)


def detail(scene: Scene, one: Job) -> JobDetail:
    """Return one job in full."""
    key = one.profile_key or workload.key(one.spec)
    profile = scene.state.profiles.get(key)
    return JobDetail(
        job=job(scene, one),
        spec=one.spec,
        why=scene.why.explain(one),
        workload=key,
        speeds=profile.speeds if profile is not None else (),
        seq=scene.seq,
        sizing=_sizing(scene, one),
    )


def _sizing(scene: Scene, one: Job) -> SizingView | None:
    own = scene.state.histories[one.id].sizing
    told = _told(scene, one)
    return sizing.view(own, one, told, scene.now_s) if own is not None else None


def profile(scene: Scene, key: str) -> ProfileView:
    """Return what is known of a workload."""
    state = scene.state
    found, scaled = state.profiles.get(key), state.scaled.get(key)
    names = {job.spec.name for job in state.jobs if known_as(job) == key}
    return ProfileView(
        workload=key,
        jobs=len([job for job in state.jobs if known_as(job) == key and job.sample is None]),
        names=tuple(sorted(names)[:_NAMES]),
        speeds=found.speeds if found is not None else (),
        note=found.note if found is not None else "",
        need=state.needs.get(key),
        trials=state.measured.get(key),
        seq=scene.seq,
        scaling=scaled.kinds if scaled is not None else (),
    )


def known_as(one: Job) -> str:
    """Return the key of a job's workload."""
    return one.profile_key or workload.key(one.spec)


def nodes(scene: Scene) -> NodesView:
    """Return all nodes by id, with who is on their devices."""
    holders, taken = holding.holders(scene.state.jobs), holding.taken(scene.state, scene.settings)
    known = sorted(scene.state.cluster.nodes.values(), key=lambda node: node.id)
    return NodesView(nodes=tuple(_node(scene, node, holders, taken) for node in known), seq=scene.seq)


def policies(scene: Scene) -> PoliciesView:
    """Return what is set live for each pool."""
    live = scene.state.policies
    names = sorted(scene.state.cluster.pools() | live.keys())
    found = tuple(PolicyView(pool=name, settings=live.get(name, {})) for name in names)
    return PoliciesView(pools=found, defaults=pools.defaults(), seq=scene.seq)


def status(scene: Scene, last_seq: int) -> StatusView:
    """Return counts; the caller adds the services that it heard."""
    state = scene.state
    return StatusView(
        jobs=dict(Counter(str(job.state) for job in state.jobs if job.sample is None)),
        devices=_device_counts(state),
        nodes=dict(Counter(_node_state(state, node) for node in state.cluster.nodes.values())),
        sweeps=dict(Counter(sweep.state for sweep in state.sweeps.values())),
        services=(),
        last_seq=last_seq,
        backlog=last_seq - scene.seq,
    )


def _candidates(state: State, ask: asks.JobsAsk) -> Iterable[Job]:
    if ask.ids:
        return [job for job_id in ask.ids if (job := state.jobs.get(job_id)) is not None]
    if ask.parent:
        return [state.jobs[job_id] for job_id in state.children.get(ask.parent, ())]
    return state.jobs


def _tests(ask: asks.JobsAsk) -> list[Callable[[Job], bool]]:
    tests: list[Callable[[Job], bool]] = []
    if ask.state:
        tests.append(lambda job: job.state in ask.state)
    if ask.user:
        tests.append(lambda job: job.spec.user == ask.user)
    if ask.name.endswith("*"):
        tests.append(lambda job: job.spec.name.startswith(ask.name[:-1]))
    elif ask.name:
        tests.append(lambda job: job.spec.name == ask.name)
    if ask.parent:
        tests.append(lambda job: job.spec.parent == ask.parent)
    if not ask.samples and not ask.ids:
        tests.append(lambda job: job.sample is None)
    return tests


def _node(scene: Scene, node: Node, holders: Mapping[At, Sequence[Job]], taken: Mapping[At, str]) -> NodeView:
    return NodeView(
        id=node.id,
        pool=node.pool,
        state=_node_state(scene.state, node),
        devices=tuple(
            holding.device(node.id, device, holders.get((node.id, device.index), ()), taken) for device in node.devices
        ),
        joined_s=node.joined_s,
        heard_s=scene.heard.get(node.id),
        labels=node.labels,
        cpus=node.cpus,
        host_memory_bytes=node.host_memory_bytes,
        held_by=node.held_by,
    )


def _node_state(state: State, node: Node) -> str:
    if node.gone:
        return node.gone
    if not node.drained:
        return "up"
    return "draining" if any(node.id in job.open_nodes for job in state.jobs) else "drained"


def _device_counts(state: State) -> dict[str, dict[str, int]]:
    taken = taken_devices(state.jobs)
    counts: dict[str, dict[str, int]] = {}
    for node in state.cluster.nodes.values():
        idle = "lost" if node.gone else "drained" if node.drained else "idle"
        for device in node.devices:
            of_kind = counts.setdefault(device.kind, {"busy": 0, "idle": 0, "lost": 0, "drained": 0})
            of_kind["busy" if (node.id, device.index) in taken else idle] += 1
    return counts
