"""Which runs are idle, by what they have done between two looks, and what the log is told of it."""

from __future__ import annotations

import os
import time

import pytest
from executor_cases import World, python, speaking

from penstock_cluster.host_backends import EmulatedBackend
from penstock_executor import idle_watch
from penstock_executor.idle_watch import IdleWatch, RunActivity
from penstock_log import PolicySet, RunBusyAgain, RunIdle
from penstock_policies.idleness import IdleRules

KEY = ("j1", 1)
RULES = IdleRules(idle_after_s=100.0)


class Watched:
    """One run under watch, and what the log says of it."""

    def __init__(self) -> None:
        self.watch, self.told, self.now_s = IdleWatch("n1"), False, 1_000.0

    def after(self, wait_s: float, **done: float) -> list[str]:
        """Look once, so many seconds later; return the tags of what is said."""
        self.now_s += wait_s
        activities = {KEY: RunActivity(**done)}  # type: ignore[arg-type] - tests write whole numbers for all
        said = list(self.watch.look(activities, {KEY: RULES}, {KEY: self.told}, self.now_s))
        for fact in said:
            self.told = isinstance(fact, RunIdle)
        self.last = said[-1] if said else None
        return [type(fact).__name__ for fact in said]


@pytest.fixture
def run() -> Watched:
    watched = Watched()
    watched.after(0.0, steps=5)
    return watched


def test_a_script_that_does_no_iteration_for_so_long_is_idle_since_the_last_one(run: Watched) -> None:
    assert run.after(10.0, steps=6) == []
    assert run.after(99.0, steps=6) == []
    assert run.after(1.0, steps=6) == ["RunIdle"]
    assert isinstance(run.last, RunIdle)
    assert (run.last.since_s, run.last.measure) == (1_010.0, "iterations")
    assert run.after(500.0, steps=6) == []


def test_processor_time_is_no_iteration(run: Watched) -> None:
    assert run.after(100.0, steps=5, processor_s=90.0) == ["RunIdle"]


def test_a_script_that_uses_its_device_is_not_idle_whatever_its_iterations_say(run: Watched) -> None:
    assert run.after(100.0, steps=5, used=True) == []
    assert run.after(99.0, steps=5) == []
    assert run.after(1.0, steps=5) == ["RunIdle"]
    assert run.after(1.0, steps=5, used=True) == ["RunBusyAgain"]


def test_the_next_iteration_is_told_once(run: Watched) -> None:
    run.after(100.0, steps=5)
    assert run.after(1.0, steps=6) == ["RunBusyAgain"]
    assert run.after(1.0, steps=7) == []
    assert run.after(100.0, steps=7) == ["RunIdle"]


def test_a_command_is_busy_by_its_processor_time_or_by_its_device() -> None:
    run = Watched()
    run.after(0.0, processor_s=50.0)
    assert run.after(100.0, processor_s=52.0) == []
    assert run.after(100.0, processor_s=52.0, used=True) == []
    assert run.after(100.0, processor_s=52.5) == ["RunIdle"]
    assert isinstance(run.last, RunIdle)
    assert run.last.measure == "processor"
    assert run.after(10.0, processor_s=54.0) == ["RunBusyAgain"]


def test_processor_time_that_falls_because_a_process_has_ended_is_no_work() -> None:
    run = Watched()
    run.after(0.0, processor_s=50.0)
    assert run.after(100.0, processor_s=3.0) == ["RunIdle"]


