"""What `story` and `why` answer from a log in a file, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.errors import bad_input

if TYPE_CHECKING:
    from penstock_events import views
    from penstock_sim.looking import Moment


def story(log: Path, job: str, at: int | float | str | None) -> views.StoryView:
    """Return a job's story."""
    from penstock_sim import looking
    from penstock_sim.traces.source import Source

    moment = _moment(at)
    with Source(log).raw() as text:
        try:
            return looking.tell(text, job, moment)
        except ValueError as error:
            bad_input(f"{log}: {error}")


def why(log: Path, job: str, at: int | float | str | None) -> tuple[views.WhyView, float]:
    """Return why a job is where it is, and the time of that."""
    from penstock_sim import looking
    from penstock_sim.traces.source import Source

    moment = _moment(at)
    with Source(log).raw() as text:
        try:
            return looking.explain(text, job, moment)
        except ValueError as error:
            bad_input(f"{log}: {error}")


def _moment(at: int | float | str | None) -> Moment:
    """Return a moment of a log; dates are those of its own clock."""
    if isinstance(at, str):
        from datetime import datetime

        return datetime.fromisoformat(at).timestamp()
    return at
