"""
A Kubernetes API server for tests: state, versions, watches, selectors and refusals as the real one has them.

It listens on HTTP in threads of its own, and on HTTPS where it serves accounts of Pods. What it does not have:
admission webhooks, server-side apply, tables, and fields that nobody here asks for. A scheduler places Pods on its
nodes; :mod:`kubelets` runs them.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic  # noqa: TID251 - a server beside the product
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from penstock_bus.identity.certificates import ensured

Object = dict[str, Any]
NAMESPACE = "lab"
ADMIN = "admin"
GPUS = "nvidia.com/gpu"
BOOKMARK_S = 1.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?$"
)
KINDS = {
    "pods": ("v1", "Pod"),
    "secrets": ("v1", "Secret"),
    "nodes": ("v1", "Node"),
    "configmaps": ("v1", "ConfigMap"),
    "deployments": ("apps/v1", "Deployment"),
    "daemonsets": ("apps/v1", "DaemonSet"),
    "replicasets": ("apps/v1", "ReplicaSet"),
}
OF_CLUSTER = frozenset({"nodes"})


class Refused(Exception):
    """What the server does not do."""

    def __init__(self, code: int, reason: str, message: str, retry_s: int = 0) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_s = code, reason, retry_s

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


class Key(NamedTuple):
    resource: str
    namespace: str
    name: str


class Change(NamedTuple):
    version: int
    type: str
    resource: str
    namespace: str
    object: Object


class KubeServer:
    """
    The API server and its scheduler.

    Parameters
    ----------
    account : Path, optional
        Folder for a service account as Pods mount it, with the token of that name; then the server speaks TLS.
    host : str
        Where it listens.

    Attributes
    ----------
    roles : dict of str to list of dict
        Token → Roles as manifests have them; who is named here may nothing else.
    asked : list of tuple
        Verb, resource and token of each request.
    rules : dict of str to set of tuple, or None
        Token → the verbs and resources that it may use; who is not named may all.
    pod_quota : int or None
        The most Pods of the namespace.
    restricted : bool
        Whether Pods have to keep to the Pod Security Standard of that name.
    failing : tuple of int, int or None
        Code with which all requests but an admin's are answered, and Retry-After.
    """

    def __init__(self, account: Path | None = None, host: str = "127.0.0.1") -> None:
        self.roles: dict[str, list[Object]] = {}
        self.lock = threading.Condition()
        self.objects: dict[Key, Object] = {}
        self.changes: list[Change] = []
        self.version, self.compacted = 100, 0
        self.asked: list[tuple[str, str, str]] = []
        self.rules: dict[str, set[tuple[str, str]]] = {}
        self.pod_quota: int | None = None
        self.is_quota_busy = False
        """Whether the quota's count changes at each moment, so that no Pod can be counted."""
        self.restricted = True
        self.failing: tuple[int, int] | None = None
        self.away = False
        self.broken = 0
        """Counts on when all open watches are to break."""
        self.watching = 0
        self.on_made: Callable[[Object], None] = lambda _: None
        """Called with each Pod that is made, before who has made it hears of it."""
        self.unknown: set[str] = set()
        """Tokens that are answered 401."""
        self._http = _HttpServer(self, host)
        self.port = self._http.server_address[1]
        self.url = f"http://{host}:{self.port}"
        self.account = account
        if account is not None:
            self._serve_accounts(account, host)

    def _serve_accounts(self, account: Path, host: str) -> None:
        tls = ensured(account.parent / f"{account.name}-tls", [host])
        account.mkdir(parents=True)
        for name, text in (("ca.crt", tls.authority), ("token", account.name), ("namespace", NAMESPACE)):
            (account / name).write_text(text)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certificate, tls.key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://{host}:{self.port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[KubeServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self.break_watches()
            self._http.server_close()
            thread.join()

    def kubeconfig(self, file: Path, user: str = "pilots") -> Path:
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "contexts": [
                        {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}}
                    ],
                    "clusters": [{"name": "here", "cluster": {"server": self.url}}],
                    "users": [{"name": "me", "user": {"token": user}}],
                }
            )
        )
        return file

    # --- what tests do to it
    def add_node(self, name: str, gpus: int = 1) -> None:
        status = {
            "allocatable": {GPUS: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.create("nodes", "", {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status})

    def pods(self) -> list[Object]:
        with self.lock:
            return [copy.deepcopy(one) for key, one in self.objects.items() if key.resource == "pods"]

    def wait_for(self, holds: Callable[[], Any], what: str, most_s: float = 60.0) -> Any:
        """Wait until something is so, with the lock held while it is asked."""
        end_s = monotonic() + most_s
        with self.lock:
            while not (found := holds()):
                if not self.lock.wait(min(1.0, end_s - monotonic())) and monotonic() > end_s:
                    raise AssertionError(f"never came: {what}; there are {self.pods()}")
        return found

    def evict(self, name: str) -> None:
        """Evict a Pod as `kubectl drain` does."""
        self._evict(Key("pods", NAMESPACE, name), {})

    def drain(self, node: str) -> None:
        """Take a node out, with the Pods that run there."""
        with self.lock:
            self.change(Key("nodes", "", node), {"spec": {"unschedulable": True}})
            for pod in self.pods():
                if pod["spec"].get("nodeName") == node:
                    self.evict(pod["metadata"]["name"])

    def compact(self) -> None:
        """Forget all changes so far, as etcd does after some minutes: older versions are 410 Gone."""
        with self.lock:
            self.compacted = self.version
            self.changes.clear()

    def break_watches(self) -> None:
        with self.lock:
            self.broken += 1
            self.lock.notify_all()

    # --- the store
    def create(self, resource: str, namespace: str, body: Object, *, dry: bool = False) -> Object:
        with self.lock:
            made = copy.deepcopy(body)
            meta = made.setdefault("metadata", {})
            key = Key(resource, namespace, meta.get("name", ""))
            if not _NAME.fullmatch(key.name) or len(key.name) > 253:
                raise Refused(422, "Invalid", f'{resource} "{key.name}" is invalid: metadata.name: Invalid value')
            if key in self.objects:
                raise Refused(409, "AlreadyExists", f'{resource} "{key.name}" already exists')
            meta.update(uid=str(uuid.uuid4()), creationTimestamp=_stamp())
            if namespace:
                meta["namespace"] = namespace
            if resource == "pods":
                self._admit(made)
            if "stringData" in made:
                made["data"] = {**made.get("data", {}), **{k: _base64(v) for k, v in made.pop("stringData").items()}}
            made["apiVersion"], made["kind"] = KINDS[resource]
            if not dry:
                self.objects[key] = made
                self._note("ADDED", key, made)
                self._settle()
                if resource == "pods":
                    self.on_made(made)
            return copy.deepcopy(made)

    def _admit(self, pod: Object) -> None:
        name, spec = pod["metadata"]["name"], pod.get("spec", {})
        if len(name) > 63 or not spec.get("containers"):
            raise Refused(422, "Invalid", f'Pod "{name}" is invalid: spec.containers: Required value')
        if self.restricted and (found := list(_violations(spec))):
            said = f'violates PodSecurity "restricted:latest": {", ".join(found)}'
            raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {said}')
        if self.is_quota_busy:
            said = 'Operation cannot be fulfilled on resourcequotas "lab-quota": the object has been modified'
            raise Refused(409, "Conflict", said)
        if self.pod_quota is not None and len(self.pods()) >= self.pod_quota:
            used = f"requested: pods=1, used: pods={len(self.pods())}, limited: pods={self.pod_quota}"
            raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: lab-quota, {used}')
        pod["status"] = {"phase": "Pending", "qosClass": "BestEffort", "conditions": []}

    def get(self, key: Key) -> Object:
        with self.lock:
            if key not in self.objects:
                raise Refused(404, "NotFound", f'{key.resource} "{key.name}" not found')
            return self.objects[key]

    def change(self, key: Key, patch: Mapping[str, Any]) -> Object:
        """Lay a merge patch over an object."""
        with self.lock:
            found = self.get(key)
            patch = copy.deepcopy(dict(patch))
            for name, value in patch.pop("stringData", {}).items():
                patch.setdefault("data", {})[name] = _base64(value)
            _merge(found, patch)
            self._note("MODIFIED", key, found)
            self._settle()
            return copy.deepcopy(found)

    def delete(self, key: Key, grace_s: int | None = None) -> Object:
        """Delete an object; a Pod that runs has its grace, and is only marked."""
        with self.lock:
            found = self.get(key)
            if key.resource == "pods":
                spec, meta = found["spec"], found["metadata"]
                asked_s = spec.get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
                over = found["status"]["phase"] in {"Succeeded", "Failed"}
                if spec.get("nodeName") and asked_s > 0 and not over:
                    if "deletionTimestamp" not in meta or asked_s < meta["deletionGracePeriodSeconds"]:
                        meta.update(deletionTimestamp=_stamp(asked_s), deletionGracePeriodSeconds=asked_s)
                        self._note("MODIFIED", key, found)
                        self.lock.notify_all()
                    return copy.deepcopy(found)
            del self.objects[key]
            self._note("DELETED", key, found)
            self._settle()
            return copy.deepcopy(found)

    def _note(self, what: str, key: Key, found: Object) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(Change(self.version, what, key.resource, key.namespace, copy.deepcopy(found)))
        self.lock.notify_all()

    def _settle(self) -> None:
        """Do what the controllers do: collect what belongs to nobody that is there, and place Pods on nodes."""
        uids = {one["metadata"]["uid"] for one in self.objects.values()}
        for key, one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences")
            is_orphan = owners and not any(owner["uid"] in uids for owner in owners)
            if is_orphan and "deletionTimestamp" not in one["metadata"]:
                self.delete(key)
        for key, pod in list(self.objects.items()):
            if key.resource == "pods" and key in self.objects and not pod["spec"].get("nodeName"):
                self._place(key, pod)

    def _place(self, key: Key, pod: Object) -> None:
        nodes = {key.name: node for key, node in self.objects.items() if key.resource == "nodes"}
        reasons: dict[str, int] = {}
        for name, node in nodes.items():
            if node["spec"].get("unschedulable"):
                reason = "node(s) were unschedulable"
            elif not node["metadata"]["labels"].items() >= pod["spec"].get("nodeSelector", {}).items():
                reason = "node(s) didn't match Pod's node affinity/selector"
            elif self._free(name, node) < _gpus(pod):
                reason = f"Insufficient {GPUS}"
            else:
                pod["spec"]["nodeName"] = name
                _condition(pod, {"type": "PodScheduled", "status": "True"})
                self._note("MODIFIED", key, pod)
                return
            reasons[reason] = reasons.get(reason, 0) + 1
        counts = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
        message = f"0/{len(nodes)} nodes are available: {counts}."
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if said not in pod["status"]["conditions"]:
            _condition(pod, said)
            self._note("MODIFIED", key, pod)

    def _free(self, name: str, node: Object) -> int:
        taken = sum(
            _gpus(pod)
            for key, pod in self.objects.items()
            if key.resource == "pods"
            and pod["spec"].get("nodeName") == name
            and pod["status"]["phase"] in {"Pending", "Running"}
        )
        return int(node["status"]["allocatable"][GPUS]) - taken

    # --- requests
    def answer(self, method: str, url: str, body: Object, token: str) -> tuple[int, Object]:
        parts, query = urlsplit(url), {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
        if (found := _discovery(parts.path)) is not None:
            return 200, found
        matched = _PATH.match(parts.path)
        if matched is None or matched["resource"] not in KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        resource, namespace = matched["resource"], matched["namespace"] or ""
        verb = _verb(method, matched["name"])
        self.authorize(verb, resource + (f"/{matched['part']}" if matched["part"] else ""), token)
        self.authorize_by_roles(verb, matched, token)
        key = Key(resource, namespace, matched["name"] or "")
        if matched["part"] == "eviction":
            return 201, self._evict(key, body)
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        answers: dict[str, Callable[[], Object]] = {
            "list": lambda: self._list(resource, namespace, query),
            "get": lambda: copy.deepcopy(self.get(key)),
            "create": lambda: self.create(resource, namespace, body, dry=query.get("dryRun") == "All"),
            "patch": lambda: self.change(key, body),
            "delete": lambda: self._delete_as_seen(key, body, None if grace is None else int(grace)),
        }
        if verb in answers:
            return 201 if verb == "create" else 200, answers[verb]()
        raise Refused(405, "MethodNotAllowed", f"{method} is not supported here")

    def authorize(self, verb: str, resource: str, token: str) -> None:
        with self.lock:
            self.asked.append((verb, resource, token))
            self.lock.notify_all()
            if token == ADMIN:
                return
            if self.failing is not None:
                code, retry_s = self.failing
                raise Refused(code, "InternalError" if code >= 500 else "TooManyRequests", "etcd is slow", retry_s)
            if token in self.unknown:
                raise Refused(401, "Unauthorized", "Unauthorized")
            if token in self.rules and (verb, resource) not in self.rules[token]:
                raise Refused(403, "Forbidden", f'{resource} is forbidden: User "{token}" cannot {verb} resource')

    def authorize_by_roles(self, verb: str, asked: re.Match[str], token: str) -> None:
        """Refuse what no Role of a token allows; what is to be made has no name yet by which it could be allowed."""
        if token not in self.roles:
            return
        group = (asked["group"] or "").partition("/")[0]
        for role in self.roles[token]:
            for rule in role["rules"]:
                if (
                    role["metadata"].get("namespace", NAMESPACE) == asked["namespace"]
                    and verb in rule["verbs"]
                    and group in rule["apiGroups"]
                    and asked["resource"] in rule["resources"]
                    and (not rule.get("resourceNames") or asked["name"] in rule["resourceNames"])
                ):
                    return
        raise Refused(403, "Forbidden", f'User "{token}" cannot {verb} {asked["resource"]} in {asked["namespace"]}')

    def _delete_as_seen(self, key: Key, options: Mapping[str, Any], grace_s: int | None) -> Object:
        """Delete an object, unless it is another by now than the request's preconditions say."""
        with self.lock:
            meta = self.get(key)["metadata"]
            for name, value in options.get("preconditions", {}).items():
                if meta[name] != value:
                    raise Refused(409, "Conflict", f"the {name} in the precondition is {value}; it is {meta[name]}")
            return self.delete(key, grace_s)

    def _evict(self, key: Key, body: Object) -> Object:
        with self.lock:
            pod = self.get(key)
            said = "Eviction API: evicting"
            _condition(
                pod, {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": said}
            )
            self._note("MODIFIED", key, pod)
            self.delete(key, body.get("deleteOptions", {}).get("gracePeriodSeconds"))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _list(self, resource: str, namespace: str, query: Mapping[str, str]) -> Object:
        with self.lock:
            chosen = _selector(query)
            items = [
                copy.deepcopy(one)
                for key, one in self.objects.items()
                if key.resource == resource and (not namespace or key.namespace == namespace) and chosen(one)
            ]
            version, kind = KINDS[resource]
            return {
                "kind": f"{kind}List",
                "apiVersion": version,
                "metadata": {"resourceVersion": str(self.version)},
                "items": items,
            }

    def _news(self, resource: str, namespace: str, seen: int) -> tuple[list[Change], Object | None]:
        """Return what changed after a version, or the error where that is forgotten."""
        if seen < self.compacted:
            gone = Refused(410, "Expired", f"too old resource version: {seen} ({self.compacted})")
            return [], {"type": "ERROR", "object": gone.status()}
        found = (one for one in self.changes if one.version > seen)
        return [one for one in found if one.resource == resource and namespace in {"", one.namespace}], None

    def watch(self, resource: str, namespace: str, query: Mapping[str, str]) -> Iterator[Object]:
        """Yield what changed after a version, and bookmarks; 410 where that is forgotten."""
        chosen, broken = _selector(query), self.broken
        end_s, marked_s = monotonic() + float(query.get("timeoutSeconds", 300)), monotonic()
        seen, initial = int(query.get("resourceVersion") or 0), []
        with self.lock:
            self.watching += 1
            self.lock.notify_all()
            if not seen or query.get("sendInitialEvents") == "true":
                found = self._list(resource, namespace, query)
                initial = [{"type": "ADDED", "object": one} for one in found["items"]]
                seen = self.version
                if query.get("sendInitialEvents") == "true":
                    initial.append(_bookmark(resource, seen, {"k8s.io/initial-events-end": "true"}))
        try:
            yield from initial
            while monotonic() < end_s:
                with self.lock:
                    if self.broken != broken or self.away:
                        raise ConnectionAbortedError
                    fresh, error = self._news(resource, namespace, seen)
                    seen = max(seen, self.version)
                    if not fresh and error is None:
                        self.lock.wait(min(0.2, max(0.01, end_s - monotonic())))
                if error is not None:
                    yield error
                    return
                for one in fresh:
                    if chosen(one.object):
                        yield {"type": one.type, "object": one.object}
                if query.get("allowWatchBookmarks") == "true" and monotonic() >= marked_s + BOOKMARK_S:
                    marked_s = monotonic()
                    yield _bookmark(resource, seen)
        finally:
            with self.lock:
                self.watching -= 1
                self.lock.notify_all()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, kube: KubeServer, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.kube = kube

    def handle_error(self, *_args: object) -> None:
        """Say nothing: a client that was killed has left."""


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        pass

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.kube.away and token != ADMIN:
            self.close_connection = True
            self.connection.close()
            return
        try:
            query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
            if self.command == "GET" and query.get("watch") in {"true", "1"}:
                self._watch(query, token)
                return
            body = json.loads(raw) if raw else {}
            code, found = self.server.kube.answer(self.command, self.path, body, token)
            self._send(code, found)
        except Refused as error:
            self._send(error.code, error.status(), error.retry_s)

    def _watch(self, query: Mapping[str, str], token: str) -> None:
        matched = _PATH.match(urlsplit(self.path).path)
        if matched is None:
            raise Refused(404, "NotFound", "no such thing")
        self.server.kube.authorize("watch", matched["resource"], token)
        self.server.kube.authorize_by_roles("watch", matched, token)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for one in self.server.kube.watch(matched["resource"], matched["namespace"] or "", query):
                line = json.dumps(one).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _send(self, code: int, found: Object, retry_s: int = 0) -> None:
        text = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if retry_s:
            self.send_header("Retry-After", str(retry_s))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve  # noqa: N815 - http.server's names


def _verb(method: str, name: str | None) -> str:
    if method == "GET":
        return "get" if name else "list"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}[method]


def _discovery(path: str) -> Object | None:
    """Return what clients ask for first."""
    path = path.rstrip("/")
    if path == "/version":
        return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [
            {
                "name": name,
                "versions": [{"groupVersion": f"{name}/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": f"{name}/v1", "version": "v1"},
            }
            for name in ("apps", "policy")
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = {"/api/v1": "v1", "/apis/apps/v1": "apps/v1", "/apis/policy/v1": "policy/v1"}.get(path)
    if version is None:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "watch"]
    resources: list[Object] = [
        {
            "name": name,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": name not in OF_CLUSTER,
            "verbs": verbs,
            **({"shortNames": ["po"]} if name == "pods" else {}),
        }
        for name, (of, kind) in KINDS.items()
        if of == version
    ]
    if version == "v1":
        eviction = {"name": "pods/eviction", "singularName": "", "namespaced": True, "kind": "Eviction"}
        resources.append({**eviction, "group": "policy", "version": "v1", "verbs": ["create"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _bookmark(resource: str, version: int, annotations: Object | None = None) -> Object:
    of, kind = KINDS[resource]
    meta = {"resourceVersion": str(version), **({"annotations": annotations} if annotations else {})}
    return {"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": of, "metadata": meta}}


def _selector(query: Mapping[str, str]) -> Callable[[Object], bool]:
    labels = [part for part in query.get("labelSelector", "").split(",") if part]
    fields = [part for part in query.get("fieldSelector", "").split(",") if part]

    def chosen(one: Object) -> bool:
        found = one["metadata"].get("labels", {})
        return all(_holds(part, found.get) for part in labels) and all(
            _holds(part, lambda path: _field(one, path)) for part in fields
        )

    return chosen


def _holds(part: str, value: Callable[[str], Any]) -> bool:
    for sign in ("!=", "==", "="):
        name, found, wanted = part.partition(sign)
        if found:
            return (value(name) == wanted) != (sign == "!=")
    return value(part[1:]) is None if part.startswith("!") else value(part) is not None


def _field(one: Object, path: str) -> Any:
    found: Any = one
    for name in path.split("."):
        found = found.get(name, "") if isinstance(found, dict) else ""
    return found


def _merge(into: Object, patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def _condition(pod: Object, condition: Object) -> None:
    kept = [one for one in pod["status"]["conditions"] if one["type"] != condition["type"]]
    pod["status"]["conditions"] = [*kept, condition]


def _gpus(pod: Object) -> int:
    return sum(int(one.get("resources", {}).get("limits", {}).get(GPUS, 0)) for one in pod["spec"]["containers"])


def _violations(spec: Object) -> Iterator[str]:
    of_pod = spec.get("securityContext", {})
    for container in spec["containers"]:
        own = {**of_pod, **container.get("securityContext", {})}
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation != false"
        if "ALL" not in own.get("capabilities", {}).get("drop", ()):
            yield "unrestricted capabilities"
        if own.get("runAsNonRoot") is not True:
            yield "runAsNonRoot != true"
        if own.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
            yield "seccompProfile"
    if spec.get("hostNetwork") or any("hostPath" in volume for volume in spec.get("volumes", ())):
        yield "host namespaces or paths"


def _stamp(later_s: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
