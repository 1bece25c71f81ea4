import asyncio
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock_bus.health import Vitals
from penstock_bus.identity import logins
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import EX_CONFIG
from penstock_cli.local import data_folder, supervisor
from penstock_cli.local.child_process import FIRST_S, MOST_S, STEADY_S, Backoff, Child, Readiness
from penstock_cli.local.data_folder import UpError, UpOptions, environment
from penstock_log import subjects
from penstock_log.services import CORE
from penstock_testing import eventually


def test_each_service_runs_once_unless_told_otherwise() -> None:
    processes = UpOptions(replicas={"matcher": 2, "executor": 0}).processes()
    assert processes == [
        ("gateway", 1),
        ("profiler", 1),
        ("ranker", 1),
        ("autoscaler", 1),
        ("matcher", 1),
        ("matcher", 2),
        ("tuner", 1),
        ("assigner", 1),
        ("allocator", 1),
        ("dashboard", 1),
    ]


def test_all_dashboards_of_a_folder_sign_sessions_alike(tmp_path: Path) -> None:
    options = UpOptions(data_dir=str(tmp_path))
    named = [
        environment(options, "dashboard", number, url="nats://h")["PENSTOCK_DASHBOARD_SECRET_FILE"] for number in (1, 2)
    ]
    assert named == [str(tmp_path / "nats" / "logins" / "dashboard.secret")] * 2


def test_each_dashboard_of_a_folder_keeps_its_port_there_unless_the_settings_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = UpOptions(data_dir=str(tmp_path))
    kept = [
        environment(options, "dashboard", number, url="nats://h")["PENSTOCK_DASHBOARD_PORT_FILE"] for number in (1, 2)
    ]
    assert kept == [str(tmp_path / "penstock-dashboard.port"), str(tmp_path / "penstock-dashboard-2.port")]
    monkeypatch.setenv("PENSTOCK_DASHBOARD_PORT", "9000")
    assert "PENSTOCK_DASHBOARD_PORT_FILE" not in environment(options, "dashboard", 1, url="nats://h")


def test_replicas_of_a_service_that_does_not_exist_are_refused() -> None:
    with pytest.raises(UpError, match="there is no service 'macher'; expected one of gateway, profiler"):
        UpOptions(replicas={"macher": 2}).processes()


@pytest.mark.parametrize("name", ["", "lab", "n1.example.org", "n_1", "192.0.2.7", "fd00::2"])
def test_a_machine_has_a_name_or_an_address(name: str) -> None:
    UpOptions(name=name).check_name()


@pytest.mark.parametrize("name", ["bad name", "tls://lab", "lab:4222", "-lab", "a..b", "lab,other", "x\n", "x" * 254])
def test_a_machines_name_that_no_address_can_have_is_refused(name: str) -> None:
    with pytest.raises(UpError, match="is no host name; expected one such as cluster"):
        UpOptions(name=name).check_name()


def test_a_service_gets_address_credentials_and_the_settings_file() -> None:
    options = UpOptions(config="my.toml", drain_s=7.0)
    env = environment(options, "matcher", 1, url="nats://h:1")
    assert env == {
        "PENSTOCK_URL": "nats://h:1",
        "PENSTOCK_CREDENTIALS": str(Path("penstock-data/nats/logins/matcher.json").absolute()),
        "PENSTOCK_DRAIN_S": "7.0",
        "PENSTOCK_CONFIG": str(Path("my.toml").absolute()),
    }


def test_a_gateway_that_joins_a_data_folder_has_the_owner_and_the_folders_of_the_first(tmp_path: Path) -> None:
    record = data_folder.SupervisorRecord(url="nats://h:1", pid=1, started_s=0.0, version="", owner="ada")
    record.save(tmp_path)
    for service in ("gateway", "matcher"):
        data_folder.login_file(tmp_path, service).parent.mkdir(parents=True, exist_ok=True)
        data_folder.login_file(tmp_path, service).touch()
    found = {service: set(data_folder.login(tmp_path, service) or ()) for service in ("gateway", "matcher")}
    assert found["gateway"] - found["matcher"] == {
        "PENSTOCK_GATEWAY_OWNER",
        "PENSTOCK_GATEWAY_ARCHIVE_DIR",
        "PENSTOCK_GATEWAY_HISTORY_DIR",
        "PENSTOCK_GATEWAY_NOTIFY_DIR",
    }
    first = environment(UpOptions(data_dir=str(tmp_path), owner="ada"), "gateway", 1, url="nats://h:1")
    joined = data_folder.login(tmp_path, "gateway") or {}
    assert all(first[name] == joined[name] for name in found["gateway"])


