"""
The devices, the queue, a job and its log as widgets.

A pane holds what was answered last and draws it; :mod:`penstock_cli.top.screen_app` asks, and does what keys say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message

from penstock_cli import render
from penstock_cli.top.cluster_watch import JobWatch, JobWindow
from penstock_cli.top.device_cells import COLOURED_BY, ColourBy, DeviceMap, device_map
from penstock_cli.top.job_columns import GROUPS, JobTableLayout, QueueFilter, QueueOrder
from penstock_cli.top.job_page import job_page
from penstock_cli.top.line_widgets import LineList, TextLines
from penstock_cli.top.output_lines import OutputLines
from penstock_cli.top.terminal_style import Glyphs, Line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock_log import views

_NOT_YET: Final[Line] = [("...", "dim")]


class Answerable(Message):
    """What is shown depends on something else now: it is to be asked at once."""


class QueuePane(LineList):
    """The list of jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort", show=False),
        Binding("S", "reverse", "other way round", show=False),
        Binding("u", "mine", "mine or all", show=False),
        Binding("t", "group", "which states", show=False),
        Binding("space", "mark", "mark", show=False),
    ]

    def __init__(self, glyphs: Glyphs, shown: QueueFilter, *, id: str | None = None) -> None:  # noqa: A002 - see above
        super().__init__(id=id)
        self.glyphs, self.shown, self.order = glyphs, shown, QueueOrder()
        self.me = ""
        """Whose jobs are one's own; empty where the server knows nobody."""
        self.marked: set[str] = set()
        self.total = 0
        self._window = JobWindow(0, (), 0, 0)
        self._layout = JobTableLayout(glyphs, 0)

    def show_window(self, window: JobWindow, *, asked: tuple[QueueFilter, QueueOrder]) -> None:
        """Draw a part of the list from now on, unless another list is wanted by now."""
        if asked != (self.shown, self.order):
            return
        chosen = self.current
        self._window, self.total = window, window.total
        if self._layout.width != self.size.width:
            self._layout = JobTableLayout(self.glyphs, self.size.width)
        self._layout.fit(window.jobs)
        if chosen is not None and self.cursor:  # it is followed where others have come before it
            self._follow(chosen.id)
        self.set_count(window.known)
        self.show_head()

    def _follow(self, job_id: str) -> None:
        for number, job in enumerate(self._window.jobs):
            if job.id == job_id:
                self.first += self._window.first + number - self.cursor
                self.cursor = self._window.first + number

    def show_head(self) -> None:
        """Draw what is shown and in which order, and the headers."""
        words, left_out = self.shown.words, self.total - self.count
        last = min(self.first + self.rows, self.count)
        parts = [f"{min(self.first + 1, last):,} to {last:,} of {render.count(self.count, 'job')}"]
        parts += [f"only {words}"] if words else []
        parts += [f"{len(self.marked)} marked"] if self.marked else []
        parts += [f"{left_out:,} older ones were not looked at; show fewer (t, u)"] if left_out else []
        self.head = [[(self.glyphs.plain(", ".join(parts)), "dim")], self._layout.head(self.order)]
        self.refresh()

    @property
    def current(self) -> views.JobView | None:
        """The job under the cursor; None where there is none, or it is not known yet."""
        return self._at(self.cursor)

    def _at(self, number: int) -> views.JobView | None:
        at = number - self._window.first
        return self._window.jobs[at] if 0 <= at < len(self._window.jobs) else None

    def wanted(self) -> tuple[int, int]:
        """Return which part of the list is to be asked: what is seen, and a little on both sides."""
        spare = max(2, self.rows // 2)
        first = max(0, self.first - spare)
        return first, self.first + self.rows + spare - first

    def line(self, number: int) -> Line:
        """Return a job's line."""
        job = self._at(number)
        return _NOT_YET if job is None else self._layout.row(job, is_marked=job.id in self.marked)

    def show_only(self, shown: QueueFilter) -> None:
        """Show the jobs that match a filter, from the first one."""
        self.shown = shown
        self._begin()

    def sort_by(self, order: QueueOrder) -> None:
        """Show the jobs in an order, from the first one."""
        self.order = order
        self._begin()

    def _begin(self) -> None:
        self._window = JobWindow(0, (), self.count, self.total)
        self.first = self.cursor = 0
        self.show_head()
        self.post_message(Answerable())

    def click_head(self, x: int) -> None:
        """Sort by the column that was clicked on; once more: from its other end."""
        title = self._layout.title_at(x)
        self.sort_by(self.order.reversed() if title == self.order.title else QueueOrder(title))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.sort_by(self.order.following())

    def action_reverse(self) -> None:
        """Sort from the other end."""
        self.sort_by(self.order.reversed())

    def action_group(self) -> None:
        """Show the next group of states."""
        names = list(GROUPS)
        group = names[(names.index(self.shown.group) + 1) % len(names)]
        self.show_only(_with(self.shown, group=group))

    def action_mine(self) -> None:
        """Show one's own jobs, or all."""
        self.show_only(_with(self.shown, user="" if self.shown.user else self.me))

    def action_mark(self) -> None:
        """Mark the job under the cursor, or mark it no more, and go on to the next."""
        if self.current is not None:
            self.marked ^= {self.current.id}
            self.action_move(1)


def _with(shown: QueueFilter, **changes: str) -> QueueFilter:
    from dataclasses import replace

    return replace(shown, **changes)


class DevicePane(LineList):
    """All devices, a cell each."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "device to the left", show=False),
        Binding("right", "step(1)", "device to the right", show=False),
        Binding("o", "colour", "colour by", show=False),
    ]

    def __init__(self, glyphs: Glyphs, pool: str, *, id: str | None = None) -> None:  # noqa: A002 - see above
        super().__init__(id=id)
        self.glyphs, self.pool = glyphs, pool
        self.colour_by: ColourBy = COLOURED_BY[0]
        self.device = 0
        self._seen_nodes: Sequence[views.NodeDevicesView] = ()
        self._holders: Mapping[str, views.HolderView] = {}
        self._map = DeviceMap((), {}, self.colour_by, 0, glyphs)
        self._now_s = 0.0

    def show_devices(self, found: views.DevicesView) -> None:
        """Draw these devices from now on."""
        self._seen_nodes = [
            node for node in found.nodes if node.state != "left" or any(one.job_ids for one in node.devices)
        ]
        self._now_s = found.now_s
        self._holders = {job.id: job for job in found.jobs}
        self._draw()

    def _draw(self) -> None:
        self._map = device_map(
            self._seen_nodes, self._holders, self.colour_by, self.size.width, self.glyphs, pool=self.pool
        )
        self.set_count(len(self._map.lines))
        self._show_head()

    def _show_head(self) -> None:
        if not self.count:
            where = f" in pool {self.pool}" if self.pool else ""
            self.head = [[(self.glyphs.plain(f"there are no nodes{where}"), "dim")]]
        else:
            about = self._map.about(self.cursor, self.device, self._now_s)
            self.head = [self._map.legend(), [(self.glyphs.plain(about), "")]]
        self.refresh()

    def on_resize(self) -> None:
        """Break the lines anew."""
        super().on_resize()
        self._draw()

    def go(self, number: int) -> None:
        """Choose a line, and say what its device is."""
        super().go(number)
        if self.count:
            self.device = min(self.device, max(0, len(self._map.lines[self.cursor].devices) - 1))
        self._show_head()

    def line(self, number: int) -> Line:
        """Return a node's line."""
        return self._map.row(number, self.device if number == self.cursor else None)

    def mark_of(self, number: int) -> str:  # noqa: ARG002 - as lists have it
        """Return no style: the chosen device is marked itself."""
        return ""

    def click_line(self, number: int, x: int) -> None:
        """Choose the device that was clicked on."""
        at = self._map.device_at(number, x)
        self.device = self.device if at is None else at
        self.go(number)

    def action_step(self, by: int) -> None:
        """Go to the device beside."""
        if self.count:
            last = max(0, len(self._map.lines[self.cursor].devices) - 1)
            self.device = min(max(self.device + by, 0), last)
            self._show_head()

    def action_colour(self) -> None:
        """Colour by the next of user, team and state."""
        self.colour_by = COLOURED_BY[(COLOURED_BY.index(self.colour_by) + 1) % len(COLOURED_BY)]
        self._draw()

    @property
    def node(self) -> views.NodeDevicesView | None:
        """The node under the cursor."""
        return self._map.lines[self.cursor].node if self.count else None

    @property
    def job_id(self) -> str:
        """The job on the device under the cursor; empty where it is idle."""
        devices = self._map.lines[self.cursor].devices if self.count else ()
        jobs = devices[min(self.device, len(devices) - 1)].job_ids if devices else ()
        return jobs[0] if jobs else ""


class JobPane(TextLines):
    """One job in full."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002 - see above
        super().__init__(id=id)
        self.glyphs = glyphs

    def show_job(self, watch: JobWatch | None, now_s: float, problem: str = "") -> None:
        """Draw a job from now on; None draws how to choose one."""
        if problem:
            self.show_lines([[(self.glyphs.plain(problem), "red")]])
        elif watch is None:
            self.show_lines([[("no job is chosen: go to the queue (2) and press Enter on one", "dim")]])
        else:
            self.show_lines(job_page(watch, self.size.width, now_s, self.glyphs))


class LogPane(TextLines):
    """A job's output, which it follows, with search."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "follow", show=False),
        Binding("n", "find(1)", "next place", show=False),
        Binding("N", "find(-1)", "place before", show=False),
    ]

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002 - see above
        super().__init__(id=id)
        self.glyphs = glyphs
        self.title, self.wanted, self.state = "", "", ""
        self.follows = True
        self.output: OutputLines | None = None
        self._drawn = -1

    def begin(self, title: str, output: OutputLines | None) -> None:
        """Show another job's output, and follow it."""
        self.title, self.output, self.found, self.follows, self._drawn = title, output, None, True, -1
        self.draw()

    def say(self, state: str) -> None:
        """Say how the reading goes."""
        self.state = state
        self.draw()

    def draw(self) -> None:
        """Draw what has come since."""
        if self.output is None:
            self.head = []
            self.show_lines([[("no job is chosen: go to the queue (2) and press l on one", "dim")]])
            return
        if self.output.version != self._drawn:
            self._drawn = self.output.version
            self.set_count(len(self.output))
        if self.follows:
            self.first = max(0, self.count - self.rows)
        found = f"searching {self.wanted!r} (n, N)" if self.wanted else ""
        dropped = f"{render.count(self.output.dropped, 'line')} before were dropped" if self.output.dropped else ""
        follows = "follows (f)" if self.follows else "stands still (f follows)"
        words = ", ".join(filter(None, (self.title, self.state, follows, found, dropped)))
        self.head = [[(self.glyphs.plain(words), "dim")]]
        self.refresh()

    def line(self, number: int) -> Line:
        """Return a line of the output."""
        if self.output is None:
            return super().line(number)
        return [(self.glyphs.plain(self.output.line(number)), "")]

    def go(self, number: int) -> None:
        """Go to a line; it follows while the last one is seen."""
        super().go(number)
        self.follows = self.first >= self.count - self.rows
        self.draw()

    def action_follow(self) -> None:
        """Follow what comes, or stand still."""
        self.follows = not self.follows
        self.draw()

    def search(self, wanted: str) -> None:
        """Go to the last place that has a text; empty searches for nothing."""
        self.wanted, self.found = wanted, None
        self._find(self.count - 1, -1)

    def action_find(self, step: int) -> None:
        """Go to the next place, or the one before."""
        begin = self.first if self.found is None else self.found + step
        self._find(begin, step)

    def _find(self, begin: int, step: int) -> None:
        if self.output is not None and self.wanted:
            self.found = self.output.find(self.wanted, begin, step)
            if self.found is None:
                self.post_message(Said(f"no line has {self.wanted!r}"))
            else:
                self.go(max(0, self.found - self.rows // 2))
                self.follows = False
        self.draw()


class Said(Message):
    """Something to tell the user in the line at the bottom."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
