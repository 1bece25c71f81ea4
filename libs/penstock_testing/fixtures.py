"""Pytest fixtures; a ``conftest.py`` takes them with ``pytest_plugins = ["penstock_testing.fixtures"]``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count

import pytest
import pytest_asyncio

from penstock_bus.memory import MemoryBus
from penstock_bus.nats import NatsBus, connect
from penstock_bus.server import Server, ServerSettings

ACCOUNTS = 600
PROMISED_BYTES = 1 << 50
"""What the streams of all accounts may be promised together: a promise takes no room on the disk."""


@dataclass(frozen=True)
class Account:
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
        return connect(self.url, user=self.user, password=self.password, name=name)


@dataclass
class TestServer:
    """One real server for all tests of a session."""

    __test__ = False

    server: Server
    _numbers: count[int] = field(default_factory=count)

    def account(self) -> Account:
        """Return an account that was not used before."""
        number = next(self._numbers)
        if number >= ACCOUNTS:
            raise RuntimeError(f"more than {ACCOUNTS} tests want an account; raise ACCOUNTS")
        return Account(self.server.url, f"t{number}", "test")


@pytest_asyncio.fixture
async def memory_bus() -> AsyncIterator[MemoryBus]:
    """A bus in memory, empty."""
    async with MemoryBus() as bus:
        yield bus


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
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
        yield TestServer(server)
        runner.run(server.stop())


@pytest.fixture
def nats_account(nats_server: TestServer) -> Account:
    """A fresh account on the real server."""
    return nats_server.account()


@pytest_asyncio.fixture
async def nats_bus(nats_account: Account) -> AsyncIterator[NatsBus]:
    """A bus on the real server, empty."""
    async with nats_account.connect() as bus:
        yield bus
