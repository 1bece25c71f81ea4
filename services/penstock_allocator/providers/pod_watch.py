"""
The Pods of one namespace, as the API server last said.

:class:`PodWatch` lists them once and then follows their changes from the version that the list has, so that looks at
pilots cost no requests. A connection that breaks goes on from the last version that was seen, bookmarks among them; a
version that the server no longer has (410 Gone) is listed anew. While the server is away, what it said last counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog

from penstock_allocator.providers.kubernetes_api import KubernetesApi, KubernetesRefused, KubernetesSilent
from penstock_allocator.providers.pod_manifest import LABEL_OF_PILOT
from penstock_allocator.providers.pod_state import Pod

_WATCH_S: Final = 240
"""After so many seconds the server ends a watch, which then goes on."""
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_KEPT_GONE: Final = 1_000
"""Pods whose last state is remembered after they have gone."""
_GONE: Final = 410
_log: Final = structlog.get_logger("penstock.allocator")


class WatchEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: dict[str, Any]


class PodWatch:
    """
    The Pods of pilots in one namespace.

    Parameters
    ----------
    on_change : callable
        Called after each change.

    Attributes
    ----------
    pods : dict of str to dict
        Name → the Pod as it was last seen.
    gone : dict of str to dict
        Name → what a Pod was like at last that is there no more.
    problem : str
        Why the server does not tell of them now; empty while it does.
    """

    def __init__(self, api: KubernetesApi, namespace: str, on_change: Callable[[], None]) -> None:
        self._api, self.namespace, self._on_change = api, namespace, on_change
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, Pod] = {}
        self.problem = ""
        self.listed = asyncio.Event()
        self._version = ""
        self._made: dict[str, Pod] = {}
        """Pods that were made here and that no list or watch has shown yet."""

    def find(self, name: str) -> Pod | None:
        """Return a Pod that is there, or is on its way to be shown."""
        return self.pods.get(name) or self._made.get(name)

    def note_made(self, pod: Pod) -> None:
        """Note a Pod that was made just now: a list that is under way does not have it."""
        name = pod["metadata"]["name"]
        self.gone.pop(name, None)
        if name not in self.pods:
            self._made[name] = pod

    async def follow(self) -> None:
        """Follow the Pods for ever."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self.problem, pause_s = "", _FIRST_PAUSE_S
                continue
            except KubernetesRefused as error:
                if error.code == _GONE:
                    _log.info("pods_listed_again", namespace=self.namespace, reason=str(error))
                    self._version = ""
                    continue
                self._note_problem(str(error))
                asked_s = 0.0
            except KubernetesSilent as error:
                self._note_problem(str(error))
                asked_s = error.retry_s
            await asyncio.sleep(max(pause_s, asked_s))
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _list(self) -> None:
        made_before = set(self._made)
        found = await self._api.ask("GET", self.namespace, "pods", params={"labelSelector": LABEL_OF_PILOT})
        pods = {pod["metadata"]["name"]: pod for pod in found.get("items") or ()}
        for name in [name for name in self.pods if name not in pods]:
            self._note_gone(self.pods[name])
        for name in made_before - pods.keys():
            self._note_gone(self._made[name])
        self._made = {name: pod for name, pod in self._made.items() if name not in pods and name not in made_before}
        self.pods, self._version = pods, found["metadata"]["resourceVersion"]
        self.problem = ""
        self.listed.set()
        self._on_change()

    async def _watch(self) -> None:
        """Follow the changes until the server ends the watch, which it does in good order."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": LABEL_OF_PILOT,
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH_S),
        }
        async for line in self._api.lines(self.namespace, "pods", params=params, quiet_s=_WATCH_S + 15.0):
            self.problem = ""
            self._apply(self._decoded(line))

    def _decoded(self, line: bytes) -> WatchEvent:
        try:
            return msgspec.json.decode(line, type=WatchEvent)
        except msgspec.MsgspecError as error:
            self._version = ""  # it would come again
            raise KubernetesSilent(f"the watch says what is no event: {error}") from error

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            code = event.object.get("code", 0)
            said = f"the watch ended: {event.object.get('message', event.object)}"
            raise KubernetesRefused(code, said) if code == _GONE else KubernetesSilent(said)
        self._version = event.object["metadata"]["resourceVersion"]
        if event.type == "BOOKMARK":
            return
        name = event.object["metadata"]["name"]
        self._made.pop(name, None)
        if event.type == "DELETED":
            self.pods.pop(name, None)
            self._note_gone(event.object)
        else:
            self.gone.pop(name, None)
            self.pods[name] = event.object
        self._on_change()

    def _note_gone(self, pod: Pod) -> None:
        self.gone[pod["metadata"]["name"]] = pod
        while len(self.gone) > _KEPT_GONE:
            del self.gone[next(iter(self.gone))]

    def _note_problem(self, problem: str) -> None:
        if not self.problem:
            _log.warning("pods_not_told", namespace=self.namespace, error=problem)
        self.problem = problem
