import asyncio
import json
import logging as std
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from penstock_bus import Unavailable
from penstock_bus.logs import Logging, configure
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import EX_CONFIG, EX_SOFTWARE, EX_UNAVAILABLE, REFUSED, lost, run_until_drained
from penstock_testing.fixtures import NatsAccount

pytestmark = pytest.mark.slow

WAITING_SERVICE = """
import asyncio
import msgspec
from penstock_bus.port import Unauthorized
from penstock_bus.settings import SettingsError
from penstock_bus.shell import main

class Settings(msgspec.Struct, frozen=True):
    rounds: int = 1

async def run(shell, settings):
    shell.log.info("running")
    await shell.stopping.wait()
    if settings.rounds == 2:  # deaf
        await asyncio.Event().wait()
    if settings.rounds == 3:
        raise ZeroDivisionError
    if settings.rounds == 4:
        raise ExceptionGroup("two", [ZeroDivisionError(), ExceptionGroup("one", [Unauthorized("not allowed")])])
    if settings.rounds == 5:
        raise ExceptionGroup("one", [SettingsError("another executor runs as node n1")])

main("matcher", Settings, run)
"""


def start(**variables: str) -> subprocess.Popen[str]:
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}, **variables}
    return subprocess.Popen([sys.executable, "-c", WAITING_SERVICE], env=env, stderr=subprocess.PIPE, text=True)


def test_a_wrong_setting_ends_the_service_with_one_line() -> None:
    process = start(PENSTOCK_MATCHER_ROUNDS="many")
    _, said = process.communicate(timeout=60)
    assert process.returncode == EX_CONFIG
    assert said == (
        "penstock matcher: variable PENSTOCK_MATCHER_ROUNDS: Expected `int`, got `str`; got 'many', expected int\n"
    )


def test_a_dead_address_is_named_with_what_to_do() -> None:
    process = start(PENSTOCK_URL="nats://127.0.0.1:1", PENSTOCK_CONNECT_S="0", PENSTOCK_LOG_FORMAT="json")
    _, said = process.communicate(timeout=60)
    assert process.returncode == EX_UNAVAILABLE
    last = json.loads(said.splitlines()[-1])
    assert last["event"] == "bus_unreachable"
    assert last["url"] == "nats://127.0.0.1:1"
    assert last["advice"] == "is NATS there? set PENSTOCK_URL"


def test_a_signal_ends_a_service_that_still_waits_for_the_bus() -> None:
    process = start(PENSTOCK_URL="nats://127.0.0.1:1", PENSTOCK_LOG_FORMAT="json")
    assert process.stderr is not None
    while "bus_not_reached_yet" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def serve(account: NatsAccount, rounds: int, **variables: str) -> subprocess.Popen[str]:
    """Start the service on a real server and wait until it runs."""
    process = start(PENSTOCK_MATCHER_ROUNDS=str(rounds), PENSTOCK_LOG_FORMAT="json", **account.environment, **variables)
    until_it_says(process, "running")
    return process


def until_it_says(process: subprocess.Popen[str], event: str) -> None:
    assert process.stderr is not None
    while f'"event": "{event}"' not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_service_in_good_order(nats_account: NatsAccount, signum: signal.Signals) -> None:
    process = serve(nats_account, 1)
    process.send_signal(signum)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(said.splitlines()[-1])["event"] == "stopped"


def test_a_second_signal_ends_it_at_once(nats_account: NatsAccount) -> None:
    process = serve(nats_account, 2)
    process.send_signal(signal.SIGTERM)
    until_it_says(process, "stopping")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "second SIGTERM: exiting at once\n"


def test_a_drain_has_a_bound(nats_account: NatsAccount) -> None:
    process = serve(nats_account, 2, PENSTOCK_DRAIN_S="0.1")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == EX_SOFTWARE
    assert json.loads(said.splitlines()[-1])["event"] == "drain_timed_out"


def test_an_error_in_the_service_is_logged_with_its_trace(nats_account: NatsAccount) -> None:
    process = serve(nats_account, 3)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == EX_SOFTWARE
    last = json.loads(said.splitlines()[-1])
    assert last["event"] == "service_failed"
    assert "ZeroDivisionError" in last["exception"]


