from __future__ import annotations

from time import perf_counter, process_time

import pytest

from penstock.session_pace import EmulatedPace, HostPace


def burn(cpu_s: float) -> None:
    end = process_time() + cpu_s
    while process_time() < end:
        pass


def test_a_slow_device_takes_longer_by_its_speed() -> None:
    pace = EmulatedPace(speed=0.25)
    start, cpu = perf_counter(), process_time()
    for _ in range(20):
        burn(0.002)
        pace.lap()
    pace.settle()
    cpu_s, wall_s = process_time() - cpu, perf_counter() - start
    assert pace.loop_s == pytest.approx(cpu_s / 0.25, rel=0.1)
    assert wall_s >= 0.95 * pace.loop_s


def test_short_iterations_sleep_together() -> None:
    pace = EmulatedPace(speed=0.5)
    sleeps = 0
    for _ in range(200):
        burn(0.0001)
        before = pace._wall_s, perf_counter()
        pace.lap()
        sleeps += perf_counter() - before[1] > 0.003
    assert 1 <= sleeps <= 20


def test_what_is_between_loops_is_not_stretched() -> None:
    pace = EmulatedPace(speed=0.01)
    burn(0.01)
    pace.resume()
    pace.lap()
    assert pace.loop_s < 0.1


def test_a_real_device_takes_the_time_it_takes() -> None:
    pace = HostPace()
    pace.resume()
    start = perf_counter()
    burn(0.005)
    pace.lap()
    pace.settle()
    assert 0.005 <= pace.loop_s <= perf_counter() - start
