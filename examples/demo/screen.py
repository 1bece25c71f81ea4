"""What the demo shows: a live table while it runs in a terminal, and the summary at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.table import Table

import penstock
from demo.outcome import JobOutcome, Summary
from penstock_bus import BusError
from penstock_log import views

REFRESH_S = 0.5
PAGE = 1000
STYLES = {"PD": "yellow", "R": "green", "PR": "magenta", "CG": "magenta", "CD": "dim", "F": "bold red", "CA": "red"}


class LiveTable:
    """
    Shows the jobs in a table that is drawn anew twice a second.

    Parameters
    ----------
    elapsed_s : callable
        Returns the seconds since the demo's start.
    """

    def __init__(self, console: Console, elapsed_s: Callable[[], float]) -> None:
        self._console, self._elapsed_s = console, elapsed_s

    async def watch(self, client: penstock.Client) -> None:
        """Draw the table until cancelled."""
        with Live(console=self._console, auto_refresh=False, transient=True) as display:
            while True:
                with suppress(BusError):  # a busy host may take long to answer
                    display.update(live((await client.jobs(limit=PAGE)).jobs, self._elapsed_s()), refresh=True)
                await asyncio.sleep(REFRESH_S)

    async def finish(self, client: penstock.Client) -> None:
        """Show nothing more: the summary follows."""

    def refuse(self, name: str, reason: str) -> None:
        """Show nothing: the summary says so."""


def live(jobs: Iterable[views.JobView], elapsed_s: float) -> Table:
    """Return the table of jobs as they are now, those that run or wait last."""
    table = Table(title=f"Penstock demo, {elapsed_s:.0f} s", title_justify="left", expand=False)
    for column, justify in (("JOB", "left"), ("ST", "left"), ("GPUS", "right"), ("WAIT", "right"), ("RUN", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    table.add_column("STEPS", justify="right")
    table.add_column("ON, OR WHY IT WAITS")
    for job in sorted(jobs, key=lambda job: (job.finished_s is None, job.submitted_s)):
        style = STYLES.get(job.state, "")
        where = ", ".join(job.placed_on) or job.cause or job.reason
        cells = (job.name, job.state, str(job.gpus), f"{job.wait_s:.1f}", f"{job.run_s:.1f}", str(job.steps), where)
        table.add_row(*cells, style=style)
    return table


COLUMNS = ("JOB", "ST", "WAIT", "RUN", "JCT", "PREEMPTED", "ATTEMPTS", "STEPS", "ACCURACY", "DEVICES")


def summary(outcome: Summary) -> Table:
    """Return the closing table."""
    table = Table(title="Summary (seconds)", title_justify="left", expand=False)
    for column in COLUMNS:
        left = column in {"JOB", "ST", "DEVICES"}
        table.add_column(column, justify="left" if left else "right", no_wrap=column != "DEVICES")
    for job in outcome.jobs:
        table.add_row(*_cells(job), style="" if job.state == "CD" else STYLES.get(job.state, "red"))
    return table


def notes(outcome: Summary) -> list[str]:
    """Return a line for each job that did not complete: what it says of why; and for each that was resized."""
    failed = [f"{job.name} ({job.state}): {job.reason}" for job in outcome.jobs if job.state != "CD"]
    resized = [job for job in outcome.jobs if len(job.widths) > 1]
    return [*failed, *(f"{job.name}: {_resized(job)}" for job in resized)]


def _resized(job: JobOutcome) -> str:
    widths = ", then ".join(map(str, job.widths))
    return f"on {widths} devices, {job.samples:,} images in {job.steps:,} steps"


def _cells(job: JobOutcome) -> tuple[str, ...]:
    where = " ".join(device.rpartition("/")[2] for device in job.devices)
    counts = (str(job.preemptions), str(job.attempts), str(job.steps))
    times = tuple(_seconds(value) for value in (job.wait_s, job.run_s, job.jct_s))
    return (job.name, job.state, *times, *counts, "" if job.accuracy is None else f"{job.accuracy:.3f}", where)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