def test_a_setting_that_turns_out_wrong_while_it_runs_ends_it_as_any_wrong_setting(nats_account: NatsAccount) -> None:
    process = serve(nats_account, 5)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == EX_CONFIG
    last = json.loads(said.splitlines()[-1])
    assert (last["event"], last["error"]) == ("setting_refused", "another executor runs as node n1")


def test_refused_credentials_end_it_at_once_and_name_the_file_they_came_from(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("guess")
    user = nats_account.user
    process = start(
        PENSTOCK_URL=nats_account.url,
        PENSTOCK_USER=user,
        PENSTOCK_PASSWORD_FILE=str(tmp_path / "secret"),
        PENSTOCK_LOG_FORMAT="json",
    )
    _, said = process.communicate(timeout=60)
    assert process.returncode == REFUSED
    last = json.loads(said.splitlines()[-1])
    assert last["event"] == "credentials_refused"
    who = f"user {user!r} (PENSTOCK_USER) with the password in {tmp_path / 'secret'} (PENSTOCK_PASSWORD_FILE)"
    assert f"it came as {who}, expected the login of 'matcher'" in last["error"]
    assert "nats/logins/matcher.json in the data folder of `penstock up`" in last["error"]


def test_a_user_who_may_not_do_what_the_service_does_is_told_so_without_a_trace(nats_account: NatsAccount) -> None:
    process = serve(nats_account, 4)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == REFUSED
    last = json.loads(said.splitlines()[-1])
    assert last["event"] == "credentials_refused"
    assert last["error"].startswith(f"not allowed; it came as user {nats_account.user!r} (PENSTOCK_USER) with")
    assert "Traceback" not in said


async def test_work_that_ends_by_itself_is_not_hurried() -> None:
    assert await run_until_drained(asyncio.sleep(0), asyncio.Event(), drain_s=0.0)


async def test_work_may_finish_after_the_signal() -> None:
    stopping, finished = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await stopping.wait()
        await asyncio.sleep(0.01)
        finished.set()

    stopping.set()
    assert await run_until_drained(work(), stopping, drain_s=10.0)
    assert finished.is_set()


async def test_work_that_does_not_end_is_cut_off() -> None:
    stopping, cut = asyncio.Event(), asyncio.Event()
    stopping.set()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    assert not await run_until_drained(work(), stopping, drain_s=0.01)
    await cut.wait()


async def test_an_error_in_the_work_comes_through() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until_drained(work(), asyncio.Event(), drain_s=1.0)


async def test_work_that_waits_for_a_lost_bus_is_cut_off_once_it_is_to_end() -> None:
    async with MemoryBus(timeout_s=0.01) as bus:
        bus.disconnect()
        stopping, busy = asyncio.Event(), True
        work = run_until_drained(asyncio.Event().wait(), stopping, 60.0, lambda: lost(bus, lambda: busy))  # type: ignore[arg-type]
        running = asyncio.create_task(work)
        stopping.set()
        await asyncio.sleep(0.1)
        assert not running.done()
        busy = False
        with pytest.raises(Unavailable):
            await running


async def test_a_bus_that_answers_is_no_reason_to_hurry() -> None:
    async with MemoryBus() as bus:
        watching = asyncio.create_task(lost(bus, lambda: False))
        await asyncio.sleep(0.05)
        assert not watching.done()
        watching.cancel()


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    root = std.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_as_before")
def test_logs_are_json_lines_with_level_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Logging(format="json", level="info"))
    structlog.get_logger().info("job_placed", job_id="j1")
    structlog.get_logger().debug("unseen")
    std.getLogger("nats").warning("slow consumer")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], first["job_id"], first["level"]) == ("job_placed", "j1", "info")
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "slow consumer"


@pytest.mark.usefixtures("_logging_as_before")
def test_logs_for_a_console_are_plain_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Logging())
    structlog.get_logger().warning("job_placed", job_id="j1")
    said = capsys.readouterr().err
    assert "job_placed" in said
    assert "\x1b[" not in said