def test_a_run_that_stutters_is_told_of_at_most_once_a_minute() -> None:
    run, short = Watched(), IdleRules(idle_after_s=1.0)
    said = []
    for second in range(0, 600, 2):
        activities = {KEY: RunActivity(steps=second // 6)}
        for fact in run.watch.look(activities, {KEY: short}, {KEY: run.told}, float(second)):
            said.append(fact)
            run.told = isinstance(fact, RunIdle)
    assert 5 <= sum(isinstance(fact, RunIdle) for fact in said) <= 10
    assert len(said) <= 20


def test_after_a_restart_a_run_that_the_log_calls_idle_is_told_busy_at_its_first_iteration(run: Watched) -> None:
    run.after(100.0, steps=5)
    run.watch = IdleWatch("n1")
    assert run.after(1.0, steps=5) == []
    assert run.after(1.0, steps=6) == ["RunBusyAgain"]


def test_time_in_which_runs_could_do_nothing_is_forgiven(run: Watched) -> None:
    run.after(90.0, steps=5)
    run.watch.forgive()
    assert run.after(10.0, steps=5) == []
    assert run.after(99.0, steps=5) == []
    assert run.after(1.0, steps=5) == ["RunIdle"]


def test_where_the_pool_has_no_rule_nothing_is_idle(run: Watched) -> None:
    look = run.watch.look({KEY: RunActivity(steps=5)}, {KEY: IdleRules()}, {KEY: False}, 1e9)
    assert list(look) == []


def test_processor_time_counts_a_process_that_computes() -> None:
    ticks_per_s, pid = float(os.sysconf("SC_CLK_TCK")), os.getpid()
    before_s, begin_s = idle_watch.processor_s([pid], ticks_per_s), time.process_time()
    while time.process_time() - begin_s < 0.1:
        pass
    assert idle_watch.processor_s([pid, 2**22 + 1], ticks_per_s) - before_s >= 0.05


async def rule(world: World, **settings: float | str) -> None:
    await world.write(PolicySet(at_s=world.now_s(), pool="default", settings=settings))


async def test_an_executor_tells_the_log_of_a_command_that_waits(world: World) -> None:
    await rule(world, idle_after_s=0.5)
    await world.node()
    await world.run(
        "j1", *python("import sys; sys.stdout.write('up'); sys.stdout.flush(); __import__('time').sleep(600)")
    )
    idle = await world.fact(RunIdle, "j1")
    assert (idle.epoch, idle.node_id, idle.measure) == (1, "n1", "processor")
    assert idle.at_s - idle.since_s >= 0.5


async def test_an_executor_does_not_call_a_command_idle_that_computes_and_a_script_is_judged_by_its_steps(
    world: World,
) -> None:
    await world.node()
    await world.run("j1", *python("while True: pass"))
    await world.submit("j2", *speaking("2", "stubborn"))
    await world.place("j2", 1)
    await rule(world, idle_after_s=1.0)
    assert (await world.ended("j2")).outcome == "completed"
    await world.submit("j3", *python("import time; time.sleep(600)"))
    await world.place("j3", 1)
    await world.fact(RunIdle, "j3")
    assert "RunIdle" not in await world.facts("j1")


async def test_a_script_at_work_on_its_device_without_iterations_is_not_idle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0]
    monkeypatch.setattr(EmulatedBackend, "is_used", lambda device: device.index in used)
    await rule(world, idle_after_s=0.5)
    await world.node()
    await world.run("j1", *speaking("100000", "hang_at=3"))
    await world.submit("j2", *speaking("100000", "hang_at=3"))
    await world.place("j2", 1)
    await world.fact(RunIdle, "j2")
    assert "RunIdle" not in await world.facts("j1")
    used.clear()
    idle = await world.fact(RunIdle, "j1")
    assert idle.measure == "iterations"


async def test_a_job_that_is_allowed_to_be_idle_is_not_told_of(world: World) -> None:
    await rule(world, idle_after_s=0.5)
    await world.node()
    await world.submit("j1", *python("import time; time.sleep(600)"), idle="allow")
    await world.place("j1", 0)
    await world.submit("j2", *python("import time; time.sleep(600)"))
    await world.place("j2", 1)
    await world.fact(RunIdle, "j2")
    assert "RunIdle" not in await world.facts("j1")


async def test_a_command_that_waited_and_computes_is_told_busy_again(world: World, tmp_path) -> None:
    await rule(world, idle_after_s=0.5)
    await world.node()
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)\nwhile True: pass"
    await world.run("j1", *python(code, str(tmp_path / "go")))
    await world.fact(RunIdle, "j1")
    (tmp_path / "go").touch()
    assert (await world.fact(RunBusyAgain, "j1")).epoch == 1
