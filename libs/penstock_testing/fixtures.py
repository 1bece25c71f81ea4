"""Pytest fixtures, ports and waiting; a ``conftest.py`` has ``pytest_plugins = ["penstock_testing.fixtures"]``."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from typing import Final

import pytest
import pytest_asyncio

from penstock_bus.identity.logins import Login
from penstock_bus.memory import MemoryBus
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Server, ServerSettings

ACCOUNTS = 600
PROMISED_BYTES = 1 << 50
"""What the streams of all accounts may be promised together: a promise takes no room on the disk."""


@dataclass(frozen=True)
class NatsAccount:
    """An account of the test server that no other test uses; as many connections as the test likes."""

    url: str
    user: str
    password: str

    @property
    def environment(self) -> dict[str, str]:
        """What a service process needs to go there."""
        return {"PENSTOCK_URL": self.url, "PENSTOCK_USER": self.user, "PENSTOCK_PASSWORD": self.password}

    def connect(self, name: str = "test") -> AbstractAsyncContextManager[NatsBus]:
        """Connect to it."""
        return connect(self.url, login=Login(url=self.url, user=self.user, password=self.password), name=name)


@dataclass
class NatsTestServer:
    """One real server for all tests of a session."""

    __test__ = False

    server: Server
    _numbers: count[int] = field(default_factory=count)

    def account(self) -> NatsAccount:
        """Return an account that was not used before."""
        number = next(self._numbers)
        if number >= ACCOUNTS:
            raise RuntimeError(f"more than {ACCOUNTS} tests want an account; raise ACCOUNTS")
        return NatsAccount(self.server.url, f"t{number}", "test")


@pytest_asyncio.fixture
async def memory_bus() -> AsyncIterator[MemoryBus]:
    """A bus in memory, empty."""
    async with MemoryBus() as bus:
        yield bus


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsTestServer]:
    """A real server with JetStream on disk and an account for each test."""
    accounts = {
        f"T{i}": {"jetstream": "enabled", "users": [{"user": f"t{i}", "password": "test"}]} for i in range(ACCOUNTS)
    }
    settings = ServerSettings(
        data_dir=tmp_path_factory.mktemp("nats"), sync_interval="2m", max_store_bytes=PROMISED_BYTES
    )
    server = Server(settings, {"accounts": accounts})
    with asyncio.Runner() as runner:
        runner.run(server.start())
        yield NatsTestServer(server)
        runner.run(server.stop())


@pytest.fixture
def nats_account(nats_server: NatsTestServer) -> NatsAccount:
    """A fresh account on the real server."""
    return nats_server.account()


@pytest_asyncio.fixture
async def nats_bus(nats_account: NatsAccount) -> AsyncIterator[NatsBus]:
    """A bus on the real server, empty."""
    async with nats_account.connect() as bus:
        yield bus


_FIRST, _COUNT = 20_000, 10_000
_ports: Final = islice(cycle(range(_FIRST, _FIRST + _COUNT)), 37 * os.getpid() % _COUNT, None)


def free_port() -> int:
    """
    Return a port at which nobody listens, another one each time.

    It is none of those that the kernel gives out by itself, which anybody may get before it is listened at; and each
    process begins its search elsewhere.
    """
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a cycle does not end")


WAIT_LIMIT_S: Final = 60.0
_LOOK_S: Final = 0.01


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = WAIT_LIMIT_S, why: str = ""
) -> None:
    """
    Wait until a condition holds, for what offers no event to wait for.

    Raises
    ------
    AssertionError
        If it does not within ``within_s`` seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            while not await _holds(condition):  # noqa: ASYNC110 - there is no event, that is what this is for
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise AssertionError(f"not true within {within_s} s: {why or condition}") from error


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    held = condition()
    return held if isinstance(held, bool) else await held
