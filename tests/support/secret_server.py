"""The part of Kubernetes' API server that knows Secrets, over TLS and by a token, with versions and merge patches."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from penstock_bus.identity.certificates import ensured

TOKEN = "t0ken"
PATCHES = "application/merge-patch+json"
"""The type of the patches that are known here, of several that Kubernetes knows."""
NAMESPACE = "lab"


class SecretServer:
    """
    Secrets by name, and who may do what with them.

    Attributes
    ----------
    secrets : dict of str to dict of str to str
        Name → file → base64.
    allowed : set of str
        Names of Secrets that the token may read and change; there are no rights to make or delete any.
    asked : list of tuple of str
        Method and name of each request.
    before_patch : callable
        Called before each patch, as somebody else who is faster.
    """

    def __init__(self, folder: Path, *names: str, host: str = "127.0.0.1") -> None:
        self.secrets: dict[str, dict[str, str]] = {name: {} for name in names}
        self.versions = dict.fromkeys(names, 1)
        self.allowed = set(names)
        self.asked: list[tuple[str, str]] = []
        self.before_patch = lambda name: None  # noqa: ARG005
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        self.tls = ensured(folder / "tls", ["localhost", host])
        (self.account / "ca.crt").write_text(self.tls.authority)
        (self.account / "token").write_text(TOKEN)
        (self.account / "namespace").write_text(NAMESPACE)
        self.port = 0

    @property
    def environ(self) -> dict[str, str]:
        """What Kubernetes sets in a pod."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    def change(self, name: str, files: dict[str, str]) -> None:
        """Change a Secret as anybody may."""
        self.secrets[name] |= files
        self.versions[name] += 1

    def answer(self, method: str, path: str, token: str, body: bytes, body_type: str = "") -> tuple[int, object]:
        """Return the status and the object with which a request is answered."""
        folder, _, name = path.rpartition("/")
        self.asked.append((method, name))
        if token != f"Bearer {TOKEN}":
            return 401, {"kind": "Status"}
        if folder != f"/api/v1/namespaces/{NAMESPACE}/secrets" or name not in self.allowed or method == "DELETE":
            return 403, {"kind": "Status"}
        if name not in self.secrets:
            return 404, {"kind": "Status"}
        if method == "PATCH":
            if body_type != PATCHES:
                return 415, {"kind": "Status"}
            self.before_patch(name)
            patch = json.loads(body)
            if patch["metadata"]["resourceVersion"] != str(self.versions[name]):
                return 409, {"kind": "Status"}
            self.change(name, patch["data"])
        data = {"data": self.secrets[name]} if self.secrets[name] else {}
        return 200, {"kind": "Secret", "metadata": {"name": name, "resourceVersion": str(self.versions[name])}, **data}


@contextmanager
def serving(server: SecretServer, host: str = "127.0.0.1") -> Iterator[SecretServer]:
    """Answer on a port of this machine while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token, body_type = (self.headers.get(name, "") for name in ("Authorization", "Content-Type"))
            status, found = server.answer(self.command, self.path, token, body, body_type)
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_DELETE = _answer  # noqa: N815 - as http.server calls them

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((host, 0), Handler) as listening:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(server.tls.certificate, server.tls.key)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        server.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
