"""
State to which services fold a log, as plain dicts and lists without the names of classes.

The states beside the logs of ``tests/data/logs`` were written by this module, run with the code of the version that
their names begin with.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from penstock_bus import Decider, Delivery
from penstock_bus.decider import Fold
from penstock_gateway import answers, story
from penstock_gateway.answers import ReadModel
from penstock_log import Job, JobTable, codec, request_bodies

DECIDERS = ("autoscaler", "gateway", "ranker", "tuner")
"""Whose next decision tells of their state; what the matcher and the profiler decide has changed since 35a4014."""
WORDS = ("evidence", "not_causes", "remedy", "text")
"""Fields that are made of a state for people to read, and are worded better by and by."""
THRESHOLDS_GPU_S = (3_600.0, 36_000.0)
"""The default of the versions that the states are of."""
MOMENTS = 8
"""At so many moments, evenly spread over a log, the services are asked."""
MISSING = "(missing)"


def read_wire(path: Path) -> list[Delivery]:
    """Return the commits of a log from a file: a JSON object a line, with the message's body as it was stored."""
    return [_delivery(**json.loads(line)) for line in gzip.decompress(path.read_bytes()).splitlines()]


def wire(log: Iterable[Delivery]) -> Iterator[str]:
    """Yield the lines that :func:`read_wire` reads."""
    for one in log:
        body = codec.encode(one.commit).decode()
        yield json.dumps({"seq": one.seq, "subject": one.subject, "stored_s": one.stored_s, "body": body})


def told(log: Sequence[Delivery]) -> dict[str, Any]:
    """Return what services make of a log: jobs, answers to queries, and what would be decided next."""
    moments = {log[(number + 1) * len(log) // MOMENTS - 1].seq for number in range(MOMENTS)}
    plain = {
        "jobs": _jobs(log, moments),
        "queries": _queries(log, moments),
        "decisions": {service: _decisions(service, log, moments) for service in DECIDERS},
    }
    return _without_words(json.loads(msgspec.json.encode(plain)))


def differences(old: Any, new: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two states differ, with what is there; fields that the old one has not are no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, was in old.items():
            yield from differences(was, new.get(key, MISSING), f"{at}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (was, is_now) in enumerate(zip(old, new, strict=True)):
            yield from differences(was, is_now, f"{at}/{_name(was, index)}")
    elif not _same(old, new):
        yield at, old, new


def _name(item: Any, index: int) -> str:
    """Return how a path names an item of a list: by its id where it has one."""
    return str(item.get("id", index)) if isinstance(item, dict) else str(index)


def _without_words(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _without_words(value) for key, value in plain.items() if key not in WORDS}
    return [_without_words(value) for value in plain] if isinstance(plain, list) else plain


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float | int):
        return math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-6)  # a sum's order may change
    return bool(old == new)


def _delivery(seq: int, subject: str, stored_s: float, body: str) -> Delivery:
    return Delivery(seq=seq, subject=subject, stored_s=stored_s, pending=0, commit=codec.decode(body.encode()))


def _jobs(log: Sequence[Delivery], moments: set[int]) -> dict[str, Any]:
    """Fold the jobs alone."""
    jobs, found = JobTable(), {}
    for delivery in log:
        for fact in delivery.commit.facts:
            jobs.apply(fact)
        if delivery.seq in moments:
            found[str(delivery.seq)] = {job.id: _job(job, delivery.stored_s) for job in jobs}
    return found


def _job(job: Job, now_s: float) -> dict[str, Any]:
    size = job.size
    return {
        "state": str(job.state),
        "epoch": job.epoch,
        "held": job.held,
        "sample": job.sample is not None,
        "profile_key": job.profile_key,
        "placement": job.placement,
        "open_nodes": sorted(job.open_nodes),
        "outcome": job.outcome,
        "submitted_s": job.submitted_s,
        "first_started_s": job.first_started_s,
        "started_s": job.started_s,
        "finished_s": job.finished_s,
        "not_before_s": job.not_before_s,
        "checkpointed_s": job.checkpointed_s,
        "waited_s": job.waited_by(now_s),
        "executed_s": job.executed_by(now_s),
        "unsaved_s": job.unsaved_by(now_s),
        "served_s": job.served_by(now_s),
        "attained_gpu_s": job.attained_gpu_s(now_s),
        "share": job.share,
        "size": [size.gpus, size.batch_size],
        "accepts": job.accepts,
        "need": job.need,
        "demand": job.demand,
        "attempts": job.attempts,
        "failures": job.failures,
        "preemptions": job.preemptions,
        "steps": job.steps,
        "run_steps": job.run_steps,
        "lost_steps": job.lost_steps,
        "checkpoint_step": job.checkpoint_step,
        "samples": job.samples,
        "out_of_memory": job.out_of_memory,
        "killed": job.killed,
        "metrics": job.metrics,
        "diverged": job.diverged,
        "reason": job.reason,
        "exit_code": job.exit_code,
        "stopping": job.stopping,
    }


def _queries(log: Sequence[Delivery], moments: set[int]) -> dict[str, Any]:
    """Fold the gateway's state, and answer what people ask, as of some moments."""
    fold, found = Fold(_decider("gateway")), {}
    for delivery in log:
        fold.apply(delivery)
        if delivery.seq in moments:
            found[str(delivery.seq)] = _answers(ReadModel(fold.state, delivery.stored_s, delivery.seq))
    last = {job.id: _story(job, log) for job in fold.state.jobs}
    return {"at": found, "story": last}


def _answers(model: ReadModel) -> dict[str, Any]:
    state = model.state
    return {
        "jobs": answers.jobs(model, request_bodies.JobsRequest(limit=1000)),
        "job": {job.id: answers.detail(model, job) for job in state.jobs},
        "nodes": answers.nodes(model),
        "policies": answers.policies(model),
        "sweeps": answers.sweeps(model, request_bodies.SweepsRequest()),
        "sweep": {key: answers.sweep(model, sweep) for key, sweep in state.sweeps.items()},
        "profile": {key: answers.profile(model, key) for key in sorted({answers.known_as(job) for job in state.jobs})},
        "status": answers.status(model, model.seq),
    }


def _story(job: Job, log: Sequence[Delivery]) -> list[Any]:
    teller = story.Timeline(job)
    about = {*story.own_subjects(job), *story.shared_subjects(job)}
    return [line for delivery in log if delivery.subject in about for line in teller.lines(delivery)]


def _decisions(service: str, log: Sequence[Delivery], moments: set[int]) -> dict[str, Any]:
    """Fold a service's state, and ask it at some moments what it would append."""
    decider = _decider(service)
    fold, found = Fold(decider), {}
    for delivery in log:
        fold.apply(delivery)
        if delivery.seq in moments:
            decision = decider.decide(fold.state, delivery.stored_s)
            found[str(delivery.seq)] = {
                "proposals": [{"subject": one.subject, "facts": one.facts} for one in decision.proposals],
                "wake_at_s": decision.wake_at_s,
            }
    return found


def _decider(service: str) -> Decider[Any]:
    machine = import_module(f"penstock_{service}.machine")
    if service == "gateway":
        found = machine.decider(machine.GatewaySettings())
    elif service == "ranker":  # since cb57fd3 it learns others
        found = machine.decider(machine.RankerSettings(thresholds_gpu_s=THRESHOLDS_GPU_S))
    else:
        found = machine.decider()
    assert isinstance(found, Decider)
    return found
