"""
Pods of rendered manifests as processes of this machine, each in a network and a root file system of its own.

A container is started by what its manifest says and by nothing else: command, arguments, variables, files of Secrets
and ConfigMaps, volumes with the group and mode that the kubelet gives them, a root that is only read, user 10001
without capabilities. Its programs are those of this environment, at the image's paths. Pods have addresses on a bridge,
and names of Services are in their ``/etc/hosts``. Probes are run as the kubelet runs them.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from helm_chart import NAMESPACE, ROOT, Object, named, of_kind
from kube_server import KubeServer
from secret_server import SecretServer, serving

PROGRAMS = ("bwrap", "ip", "nsenter", "setpriv", "unshare")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason=f"THE CHART'S CONTAINERS WERE NOT RUN: it takes root and {', '.join(PROGRAMS)}",
)
NODE = "ip-10-0-0-7.ec2.internal"
PATIENCE_S = 120.0
_CLUSTERS = itertools.count()
_LOOK_S = 0.1
_LOOKS = int(PATIENCE_S / _LOOK_S)
_IMAGE_ENV = {"PYTHONUNBUFFERED": "1", "PENSTOCK_LOG_FORMAT": "json"}
_IMAGE_FOLDERS = ("/data", "/auth", "/checkpoints", "/memory", "/aggregator", "/var/lib/penstock", "/home/penstock")
_IMAGE_USER = {"runAsUser": 10001, "runAsGroup": 10001}
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class PodWaits(AssertionError):
    """The kubelet would not start a container: something that it mounts is not there."""


class RenderedCluster:
    """
    What the kubelet and the controllers would make of some objects.

    Parameters
    ----------
    folder : Path
        Of logs and volumes.
    objects : list of dict
        As helm renders them, in one namespace.
    secrets : mapping of str to mapping of str to bytes
        Secrets that somebody else has made.
    """

    def __init__(self, folder: Path, objects: list[Object], secrets: Mapping[str, Mapping[str, bytes]]) -> None:
        self.folder, self.objects = folder, objects
        self.pods: list[RunningPod] = []
        self.names: dict[str, str] = {}
        """Names beside those of the Services, each with its address."""
        self.servers: dict[str, KubeServer] = {}
        """API servers for the tokens of single service accounts, which are others than that of the Secrets."""
        self._given = {name: dict(files) for name, files in secrets.items()}
        number, count = os.getpid(), next(_CLUSTERS)
        self._switch, self._ports = 0, iter(range(250))
        self._link, self._net = f"pk{number}x{count}", f"10.{128 + number % 64}.{(number // 64 + count) % 256}"
        self._addresses = iter(range(2, 250))
        made = [one["metadata"]["name"] for one in of_kind(objects, "Secret")]
        self.api = SecretServer(folder / "api", *made, host=self.gateway)
        self.api.allowed = {
            name
            for role in of_kind(objects, "Role")
            for rule in role["rules"]
            if rule["resources"] == ["secrets"]
            for name in rule.get("resourceNames", ())
        }

    def server_for(self, pod: Object) -> tuple[Path, int]:
        """Return what a pod has of its API server: the folder of its account, and the port."""
        found = self.servers.get(pod.get("serviceAccountName", ""), self.api)
        assert found.account is not None
        return found.account, found.port

    def secret(self, name: str) -> dict[str, bytes]:
        """Return the files of a Secret as it is by now."""
        if name in self._given:
            return self._given[name]
        if name not in self.api.secrets:
            raise PodWaits(f"there is no Secret {name}")
        return {file: base64.b64decode(text) for file, text in self.api.secrets[name].items()}

    def address(self) -> str:
        """Return an address that no pod has."""
        return f"{self._net}.{next(self._addresses)}"

    @property
    def gateway(self) -> str:
        """This machine's own address on the bridge, where the API server answers."""
        return f"{self._net}.1"

    @contextmanager
    def running(self) -> Iterator[RenderedCluster]:
        """Have a network and an API server while the context is open; end all pods after it."""
        with _namespace("switch") as switch:  # of its own: this machine's rules for forwarding are for others
            self._switch = switch
            _run(*_in(switch), "ip", "link", "add", "switch", "type", "bridge")
            _run(*_in(switch), "ip", "link", "set", "switch", "up")
            self.plug(None, f"{self.gateway}/24", self._link)
            try:
                with serving(self.api, self.gateway):
                    yield self
            finally:
                for pod in self.pods:
                    pod.kill()

    def plug(self, namespace: int | None, address: str, link: str) -> None:
        """Give a network namespace, or this machine's own, an address on the bridge."""
        port, place = f"p{next(self._ports)}", os.getpid() if namespace is None else namespace
        switch = _in(self._switch)
        _run(*switch, "ip", "link", "add", port, "type", "veth", "peer", "name", link, "netns", str(place))
        _run(*switch, "ip", "link", "set", port, "master", "switch", "up")
        enter = [] if namespace is None else _in(namespace)
        _run(*enter, "ip", "address", "add", address, "dev", link)
        _run(*enter, "ip", "link", "set", link, "up")

    def give(self, name: str, files: Mapping[str, bytes]) -> None:
        """Make a Secret as somebody beside the chart does."""
        self._given[name] = dict(files)

    def pod(self, owner: Object, suffix: str = "", **labels: str) -> RunningPod:
        """Start a pod of a workload, named after it."""
        template = owner if owner["kind"] == "Pod" else owner["spec"]["template"]
        pod = RunningPod(self, template, owner["metadata"]["name"] + suffix, labels)
        self.pods.append(pod)
        pod.start()
        self._tell_names()
        return pod

    def start(self, kind: str, name: str) -> list[RunningPod]:
        """Start the pods of a workload."""
        owner = named(self.objects, kind, name)
        if kind == "StatefulSet":
            first = owner["spec"]["ordinals"]["start"]
            numbers = range(first, first + owner["spec"]["replicas"])
            label = "apps.kubernetes.io/pod-index"
            return [self.pod(owner, f"-{number}", **{label: str(number)}) for number in numbers]
        count = owner["spec"].get("replicas", 1) if kind == "Deployment" else 1
        return [self.pod(owner, "" if kind == "Pod" else f"-{number}") for number in range(count)]

    def remove(self, pod: RunningPod) -> None:
        """Leave nothing of a pod but its log and its claims; its names are taken from it."""
        self.pods.remove(pod)
        pod.kill()
        self._tell_names()

    def _tell_names(self) -> None:
        for pod in self.pods:
            pod.hosts.write_text(self._names())  # in place: it is mounted in containers that run

    def _names(self) -> str:
        """Return ``/etc/hosts`` with the names that Services give to pods."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.names.items())]
        for service in of_kind(self.objects, "Service"):
            name, selector = service["metadata"]["name"], service["spec"]["selector"].items()
            for pod in self.pods:
                if selector <= pod.labels.items():
                    lines.append(f"{pod.address} {name}.{NAMESPACE}.svc {name}")
                    lines.append(f"{pod.address} {pod.name}.{name}.{NAMESPACE}.svc")
        return "\n".join(lines) + "\n"

    def links(self) -> dict[str, str]:
        """Return the variables that the kubelet adds where ``enableServiceLinks`` is not false."""
        found = {}
        for service in of_kind(self.objects, "Service"):
            if service["spec"].get("clusterIP") != "None":
                prefix = service["metadata"]["name"].upper().replace("-", "_")
                found[f"{prefix}_PORT"] = found[f"{prefix}_SERVICE_HOST"] = "tcp://10.96.0.9:4222"
        return found


class RunningPod:
    """One pod: a network namespace, volumes, and one container."""

    def __init__(self, cluster: RenderedCluster, template: Object, name: str, labels: Mapping[str, str]) -> None:
        self.cluster, self.spec, self.name = cluster, template["spec"], name
        self.labels = {**template["metadata"]["labels"], **labels}
        self.address = cluster.address()
        (self.container,) = self.spec["containers"]
        self._folder = cluster.folder / "pods" / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self.log, self.hosts = self._folder / "log", self._folder / "hosts"
        self._open, self.namespace = ExitStack(), 0
        self.process: subprocess.Popen[bytes] | None = None
        self._mounts: list[str] = []
        self._env: dict[str, str] = {}

    # --- what the kubelet does
    def start(self) -> None:
        """Make the pod's network, volumes and variables; :meth:`run` starts its container."""
        self.namespace = self._open.enter_context(_namespace(self.name[:63]))
        _run(*_in(self.namespace), "ip", "link", "set", "lo", "up")
        self.cluster.plug(self.namespace, f"{self.address}/24", "eth0")

    def run(self) -> RunningPod:
        """Start the container."""
        self._env = self._environment()
        self._mounts = self._volumes()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._inside(self._command(), main=True),
                env=self._env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        return self

    def execute(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as ``kubectl exec`` does."""
        return subprocess.run(
            self._inside(list(command), main=False), env=self._env | env, capture_output=True, text=True, check=False
        )

    def probe(self, kind: str) -> bool:
        """Say whether a probe of the container succeeds now."""
        said = self.container[kind]
        if "exec" in said:
            return self.execute(*said["exec"]["command"]).returncode == 0
        try:
            if "tcpSocket" in said:
                socket.create_connection((self.address, self._port(said["tcpSocket"]["port"])), 5).close()
                return True
            at = f"http://{self.address}:{self._port(said['httpGet']['port'])}{said['httpGet']['path']}"
            with urllib.request.urlopen(at, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def wait_ready(self) -> None:
        """Wait until the container has started, and is ready and alive by its probes."""
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            for _ in range(_LOOKS):
                if kind not in self.container or self.probe(kind):
                    break
                assert self.process is not None
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_LOOK_S)
                assert self.process.poll() is None, f"{self.name} ended: {self.said()}"
            else:
                raise AssertionError(f"{self.name} is not ready by its {kind}: {self.said()}")

    def end(self) -> int:
        """Have the container end as the kubelet does, and return its exit status."""
        assert self.process is not None
        self._signal(signal.SIGTERM)
        return self.wait(self.spec.get("terminationGracePeriodSeconds", 30))

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait until the container has ended by itself; return its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} runs on: {self.said()}") from None

    def said(self) -> str:
        """Return the last of what the container printed."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else "nothing"

    def kill(self) -> None:
        """Leave nothing of the pod."""
        if self.process is not None and self.process.poll() is None:
            self._signal(signal.SIGKILL)
            self.process.wait()
        self._open.close()

    # --- how
    def _signal(self, signum: signal.Signals) -> None:
        """Signal the container's first process, which is the child of bubblewrap."""
        assert self.process is not None
        pid = self.process.pid
        for _ in range(2 if self.spec.get("shareProcessNamespace") else 1):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(children[0])
        with suppress(ProcessLookupError):
            os.kill(pid, signum)

    def _command(self) -> list[str]:
        assert "command" in self.container, f"{self.name} would run the image's entry point"
        words = [*self.container["command"], *self.container.get("args", ())]
        return [re.sub(r"\$\((\w+)\)", lambda found: self._env.get(found[1], found[0]), word) for word in words]

    def _port(self, port: str | int) -> int:
        if isinstance(port, int):
            return port
        (found,) = [one["containerPort"] for one in self.container["ports"] if one["name"] == port]
        return int(found)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        env = {"PATH": path, "HOME": "/home/penstock", "HOSTNAME": self.name, **_IMAGE_ENV}
        env["PYTHONPATH"] = f"{ROOT / 'libs'}:{ROOT / 'services'}"
        env |= {
            "KUBERNETES_SERVICE_HOST": self.cluster.gateway,
            "KUBERNETES_SERVICE_PORT": str(self.cluster.server_for(self.spec)[1]),
        }
        if self.spec.get("enableServiceLinks") is not False:
            env |= self.cluster.links()
        for one in self.container.get("env", ()):
            env[one["name"]] = one["value"] if "value" in one else self._from(one["valueFrom"])
        return env

    def _from(self, source: Object) -> str:
        if "secretKeyRef" in source:
            return self.cluster.secret(source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]].decode()
        field = source["fieldRef"]["fieldPath"]
        if found := re.fullmatch(r"metadata\.labels\['(.*)'\]", field):
            return self.labels[found[1]]
        return {"spec.nodeName": NODE, "status.podIP": self.address}[field]

    def _volumes(self) -> list[str]:
        words: list[str] = []
        volumes = {one["name"]: one for one in self.spec.get("volumes", ())}
        for mount in self.container.get("volumeMounts", ()):
            found = self._volume(mount["name"], volumes.get(mount["name"]))
            words += ["--ro-bind" if mount.get("readOnly") else "--bind", str(found), mount["mountPath"]]
        if self.spec.get("automountServiceAccountToken") is not False:
            account, _ = self.cluster.server_for(self.spec)
            words += ["--ro-bind", str(account), _ACCOUNT]
            self._readable(account)
        return words

    def _volume(self, name: str, volume: Object | None) -> Path:
        folder = self._folder / "volumes" / name
        if volume is None or "persistentVolumeClaim" in volume:  # of a template of the StatefulSet, or of all pods
            own = f"{name}-{self.name}" if volume is None else volume["persistentVolumeClaim"]["claimName"]
            folder = self.cluster.folder / "claims" / own
        folder.mkdir(parents=True, exist_ok=True)
        group = self.spec["securityContext"]["fsGroup"]
        if volume is not None and ({"secret", "configMap"} & volume.keys()):
            self._project(volume, folder)
            self._readable(folder, group)
        else:
            os.chown(folder, 0, group)
            folder.chmod(0o2777 if volume is not None and "emptyDir" in volume else 0o2775)
        return folder

    def _project(self, volume: Object, folder: Path) -> None:
        if "configMap" in volume:
            files = named(self.cluster.objects, "ConfigMap", volume["configMap"]["name"])["data"]
            files = {file: text.encode() for file, text in files.items()}
        else:
            files = self.cluster.secret(volume["secret"]["secretName"])
        items = volume.get("secret", {}).get("items") or [{"key": file, "path": file} for file in files]
        for item in items:
            if item["key"] not in files:
                raise PodWaits(f"{self.name}: the Secret {volume['secret']['secretName']} has no {item['key']} yet")
            (folder / item["path"]).write_bytes(files[item["key"]])

    def _readable(self, folder: Path, group: int = 0) -> None:
        for path in folder.iterdir():
            os.chown(path, 0, group)
            path.chmod(0o440 if group else 0o444)
        folder.chmod(0o755)

    def _inside(self, command: list[str], *, main: bool) -> list[str]:
        """Return a command line that runs a command in this pod's network and in the container's file system."""
        pod, own = {**_IMAGE_USER, **self.spec["securityContext"]}, self.container["securityContext"]
        users = self._folder / "passwd"
        if main:
            users.write_text(
                f"root:x:0:0::/root:/bin/sh\npenstock:x:{pod['runAsUser']}:{pod['runAsGroup']}::/home/penstock:/bin/sh\n"
            )
        words = ["nsenter", "--net", "--uts", f"--target={self.namespace}", "bwrap", "--die-with-parent"]
        words += ["--unshare-ipc", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        if main:
            words += ["--unshare-pid", *([] if self.spec.get("shareProcessNamespace") else ["--as-pid-1"])]
        words += ["--dev", "/dev", "--proc", "/proc", *_system_binds()]
        for folder in _IMAGE_FOLDERS:
            words += ["--dir", folder]
        words += ["--perms", "1777", "--dir", "/dev/shm"]
        words += ["--ro-bind", str(self.hosts), "/etc/hosts", "--ro-bind", str(users), "/etc/passwd"]
        words += ["--ro-bind", str(ROOT / "examples"), "/opt/penstock/examples", *self._mounts]
        words = _with_parents(words)
        words += ["--remount-ro", "/"] if own.get("readOnlyRootFilesystem") else ["--perms", "1777", "--dir", "/tmp"]
        words += ["--chdir", "/opt/penstock/examples"]
        words += [
            "setpriv",
            f"--reuid={pod['runAsUser']}",
            f"--regid={pod['runAsGroup']}",
            f"--groups={pod['fsGroup']}",
        ]
        return [*words, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", *command]


def _with_parents(words: list[str]) -> list[str]:
    """Return the words with a folder that all may pass for each that bubblewrap would make on its way to a mount."""
    begin = words.index("--dev")
    targets = [words[at + 2] for at, word in enumerate(words) if word in {"--bind", "--ro-bind"}]
    parents = sorted({str(parent) for target in targets for parent in Path(target).parents} - {"/"})
    return [*words[:begin], *(word for parent in parents for word in ("--dir", parent)), *words[begin:]]


def _system_binds() -> list[str]:
    words = []
    for name in ("usr", "bin", "sbin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    for name in ("ssl", "ld.so.cache", "nsswitch.conf", "alternatives"):
        if (path := Path("/etc", name)).exists():
            words += ["--ro-bind", str(path), str(path)]
    for folder in dict.fromkeys((sys.base_prefix, sys.prefix, str(ROOT / "libs"), str(ROOT / "services"))):
        words += ["--ro-bind", folder, folder]
    return words


@contextmanager
def _namespace(host: str) -> Iterator[int]:
    """Keep a network namespace with a host name of its own; yield the process that holds it."""
    held = subprocess.Popen(
        ["unshare", "--net", "--uts", "sh", "-c", f"hostname {host} && echo there && exec sleep infinity"],
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == b"there\n"
        yield held.pid
    finally:
        held.kill()
        held.communicate()


def _in(namespace: int) -> list[str]:
    return ["nsenter", "--net", f"--target={namespace}"]


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def login_file(**fields: Any) -> bytes:
    """Return the content of a file by which somebody logs in."""
    return json.dumps(fields).encode()
