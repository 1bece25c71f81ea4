"""``penstock up`` with the real services: ready, kept running through kill -9, one at a time, and down in order."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock_bus import Append, NoResponders, ServiceError, Unavailable
from penstock_bus.identity import logins
from penstock_bus.nats import connect
from penstock_bus.servers.server import ServerSettings
from penstock_bus.servers.server import running as running_server
from penstock_cli import hoisted
from penstock_cli.app import app
from penstock_cli.local import data_folder, supervisor
from penstock_cli.local.data_folder import UpError, UpOptions
from penstock_log import Commit, JobHeld, subjects
from penstock_log.services import CORE
from penstock_testing import eventually


def options(tmp_path: Path, **more: object) -> UpOptions:
    return UpOptions(data_dir=str(tmp_path / "data"), port=-1, devices="fast:1@1.0:1GiB", quiet=True, **more)  # type: ignore[arg-type]


def record(tmp_path: Path) -> data_folder.SupervisorRecord:
    found = data_folder.read(tmp_path / "data")
    assert found is not None
    return found


def own(pid: int) -> int:
    return pid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@asynccontextmanager
async def running(chosen: UpOptions) -> AsyncIterator[list[str]]:
    """Run `up` in this process until the block ends; gives what it says."""
    said: list[str] = []
    ready, stopping = asyncio.Event(), asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        ready.set()

    task = asyncio.create_task(supervisor.up(chosen, say, stopping))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if not task.done():
            yield said
    finally:
        stopping.set()
        await task


async def ready(url: str, service: str) -> bool:
    with suppress(Unavailable, NoResponders, ServiceError):  # the last: it says that it is not ready
        async with penstock.Client(url) as client:
            return bool(await client.bus.request(subjects.query("ready", service), b"", timeout_s=20.0))
    return False


async def test_all_services_are_ready_and_end_with_it(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as said:
        assert "12 processes" in said[0]
        assert "Single node, not HA" in said[0]
        written = record(tmp_path)
        assert written.ready
        assert sorted(written.processes) == sorted(["nats", *(f"{service}-1" for service in CORE)])
        for service in CORE:
            assert await ready(written.url, service)
    assert data_folder.read(tmp_path / "data") is None
    for process in written.processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


async def test_a_second_up_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    few = options(tmp_path, replicas=dict.fromkeys(CORE, 0))
    async with running(few):
        with pytest.raises(UpError, match=rf"in use by the supervisor with process id {os.getpid()}; stop it with"):
            await supervisor.up(few, lambda _: None, asyncio.Event())
        with pytest.raises(UpError, match="in use by the supervisor"):
            await supervisor.detach(few)


async def test_what_is_killed_comes_back_the_server_and_what_forks_the_services_too(tmp_path: Path) -> None:
    replicas = {service: 0 for service in CORE if service != "ranker"}
    async with running(options(tmp_path, replicas=replicas)):
        for name, victim in (("ranker-1", own), ("nats", own), ("ranker-1", parent)):
            before = record(tmp_path).processes[name]
            os.kill(victim(before.pid), signal.SIGKILL)
            await eventually(lambda name=name, before=before: record(tmp_path).processes[name] != before)  # type: ignore[misc]
            url = record(tmp_path).url
            await eventually(lambda url=url: ready(url, "ranker"), why="the ranker is ready again")  # type: ignore[misc]


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async with running(options(tmp_path, replicas=dict.fromkeys(CORE, 0))):
        port = int(record(tmp_path).url.rpartition(":")[2])
        other = UpOptions(data_dir=str(tmp_path / "other"), port=port)
        with pytest.raises(UpError, match=f"port {port} is taken: .*choose another one with --port"):
            await supervisor.up(other, lambda _: None, asyncio.Event())


@pytest.mark.thorough
async def test_a_service_with_wrong_settings_stops_it_with_the_place_to_look(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text("[ranker]\nspeed = 'very'\n")
    with pytest.raises(UpError, match=r"ranker-1 cannot run: its settings are wrong; see .*logs/ranker-1\.log"):
        async with running(options(tmp_path, config=str(config), replicas={"executor": 0})):
            pass
    said = (tmp_path / "data" / "logs" / "ranker-1.log").read_text()
    assert f"{config}:2, [ranker]: unknown key 'speed'; expected one of" in said


async def test_detached_it_is_ready_on_return_and_down_waits_for_its_end(tmp_path: Path) -> None:
    chosen = options(tmp_path, replicas={service: 0 for service in CORE if service != "tuner"})
    written = await supervisor.detach(chosen)
    assert await ready(written.url, "tuner")
    assert await supervisor.down(chosen.data_dir)
    assert data_folder.holder(chosen.folder) is None
    assert not await supervisor.down(chosen.data_dir)


async def test_detached_it_says_whom_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PATIENT_S", 0.0)
    chosen = options(tmp_path, replicas={service: 0 for service in CORE if service != "tuner"})
    said: list[str] = []
    await supervisor.detach(chosen, said.append)
    await supervisor.down(chosen.data_dir)
    assert said[0] == f"starting NATS and the services, data in {chosen.folder}"
    assert said[1] == "waiting for NATS"
    assert set(said[1:]) <= {"waiting for NATS", "waiting for tuner-1"}


async def test_detached_its_failure_is_told(tmp_path: Path) -> None:
    with pytest.raises(UpError, match="there is no service 'macher'"):
        await supervisor.detach(options(tmp_path, replicas={"macher": 1}))


async def test_its_children_do_not_outlive_a_killed_supervisor_and_it_starts_again(tmp_path: Path) -> None:
    chosen = options(tmp_path, replicas={service: 0 for service in CORE if service != "tuner"})
    first = await supervisor.detach(chosen)
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: data_folder.holder(chosen.folder) is None)
    second = await supervisor.detach(chosen)
    assert await ready(second.url, "tuner")
    for process in first.processes.values():
        assert data_folder.process(process.pid) != process
    assert await supervisor.down(chosen.data_dir)


async def test_down_on_a_folder_that_nobody_runs_says_so(tmp_path: Path) -> None:
    assert not await supervisor.down(str(tmp_path / "absent"))


async def test_its_user_finds_the_credentials_nobody_else_does_and_none_are_left(tmp_path: Path) -> None:
    few = options(tmp_path, replicas=dict.fromkeys(CORE, 0))
    (tmp_path / "data").mkdir(mode=0o755)
    async with running(few) as said:
        data, url = tmp_path / "data", record(tmp_path).url
        assert "find the login by themselves" in said[0]
        assert data.stat().st_mode & 0o777 == 0o700
        for name in ("client.json", "extension.json"):
            assert (data / name).stat().st_mode & 0o777 == 0o600
        async with penstock.Client(url) as client:
            assert await client.bus.last_seq() == 0
        environment = {**os.environ, "PENSTOCK_URL": url, "XDG_CONFIG_HOME": str(tmp_path / "another's")}
        for given, code in (({}, 3), ({"PENSTOCK_CREDENTIALS": str(data / "client.json")}, 0)):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "penstock", "rejected" if code else "doctor"),
                env={**environment, **given},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            out, err = await process.communicate()
            if code:
                assert process.returncode == code
                assert err.decode().startswith("penstock: the NATS server at nats://127.0.0.1:")
                assert "it wants a login, and there are none here" in err.decode()
                assert err.count(b"\n") == 1
            else:
                assert b"ok    log " in out
    assert not list(tmp_path.rglob("*client*.json"))
    assert logins.find_logins("client", url, os.environ, tmp_path).logins == ()


async def test_the_log_of_a_version_with_one_account_for_all_is_taken_over(tmp_path: Path) -> None:
    few = options(tmp_path, replicas=dict.fromkeys(CORE, 0))
    store = tmp_path / "data/nats/jetstream"
    async with running(few):
        gateway = logins.read_login(tmp_path / "data/nats/logins/gateway.json")
        async with connect(record(tmp_path).url, login=gateway) as bus:
            held = Commit(id="c1", actor="gateway/1", facts=(JobHeld(job_id="j1", at_s=1.0),))
            await bus.append(Append(subject=subjects.job("j1"), commit=held, expected=0))
    (now,) = (path.parent.parent for path in store.glob("*/streams/EVT"))
    now.rename(store / "$G")
    passwords = tmp_path / "data/nats/passwords.json"
    (passwords / "README").unlink()
    passwords.rmdir()
    passwords.write_text('{"gateway": "opens nothing any more"}')
    async with running(few), penstock.Client(record(tmp_path).url) as client:
        assert passwords.is_dir(), "the version with passwords would not find the log, and begin another"
        assert [one.subject for one in await client.bus.read("penstock.evt.>")] == [subjects.job("j1")]
    (store / "$G" / "streams" / "EVT").mkdir(parents=True)
    with pytest.raises(UpError, match="there are two logs"):
        async with running(few):
            pass


async def test_a_store_is_shown_and_purged_by_whoever_has_the_data_folder(tmp_path: Path) -> None:
    few = options(tmp_path, replicas=dict.fromkeys(CORE, 0))
    data = str(tmp_path / "data")

    async def purge(*words: str, code: int = 0) -> str:
        invoked = await asyncio.to_thread(CliRunner().invoke, app, hoisted(["purge", "--data", data, *words]))
        assert invoked.exit_code == code, invoked.output
        return invoked.output

    async with running(few), penstock.Client(record(tmp_path).url) as client:
        await client.bus.submit(subjects.INBOX_JOBS, b"{}")
        assert "the log itself: never purged" in await purge()
        said = await purge("submissions", code=1)
        assert "submissions (submissions that no gateway has taken yet): 1 message of " in said
        assert f"would go: 1 on penstock.p.{logins.user_name()}.inbox.jobs" in said
        assert "nothing was purged" in said
        assert "purged 1 message\n" in await purge("submissions", "--yes")
        assert "nothing to purge" in await purge("submissions")
        assert "expected one of output, series, submissions" in await purge("log", code=2)
        assert "nothing to purge: no output of j1" in await purge("output", "--job", "j1")
        said = await purge("--url", "nats://127.0.0.1:1", "output", "--yes", code=2)
        assert f"{data} is the folder of {record(tmp_path).url} and not of nats://127.0.0.1:1" in said


async def test_the_store_of_a_server_by_itself_is_purged_by_its_data_folder_too(tmp_path: Path) -> None:
    async with running_server(ServerSettings(data_dir=tmp_path)) as server:
        async with connect(server.url, login=server.logins["admin"]) as bus:
            await bus.submit(subjects.INBOX_JOBS, b"{}")
        words = ["--url", server.url, "purge", "submissions", "--yes", "--data"]
        purged = await asyncio.to_thread(CliRunner().invoke, app, [*words, str(tmp_path)])
        elsewhere = await asyncio.to_thread(CliRunner().invoke, app, [*words, str(tmp_path / "elsewhere")])
    assert (purged.exit_code, purged.output.splitlines()[-1]) == (0, "purged 1 message")
    assert (elsewhere.exit_code, "is no data folder of `penstock up`; name it" in elsewhere.output) == (2, True)
