"""
Commands and answers about allocations: nodes for a while of another cluster.

As in :mod:`penstock_gateway.acceptance`, the commands are pure functions, from the read model and a request to the fact
that is to be appended. Facts about an allocation stand on one subject, so of two commands the second is decided anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock_cluster.allocations import Allocation, Pilot
from penstock_gateway.acceptance import JobAction
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import BAD, CONFLICT, NOT_FOUND, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import (
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AllocationSpec,
    Device,
    request_bodies,
    subjects,
)
from penstock_log.text import count, duration, listed
from penstock_log.views import AllocationsView, AllocationView, PilotView


def add(
    state: GatewayState,
    ask: request_bodies.AllocationRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Add an allocation; 409 if there is one of its name, 400 if it could not work."""
    if (known := state.allocations.by_name.get(ask.name)) is not None:
        advice = (
            "wait until its last pilot has ended (`penstock alloc show`)"
            if known.removed_s
            else f"remove it first (`penstock alloc rm {ask.name}`), or choose another name"
        )
        what = "being removed" if known.removed_s else "there already"
        raise RequestRefused(CONFLICT, f"allocation {ask.name} is {what}; {advice}")
    check(ask)
    fact = AllocationAdded(name=ask.name, spec=ask.spec, by=ask.by, at_s=now_s)
    spec = ask.spec
    most = count(spec.max_pilots, "pilot")
    each = f", of {spec.nodes} nodes each" if spec.nodes > 1 else ""
    message = f"allocation {ask.name}: at most {most}{each} of {duration(spec.walltime_s)}, where jobs wait for them"
    return JobAction(id=ask.name, state="active", message=message, subject=subjects.allocation(ask.name), fact=fact)


def check(ask: request_bodies.AllocationRequest) -> None:
    """Refuse an allocation that could not work, with 400."""
    spec = ask.spec
    if spec.provider == "ssh" and not spec.hosts:
        raise RequestRefused(BAD, "$.spec.hosts: pilots over SSH run on hosts that are named; expected at least one")
    if spec.provider != "ssh" and spec.hosts:
        raise RequestRefused(BAD, f"$.spec.hosts: pilots of {spec.provider} have no hosts that are named; leave it out")
    if spec.provider != "slurm" and spec.options:
        raise RequestRefused(BAD, f"$.spec.options: {spec.provider} takes no arguments; leave them out")
    if spec.provider != "slurm" and spec.nodes > 1:
        raise RequestRefused(BAD, f"$.spec.nodes: a pilot of {spec.provider} has one node; expected 1")
    if spec.provider == "ssh" and spec.max_pilots > len(spec.hosts):
        most = f"expected {len(spec.hosts)} or fewer"
        raise RequestRefused(BAD, f"$.spec.max_pilots: each host has one pilot at a time; {most}")
    if spec.min_pilots > spec.max_pilots:
        raise RequestRefused(BAD, "$.spec.min_pilots: more than max_pilots; expected that many at most")
    if not math.isfinite(spec.walltime_s) or not math.isfinite(spec.idle_s):
        raise RequestRefused(BAD, "$.spec: walltime_s and idle_s are seconds; expected finite numbers")
    for name in spec.environment:
        if not (name.isascii() and name.isidentifier()):
            raise RequestRefused(BAD, f"$.spec.environment: {name!r} names no variable; expected letters, digits and _")
    _check_pod(spec)
    _check_options(spec)


_MOST_TEMPLATE: Final = 100_000
_LIST, _MAPPING, _WORD, _FLAG, _NUMBER = "a list of mappings", "a mapping", "a word", "true or false", "a whole number"
_OF_PODS: Final[dict[str, dict[str, str]]] = {
    "metadata": {"annotations": _MAPPING, "labels": _MAPPING},
    "spec": {
        "affinity": _MAPPING,
        "automountServiceAccountToken": _FLAG,
        "containers": _LIST,
        "dnsConfig": _MAPPING,
        "dnsPolicy": _WORD,
        "hostAliases": _LIST,
        "imagePullSecrets": _LIST,
        "initContainers": _LIST,
        "nodeSelector": _MAPPING,
        "priorityClassName": _WORD,
        "resourceClaims": _LIST,
        "runtimeClassName": _WORD,
        "schedulerName": _WORD,
        "schedulingGates": _LIST,
        "securityContext": _MAPPING,
        "serviceAccountName": _WORD,
        "shareProcessNamespace": _FLAG,
        "terminationGracePeriodSeconds": _NUMBER,
        "tolerations": _LIST,
        "topologySpreadConstraints": _LIST,
        "volumes": _LIST,
    },
}
"""What a template may say of a Pod, and as what; the rest is the allocator's."""
_TYPES: Final = {_LIST: list[dict[str, Any]], _MAPPING: dict[str, Any], _WORD: str, _FLAG: bool, _NUMBER: int}
_OWN_LABELS: Final = "penstock.dev/"


