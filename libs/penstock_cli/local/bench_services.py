"""
What the benches share: a NATS server of their own, and the environment and log of services that are their processes.

This is shell code, as the benches are.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock_bus.servers.server import Server, ServerSettings


class BenchError(Exception):
    """The bench cannot be run here; the message says why."""


@contextmanager
def nats_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run a NATS server; yield the environment that leads a service there."""
    folder.mkdir()
    login = {"user": "bench", "password": secrets.token_hex(16)}
    accounts = {"BENCH": {"jetstream": "enabled", "users": [login]}}
    server = Server(ServerSettings(data_dir=folder, sync_interval="2m"), {"accounts": accounts})
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            yield {
                "PENSTOCK_URL": server.url,
                "PENSTOCK_USER": login["user"],
                "PENSTOCK_PASSWORD": login["password"],
            }
        finally:
            runner.run(server.stop())


def service_environment(bus: Mapping[str, str], settings: Mapping[str, str], ready: Path) -> dict[str, str]:
    """
    Return the environment of a service: nothing of Penstock's but what the bench says.

    Parameters
    ----------
    bus : mapping of str to str
        As from :func:`nats_server`.
    settings : mapping of str to str
        Variables of the service.
    ready : Path
        A file that is there once the service is ready.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, **bus, **settings, "PENSTOCK_READY_FILE": str(ready), "PENSTOCK_CONFIG": os.devnull}


def last_lines(log: Path) -> str:
    """Return the last lines that a service has written."""
    return " / ".join(log.read_text(errors="replace").splitlines()[-3:])