def test_executors_of_one_machine_are_nodes_of_their_own_and_share_checkpoints(tmp_path: Path) -> None:
    options = UpOptions(data_dir=str(tmp_path), devices="fast:2")
    first, second = (environment(options, "executor", n, url="") for n in (1, 2))
    assert first["PENSTOCK_EXECUTOR_DEVICES"] == "fast:2"
    assert "PENSTOCK_EXECUTOR_NODE_ID" not in first
    assert second["PENSTOCK_EXECUTOR_NODE_ID"].endswith("-2")
    assert first["PENSTOCK_EXECUTOR_DATA_DIR"] != second["PENSTOCK_EXECUTOR_DATA_DIR"]
    assert first["PENSTOCK_EXECUTOR_CHECKPOINT_DIR"] == second["PENSTOCK_EXECUTOR_CHECKPOINT_DIR"]


def test_jobs_run_as_who_started_it_unless_the_settings_say_as_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = UpOptions(data_dir=str(tmp_path / "data"), config=str(tmp_path / "penstock.toml"))
    (tmp_path / "penstock.toml").write_text("[executor]\nlane_most = 1\n")
    assert environment(options, "executor", 1, url="")["PENSTOCK_EXECUTOR_RUN_AS"] == "executor"
    (tmp_path / "penstock.toml").write_text('[executor]\nrun_as = "user"\n')
    assert "PENSTOCK_EXECUTOR_RUN_AS" not in environment(options, "executor", 1, url="")
    monkeypatch.setenv("PENSTOCK_EXECUTOR_RUN_AS", "user")
    assert "PENSTOCK_EXECUTOR_RUN_AS" not in environment(UpOptions(), "executor", 1, url="")