def _check_pod(spec: AllocationSpec) -> None:
    """Refuse what no Pod can be, as far as it is seen without asking the cluster."""
    if (spec.provider == "kubernetes") != (spec.pod is not None):
        said = "expected what Pods are like, their image at least" if spec.pod is None else "leave it out"
        raise RequestRefused(BAD, f"$.spec.pod: it is for pilots of kubernetes; {said}")
    if spec.pod is None:
        return
    if len(msgspec.json.encode(spec.pod.template)) > _MOST_TEMPLATE:
        raise RequestRefused(BAD, f"$.spec.pod.template: expected {_MOST_TEMPLATE} bytes at most")
    for part, value in spec.pod.template.items():
        if part not in _OF_PODS or not isinstance(value, dict):
            raise RequestRefused(BAD, f"$.spec.pod.template.{part}: expected metadata or spec, and a mapping")
        for key in value:
            if key not in _OF_PODS[part]:
                known = listed(sorted(_OF_PODS[part]))
                raise RequestRefused(
                    BAD, f"$.spec.pod.template.{part}.{key}: it is the allocator's to set; expected {known}"
                )
            _check_part(f"$.spec.pod.template.{part}.{key}", value[key], _OF_PODS[part][key])
        for key, text in {**value.get("labels", {}), **value.get("annotations", {})}.items():
            if not isinstance(text, str) or key.startswith(_OWN_LABELS):
                raise RequestRefused(
                    BAD,
                    f"$.spec.pod.template.{part}: {key!r} cannot be set to {text!r}; expected text for a label or an "
                    f"annotation that does not begin with {_OWN_LABELS}, which are the allocator's",
                )


def _check_part(path: str, given: object, what: str) -> None:
    """Refuse a part of a template that is not of its type: it would replace what the allocator has there."""
    try:
        msgspec.convert(given, _TYPES[what])
    except msgspec.ValidationError as error:
        raise RequestRefused(BAD, f"{path}: expected {what}") from error


_OWN_LONG: Final = (
    *("--time", "--job-name", "--nodes", "--requeue", "--output", "--array", "--wrap", "--clusters", "--cluster"),
    *("--wait", "--test-only", "--parsable", "--help", "--usage", "--version"),
)
_OWN_SHORT: Final = frozenset({"-t", "-J", "-N", "-o", "-a", "-M", "-W", "-h", "-V"})
_WITHOUT_VALUE: Final = frozenset(
    {"--contiguous", "--exclusive", "--hold", "--no-requeue", "--overcommit", "--oversubscribe", "--propagate"}
    | {"--quiet", "--reboot", "--spread-job", "--use-min-nodes", "--verbose", "-H", "-O", "-Q", "-s", "-v"}
)


def _check_options(spec: AllocationSpec) -> None:
    """Refuse arguments that the allocator sets, also abbreviated, and words that sbatch would take for its script."""
    is_value = False
    for option in spec.options:
        if not is_value and (not option.startswith("-") or option in {"-", "--"}):
            raise RequestRefused(
                BAD,
                f"$.spec.options: {option!r} is no argument, and sbatch would take it for its script; expected words "
                "such as --partition=gpu",
            )
        is_value = False if is_value else _takes_value(option)


def _takes_value(option: str) -> bool:
    """Return whether the next word is the value of an argument; refuse one that is the allocator's."""
    name, has_value, _ = option.partition("=")
    if name.startswith("--"):
        names, is_whole = [name], not has_value
        is_own = any(own.startswith(name) for own in _OWN_LONG)
    else:
        names = ["-" + letter for letter in option[1:]]
        last = next((at for at, one in enumerate(names) if one not in _WITHOUT_VALUE), len(names) - 1)
        names, is_whole = names[: last + 1], last == len(names) - 1
        is_own = names[-1] in _OWN_SHORT
    if is_own:
        raise RequestRefused(
            BAD,
            f"$.spec.options: {names[-1]} is the allocator's to set; expected other arguments, with their whole names "
            "(--walltime and --nodes of `penstock alloc add` set the time and the nodes; the cluster is that of the "
            "allocator's SLURM_CONF)",
        )
    return is_whole and names[-1] not in _WITHOUT_VALUE


