"""``python -m chaos``: run schedules, one line for each, and end with 1 if a rule was violated."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from chaos import disk, trial
from chaos.cluster import settable_clocks
from chaos.schedule import SERVICES, findings, schedule
from chaos.trial import Means, Verdict
from penstock_cli.local.service_template import ServiceTemplate

_ALL: Final = (*SERVICES, "executor")
_FAKETIME: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if unknown := [number for number in asked.only or () if number <= -len(findings())]:
        parser.error(f"there are no findings {unknown}; expected 0 to {1 - len(findings())}, or numbers from 1")
    home = Path(asked.folder or tempfile.mkdtemp(prefix="chaos-")).absolute()
    numbers = asked.only or range(1, asked.schedules + 1)
    if asked.findings:
        numbers = range(0, -len(findings()), -1)
    if asked.show:
        for number in numbers:
            _say(str(schedule(asked.seed, number)))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clusters are ended, whoever ends the suite
    verdicts = asyncio.run(run(asked.seed, numbers, home, parallel=asked.parallel, keep=asked.keep))
    failed = [one for one in verdicts if one.violations]
    faults = Counter(fault.kind for one in verdicts for fault in one.schedule.faults)
    count = ", ".join(f"{number} {kind}" for kind, number in sorted(faults.items()))
    _say(f"{len(verdicts)} schedules, {sum(faults.values())} faults ({count}), {len(failed)} with violations")
    if failed:
        again = " ".join(str(one.schedule.number) for one in failed)
        _say(f'again: make chaos ARGS="--seed {asked.seed} --only {again}"')
    elif not asked.keep:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if failed else 0


async def run(seed: int, numbers: Sequence[int], home: Path, *, parallel: int = 1, keep: bool = False) -> list[Verdict]:
    """Run schedules, so many side by side, and print each verdict when it is there."""
    home.mkdir(parents=True, exist_ok=True)
    verdicts: list[Verdict] = []
    told = (home / "chaos.log").open("a")  # what the supervisor's parts say while they run here
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(told))
    waiting = list(reversed(numbers))

    async with means_of(home) as means:

        async def work() -> None:
            while waiting:
                number = waiting.pop()
                verdict = await trial.run(schedule(seed, number), home / f"{seed}-{number:05d}", means, keep=keep)
                verdicts.append(verdict)
                _say(str(verdict))

        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(work())
    return sorted(verdicts, key=lambda verdict: verdict.schedule.number)


@asynccontextmanager
async def means_of(home: Path) -> AsyncIterator[Means]:
    """Find out what this machine allows, say what it does not, and prepare it."""
    disk.keep_mounts_private()
    if why := disk.problem(home):
        _say(f"SKIPPED: full and hanging disks, and what a power cut loses: no disk can be mounted here ({why})")
    library = next((str(path) for pattern in _FAKETIME for path in Path("/").glob(pattern[1:])), "")
    if not library:
        _say("SKIPPED: clocks that jump: there is no libfaketime here (Debian has it as `libfaketime`)")
    async with ServiceTemplate(_ALL) as template:
        if not library:
            yield Means(template, None, not why)
            return
        async with _with_clocks(library) as clocks:
            yield Means(template, clocks, not why)


@asynccontextmanager
async def _with_clocks(library: str) -> AsyncIterator[ServiceTemplate]:
    """Start a template whose processes have clocks that can be set; nobody else gets the library."""
    template = ServiceTemplate(_ALL)
    before = dict(os.environ)
    os.environ.update(settable_clocks(library))
    try:
        await template.__aenter__()
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield template
    finally:
        await template.__aexit__(None, None, None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--schedules", type=_positive, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="what they are made from (default: 1)")
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="N", help="only those with these numbers; findings have 0, -1, …"
    )
    parser.add_argument("--findings", action="store_true", help="those of violations that were seen once: 0, -1, …")
    parser.add_argument("--parallel", type=_positive, default=1, help="how many side by side (default: 1)")
    parser.add_argument("--folder", default="", help="where they leave logs and notes (default: a new one in /tmp)")
    parser.add_argument("--keep", action="store_true", help="keep these of all schedules, not only of violated ones")
    parser.add_argument("--show", action="store_true", help="print the schedules, and run none")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; expected a whole number from 1")
    return int(text)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
