"""An identity provider on loopback: discovery, keys, the device grant and refreshing, with keys made here."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

AUDIENCE = "penstock"


class LocalIssuer:
    """
    What the provider is and was asked; tests change it while it runs.

    Attributes
    ----------
    keys : dict
        Name → private key; those in ``published`` stand in the key set.
    pending : int
        So many questions of a device are answered with "authorization_pending".
    refusal : str
        Instead of tokens; empty for tokens.
    lifetime_s : float
        Of the tokens that it gives.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:  # noqa: TID251 - servers go by it too
        self.now_s = now_s
        self.keys: dict[str, ECKey | RSAKey] = {"k1": ECKey.generate_key("P-256", {"kid": "k1"})}
        self.published: list[dict[str, Any]] = [self.keys["k1"].as_dict(private=False)]
        self.url = ""
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.person = "jane"
        self.pending = 0
        self.refusal = ""
        self.lifetime_s = 300.0
        self.refresh_tokens: set[str] = set()
        self.discovery: dict[str, Any] = {}

    def times(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(one == path for one, _ in self.asked)

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a good token, some of them changed; None takes one out."""
        now = int(self.now_s())
        good = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "0815",
            "preferred_username": self.person,
            "iat": now,
            "exp": int(now + self.lifetime_s),
        }
        return {name: value for name, value in (good | changed).items() if value is not None}

    def token(self, kid: str = "k1", header: dict[str, Any] | None = None, **changed: Any) -> str:
        """Return a token that is signed by one of the keys."""
        key = self.keys[kid]
        algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
        return jwt.encode({"alg": algorithm, "kid": kid} | (header or {}), self.claims(**changed), key, [algorithm])

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return status and body of an answer."""
        self.asked.append((path, form))
        if path == "/.well-known/openid-configuration":
            ends = {"jwks_uri": "keys", "token_endpoint": "token", "device_authorization_endpoint": "device"}
            found = {"issuer": self.url} | {name: f"{self.url}/{path}" for name, path in ends.items()}
            return 200, found | self.discovery
        if path == "/keys":
            return 200, {"keys": self.published}
        if path == "/device":
            shown = {"verification_uri": f"{self.url}/go", "verification_uri_complete": f"{self.url}/go?c=ABCD"}
            return 200, {"device_code": "d1", "user_code": "ABCD-EFGH", "expires_in": 5, "interval": 0.01, **shown}
        if path == "/token":
            return self._tokens(form)
        return 404, {}

    def _tokens(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if self.refusal:
            return 400, {"error": self.refusal, "error_description": "as the test wants it"}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return 400, {"error": "invalid_grant"}
            self.refresh_tokens.remove(form["refresh_token"])  # as providers that rotate them do
        elif self.pending:
            self.pending -= 1
            return 400, {"error": "authorization_pending"}
        fresh = f"r{len(self.asked)}"
        self.refresh_tokens.add(fresh)
        return 200, {"id_token": self.token(), "refresh_token": fresh, "access_token": "unused", "token_type": "Bearer"}


@contextmanager
def serving(issuer: LocalIssuer) -> Iterator[LocalIssuer]:
    """Answer on a port of loopback while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*issuer.answer(self.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._send(*issuer.answer(self.path, dict(urllib.parse.parse_qsl(body))))

        def _send(self, status: int, found: dict[str, Any]) -> None:
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