def remove(
    state: GatewayState,
    ask: request_bodies.ActRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Remove an allocation: its pilots are cancelled."""
    found = _allocation(state, ask.id)
    if found.removed_s:
        return JobAction(id=ask.id, state="removing", message=f"allocation {ask.id} is being removed already")
    pilots = count(len(found.pilots), "pilot")
    message = f"allocation {ask.id} is removed" + (f"; its {pilots} will end" if found.pilots else "")
    fact = AllocationRemoved(name=ask.id, by=ask.by, reason=ask.reason, at_s=now_s)
    return JobAction(id=ask.id, state="removing", message=message, subject=subjects.allocation(ask.id), fact=fact)


def pause(
    state: GatewayState,
    ask: request_bodies.ActRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Submit no more pilots of an allocation; those that there are go on."""
    found = _allocation(state, ask.id)
    if found.removed_s or found.paused_s:
        how = "is being removed" if found.removed_s else "is paused already"
        return JobAction(id=ask.id, state=found.state, message=f"allocation {ask.id} {how}")
    fact = AllocationPaused(name=ask.id, by=ask.by, reason=ask.reason, at_s=now_s)
    left = (
        f"; its {count(len(found.pilots), 'pilot')} {'goes' if len(found.pilots) == 1 else 'go'} on"
        if found.pilots
        else ""
    )
    message = f"allocation {ask.id} is paused{left}"
    return JobAction(id=ask.id, state="paused", message=message, subject=subjects.allocation(ask.id), fact=fact)


def resume(
    state: GatewayState,
    ask: request_bodies.ActRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Submit pilots of an allocation again, for users whom it refused too; failures so far no longer count."""
    found = _allocation(state, ask.id)
    if found.removed_s:
        raise RequestRefused(CONFLICT, f"allocation {ask.id} is being removed; add another one")
    if not found.paused_s and not found.failures and not found.refused:
        return JobAction(id=ask.id, state=found.state, message=f"allocation {ask.id} is not paused, and refuses nobody")
    fact = AllocationResumed(name=ask.id, by=ask.by, reason=ask.reason, at_s=now_s)
    message = f"allocation {ask.id} is active"
    return JobAction(id=ask.id, state="active", message=message, subject=subjects.allocation(ask.id), fact=fact)


def _allocation(state: GatewayState, name: str) -> Allocation:
    found = state.allocations.by_name.get(name)
    if found is None:
        known = listed(sorted(state.allocations.by_name)) or "none"
        raise RequestRefused(NOT_FOUND, f"no allocation is called {name!r}; known: {known}")
    return found


def answer(model: ReadModel, caller: Caller) -> AllocationsView:
    """Return all allocations; who sees all is told their scripts, variables, templates, and whom else they refuse."""
    found = sorted(model.state.allocations.by_name.values(), key=lambda one: one.name)
    return AllocationsView(allocations=tuple(_view(one, caller) for one in found), seq=model.seq)


def _view(one: Allocation, caller: Caller) -> AllocationView:
    spec = one.spec
    if not caller.sees_all:
        pod = msgspec.structs.replace(spec.pod, template={}) if spec.pod is not None else None
        spec = msgspec.structs.replace(spec, setup="", teardown="", environment={}, pod=pod)
    return AllocationView(
        name=one.name,
        state=one.state,
        spec=spec,
        added_s=one.added_s,
        by=one.by,
        reason=one.paused_reason,
        made=one.made,
        failures=one.failures,
        failure=one.failure if one.failures else "",
        refused={user: why for user, why in one.refused.items() if caller.sees_all or user == caller.name},
        devices=_devices(one.devices),
        pilots=tuple(_pilot(pilot) for pilot in (*one.pilots.values(), *reversed(one.ended))),
    )


def _devices(devices: Iterable[Device]) -> str:
    kinds = Counter(device.kind for device in devices)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def _pilot(pilot: Pilot) -> PilotView:
    return PilotView(
        id=pilot.id,
        state=pilot.end or pilot.state,
        provider_id=pilot.provider_id,
        nodes=pilot.nodes,
        hosts=pilot.hosts,
        planned_s=pilot.planned_s,
        submitted_s=pilot.submitted_s or None,
        started_s=pilot.started_s or None,
        joined_s=pilot.joined_s or None,
        ended_s=pilot.ended_s or None,
        reason=pilot.end_reason or pilot.reason,
        waits="" if pilot.started_s or pilot.ended_s else pilot.waits,
        withdrawn_s=pilot.withdrawn_s or None,
    )
