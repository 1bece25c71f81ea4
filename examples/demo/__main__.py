"""``make demo``: the main job on one machine, on an embedded NATS server, with emulated devices."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

import penstock
from demo import comparison, emulation, screen
from demo.events import EventLines
from demo.outcome import Summary
from demo.play import Display, play

LIMIT_S = 600.0  # for a demo that hangs: it takes about a minute where the host has nothing else to do
PATIENCE_S = 60.0  # how long an answer may take where the host is busy with something else
PLAIN_WIDTH = 120  # of what is not a terminal


def main() -> int:
    """Return 0 if every job ended as it should."""
    args = _arguments()
    began_s = _now_s()
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    data = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    _penstock(
        "up",
        "--detach",
        "--data",
        str(data),
        "--port",
        "-1",
        "--emulate",
        emulation.description(),
        "--cpu",
        "1",
        "--config",
        str(comparison.CONFIG),
    )
    try:
        url = json.loads((data / "penstock.json").read_text())["url"]
        summary = asyncio.run(_run(url, console, began_s))
    finally:
        if not args.keep:
            _penstock("down", "--data", str(data))
    _report(console, summary)
    target = args.json or Path(tempfile.mkdtemp(prefix="penstock-demo-summary-")) / "summary.json"
    target.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    if args.keep:
        console.print(f"Still running. PENSTOCK_URL={url}; to stop it: penstock down --data {data}", soft_wrap=True)
    elif summary.ok:
        shutil.rmtree(data)
    else:
        console.print(f"The cluster's data and logs are kept in {data}", soft_wrap=True)
    console.print(str(target), soft_wrap=True, highlight=False)
    return 0 if summary.ok else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo ARGS=…", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running afterwards")
    parser.add_argument("--json", type=Path, help="where to write the summary")
    return parser.parse_args()


def _penstock(*arguments: str) -> None:
    """Run a command whose advice is for those who typed it; what goes wrong is still said."""
    subprocess.run([sys.executable, "-m", "penstock", *arguments], check=True, stdout=subprocess.DEVNULL)


async def _run(url: str, console: Console, began_s: float) -> Summary:
    display: Display = (
        screen.LiveTable(console, lambda: _now_s() - began_s)
        if sys.stdout.isatty()
        else EventLines(began_s, _now_s, partial(print, flush=True))
    )
    async with penstock.Client(url, timeout_s=PATIENCE_S) as client:
        return await play(client, display, LIMIT_S, comparison.average_jct_s)


def _now_s() -> float:
    return time.time()  # noqa: TID251 the demo's own clock, for what it shows


def _report(console: Console, summary: Summary) -> None:
    console.print(screen.summary(summary))
    for note in screen.notes(summary):
        console.print(note, highlight=False, soft_wrap=True)
    ratio = summary.fifo_avg_jct_s / summary.virtual_avg_jct_s
    console.print(
        f"Average JCT {summary.avg_jct_s:.1f} s as measured. The same deciders under virtual time, by the lengths that "
        f"jobs declare: {summary.virtual_avg_jct_s:.1f} s; FIFO {summary.fifo_avg_jct_s:.1f} s ({ratio:.2f}x)",
        soft_wrap=True,
    )
    for fault in summary.wrong:
        console.print(f"[bold red]wrong:[/] {fault}")


if __name__ == "__main__":
    sys.exit(main())
