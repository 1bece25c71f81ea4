"""``python -m memory_faults``: run histories, a line for each, and end with 1 if a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import structlog

from memory_faults.broken import BROKEN
from memory_faults.history import FaultVerdict, run_history
from memory_faults.machines import why_no_network, world
from memory_faults.plan import history_plan


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; return the exit status."""
    asked = _parser().parse_args(arguments)
    numbers = asked.only or range(1, asked.histories + 1)
    if asked.show:
        for number in numbers:
            _say(str(history_plan(asked.seed, number)))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = Path(asked.folder or tempfile.mkdtemp(prefix="memory-faults-")).absolute()
    verdicts, left = asyncio.run(run(asked.seed, numbers, home, parallel=asked.parallel, break_by=asked.break_by))
    for line in summary(verdicts, left):
        _say(line)
    failed = left or any(verdict.problems for verdict in verdicts)
    if not failed:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if failed else 0


async def run(
    seed: int, numbers: Sequence[int], home: Path, *, parallel: int = 1, break_by: str = ""
) -> tuple[list[FaultVerdict], list[str]]:
    """
    Run histories, so many worlds side by side.

    Returns
    -------
    list of FaultVerdict, list of str
        A verdict for each, and what worlds have left behind that they must not.
    """
    home.mkdir(parents=True, exist_ok=True)
    structlog.configure(logger_factory=structlog.WriteLoggerFactory((home / "verifier.log").open("a")))
    why = why_no_network()
    if why:
        _say(f"SKIPPED: cuts, evictions, full disks and slabs over TCP: no network namespaces can be made here ({why})")
    waiting, verdicts, left = list(reversed(numbers)), [], []

    async def work(number: int) -> None:
        async with world(home / f"world{number}", number, network=not why) as made:
            while waiting:
                verdict = await run_history(history_plan(seed, waiting.pop()), made, break_by=break_by)
                verdicts.append(verdict)
                _say(str(verdict))
            left.extend(await made.close())

    async with asyncio.TaskGroup() as group:
        for number in range(min(parallel, len(numbers))):
            group.create_task(work(number))
    return sorted(verdicts, key=lambda verdict: verdict.plan.number), left


def summary(verdicts: Sequence[FaultVerdict], left: Sequence[str]) -> list[str]:
    """Return what to say of all histories together."""
    skipped = Counter(fault.kind for verdict in verdicts for fault in verdict.skipped)
    faults = Counter(fault.kind for verdict in verdicts for fault in verdict.plan.faults) - skipped
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    failed = [verdict.plan.number for verdict in verdicts if verdict.problems]
    back = [each for verdict in verdicts for each in verdict.killed_back_s]
    totals = {name: sum(verdict.total(name) for verdict in verdicts) for name in _TOTALS}
    lines = [
        f"{len(verdicts)} histories, {sum(faults.values())} faults ({kinds}), {sum(skipped.values())} skipped",
        ", ".join(f"{name} {count:,}" for name, count in totals.items()),
        f"slowest request {max((one.slowest_s for each in verdicts for one in each.reports), default=0.0):.2f} s",
    ]
    if back:
        lines.append(
            f"slabs of {len(back)} killed clients back in {median(back):.1f} s (median), {max(back):.1f} s (most)"
        )
    lines += [f"LEFT: {each}" for each in left]
    lines.append(f"{len(failed)} with violations" + (f": --only {' '.join(map(str, failed))}" if failed else ""))
    return lines


_TOTALS = (
    "checked_bytes",
    "written_bytes",
    "slab_bytes",
    "lost",
    "evicted",
    "full",
    "forks",
    "shared_seen",
    "tcp_seen",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="memory_faults", description=__doc__)
    parser.add_argument("--histories", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from (default: 1)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="only those with these numbers")
    parser.add_argument("--parallel", type=int, default=1, help="worlds side by side (default: 1)")
    parser.add_argument("--folder", default="", help="where they leave logs (default: a new one in /tmp)")
    parser.add_argument("--show", action="store_true", help="print the histories, and run none")
    parser.add_argument(
        "--break", dest="break_by", choices=sorted(BROKEN), default="", help="break the product, to see it found"
    )
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
