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
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

import penstock
from demo import screen
from demo.outcome import Summary
from demo.play import play

DEVICES = "fast:2@0.5:16GiB,slow:2@0.2:16GiB"  # slow is 0.4 times as fast as fast; both leave this host some air
CONFIG = Path(__file__).with_name("penstock.toml")
LIMIT_S = 150.0  # about a minute where the host has nothing else to do
PATIENCE_S = 60.0  # how long an answer may take where the host is busy with something else
PLAIN_WIDTH = 120  # of what is not a terminal


def main() -> int:
    """Return 0 if every job ended as it should."""
    args = _arguments()
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
        DEVICES,
        "--cpu",
        "1",
        "--config",
        str(CONFIG),
    )
    try:
        url = json.loads((data / "penstock.json").read_text())["url"]
        summary = asyncio.run(_run(url, console))
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


async def _run(url: str, console: Console) -> Summary:
    started_s = time.monotonic()  # noqa: TID251 the demo's own clock, for its screen
    async with penstock.Client(url, timeout_s=PATIENCE_S) as client:
        with Live(console=console, auto_refresh=False, transient=True) as display:

            def show(jobs: object) -> None:
                elapsed_s = time.monotonic() - started_s  # noqa: TID251 as above
                display.update(screen.live(jobs, elapsed_s), refresh=True)  # type: ignore[arg-type]

            return await play(client, show, LIMIT_S)


def _report(console: Console, summary: Summary) -> None:
    console.print(screen.summary(summary))
    for note in screen.notes(summary):
        console.print(note, highlight=False)
    ratio = summary.fifo_avg_jct_s / summary.avg_jct_s if summary.avg_jct_s else float("nan")
    console.print(
        f"Average JCT {summary.avg_jct_s:.1f} s; FIFO on the same measured durations {summary.fifo_avg_jct_s:.1f} s "
        f"({ratio:.2f}x)"
    )
    for fault in summary.wrong:
        console.print(f"[bold red]wrong:[/] {fault}")


if __name__ == "__main__":
    sys.exit(main())
