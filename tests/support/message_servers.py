"""A mail server and a webhook server on this machine, which keep what they get."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.header import decode_header, make_header
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

PATIENCE_S = 60.0


class Messages:
    """What a server got, in order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: list[tuple[str, str]] = []
        self.status = 200
        self.tries = 0
        self.port = 0

    def add(self, title: str, body: str) -> None:
        with self._changed:
            self._all.append((title, body))
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[str, str]]:
        """Return the messages once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._all) >= count, PATIENCE_S), self._all
            return list(self._all)


@contextmanager
def webhook() -> Iterator[Messages]:
    """Serve a webhook; it answers with the ``status`` of its messages, and keeps what it answered 200."""
    messages = Messages()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            messages.tries += 1
            if messages.status == 200:
                messages.add(body["title"], body["message"])
            self.send_response(messages.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    messages.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield messages
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def mail_server() -> Iterator[Messages]:
    """Serve SMTP."""
    messages = Messages()

    class Handler:
        async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
            mail = message_from_bytes(envelope.content)
            subject = str(make_header(decode_header(mail["Subject"])))
            part = next(one for one in mail.walk() if not one.is_multipart())
            messages.add(f"{','.join(envelope.rcpt_tos)}: {subject}", part.get_payload(decode=True).decode())
            return "250 OK"

    class FreePort(Controller):
        def _trigger_server(self) -> None:
            self.port = self.server.sockets[0].getsockname()[1]
            super()._trigger_server()

    controller = FreePort(Handler(), hostname="127.0.0.1", port=0)
    controller.start()
    messages.port = controller.port
    try:
        yield messages
    finally:
        controller.stop()
