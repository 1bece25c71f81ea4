from __future__ import annotations

from time import perf_counter, process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sessions.pace import LEAST_SLEEP_S, MOST_CREDIT_S, Clocks, EmulatedPace, HostPace


class Host:
    """A host on which time passes only as it is told to."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self.naps: list[float] = []
        self.clocks = Clocks(lambda: self.wall_s, lambda: self.cpu_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.wall_s += seconds

    def work(self, cpu_s: float, kept_waiting_s: float = 0.0) -> None:
        self.cpu_s += cpu_s
        self.wall_s += cpu_s + kept_waiting_s


@given(st.lists(st.floats(1e-5, 0.1), min_size=1), st.floats(0.05, 1.0))
def test_an_iteration_takes_its_cpu_time_over_the_speed(iterations: list[float], speed: float) -> None:
    host = Host()
    pace = EmulatedPace(speed, host.clocks)
    for cpu_s in iterations:
        host.work(cpu_s)
        pace.lap()
    pace.settle()
    assert pace.loop_s == pytest.approx(sum(iterations) / speed)
    assert host.wall_s == pytest.approx(pace.loop_s)


def test_short_iterations_sleep_together() -> None:
    host = Host()
    pace = EmulatedPace(0.5, host.clocks)
    for _ in range(1000):
        host.work(0.0001)
        pace.lap()
    assert 20 <= len(host.naps) <= 25
    assert min(host.naps) >= LEAST_SLEEP_S


def test_waiting_for_the_host_is_caught_up_with_and_not_counted() -> None:
    host = Host()
    pace = EmulatedPace(0.5, host.clocks)
    host.work(0.01, kept_waiting_s=0.01)
    pace.lap()
    assert pace.loop_s == pytest.approx(0.02)
    assert host.naps == []


def test_after_a_long_wait_only_a_little_is_caught_up_with() -> None:
    host = Host()
    pace = EmulatedPace(0.5, host.clocks)
    host.work(0.01, kept_waiting_s=60)
    pace.lap()
    host.work(1.0)
    pace.lap()
    assert host.naps == [pytest.approx(1.0 - MOST_CREDIT_S)]


def test_what_is_between_loops_is_not_stretched() -> None:
    host = Host()
    pace = EmulatedPace(0.1, host.clocks)
    host.work(5)
    pace.resume()
    pace.lap()
    assert (pace.loop_s, host.naps) == (0.0, [])


def test_the_real_clocks_stretch_real_work() -> None:
    start, cpu = perf_counter(), process_time()
    pace = EmulatedPace(0.25)
    for _ in range(5):
        burn(0.002)
        pace.lap()
    pace.settle()
    assert 5 * 0.002 / 0.25 <= pace.loop_s <= (process_time() - cpu) / 0.25
    assert perf_counter() - start >= pace.loop_s - MOST_CREDIT_S


def test_a_real_device_takes_the_time_it_takes() -> None:
    pace = HostPace()
    pace.resume()
    start = perf_counter()
    burn(0.005)
    pace.lap()
    pace.settle()
    assert 0.005 <= pace.loop_s <= perf_counter() - start


def burn(cpu_s: float) -> None:
    end = process_time() + cpu_s
    while process_time() < end:
        pass
