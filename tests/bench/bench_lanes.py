"""What turns cost, as ratios to a bare pipe of the same run: ``python tests/bench/bench_lanes.py [ITERATIONS]``."""

from __future__ import annotations

import sys

from penstock_cli.local.lane_bench import measure


def main() -> None:
    """Print the costs."""
    costs = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
    pipe_us = costs.pipe_us.median
    print(f"pipe, a byte one way     {pipe_us:9.2f} us")
    for what, us, aim_us in (
        ("hand-over, median", costs.handover_us.median, 30),
        ("hand-over, p99", costs.handover_us.p99, 300),
        ("with 1.5 ms, median", costs.turn_handover_us.median, 30),
        ("with 1.5 ms, p99", costs.turn_handover_us.p99, 300),
        ("boundary, uncontended", costs.uncontended_us.median, 1),
    ):
        print(f"{what:24} {us:9.2f} us, {us / pipe_us:8.2f} pipes (aim on an idle machine: {aim_us} us)")
    for what, bare in (("bare futex", costs.futex_us), ("bare futex, 1.5 ms", costs.turn_futex_us)):
        print(f"{what:24} {bare.median:9.2f} us median, {bare.p99:.2f} us p99")
    print(f"a lane of one, at 10 ms  {costs.overhead_at_10ms:9.3%} (aim: 1 %); {costs.handovers} hand-overs")
    for what, ms in (("holder killed", costs.killed_ms), ("of 200 MiB", costs.killed_large_ms)):
        print(
            f"{what:24} {ms.median:9.2f} ms median, {ms.most:.2f} ms at most, to its neighbour's iteration (aim: 10 ms)"
        )


if __name__ == "__main__":
    main()
