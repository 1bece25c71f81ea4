"""Computations as processes: few at a time, bounded, cancellable, and of their visitor alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock_bus.clock import ticks
from penstock_dashboard.computations import Computation, Computations, ComputationStep
from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_testing.fixtures import eventually

ALICE, BOB, CLEO = (Visitor(name=name, session=name) for name in ("alice", "bob", "cleo"))
FOR_EVER = "import sys, time; print('1', file=sys.stderr, flush=True); time.sleep(600)"


@asynccontextmanager
async def running(script: str, *, most: int = 2, most_s: float = 60.0) -> AsyncIterator[Computations]:
    computations = Computations(ticks, most=most, most_s=most_s, program=(sys.executable, "-c", script))
    try:
        yield computations
    finally:
        await computations.close()


async def ended(one: Computation) -> Computation:
    await eventually(lambda: one.state != "running")
    return one


async def test_what_it_prints_is_kept() -> None:
    async with running("import sys; print(sys.argv[1:])") as computations:
        one = computations.start(ALICE, "replay", "fifo", ("--policy=fifo",))
        assert (await ended(one)).state == "done"
    assert one.printed == b"['--policy=fifo']\n"
    assert one.ended_s >= one.begun_s


async def test_it_tells_how_far_each_of_its_replays_is() -> None:
    script = """import sys
for line in ('{"replay": "fifo", "ended": 1, "jobs": 9}', "a warning", '{"replay": "fifo", "ended": 9, "jobs": 9}',
             '{"replay": "configured", "ended": 0, "jobs": 9}', "x" * 1_000_000):
    print(line, file=sys.stderr)
"""
    async with running(script) as computations:
        one = await ended(computations.start(ALICE, "replay", "fifo", ()))
    assert one.state == "done"
    assert one.steps == [ComputationStep("fifo", 9, 9), ComputationStep("configured", 0, 9)]


async def test_it_estimates_the_rest_by_the_pace_of_the_present_replay() -> None:
    script = """import sys
for ended in (3, 5):
    print('{"replay": "fifo", "ended": %d, "jobs": 9, "further": 1}' % ended, file=sys.stderr)
"""
    times = iter([0.0, 100.0, 100.0, 110.0, 110.0])  # asked for; each step is heard of; it has ended
    computations = Computations(lambda: next(times), most=2, most_s=60.0, program=(sys.executable, "-c", script))
    one = await ended(computations.start(ALICE, "replay", "fifo", ()))
    await computations.close()
    assert one.steps == [ComputationStep("fifo", 5, 9, further=1)]
    assert one.left_s == pytest.approx((4 + 9) * 10.0 / 2)


async def test_it_says_why_it_failed() -> None:
    async with running("import sys; sys.exit('penstock: no job of the log ever ran')") as computations:
        one = await ended(computations.start(ALICE, "replay", "fifo", ()))
    assert (one.state, one.error) == ("failed", "no job of the log ever ran")


async def test_a_program_that_is_not_there_is_told() -> None:
    computations = Computations(ticks, most=2, most_s=60.0, program=("/nowhere/penstock",))
    one = await ended(computations.start(ALICE, "replay", "fifo", ()))
    assert one.state == "failed"
    assert "could not be started" in one.error


async def test_each_visitor_has_one_at_a_time_and_all_have_two() -> None:
    async with running(FOR_EVER) as computations:
        first = computations.start(ALICE, "replay", "fifo", ())
        with pytest.raises(PageRefused, match="one of yours still runs") as refused:
            computations.start(ALICE, "replay", "srtf", ())
        assert refused.value.status == 409
        computations.start(BOB, "replay", "fifo", ())
        with pytest.raises(PageRefused, match="2 of other people run") as refused:
            computations.start(CLEO, "replay", "fifo", ())
        assert refused.value.status == 503
        computations.cancel(ALICE, first.id)
        await eventually(lambda: _starts(computations, CLEO))
        assert first.state == "cancelled"


def _starts(computations: Computations, visitor: Visitor) -> bool:
    try:
        computations.start(visitor, "replay", "fifo", ())
    except PageRefused:
        return False
    return True


async def test_one_that_takes_too_long_is_ended() -> None:
    async with running(FOR_EVER, most_s=0.2) as computations:
        one = await ended(computations.start(ALICE, "replay", "fifo", ()))
    assert one.state == "late"
    assert "took longer than 0.2 s" in one.error


async def test_a_cancelled_one_leaves_no_process(tmp_path: Path) -> None:
    write = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    script = f"import os, pathlib, time; {write}; time.sleep(600)"
    async with running(script) as computations:
        one = computations.start(ALICE, "replay", "fifo", ())
        await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        computations.cancel(ALICE, one.id)
        pid = int((tmp_path / "pid").read_text())
        await eventually(lambda: not Path(f"/proc/{pid}").exists())


STUBBORN = """import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
new = pathlib.Path(sys.argv[1] + ".new")
new.write_text(f"{os.getpid()} {child.pid}")
new.rename(sys.argv[1])
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("stops", [False, True])
async def test_one_that_ignores_being_ended_is_killed_with_its_children_though_it_is_cancelled_twice(
    tmp_path: Path, stops: bool
) -> None:
    file = tmp_path / "pids"
    program = (sys.executable, "-c", STUBBORN)
    computations = Computations(ticks, most=2, most_s=60.0, program=program, end_s=0.2)
    one = computations.start(ALICE, "replay", "fifo", (str(file),))
    await eventually(file.exists)
    process, child = map(int, file.read_text().split())
    computations.cancel(ALICE, one.id)
    await asyncio.sleep(0)
    if stops:  # the dashboard itself is stopped, which cancels it once more
        await computations.close()
        assert not Path(f"/proc/{process}").exists(), "it was waited for"
    else:
        computations.cancel(ALICE, one.id)
        await eventually(lambda: not Path(f"/proc/{process}").exists())
    await eventually(lambda: is_gone(child))
    assert one.state == "cancelled"
    await computations.close()


async def test_others_neither_see_nor_end_it() -> None:
    async with running(FOR_EVER) as computations:
        one = computations.start(ALICE, "replay", "fifo", ())
        assert computations.of(BOB) == []
        use: Callable[[Visitor, str], object]
        for use in (computations.find, computations.cancel):
            with pytest.raises(PageRefused) as refused:
                use(BOB, one.id)
            assert refused.value.status == 404
        assert computations.of(Visitor()) == []
        assert one.state == "running"


async def test_only_the_last_are_kept() -> None:
    async with running("") as computations:
        for _ in range(30):
            await ended(computations.start(ALICE, "replay", "fifo", ()))
            await asyncio.sleep(0)
            await eventually(lambda: not computations._tasks)
        assert len(computations.of(ALICE)) <= 21
