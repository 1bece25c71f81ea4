"""
Pods of pilots, and the Secrets that hold their tokens, as Kubernetes has them.

:func:`pod_manifest` keeps to the Pod Security Standard *restricted*. What an allocation's template says is laid over it
by :func:`laid_over`; what the gateway lets through of it does not touch what the allocator has to know of its Pods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from penstock_allocator.pilot_script import POD_CHECKPOINTS, POD_LOGIN, TOKEN, PilotFolder
from penstock_cluster.allocations import margin_s
from penstock_log import AllocationSpec
from penstock_log.allocation_spec import PodOptions

Manifest = dict[str, Any]
CONTAINER: Final = "pilot"
LABEL_OF_ALLOCATION: Final = "penstock.dev/allocation"
LABEL_OF_PILOT: Final = "penstock.dev/pilot"
MOST_NAME: Final = 63
"""A Pod's name is the name of its host, too."""
PULL_S: Final = 900.0
"""How much longer than its walltime a Pod may be there: Kubernetes counts from before its image is pulled."""
_SHORTEST_GRACE_S: Final = 30.0
_USER: Final = 10001
"""The group that may read the token and write checkpoints; in Penstock's own image it is the user's."""


def pod_name(name: str) -> str:
    """
    Return the name of a pilot's Pod.

    Names of pilots of one allocation differ in their number, and those of allocations in the eight digits at the
    beginning; both are kept.

    Examples
    --------
    >>> pod_name("penstock-5e6cb0f8-Lab_A-12")
    'penstock-5e6cb0f8-lab-a-12'
    >>> len(pod_name("penstock-5e6cb0f8-" + "x" * 63 + "-12"))
    63
    """
    body, _, number = re.sub("[^a-z0-9-]", "-", name.lower()).rpartition("-")
    return f"{body[: MOST_NAME - 1 - len(number)]}-{number}"


def pod_manifest(spec: AllocationSpec, name: str, place: PilotFolder, owners: list[Manifest]) -> Manifest:
    """
    Return the Pod of a pilot.

    Parameters
    ----------
    name : str
        As :meth:`penstock_cluster.allocations.Allocation.pilot_name` has it.
    place : PilotFolder
        Where the script is that the Pod runs.
    owners : list of dict
        References to what takes the Pod with it when it is deleted.
    """
    pod = spec.pod or PodOptions(image="")
    own: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name),
            "labels": labels_of(name, place),
            # Who scales a cluster down by moving Pods would end a run that may not be able to save.
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            **({"ownerReferences": owners} if owners else {}),
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": math.ceil(spec.walltime_s + PULL_S),
            "terminationGracePeriodSeconds": grace_s(spec),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(spec, pod, place)],
            "volumes": [
                {"name": "login", "secret": {"secretName": pod_name(name), "defaultMode": 0o440}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
                *([{"name": "checkpoints", "persistentVolumeClaim": {"claimName": pod.claim}}] if pod.claim else []),
            ],
        },
    }
    return _kept(own, laid_over(own, pod.template))


def _kept(own: Manifest, found: Manifest) -> Manifest:
    """Return a Pod with what makes it a pilot's laid over it once more: its labels, script, volumes and mounts."""
    [container] = own["spec"]["containers"]
    mounted = {"name": CONTAINER, "volumeMounts": container["volumeMounts"]}
    kept = {
        "metadata": {"labels": own["metadata"]["labels"]},
        "spec": {"containers": [mounted], "volumes": own["spec"]["volumes"]},
    }
    found = laid_over(found, kept)
    for one in found["spec"]["containers"]:
        if one.get("name") == CONTAINER:
            one["command"] = container["command"]
    return found


def _container(spec: AllocationSpec, pod: PodOptions, place: PilotFolder) -> Manifest:
    mounts = [
        {"name": "login", "mountPath": POD_LOGIN, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - 64 MiB is what it would be, too few for loaders
        *([{"name": "checkpoints", "mountPath": POD_CHECKPOINTS}] if pod.claim else []),
    ]
    return {
        "name": CONTAINER,
        "image": pod.image,
        "command": ["bash", "-c", place.node.read_text(encoding="utf-8")],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last lines are in the Pod's end then
        "volumeMounts": mounts,
        **({"resources": {"limits": {pod.gpu_resource: str(spec.gpus)}}} if pod.gpu_resource else {}),
    }


def pod_text(spec: AllocationSpec, name: str, place: PilotFolder) -> str:
    """Return the Pod of a pilot in YAML, without the script that it runs."""
    pod = pod_manifest(spec, name, place, [])
    script = place.node.read_text(encoding="utf-8")
    for container in pod["spec"]["containers"]:
        container["command"] = ["the script below" if word == script else word for word in container.get("command", ())]
    return yaml.safe_dump(pod, sort_keys=False)


def secret_manifest(name: str, place: PilotFolder, owners: list[Manifest]) -> Manifest:
    """Return the Secret that holds a pilot's token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": pod_name(name),
            "labels": labels_of(name, place),
            **({"ownerReferences": owners} if owners else {}),
        },
        "stringData": {TOKEN: place.token.read_text(encoding="utf-8")},
    }


def owner_reference(owner: Mapping[str, Any]) -> Manifest:
    """Return a reference to an object that takes others with it when it is deleted."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def labels_of(name: str, place: PilotFolder) -> dict[str, str]:
    """Return the labels of a pilot's objects."""
    allocation = place.folder.name.rpartition("-")[0]
    return {
        "app.kubernetes.io/managed-by": "penstock",
        LABEL_OF_ALLOCATION: allocation.strip("-_") or "allocation",
        LABEL_OF_PILOT: pod_name(name),
    }


def grace_s(spec: AllocationSpec) -> int:
    """Return how many seconds a Pod has between TERM and KILL, in which its runs save."""
    return math.ceil(max(_SHORTEST_GRACE_S, margin_s(spec)))


def laid_over(own: Manifest, template: Mapping[str, Any]) -> Manifest:
    """
    Return a manifest with a template laid over it.

    Mappings are merged. Of lists, entries that have a ``name`` are merged with the one of that name, and others are
    added; a container without a name is the pilot's own.

    Examples
    --------
    >>> own = {"spec": {"containers": [{"name": "pilot", "image": "a"}]}}
    >>> laid_over(own, {"spec": {"containers": [{"env": [1]}], "nodeSelector": {"gpu": "a100"}}})
    {'spec': {'containers': [{'name': 'pilot', 'image': 'a', 'env': [1]}], 'nodeSelector': {'gpu': 'a100'}}}
    """
    merged = dict(own)
    for key, value in template.items():
        mine = merged.get(key)
        if isinstance(mine, dict) and isinstance(value, Mapping):
            merged[key] = laid_over(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            merged[key] = _lists(mine, value, key)
        else:
            merged[key] = value
    return merged


def _lists(mine: list[Any], more: list[Any], key: str) -> list[Any]:
    found = list(mine)
    for one in more:
        name = one.get("name", CONTAINER if key == "containers" else None) if isinstance(one, Mapping) else None
        at = next(
            (n for n, own in enumerate(found) if isinstance(own, dict) and name and own.get("name") == name), None
        )
        if at is None:
            found.append(one)
        else:
            found[at] = laid_over(found[at], one)
    return found
