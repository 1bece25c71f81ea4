"""Whether a job or sweep can be accepted: pure, and the same whichever way it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, assert_never

import msgspec

from penstock_events import (
    Choice,
    Integers,
    JobSpec,
    JobSubmitted,
    SweepSpec,
    SweepSubmitted,
    Uniform,
    elastic,
    subjects,
)
from penstock_events.spec import Dimension, Param
from penstock_events.strict import BadInput
from penstock_gateway import fit, smallest
from penstock_gateway.find import Refused
from penstock_gateway.machine import State
from penstock_policies import search

CONFLICT: Final = 409
BAD: Final = 400
_MOST_CHARACTERS: Final = 128
_VOLATILE: Final = frozenset({"id"})
_READ: Final = frozenset({"digest", "opaque"})
"""Fields that a client fills in from the script; empty where it cannot read it."""
_LONGEST_NAME: Final = 63
_LONGEST_FLOAT: Final = -2.2250738585072014e-308


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The same was accepted before."""

    id: str
    seq: int
    warnings: tuple[str, ...] = ()


class Fresh(msgspec.Struct, frozen=True, kw_only=True):
    """It can be accepted: this fact is to be appended."""

    id: str
    subject: str
    fact: JobSubmitted | SweepSubmitted
    warnings: tuple[str, ...] = ()


def job(state: State, spec: JobSpec, *, strict: bool, now_s: float) -> Known | Fresh:
    """
    Accept a job whose id is given.

    Raises
    ------
    BadInput
        If the specification contradicts itself.
    Refused
        409 where the id belongs to something else; 400 with ``strict`` where it could not run on the present nodes.
    """
    check(spec)
    spec = elastic.settled(spec)
    warnings = fit.warnings(state.cluster, spec, smallest.caps(state, spec))
    there = state.jobs.get(spec.id)
    if there is not None:
        if there.sample is not None:
            raise Refused(CONFLICT, f"the id {spec.id} belongs to a sample of the profiler; choose another id")
        past = state.histories[spec.id]
        _same(past.asked(there), spec, f"job {spec.id}")
        return Known(id=spec.id, seq=past.seq, warnings=warnings)
    _strictly(strict, warnings)
    _check_beginning(state, spec)
    fact = JobSubmitted(job_id=spec.id, spec=spec, at_s=now_s)
    return Fresh(id=spec.id, subject=subjects.job(spec.id), fact=fact, warnings=warnings)


def sweep(state: State, spec: SweepSpec, *, strict: bool, now_s: float) -> Known | Fresh:
    """Accept a sweep whose id is given; errors as for :func:`job`."""
    check(spec.job, "$.job")
    elastic.check(spec)
    try:
        search.check(spec)
    except search.BadSpace as error:
        raise BadInput(f"$.{error}" if error.field else str(error)) from error
    warnings = fit.warnings(state.cluster, spec.job)
    there = state.sweeps.get(spec.id)
    if there is not None:
        _same(there.spec, spec, f"sweep {spec.id}")
        return Known(id=spec.id, seq=there.seq, warnings=warnings)
    _strictly(strict, warnings)
    fact = SweepSubmitted(sweep_id=spec.id, spec=spec, at_s=now_s)
    return Fresh(id=spec.id, subject=subjects.request(spec.id), fact=fact, warnings=warnings)


def largest_trial(spec: SweepSpec) -> JobSpec:
    """
    Return a job as the tuner would submit it for a trial, with the longest values of the space.

    Examples
    --------
    >>> from penstock_events import Choice
    >>> job = JobSpec(name="j", command=("x",), params={"a": 1})
    >>> space = {"b": Choice(values=(1, 22))}
    >>> largest_trial(SweepSpec(name="s", id="s1", job=job, space=space, metric="m")).params
    {'a': 1, 'b': 22}
    """
    point: dict[str, Param] = {name: _longest(dimension) for name, dimension in spec.space.items()}
    if spec.budget is not None:
        point[spec.budget.param] = spec.budget.most
    longest = "x" * _LONGEST_NAME
    return msgspec.structs.replace(
        spec.job, id=longest, name=longest, parent=spec.id, params={**spec.job.params, **point}
    )


