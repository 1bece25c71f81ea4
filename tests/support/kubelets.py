"""
The kubelets of a :class:`kube_server.KubeServer`: each Pod's container is a process of this machine.

As there are no mount namespaces here, paths of mounts in a container's command are replaced by folders. A Pod that is
deleted gets TERM, and KILL after its grace; nothing of it outlives its first process.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic  # noqa: TID251 - a server beside the product
from typing import Any

from clusters import identity, signal_all
from kube_server import Key, KubeServer, Object, Refused

LOOK_S = 0.05
LINES = 80


class RunningPod:
    """One Pod's process."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, began_s: float) -> None:
        self.process, self.folder, self.began_s = process, folder, began_s
        self.kill_s = 0.0
        self.told: Object = {}
        """What its status says of its end beside the exit code."""

    def signal_first(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signum)

    def kill_all(self) -> None:
        """Kill its processes, as the end of a container does."""
        self.process.kill()
        self.process.wait()
        mine = os.fsencode(self.folder)
        while pids := [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and int(entry.name) != os.getpid() and mine in identity(entry)
        ]:
            signal_all(pids, signal.SIGKILL)


class Kubelets:
    """
    The kubelets of all nodes.

    Attributes
    ----------
    images : set of str
        What can be pulled.
    began : list of str
        Names of the Pods that were run, in order.
    """

    def __init__(self, server: KubeServer, folder: Path, images: tuple[str, ...] = ("penstock",)) -> None:
        self.server, self.folder, self.images = server, folder, set(images)
        self.running: dict[str, RunningPod] = {}
        self.began: list[str] = []
        self._over = threading.Event()
        self.failure: BaseException | None = None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Kubelets]:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            for one in self.running.values():
                one.kill_all()
        if self.failure is not None:
            raise self.failure

    # --- what tests do
    def evict(self, name: str, message: str) -> None:
        """End a Pod as a kubelet does whose node runs short."""
        with self.server.lock:
            pod = self._named(name)
            self.running[pod["metadata"]["uid"]].told = {"reason": "Evicted", "message": message}
            self._end(self.running[pod["metadata"]["uid"]], 10.0)

    def run_out_of_memory(self, name: str) -> None:
        """Kill a Pod as the kernel does."""
        with self.server.lock:
            one = self.running[self._named(name)["metadata"]["uid"]]
            one.told = {"terminated": "OOMKilled"}
            one.signal_first(signal.SIGKILL)

    def _named(self, name: str) -> Object:
        return next(pod for pod in self.server.pods() if pod["metadata"]["name"] == name)

    # --- the loop
    def _work(self) -> None:
        try:
            while not self._over.is_set():
                self._look()
                self._over.wait(LOOK_S)
        except BaseException as error:
            self.failure = error
            raise

    def _look(self) -> None:
        server = self.server
        with server.lock:
            pods = {pod["metadata"]["uid"]: pod for pod in server.pods()}
            for uid, one in list(self.running.items()):
                if uid not in pods:  # by force: nobody was asked
                    one.kill_all()
                    del self.running[uid]
            for uid, pod in pods.items():
                if pod["spec"].get("nodeName"):
                    self._look_at(uid, pod)

    def _look_at(self, uid: str, pod: Object) -> None:
        key, one = Key("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]), self.running.get(uid)
        deleted = "deletionTimestamp" in pod["metadata"]
        if one is None:
            if pod["status"]["phase"] in {"Succeeded", "Failed"} or deleted:
                if deleted:
                    self.server.delete(key, 0)
            else:
                self._begin(key, pod)
            return
        deadline_s = one.began_s + pod["spec"].get("activeDeadlineSeconds", 1e9)
        if not one.told and not one.kill_s and monotonic() > deadline_s:
            said = "Pod was active on the node longer than the specified deadline"
            one.told = {"reason": "DeadlineExceeded", "message": said}
            self._end(one, pod["spec"]["terminationGracePeriodSeconds"])
        if deleted and not one.kill_s:
            self._end(one, pod["metadata"]["deletionGracePeriodSeconds"])
        if one.kill_s and monotonic() > one.kill_s:
            one.signal_first(signal.SIGKILL)
        if (code := one.process.poll()) is not None:
            one.kill_all()
            del self.running[uid]
            self._conclude(key, pod, one, code)
            if deleted:
                self.server.delete(key, 0)

    def _end(self, one: RunningPod, grace_s: float) -> None:
        one.kill_s = monotonic() + grace_s
        one.signal_first(signal.SIGTERM)

    def _begin(self, key: Key, pod: Object) -> None:
        [container] = pod["spec"]["containers"]
        if container["image"] not in self.images:
            message = f'Back-off pulling image "{container["image"]}": not found'
            self._status(key, container, {"waiting": {"reason": "ImagePullBackOff", "message": message}}, {})
            return
        folder = self.folder / pod["metadata"]["uid"][:8]  # short, as there are sockets below it
        try:
            paths = self._mounts(pod, container, folder)
        except Refused:  # its Secret is not there yet
            self._status(key, container, {"waiting": {"reason": "ContainerCreating"}}, {})
            return
        command = [*container.get("command", ()), *container.get("args", ())]
        for path, where in paths.items():
            command = [word.replace(path, str(where)) for word in command]
        (folder / "tmp").mkdir(parents=True)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env=self._environment(container, folder),
                start_new_session=True,
            )
        self.running[pod["metadata"]["uid"]] = RunningPod(process, folder, monotonic())
        self.began.append(key.name)
        self._status(key, container, {"running": {}}, {"phase": "Running"})

    def _environment(self, container: Object, folder: Path) -> dict[str, str]:
        """Return what an image would have, and what the container names: programs are this Python's."""
        given = {name: os.environ[name] for name in ("PYTHONPATH", "HOME", "LANG") if name in os.environ}
        given["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            **given,
            "TMPDIR": str(folder / "tmp"),
            **{one["name"]: one["value"] for one in container.get("env", ())},
        }

    def _mounts(self, pod: Object, container: Object, folder: Path) -> dict[str, Path]:
        volumes, paths = {one["name"]: one for one in pod["spec"].get("volumes", ())}, {}
        for mount in container.get("volumeMounts", ()):
            volume, where = volumes[mount["name"]], folder / "volumes" / mount["name"]
            if "secret" in volume:
                secret = self.server.get(Key("secrets", pod["metadata"]["namespace"], volume["secret"]["secretName"]))
                where.mkdir(parents=True, exist_ok=True)
                for name, value in secret["data"].items():
                    (where / name).write_bytes(base64.b64decode(value))
                    (where / name).chmod(volume["secret"]["defaultMode"])
            elif "persistentVolumeClaim" in volume:
                where = self.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
                where.mkdir(parents=True, exist_ok=True)
            elif mount["mountPath"] == "/dev/shm":
                continue
            else:
                where.mkdir(parents=True, exist_ok=True)
            paths[mount["mountPath"]] = where
        return paths

    def _conclude(self, key: Key, pod: Object, one: RunningPod, code: int) -> None:
        [container] = pod["spec"]["containers"]
        ended: dict[str, Any] = {"exitCode": code if code >= 0 else 128 - code}
        ended["reason"] = one.told.pop("terminated", "") or ("Error" if code else "Completed")
        if code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            lines = (one.folder / "log").read_text(errors="replace").splitlines()
            ended["message"] = "\n".join(lines[-LINES:])[-2048:]
        phase = "Failed" if code or one.told else "Succeeded"
        self._status(key, container, {"terminated": ended}, {"phase": phase, **one.told})

    def _status(self, key: Key, container: Object, state: Object, more: Object) -> None:
        status = {"containerStatuses": [{"name": container["name"], "state": state}], **more}
        if self.server.get(key)["status"].items() >= status.items():
            return
        self.server.change(key, {"status": status})
