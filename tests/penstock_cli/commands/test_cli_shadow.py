"""`penstock shadow`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.client import Client
from penstock_bus import Append
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_cli import hoisted
from penstock_cli.app import app
from penstock_cli.commands import shadow
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    subjects,
)
from penstock_simulator.shadow.plan import ShadowPlan, ShadowStatus
from penstock_testing import subject_of

Penstock = Callable[..., tuple[int, str, str]]
SLOTS = (Slot(node_id="n1", devices=(0,)),)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def penstock(server: MemoryServer, plain_output: None) -> Penstock:
    """Run ``penstock ARGS`` on the server in memory; return exit code, standard output and standard error."""

    @asynccontextmanager
    async def client(_url: str) -> AsyncIterator[Client]:
        async with MemoryBus(server) as bus, Client(bus=bus) as made:
            yield made

    def run(*args: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, hoisted(args), prog_name="penstock", obj={"client": client})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


def life(job_id: str, submitted_s: float, started_s: float, ended_s: float) -> list[AnyEvent]:
    spec = JobSpec(name=job_id, command=("x",), profile="off", team="vision" if job_id < "j3" else "speech")
    lease = Placement(job_id=job_id, epoch=1, kind="fast", slots=SLOTS)
    return [
        JobSubmitted(job_id=job_id, spec=spec, at_s=submitted_s),
        RoundDecided(pool="default", at_s=started_s, placements=(lease,)),
        RunStarted(job_id=job_id, epoch=1, node_id="n1", devices=(0,), at_s=started_s),
        RunEnded(job_id=job_id, epoch=1, node_id="n1", outcome="completed", at_s=ended_s),
    ]


def recorded(server: MemoryServer, *names: str) -> None:
    """Give the server a log of four jobs one after the other, and shadows that say that they follow it."""
    device = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    facts: list[AnyEvent] = [NodeJoined(node_id="n1", devices=(device,), incarnation="1", at_s=0.5)]
    for number in range(1, 5):
        facts += life(f"j{number}", float(number), 10.0 * number, 10.0 * number + 9.0)

    async def write() -> None:
        async with MemoryBus(server) as bus:
            for fact in sorted(facts, key=lambda fact: fact.at_s):
                commit = Commit(id=f"{subject_of(fact)} {fact.at_s} {type(fact)}", actor="test", facts=(fact,))
                server.now = lambda at_s=fact.at_s: at_s  # type: ignore[misc]
                await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))
            for name in names:
                plan = ShadowPlan(name=name, policy="fifo", from_seq=0, from_s=0.0)
                body = msgspec.json.encode(ShadowStatus(plan=plan, seq=1, at_s=60.0, waiting=2, running=1))
                await bus.write_shadow(subjects.shadow(name), body)

    asyncio.run(write())


def test_a_report_tells_of_all_and_of_teams(server: MemoryServer, penstock: Penstock) -> None:
    recorded(server, "fifo")
    code, out, err = penstock("shadow", "report")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [
        "TEAM",
        "JOBS",
        "MEASURED",
        "SHADOW",
        "CHANGE",
        "95%",
        "OF",
        "RESAMPLES",
        "P95",
        "SHADOW_P95",
    ]
    assert [line.split()[:2] for line in lines[1:4]] == [["(all)", "4"], ["speech", "2"], ["vision", "2"]]
    assert "too few jobs" in lines[1]
    assert "shadow fifo: fifo since" in out
    assert "published live: 0 of 4 rounds start the same jobs within 5 s" in out
    assert "it cannot know:" in out


def test_a_report_as_json_has_all_figures(server: MemoryServer, penstock: Penstock) -> None:
    recorded(server, "fifo", "other")
    code, out, _ = penstock("shadow", "report", "--name", "fifo", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["all"]["jobs"] == 4
    assert found["all"]["was_avg_s"] == pytest.approx((18 + 27 + 36 + 45) / 4)
    assert found["all"]["avg_s"] < found["all"]["was_avg_s"]  # nothing in the shadow waits for 10 s before it starts
    assert set(found["teams"]) == {"speech", "vision"}


def test_a_shadow_that_is_not_there_is_told(server: MemoryServer, penstock: Penstock) -> None:
    code, _, err = penstock("shadow", "report")
    assert (code, "start one with `penstock shadow run" in err) == (4, True)
    recorded(server, "a", "b")
    code, _, err = penstock("shadow", "report")
    assert (code, "name a shadow by --name; there are a, b" in err) == (4, True)
    code, _, err = penstock("shadow", "report", "--name", "c")
    assert (code, "there is no shadow 'c'; there are a, b" in err) == (4, True)


def test_shadows_are_listed(server: MemoryServer, penstock: Penstock) -> None:
    assert "no shadow has followed this cluster" in penstock("shadow", "ls")[1]
    recorded(server, "a", "b")
    rows = [line.split() for line in penstock("shadow", "ls")[1].splitlines()]
    assert rows[0][:4] == ["NAME", "POOL", "BEGAN", "TOLD"]
    assert [(row[0], row[1], row[-1]) for row in rows[1:]] == [("a", "(all)", "fifo"), ("b", "(all)", "fifo")]
    assert len(json.loads(penstock("shadow", "ls", "-o", "json")[1])) == 2


def test_run_becomes_the_service_with_what_was_asked(
    server: MemoryServer, penstock: Penstock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    became: list[tuple[str, dict[str, str]]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shadow, "become", lambda name, environment: became.append((name, environment)))
    code, _, err = penstock(
        "--url", "nats://here:1", "shadow", "run", "-p", "2d-las", "--set", "thresholds_gpu_s=60,600", "--pool", "night"
    )
    assert (code, err) == (0, "")
    ((name, environment),) = became
    assert name == "shadow"
    assert environment["PENSTOCK_URL"] == "nats://here:1"
    assert environment["PENSTOCK_SHADOW_NAME"] == "2d-las"
    assert environment["PENSTOCK_SHADOW_POOL"] == "night"
    assert json.loads(environment["PENSTOCK_SHADOW_SET"]) == {"thresholds_gpu_s": "60,600"}
    assert "PENSTOCK_USER" not in os.environ


def test_a_name_that_follows_other_rules_is_a_conflict(server: MemoryServer, penstock: Penstock) -> None:
    recorded(server, "mine")
    code, _, err = penstock("shadow", "run", "--policy", "2d-las", "--name", "mine")
    assert code == 5
    assert "the shadow mine follows fifo with no settings, not 2d-las" in err


def test_what_is_no_policy_is_bad_input(penstock: Penstock) -> None:
    code, _, err = penstock("shadow", "run", "--policy", "nonsense")
    assert (code, "there is no policy 'nonsense'" in err) == (2, True)
    code, _, err = penstock("shadow", "run", "--policy", "fifo", "--name", "No Name")
    assert (code, "a shadow's name is 'No Name'" in err) == (2, True)
