"""How far a sweep is, while somebody waits for it: one line that changes on a terminal, else a line for each change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import typer

from penstock.cli.render import seen

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_events import views

EVERY_S: Final = 1.0
"""How often the gateway is asked."""


async def followed(client: Client, sweep_id: str) -> views.SweepView:
    """Say on standard error how far a sweep is until it has ended; return it then."""
    told = Told()
    try:
        async for sweep in client.follow_sweep(sweep_id, EVERY_S):
            if sweep.finished_s is None:
                told.say(sweep)
        return sweep
    finally:
        told.clear()


class Told:
    """What was said last: on a terminal it is written over, elsewhere said again only when something has come of it."""

    def __init__(self) -> None:
        self._over_itself = sys.stderr.isatty()
        self._last: object = None

    def say(self, sweep: views.SweepView) -> None:
        """Say how far it is."""
        from penstock.cli.show import sweep_progress

        line = seen(sweep_progress(sweep))
        if self._over_itself:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        elif self.news(sweep):
            typer.echo(line, err=True)

    def news(self, sweep: views.SweepView) -> bool:
        """Say whether something has come of the sweep since this was asked last."""
        now = (sweep.done, sweep.best_job_id, sweep.state)
        changed, self._last = now != self._last, now
        return changed

    def clear(self) -> None:
        """Leave a terminal's line to what follows."""
        if self._over_itself:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