def _longest(dimension: Dimension) -> Param:
    match dimension:
        case Choice():
            return max(dimension.values, key=lambda value: len(msgspec.json.encode(value)))
        case Integers():
            return max(dimension.low, dimension.high, key=lambda value: len(str(value)))
        case Uniform():
            return _LONGEST_FLOAT
        case _:
            assert_never(dimension)


def differences(before: msgspec.Struct, now: msgspec.Struct) -> list[str]:
    """
    Return the fields in which two specifications differ, as ``gpus (1, now 2)``.

    The id does not count, nor what a client has read in the script, where only one of them could read it.

    Examples
    --------
    >>> differences(JobSpec(name="a", command=("x",)), JobSpec(name="a", command=("x",), gpus=2))
    ['gpus (1, now 2)']
    """
    found = []
    for field in now.__struct_fields__:
        old, new = getattr(before, field), getattr(now, field)
        if isinstance(old, JobSpec) and isinstance(new, JobSpec):
            found += [f"{field}.{text}" for text in differences(old, new)]
        elif old != new and field not in _VOLATILE and not (field in _READ and not (old and new)):
            found.append(f"{field} ({_shown(old)}, now {_shown(new)})")
    return found


def _same(before: msgspec.Struct, now: msgspec.Struct, what: str) -> None:
    if different := differences(before, now):
        advice = "choose another id, or leave the id out"
        raise Refused(CONFLICT, f"{what} is there already with other content: {', '.join(different)}; {advice}")


def _strictly(strict: bool, warnings: tuple[str, ...]) -> None:
    if strict and warnings:
        raise Refused(BAD, f"refused, as `strict` asks: {'; '.join(warnings)}")


def _check_beginning(state: State, spec: JobSpec) -> None:
    """Refuse a job that would begin from the checkpoint of a job that is not there, or is somebody else's."""
    if not spec.begins_from:
        return
    origin = state.jobs.get(spec.begins_from)
    if origin is None or origin.spec.user != spec.user:
        whose = "is not there" if origin is None else f"is {origin.spec.user or 'nobody'}'s"
        raise BadInput(
            f"$.begins_from: job {spec.begins_from} {whose}; expected a job of the same user, of which a "
            "checkpoint is kept (keep_checkpoint = true)"
        )


def check(spec: JobSpec, path: str = "$") -> None:
    """Refuse a job whose fields have the right types but cannot be meant so, by raising :class:`BadInput`."""
    problems = [
        f"{path}.{field}: expected {_MOST_CHARACTERS} printable characters at most, got {len(getattr(spec, field))}"
        for field in ("user", "team", "model", "digest", "parent")
        if len(getattr(spec, field)) > _MOST_CHARACTERS or not getattr(spec, field).isprintable()
    ]
    problems += [
        f"{path}.env: a variable's name is not empty and has no `=`, got {json.dumps(name)}"
        for name in spec.env
        if not name or "=" in name
    ]
    if not spec.command[0].strip():
        problems.append(f"{path}.command[0]: expected a program, got {json.dumps(spec.command[0])}")
    if len(set(spec.kinds)) < len(spec.kinds):
        problems.append(f"{path}.kinds: names a kind twice")
    problems += [f"{path}.{problem}" for problem in (*_sharing(spec), *elastic.problems(spec))]
    if problems:
        raise BadInput(*problems)


def _sharing(spec: JobSpec) -> Iterator[str]:
    if spec.sharing == "fraction" and spec.gpus > 1:
        yield f'gpus: a fraction is of one device, got {spec.gpus}; use `sharing = "lane"`, or one device'
    if spec.sharing != "fraction" and spec.fraction != 1.0:
        yield f'fraction: is for `sharing = "fraction"`, got {spec.fraction:g} with `{spec.sharing}`'
    if spec.sharers and spec.sharing != "lane":
        yield f'sharers: is for `sharing = "lane"`, got {spec.sharers} with `{spec.sharing}`'
    if spec.sharing != "exclusive" and (spec.cpus or spec.host_memory_bytes):
        field = "cpus" if spec.cpus else "host_memory_bytes"
        yield f"{field}: is for a job that has its devices to itself; leave it out, or `sharing`"
    if spec.memory is not None and spec.sharing == "exclusive":
        yield "memory: is for a job that shares its device; leave it out, or set `sharing`"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:40]}…"