@pytest.mark.parametrize(
    ("host", "said", "uid", "line"),
    [
        (
            "127.0.0.1",
            "",
            0,
            "Jobs run as ROOT, whoever submits them: before you add people, set PENSTOCK_EXECUTOR_RUN_AS",
        ),
        ("127.0.0.1", "executor", 0, "Jobs run as ROOT, whoever submits them"),
        ("192.0.2.1", "executor", 0, "Jobs run as ROOT, whoever submits them"),
        ("127.0.0.1", "user", 0, "Jobs run as who submits them"),
        ("192.0.2.1", "", 0, "Jobs run as who submits them"),
        ("127.0.0.1", "user", 1000, "Only ROOT's jobs run here: this is not root"),
    ],
)
def test_the_banner_says_as_whom_jobs_really_run(
    host: str, said: str, uid: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    if said:
        monkeypatch.setenv("PENSTOCK_EXECUTOR_RUN_AS", said)
    assert supervisor.jobs_line(UpOptions(host=host)).startswith(line.replace("ROOT", logins.user_name()))


def test_two_servers_are_refused_before_anything_is_started() -> None:
    for good in (0, 1, 3):
        UpOptions(servers=good).check_servers()
    with pytest.raises(UpError, match="--servers 2: so many cannot keep a log together; expected 1 or 3"):
        UpOptions(servers=2).check_servers()


def test_the_banner_names_the_address_that_others_type() -> None:
    here = "nats://127.0.0.1:4222"
    assert "Other machines" not in supervisor.banner(UpOptions(), here)
    several = "nats://127.0.0.1:4222,nats://127.0.0.1:4223"
    for url, found in ((here, "tls://lab:4222"), (several, "tls://lab:4222,tls://lab:4223")):
        said = supervisor.banner(UpOptions(host="192.0.2.7", name="lab"), url)
        assert f"Other machines reach it at {found}, or tls://" in said


def test_the_banner_does_not_tell_others_to_copy_the_owners_login() -> None:
    said = supervisor.access_lines(UpOptions(), "nats://127.0.0.1:1")
    assert "other people get one of their own by `penstock user add NAME`" in said


@pytest.mark.parametrize(("settings", "mode"), [("", 0o700), ('[executor]\nrun_as = "user"\n', 0o711)])
def test_only_root_that_runs_jobs_as_their_users_lets_them_through(tmp_path: Path, settings: str, mode: int) -> None:
    (tmp_path / "penstock.toml").write_text(settings)
    options = UpOptions(data_dir=str(tmp_path / "data"), config=str(tmp_path / "penstock.toml"))
    with data_folder.locked(options.folder):
        data_folder.let_users_through(options)
    assert options.folder.stat().st_mode & 0o777 == (mode if os.geteuid() == 0 else 0o700)


def test_one_folder_has_one_supervisor(tmp_path: Path) -> None:
    with data_folder.locked(tmp_path):
        assert data_folder.holder(tmp_path) == os.getpid()
        with (
            pytest.raises(UpError, match=rf"in use by .* process id {os.getpid()}; stop it with 'penstock down --data"),
            data_folder.locked(tmp_path),
        ):
            pass
    assert data_folder.holder(tmp_path) is None


@pytest.mark.parametrize(
    ("beside", "mode"), [((), 0o700), (("nats", "executor-2", "penstock.log"), 0o700), (("nats", "photos"), 0o1777)]
)
def test_a_data_folder_is_its_users_alone_unless_it_holds_other_things(
    tmp_path: Path, beside: tuple[str, ...], mode: int
) -> None:
    for name in beside:
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o1777)
    with data_folder.locked(tmp_path):
        assert tmp_path.stat().st_mode & 0o7777 == mode


async def test_a_supervisor_that_has_not_said_who_it_is_is_waited_for_and_nobody_is_stopped(
    tmp_path: Path,
) -> None:
    with data_folder.locked(tmp_path):
        pass
    assert (tmp_path / "penstock.lock").read_bytes() == b""
    with (tmp_path / "penstock.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert data_folder.holder(tmp_path) == data_folder.UNKNOWN
        with pytest.raises(UpError, match=r"a process that does not say its id still runs on .* after 0 s"):
            await supervisor.down(str(tmp_path), most_s=0.1)


async def test_without_room_for_its_record_it_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "penstock.json.new").mkdir()  # where the record would be written
    said: list[str] = []
    stopping = asyncio.Event()
    options = UpOptions(data_dir=str(tmp_path), port=-1, replicas=dict.fromkeys(CORE, 0))
    up = asyncio.create_task(supervisor.up(options, said.append, stopping))
    await eventually(lambda: bool(said) or up.done())
    stopping.set()
    await up
    assert "is up at nats://127.0.0.1:" in said[0]


async def test_settings_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "loud")
    with pytest.raises(UpError, match="variable PENSTOCK_LOG_LEVEL"):
        await supervisor.up(UpOptions(data_dir=str(tmp_path)), print, asyncio.Event())


def test_nobody_holds_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert data_folder.holder(tmp_path / "absent") is None


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UpError, match=r"data folder .*file cannot be used: .*; choose another with --data"),
        data_folder.locked(tmp_path / "file"),
    ):
        pass


def test_the_record_is_for_its_owner_and_comes_back(tmp_path: Path) -> None:
    record = data_folder.SupervisorRecord(url="nats://h:1", pid=7, started_s=1.0, version="1")
    record.processes["nats"] = data_folder.process(os.getpid())
    record.save(tmp_path)
    assert data_folder.read(tmp_path) == record
    assert stat.S_IMODE(data_folder.path(tmp_path).stat().st_mode) == 0o600
    data_folder.path(tmp_path).write_text("{")
    assert data_folder.read(tmp_path) is None


