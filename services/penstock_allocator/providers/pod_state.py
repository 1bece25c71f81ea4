"""
What a Pod says of its pilot: whether it waits, runs, is stuck or has ended, and why in plain words.

Everything here is a function of the object that the API server shows. A Pod that cannot start although nothing is
missing that may come by itself (its image is not there, its configuration cannot be) is *stuck*; one for which there is
no room yet waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from penstock_allocator.providers.pod_manifest import CONTAINER
from penstock_allocator.providers.provider import ProviderJob

Pod = Mapping[str, Any]

UNREACHED_S: Final = 60.0
"""So long after it should have been gone, a Pod is given up: the kubelet of its node does not answer."""
_STUCK: Final = {
    "ErrImageNeverPull": "its image is not on the node",
    "ImageInspectError": "its image cannot be read",
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be run",
}
_PHASES: Final = {
    "Evicted": "the kubelet evicted it, as its node runs short",
    "DeadlineExceeded": "it was there for longer than it may be",
    "NodeLost": "its node was lost",
    "NodeShutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "UnexpectedAdmissionError": "the kubelet could not give it its devices",
    "OutOfcpu": "its node has too few processors",
    "OutOfmemory": "its node has too little memory",
    "OutOfpods": "its node has too many Pods",
}
_DISRUPTIONS: Final = {
    "EvictionByEvictionAPI": "it was evicted, as by a drain of its node",
    "PreemptionByScheduler": "the scheduler preempted it for a Pod of higher priority",
    "DeletionByTaintManager": "its node has a taint that it does not tolerate, as a lost one has",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ran short, or was shut down",
}
_KILLED: Final = 128
_LINES: Final = 3


def job_of(pod: Pod, now_s: float) -> ProviderJob:
    """
    Return what a Pod says of its pilot.

    What the pilot's own container does counts: others beside it may never end, and may keep a Pod from starting.
    """
    status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName", "")
    pod_id, hosts = id_of(pod), (node,) if node else ()
    phase = status.get("phase", "Pending")
    if phase in {"Succeeded", "Failed"}:
        return ProviderJob(pod_id, "ended", hosts, end_of(pod))
    gone_s = _seconds(pod["metadata"].get("deletionTimestamp"))
    if gone_s and now_s > gone_s + UNREACHED_S:
        said = f"{_because(status) or 'it was deleted'}; its node {node} does not say that it has stopped"
        return ProviderJob(pod_id, "cancelled", hosts, said)
    state = _container(status).get("state", {})
    if "terminated" in state and not gone_s:
        return ProviderJob(pod_id, "ended", hosts, end_of(pod))
    if "running" in state:
        return ProviderJob(pod_id, "running", hosts)
    if said := _stuck(status):
        return ProviderJob(pod_id, "stuck", hosts, said)
    return ProviderJob(pod_id, "waiting", hosts, _waits_for(status, state.get("waiting", {})))


def end_of(pod: Pod) -> str:
    """Return how a Pod ended, in words."""
    status = pod.get("status", {})
    ended = _container(status).get("state", {}).get("terminated", {})
    parts = [_because(status)]
    if ended.get("reason") == "OOMKilled":
        parts.append("it took more memory than its limit (OOMKilled)")
    elif ended.get("exitCode"):
        code = ended["exitCode"]
        parts.append(f"exit code {code}" + (f" (signal {code - _KILLED})" if code > _KILLED else ""))
    parts.append(_last_lines(ended.get("message", "")) if ended.get("exitCode") else "")
    found = "; ".join(part for part in parts if part)
    is_good = status.get("phase") == "Succeeded" or ended.get("exitCode") == 0
    return found or ("it has ended in good order" if is_good else "it has failed")


def gone(pod: Pod) -> ProviderJob:
    """Return what became of a pilot whose Pod is there no more, by what it was like at last."""
    status = pod.get("status", {})
    if status.get("phase") in {"Succeeded", "Failed"}:
        return job_of(pod, 0.0)
    said = _because(status) or "its Pod was deleted"
    return ProviderJob(id_of(pod), "cancelled", reason=said)


def id_of(pod: Pod) -> str:
    """Return what a pilot is called at its provider: its Pod's namespace and name."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _because(status: Mapping[str, Any]) -> str:
    """Return why Kubernetes ended a Pod, or is about to; empty where it did not."""
    disruption = _condition(status, "DisruptionTarget")
    said = [
        _PHASES.get(status.get("reason", ""), status.get("reason", "")),
        _DISRUPTIONS.get(disruption.get("reason", ""), disruption.get("reason", "")),
    ]
    message = status.get("message") or disruption.get("message", "")
    return _one_line(": ".join(filter(None, [next(filter(None, said), ""), message])))


def _stuck(status: Mapping[str, Any]) -> str:
    """Return why one of a Pod's containers cannot start, whichever it is; empty where nothing is known of that."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(kind) or ():
            waiting = one.get("state", {}).get("waiting", {})
            if waiting.get("reason") in _STUCK:
                of = "" if one.get("name") == CONTAINER else f"container {one.get('name')}: "
                return _one_line(f"{of}{_STUCK[waiting['reason']]} ({waiting['reason']}): {waiting.get('message', '')}")
    return ""


def _waits_for(status: Mapping[str, Any], waiting: Mapping[str, Any]) -> str:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _one_line(f"no node has room for it ({scheduled.get('reason', '')}): {scheduled.get('message', '')}")
    if waiting.get("reason") == "ErrImagePull":
        return _one_line(f"its image could not be pulled so far: {waiting.get('message', '')}")
    return "its image is pulled, or its volumes are attached" if waiting else ""


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), {})


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Iterable[Mapping[str, Any]] = status.get("containerStatuses") or ()
    return next((one for one in found if one.get("name") == CONTAINER), {})


def _last_lines(text: str) -> str:
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-_LINES:])


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(": ")


def _seconds(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0
