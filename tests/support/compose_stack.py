"""compose.yaml on a real engine, as a project of its own on ports of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testcontainers.compose import DockerCompose

ROOT = Path(__file__).parents[2]
PORTS = ("PENSTOCK_PORT", "PENSTOCK_PORT_2", "PENSTOCK_PORT_3")


def docker(stack: DockerCompose, *words: str, check: bool = True) -> str:
    """Type a command of Docker Compose; return what it printed."""
    done = subprocess.run(
        [*stack.compose_command_property, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)  # noqa: T201 what pytest shows when something fails
    assert not check or done.returncode == 0
    return done.stdout


@contextmanager
def running(credentials: Path, **how: list[str]) -> Iterator[DockerCompose]:
    """
    Bring a project up, with the credentials of its owner in a file that clients here find; take it down at the end.

    Parameters
    ----------
    credentials : Path
        File to be written.
    how : list of str
        ``profiles`` and ``services``, as :class:`DockerCompose` takes them.
    """
    said = dict(os.environ)
    ports = _free_ports()
    os.environ |= dict(zip(PORTS, ports, strict=True)) | {"COMPOSE_PROJECT_NAME": f"penstock-test-{ports[0]}"}
    stack = DockerCompose(str(ROOT), build=True, wait=True, **how)
    try:
        stack.start()
        credentials.write_text(docker(stack, "exec", "-T", "nats", "cat", "/auth/client/client.json"))
        os.environ["PENSTOCK_CREDENTIALS"] = str(credentials)
        yield stack
    finally:
        docker(stack, "logs", "--no-color", "--tail", "60", check=False)
        docker(stack, "down", "--volumes", "--timeout", "5", check=False)
        os.environ.clear()
        os.environ |= said


def _free_ports() -> list[str]:
    sockets = [socket.socket() for _ in PORTS]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