async def test_what_a_killed_supervisor_left_is_killed_but_not_a_stranger_with_its_id(tmp_path: Path) -> None:
    left = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    record = data_folder.SupervisorRecord(url="", pid=7, started_s=1.0, version="1")
    record.processes["matcher-1"] = data_folder.process(left.pid)
    record.processes["stranger"] = data_folder.SupervisedProcess(os.getpid(), 1)
    record.processes["gone"] = data_folder.SupervisedProcess(2**22 + 1, 5)
    record.save(tmp_path)
    assert await data_folder.kill_stale(tmp_path) == ["matcher-1"]
    assert await left.wait() == -signal.SIGKILL


def test_restarts_become_slower_and_fast_again_after_a_steady_life() -> None:
    backoff = Backoff()
    assert [backoff.after(0.0) for _ in range(3)] == [FIRST_S, FIRST_S * 2, FIRST_S * 4]
    for _ in range(10):
        longest = backoff.after(0.0)
    assert longest == MOST_S
    assert backoff.after(STEADY_S) == FIRST_S


def child(code: str, log_file: Path, started: list[int]) -> Child:
    def start(log: IO[bytes] | None) -> Coroutine[Any, Any, asyncio.subprocess.Process]:
        return asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=log)

    return Child("x-1", start, log_file, lambda one: started.append(one.pid))


async def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    started: list[int] = []
    one = child("import time; time.sleep(600)", tmp_path / "log", started)
    keeping = asyncio.create_task(one.keep())
    await eventually(lambda: len(started) == 1)
    os.kill(started[0], signal.SIGKILL)
    await eventually(lambda: len(started) == 2)
    await one.end(grace_s=10.0)
    await keeping
    assert len(set(started)) == 2


async def test_a_child_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    started: list[int] = []
    one = child("import time; time.sleep(600)", tmp_path / "logs" / "x-1.log", started)
    with capture_logs() as logs:
        keeping = asyncio.create_task(one.keep())
        await eventually(lambda: any(line["event"] == "process_not_started" for line in logs))
    (tmp_path / "logs").mkdir()
    await eventually(lambda: len(started) == 1)
    await one.end(grace_s=10.0)
    await keeping


async def test_a_child_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    started: list[int] = []
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    one = child(code, tmp_path / "log", started)
    keeping = asyncio.create_task(one.keep())
    await eventually(lambda: (tmp_path / "log").exists() and "deaf" in (tmp_path / "log").read_text())
    await one.end(grace_s=0.05)
    await keeping


async def test_a_child_with_wrong_settings_is_not_started_again(tmp_path: Path) -> None:
    one = child(f"raise SystemExit({EX_CONFIG})", tmp_path / "log", [])
    with pytest.raises(UpError, match=r"x-1 cannot run: its settings are wrong; see .*log"):
        await one.keep()
    assert one.starts == 1


async def test_all_are_ready_when_each_process_has_said_so(memory_bus: MemoryBus) -> None:
    def missing(ready: set[int]) -> list[str]:
        return [str(pid) for pid in (1, 2) if pid not in ready]

    readiness = Readiness()
    waiting = asyncio.create_task(readiness.all_of(memory_bus, ["ranker"], missing, 60.0))
    await asyncio.sleep(0)
    await memory_bus.publish(subjects.replica("ranker", "x"), b"no heartbeat")
    for pid, ready in ((1, True), (2, False), (2, True)):
        assert not waiting.done()
        vitals = Vitals(service="ranker", replica=f"r{pid}", pid=pid, ready=ready, note=f"says {pid}")
        await eventually(lambda: bool(memory_bus.server.hub.listeners))
        await memory_bus.publish(subjects.replica("ranker", vitals.replica), msgspec.json.encode(vitals))
    await waiting
    assert readiness.notes == {"ranker": "says 2"}


async def test_who_is_not_ready_in_time_is_named(memory_bus: MemoryBus) -> None:
    with pytest.raises(UpError, match="not ready after 0 s: ranker-1; their logs say why"):
        await Readiness().all_of(memory_bus, ["ranker"], lambda _: ["ranker-1"], 0.01)
