"""
Columns of the list of jobs, what a filter matches, and orders.

The columns are those of ``penstock ps``. A :class:`QueueFilter` says which jobs are shown, a :class:`QueueOrder` by
which column they are sorted. The natural order has what runs first, then what waits, then what has ended, each the
newest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_cli import job_text, render
from penstock_cli.top.terminal_style import STATE_STYLES, Glyphs, Span, colour_of
from penstock_cli.value_formats import span
from penstock_log import ACTIVE, TERMINAL, JobState

if TYPE_CHECKING:
    from penstock_log import views

SECTIONS: Final = (tuple(ACTIVE), (JobState.PENDING,), tuple(TERMINAL))
"""States in the natural order: what has devices, what waits, what has ended."""
GROUPS: Final[dict[str, tuple[JobState, ...]]] = {
    "all": (),
    "open": (*SECTIONS[0], *SECTIONS[1]),
    "running": SECTIONS[0],
    "waiting": SECTIONS[1],
    "ended": SECTIONS[2],
}
"""What may be shown, by its name, and its states; none is all."""
NATURAL: Final = ""
_WIDE: Final = 120
"""From so many columns on, the wide columns are shown too."""
_LEAST_LAST: Final = 16
_MOST_NAME: Final = 32
_SHORTENED: Final = ("METRICS", "NAME", "POOL", "TEAM", "USER", "STEPS", "GPUS", "ID")
"""Columns that make room where there is too little, the first one first."""


class JobColumn(NamedTuple):
    """
    One column.

    Attributes
    ----------
    key : callable or None
        By what it is sorted; None where it cannot be.
    width : int
        Columns of the terminal that it takes at least.
    most : int
        So many at most.
    is_wide : bool
        Whether only wide terminals have it.
    """

    title: str
    cell: Callable[[views.JobView], str]
    key: Callable[[views.JobRow], Any] | None
    width: int
    most: int
    right: bool = False
    is_wide: bool = False


COLUMNS: Final = (
    JobColumn("ID", lambda job: job.id, lambda job: job.id, 8, 16),
    JobColumn("NAME", lambda job: job.name, lambda job: job.name.casefold(), 8, _MOST_NAME),
    JobColumn("USER", lambda job: job.user, lambda job: job.user, 4, 12),
    JobColumn("ST", lambda job: job.state, lambda job: list(JobState).index(JobState(job.state)), 2, 2),
    JobColumn("GPUS", job_text.width, lambda job: job.gpus, 4, 10, right=True),
    JobColumn("WAIT", lambda job: span(job.wait_s), lambda job: job.wait_s, 6, 6, right=True),
    JobColumn("RUN", lambda job: span(job.run_s), lambda job: job.run_s, 6, 6, right=True),
    JobColumn("STEPS", lambda job: str(job.steps), lambda job: job.steps, 5, 10, right=True),
    JobColumn("TEAM", lambda job: job.team or "-", lambda job: job.team, 4, 12, is_wide=True),
    JobColumn("POOL", lambda job: job.pool, lambda job: job.pool, 4, 12, is_wide=True),
    JobColumn("CLASS", lambda job: job.priority_class or "-", lambda job: job.priority_class, 5, 12, is_wide=True),
    JobColumn("QUEUE", lambda job: render.number(job.queue), None, 5, 5, right=True, is_wide=True),
    JobColumn("PREEMPTED", lambda job: str(job.preemptions), None, 9, 9, right=True, is_wide=True),
    JobColumn("METRICS", lambda job: render.mapping(job.metrics) or "-", None, 7, 28, is_wide=True),
    JobColumn(
        "NODES/REASON", job_text.place_or_reason, lambda job: (job.cause, job.reason, job.placed_on), _LEAST_LAST, 400
    ),
)
_KEYS: Final = {column.title: column.key for column in COLUMNS if column.key is not None}
SORTED_BY: Final = (NATURAL, *_KEYS)


@dataclass(frozen=True)
class QueueFilter:
    """
    Which jobs are shown; all of it must match.

    Attributes
    ----------
    group : str
        One of :data:`GROUPS`.
    text : str
        Words that must each be found in id, name, user, team, state or pool.
    """

    group: str = "all"
    user: str = ""
    pool: str = ""
    text: str = ""

    @property
    def sections(self) -> tuple[tuple[JobState, ...], ...]:
        """The sections of the natural order that may have such jobs."""
        return tuple(section for section in SECTIONS if not GROUPS[self.group] or section[0] in GROUPS[self.group])

    def matches(self, job: views.JobRow) -> bool:
        """Say whether a job is shown."""
        if (self.user and job.user != self.user) or (self.pool and job.pool != self.pool):
            return False
        if GROUPS[self.group] and job.state not in GROUPS[self.group]:
            return False
        if not self.text:
            return True
        found = " ".join((job.id, job.name, job.user, job.team, job.state, job.pool)).casefold()
        return all(word in found for word in self.text.casefold().split())

    @property
    def words(self) -> str:
        """What it says, for people; empty where it lets all pass."""
        parts = (
            self.group if self.group != "all" else "",
            f"of {self.user}" if self.user else "",
            f"in {self.pool}" if self.pool else "",
            f"with {self.text!r}" if self.text else "",
        )
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class QueueOrder:
    """By which column jobs are sorted; the natural order where that is empty."""

    title: str = NATURAL
    falling: bool = False

    def following(self) -> QueueOrder:
        """Return the order by the next column."""
        at = SORTED_BY.index(self.title)
        return QueueOrder(SORTED_BY[(at + 1) % len(SORTED_BY)])

    def reversed(self) -> QueueOrder:
        """Return the same order from its other end; the natural one has none."""
        return self if self.title == NATURAL else replace(self, falling=not self.falling)

    def sorted(self, jobs: Iterable[views.JobRow]) -> list[views.JobRow]:
        """Return jobs in this order; of equal ones the newest first."""
        newest = sorted(jobs, key=lambda job: (job.submitted_s, job.id), reverse=True)
        if self.title == NATURAL:
            return sorted(newest, key=lambda job: next(i for i, some in enumerate(SECTIONS) if job.state in some))
        return sorted(newest, key=_KEYS[self.title], reverse=self.falling)


class JobTableLayout:
    """
    The widths of the columns on one terminal: as wide as what was seen so far, so that they do not jump.

    Parameters
    ----------
    width : int
        Columns of the terminal.
    """

    def __init__(self, glyphs: Glyphs, width: int) -> None:
        self._glyphs, self.width = glyphs, width
        self.columns = [column for column in COLUMNS if width >= _WIDE or not column.is_wide]
        self._widths = [column.width for column in self.columns]

    def fit(self, jobs: Sequence[views.JobView]) -> None:
        """Make columns wide enough for some jobs, as far as there is room."""
        for number, column in enumerate(self.columns[:-1]):
            longest = max((len(column.cell(job)) for job in jobs), default=0)
            self._widths[number] = min(max(self._widths[number], longest), column.most)
        over = sum(self._widths[:-1]) + 2 * len(self.columns) + _LEAST_LAST - self.width
        titles = [column.title for column in self.columns]
        for number in (titles.index(title) for title in _SHORTENED if title in titles):
            cut = min(max(over, 0), self._widths[number] - self.columns[number].width)
            self._widths[number] -= cut
            over -= cut
        self._widths[-1] = max(0, self.width - sum(self._widths[:-1]) - 2 * len(self.columns))

    def head(self, order: QueueOrder) -> list[Span]:
        """Return the headers, with an arrow at the column by which the jobs are sorted."""
        arrow = self._glyphs.falling if order.falling else self._glyphs.rising
        line: list[Span] = [("  ", "bold")]
        for column, width in zip(self.columns, self._widths, strict=True):
            if column.title == order.title:  # the arrow stands in the gap
                line.append((self._glyphs.fitted(column.title + arrow, width + 1, right=column.right) + " ", "bold"))
            else:
                line.append((self._glyphs.fitted(column.title, width, right=column.right) + "  ", "bold"))
        return line

    def title_at(self, x: int) -> str:
        """Return the title of the column at a place in the line; the natural order's where nothing is sorted by it."""
        begin = 2
        for column, width in zip(self.columns, self._widths, strict=True):
            if begin <= x < begin + width + 2:
                return column.title if column.title in _KEYS else NATURAL
            begin += width + 2
        return NATURAL

    def row(self, job: views.JobView, *, is_marked: bool) -> list[Span]:
        """Return a job's line."""
        glyphs = self._glyphs
        line: list[Span] = [(f"{glyphs.mark if is_marked else ' '} ", "bold yellow")]
        for column, width in zip(self.columns, self._widths, strict=True):
            text = glyphs.plain(column.cell(job))
            line += [(glyphs.fitted(text, width, right=column.right), _style(column.title, job)), ("  ", "")]
        return line[:-1]


def _style(title: str, job: views.JobView) -> str:
    match title:
        case "ST":
            return STATE_STYLES.get(job.state, "")
        case "USER":
            return colour_of(job.user)
        case "NODES/REASON" if job.state == "PD":
            return "yellow" if job.held else ""
        case _:
            return "dim" if job.state in TERMINAL else ""
