"""How ``penstock profile`` shows the way an elastic workload goes with batch size and devices."""

from __future__ import annotations

from penstock_cli.commands import policies
from penstock_log import Scalability, Timing


def timing(gpus: int, local_batch: int, iteration_s: float, error_s: float = 0.001, runs: int = 1) -> Timing:
    return Timing(gpus=gpus, local_batch=local_batch, iteration_s=iteration_s, error_s=error_s, runs=runs)


FAST = Scalability(
    kind="fast",
    timings=(timing(1, 32, 0.04), timing(1, 96, 0.1, runs=3), timing(2, 64, 0.1, 0.0), timing(4, 128, 0.2)),
    per_gpu_cap=96,
    note="8 devices with 64 samples each: its node was lost",
)


def test_each_size_has_a_line_with_its_error_throughput_and_efficiency() -> None:
    assert policies.curve_lines([FAST]) == [
        "KIND  GPUS  EACH  MS/STEP  ERROR  EXAMPLES/S  EFFICIENCY  RUNS",
        "fast     1    32       40      1         800           -     1",
        "fast     1    96      100      1         960           -     3",
        "fast     2    64      100      -        1280         70%     1",
        "fast     4   128      200      1        2560           -     1",
        "on fast:  at most 96 examples on a device; 8 devices with 64 samples each: its node was lost",
    ]


def test_on_a_terminal_bars_compare_the_throughput() -> None:
    bars = [line.count("█") for line in policies.curve_lines([FAST], 120)]
    assert bars == [0, 8, 9, 12, 24, 0]


def test_a_narrow_terminal_is_not_written_beyond() -> None:
    rows = policies.curve_lines([FAST], 40)[:5]
    assert max(map(len, rows)) <= 40


def test_of_nothing_known_only_the_reason_is_shown() -> None:
    nothing = Scalability(kind="fast", timings=(), note="not sampled: its profile is off")
    assert policies.curve_lines([nothing]) == ["on fast:  not sampled: its profile is off"]
    assert policies.curve_lines([]) == []


def test_of_many_sizes_those_that_ran_most_are_shown_in_order() -> None:
    many = tuple(timing(1, batch, 0.1, runs=1 + (batch > 30)) for batch in range(1, 41))
    shown = [int(line.split()[2]) for line in policies.curve_lines([Scalability(kind="fast", timings=many)])[1:]]
    assert len(shown) == 16
    assert shown == sorted(shown)
    assert set(range(31, 41)) < set(shown)
