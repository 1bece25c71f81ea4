from __future__ import annotations

from time import perf_counter, process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sessions.pace import (
    LEAST_SLEEP_S,
    MOST_CREDIT_S,
    UNKNOWN,
    Clocks,
    EmulatedPace,
    HostPace,
    SamplePace,
    pace,
    trimmed,
)


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
    measuring = EmulatedPace(speed, host.clocks)
    for cpu_s in iterations:
        host.work(cpu_s)
        measuring.lap()
    measuring.settle()
    assert measuring.loop_s == pytest.approx(sum(iterations) / speed)
    assert host.wall_s == pytest.approx(measuring.loop_s)


def test_short_iterations_sleep_together() -> None:
    host = Host()
    measuring = EmulatedPace(0.5, host.clocks)
    for _ in range(1000):
        host.work(0.0001)
        measuring.lap()
    assert 20 <= len(host.naps) <= 25
    assert min(host.naps) >= LEAST_SLEEP_S


def test_waiting_for_the_host_is_caught_up_with_and_not_counted() -> None:
    host = Host()
    measuring = EmulatedPace(0.5, host.clocks)
    host.work(0.01, kept_waiting_s=0.01)
    measuring.lap()
    assert measuring.loop_s == pytest.approx(0.02)
    assert host.naps == []


def test_after_a_long_wait_only_a_little_is_caught_up_with() -> None:
    host = Host()
    measuring = EmulatedPace(0.5, host.clocks)
    host.work(0.01, kept_waiting_s=60)
    measuring.lap()
    host.work(1.0)
    measuring.lap()
    assert host.naps == [pytest.approx(1.0 - MOST_CREDIT_S)]


def test_what_is_between_loops_is_not_stretched() -> None:
    host = Host()
    measuring = EmulatedPace(0.1, host.clocks)
    host.work(5)
    measuring.resume()
    measuring.lap()
    assert (measuring.loop_s, host.naps) == (0.0, [])


def test_the_real_clocks_stretch_real_work() -> None:
    start, cpu = perf_counter(), process_time()
    measuring = EmulatedPace(0.25)
    for _ in range(5):
        burn(0.002)
        measuring.lap()
    measuring.settle()
    assert 5 * 0.002 / 0.25 <= measuring.loop_s <= (process_time() - cpu) / 0.25
    assert perf_counter() - start >= measuring.loop_s - MOST_CREDIT_S


def test_a_real_device_takes_the_time_it_takes() -> None:
    measuring = HostPace()
    measuring.resume()
    start = perf_counter()
    burn(0.005)
    measuring.lap()
    measuring.settle()
    assert 0.005 <= measuring.loop_s <= perf_counter() - start


def burn(cpu_s: float) -> None:
    end = process_time() + cpu_s
    while process_time() < end:
        pass


def test_a_sample_keeps_each_iteration_and_an_ordinary_run_its_blocks() -> None:
    host = Host()
    sample, run = SamplePace(EmulatedPace(0.5, host.clocks)), EmulatedPace(0.5, host.clocks)
    for steps, cpu_s in enumerate([1.0, 0.2, 0.2, 0.2, 0.4], start=1):
        sample.resume()
        run.resume()
        host.work(cpu_s)
        sample.lap()
        run.lap()
        told = run.measured(steps)
    assert sample.loop_s == run.loop_s == pytest.approx(4.0)
    assert sample.measured(5) == pytest.approx(trimmed([0.4, 0.4, 0.4, 0.8]))
    assert told.iteration_s == pytest.approx(0.5)
    assert sample.measured(0) == UNKNOWN


def test_what_lies_between_two_loops_of_a_sample_is_part_of_no_iteration() -> None:
    host = Host()
    sample = SamplePace(EmulatedPace(1.0, host.clocks))
    for _ in range(10):
        host.work(3.0)
        sample.resume()
        host.work(0.1)
        sample.lap()
    sample.settle()
    assert sample.measured(10) == pytest.approx((0.1, 0.0), abs=1e-9)


def test_a_session_measures_single_iterations_only_in_a_sample() -> None:
    kinds = [type(pace(speed, sample=sample)) for speed in (0.0, 0.5) for sample in (False, True)]
    assert kinds == [HostPace, SamplePace, EmulatedPace, SamplePace]
