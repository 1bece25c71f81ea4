"""
Pilots as Pods of a Kubernetes cluster.

A pilot's Pod and the Secret with its token have a name that follows from the log, so what is made twice is there once:
the server answers 409, and the Pod is adopted. The Secret belongs to the Pod, and the Pod, if the allocator is told of
an owner, to that one, so that what takes the owner away takes the pilots with it. Pods are watched
(:mod:`penstock_allocator.providers.pod_watch`): an end is known when it happens, and looks ask the server for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers import pod_state
from penstock_allocator.providers.kubernetes_api import (
    ALREADY_EXISTS,
    CONFLICT,
    NOT_FOUND,
    KubernetesApi,
    KubernetesRefused,
    KubernetesSilent,
)
from penstock_allocator.providers.pod_manifest import owner_reference, pod_manifest, pod_name, secret_manifest
from penstock_allocator.providers.pod_watch import PodWatch
from penstock_allocator.providers.provider import ProviderJob, ProviderSilent, SubmissionRefused
from penstock_log import AllocationSpec

_LISTED_S: Final = 10.0
"""How long a look waits for the first list of a namespace's Pods."""
_WORKLOADS: Final = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "ConfigMap": "v1"}
"""Kinds of owners, and where the API server has them."""


class KubernetesProvider:
    """
    Pilots as Pods.

    Parameters
    ----------
    clock : callable
        Seconds since the epoch.
    owner : str
        Kind and name of what the Pods belong to, in their namespace, such as ``Deployment/penstock-allocator``; empty:
        they belong to nobody.
    namespace : str
        Of the Pods of allocations that name none; empty: that of the login.

    Attributes
    ----------
    on_change : callable
        Called when the server says that something became of a Pod.
    """

    def __init__(self, clock: Callable[[], float], owner: str = "", namespace: str = "") -> None:
        self._clock, self._owner, self._default = clock, owner, namespace
        self._api = KubernetesApi()
        self._watches: dict[str, tuple[PodWatch, asyncio.Task[None]]] = {}
        self._owned: set[str] = set()
        self._not_before_s = 0.0
        self.on_change: Callable[[], None] = lambda: None

    async def close(self) -> None:
        """End the watches; the Pods go on."""
        for _, task in self._watches.values():
            task.cancel()
        if self._watches:
            await asyncio.wait([task for _, task in self._watches.values()])
        self._watches.clear()

    async def submit(self, spec: AllocationSpec, name: str, place: PilotFolder, others: Collection[str]) -> str:  # noqa: ARG002 - the port's
        """Make a pilot's Secret and its Pod; see :meth:`PilotProvider.submit`."""
        watch = await self._watch(spec)
        with self._as_submission():
            owners = await self._owners(watch.namespace)
            secret = secret_manifest(name, place, owners)
            if await self._make(watch.namespace, "secrets", secret) is None:  # of an earlier try, with an older token
                await self._change(watch.namespace, f"secrets/{pod_name(name)}", {"stringData": secret["stringData"]})
            try:
                pod = await self._make(watch.namespace, "pods", pod_manifest(spec, name, place, owners))
                if pod is None:
                    pod = await self._ask("GET", watch.namespace, f"pods/{pod_name(name)}")
                watch.note_made(pod)
                await self._own_secret(watch.namespace, pod)
            except KubernetesRefused:
                for kind in ("pods", "secrets"):
                    await self._remove(watch.namespace, f"{kind}/{pod_name(name)}")
                raise
        return pod_state.id_of(pod)

    async def list_jobs(self, spec: AllocationSpec, pilots: Mapping[str, PilotFolder]) -> Mapping[str, ProviderJob]:
        """Return what the server has said of pilots; see :meth:`PilotProvider.list_jobs`."""
        watch, found = await self._watch(spec), {}
        for name in pilots:
            pod, last = watch.find(pod_name(name)), watch.gone.get(pod_name(name))
            if pod is not None:
                with self._as_silence():
                    await self._own_secret(watch.namespace, pod)
                found[name] = pod_state.job_of(pod, self._clock())
            elif last is not None:
                found[name] = pod_state.gone(last)
        return found

    async def cancel(self, job: ProviderJob, place: PilotFolder, *, only_waiting: bool = False) -> None:  # noqa: ARG002 - the port's
        """Delete a pilot's Pod, which has its grace; see :meth:`PilotProvider.cancel`."""
        namespace, _, name = job.id.partition("/")
        with self._as_silence():
            if only_waiting:
                await self._remove_waiting(namespace, f"pods/{name}")
            else:
                await self._remove(namespace, f"pods/{name}")

    async def clear(self, spec: AllocationSpec, name: str, place: PilotFolder) -> None:  # noqa: ARG002 - the port's
        """Delete a pilot's Pod, and its Secret, which may belong to none; see :meth:`PilotProvider.clear`."""
        with self._as_silence():
            namespace = await self._namespace(spec)
            for kind in ("pods", "secrets"):
                await self._remove(namespace, f"{kind}/{pod_name(name)}")
        self._owned.discard(f"{namespace}/{pod_name(name)}")

    async def try_out(self, spec: AllocationSpec, place: PilotFolder) -> str:
        """Have the server check a Pod that it does not keep; see :meth:`PilotProvider.try_out`."""
        watch = await self._watch(spec)
        with self._as_submission():
            pod = pod_manifest(spec, f"penstock-{place.folder.name}-1", place, await self._owners(watch.namespace))
            made = await self._ask("POST", watch.namespace, "pods", params={"dryRun": "All"}, body=pod)
        return f"a Pod {made['metadata']['name']} would be made in namespace {watch.namespace}"

    async def _watch(self, spec: AllocationSpec) -> PodWatch:
        """Return the watch of an allocation's namespace, once it has listed the Pods there."""
        with self._as_silence():
            namespace = await self._namespace(spec)
        if namespace not in self._watches:
            watch = PodWatch(self._api, namespace, self._note_change)
            self._watches[namespace] = watch, asyncio.create_task(watch.follow(), name=f"watch {namespace}")
        watch, task = self._watches[namespace]
        if task.done():
            del self._watches[namespace]
            task.result()  # what ended it was not foreseen
        try:
            async with asyncio.timeout(_LISTED_S):
                await watch.listed.wait()
        except TimeoutError as error:
            raise ProviderSilent(f"the Pods of namespace {namespace} are not listed: {watch.problem}") from error
        return watch

    async def _namespace(self, spec: AllocationSpec) -> str:
        named = spec.pod.namespace if spec.pod is not None else ""
        return named or self._default or await self._api.namespace()

    def _note_change(self) -> None:
        self.on_change()

    async def _owners(self, namespace: str) -> list[dict[str, Any]]:
        if not self._owner:
            return []
        kind, _, name = self._owner.partition("/")
        if kind not in _WORKLOADS or not name:
            raise KubernetesRefused(
                0, f"[allocator] kubernetes_owner is {self._owner!r}; expected {', '.join(_WORKLOADS)}, / and a name"
            )
        found = await self._ask("GET", namespace, f"{kind.lower()}s/{name}", version=_WORKLOADS[kind])
        return [owner_reference({"apiVersion": _WORKLOADS[kind], "kind": kind, **found})]

    async def _own_secret(self, namespace: str, pod: pod_state.Pod) -> None:
        """Make a Pod the owner of its Secret, once: what made them may have ended in between."""
        if (pod_id := pod_state.id_of(pod)) in self._owned:
            return
        owner = owner_reference({"apiVersion": "v1", "kind": "Pod", **pod})
        with suppress(_NotThere):
            await self._change(
                namespace, f"secrets/{pod['metadata']['name']}", {"metadata": {"ownerReferences": [owner]}}
            )
        self._owned.add(pod_id)

    async def _make(self, namespace: str, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """
        Make an object, and return it; None where there is one of its name.

        The server answers 409 as well where something else has changed meanwhile, such as a quota's count: then another
        try may fare better.
        """
        try:
            return await self._ask("POST", namespace, path, body=body)
        except KubernetesRefused as error:
            if error.code != CONFLICT:
                raise
            if error.reason != ALREADY_EXISTS:
                raise KubernetesSilent(f"the API server could not make it now: {error}") from error
            return None

    async def _change(self, namespace: str, path: str, body: Mapping[str, Any]) -> None:
        try:
            await self._ask("PATCH", namespace, path, body=body)
        except KubernetesRefused as error:
            raise (_NotThere(error.code, str(error)) if error.code == NOT_FOUND else error) from error

    async def _remove(self, namespace: str, path: str) -> None:
        try:
            await self._ask("DELETE", namespace, path)
        except KubernetesRefused as error:
            if error.code != NOT_FOUND:
                raise

    async def _remove_waiting(self, namespace: str, path: str) -> None:
        """Delete a Pod in the state in which it was seen to wait; one that has changed since stays."""
        try:
            pod = await self._ask("GET", namespace, path)
            if pod_state.job_of(pod, self._clock()).state == "waiting":
                seen = {"preconditions": {"resourceVersion": pod["metadata"]["resourceVersion"]}}
                await self._ask("DELETE", namespace, path, body=seen)
        except KubernetesRefused as error:
            if error.code not in {NOT_FOUND, CONFLICT}:
                raise

    async def _ask(self, method: str, namespace: str, path: str, **more: Any) -> dict[str, Any]:
        """Ask the server, which is left alone for as long as it has asked to be."""
        if (left_s := self._not_before_s - self._clock()) > 0:
            raise KubernetesSilent(f"the API server wants to be asked again in {left_s:.0f} s")
        try:
            return await self._api.ask(method, namespace, path, **more)
        except KubernetesSilent as error:
            self._not_before_s = self._clock() + error.retry_s
            raise

    @contextmanager
    def _as_submission(self) -> Iterator[None]:
        """Raise what the server refuses as a refused submission."""
        try:
            yield
        except KubernetesRefused as error:
            raise SubmissionRefused(f"the API server refuses it: {error}") from error
        except KubernetesSilent as error:
            raise ProviderSilent(str(error)) from error

    @contextmanager
    def _as_silence(self) -> Iterator[None]:
        try:
            yield
        except (KubernetesRefused, KubernetesSilent) as error:
            raise ProviderSilent(str(error)) from error


class _NotThere(KubernetesRefused):
    """An object that is not there."""
