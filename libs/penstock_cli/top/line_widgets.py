"""
Widgets that draw only the lines that are seen.

:class:`LineBlock` draws lines as they are. :class:`LineList` has as many lines as there are, of which one may be
chosen; it asks for the text of those that are on the screen and of no others, so ten thousand cost what twenty do.
Neither knows markup: a text is drawn as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from penstock_cli.top.terminal_style import Line

_WHEEL = 3


@lru_cache(1024)
def _style(name: str) -> Style:
    return Style.parse(name) if name else Style.null()


def strip_of(line: Line, width: int, begin: int = 0, mark: str = "") -> Strip:
    """Return a line as Textual draws it: from one column on, so many columns; a mark is the style of the whole line."""
    strip = Strip([Segment(text, _style(mark or name)) for text, name in line if text])
    strip = strip.crop(begin, begin + width) if begin else strip
    return strip.adjust_cell_length(width, _style(mark))


class LineBlock(Widget):
    """Some lines, drawn from the top."""

    DEFAULT_CSS = "LineBlock { height: auto; background: ansi_default; color: ansi_default; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as Textual calls it
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Draw these lines from now on, if they are others."""
        if list(lines) != list(self.lines):
            self.lines = lines
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line of the widget."""
        return strip_of(self.lines[y] if y < len(self.lines) else (), self.size.width)


class LineList(Widget, can_focus=True):
    """
    A list that scrolls, of which the visible lines are asked for when they are drawn.

    Attributes
    ----------
    first : int
        The number of the line at the top.
    cursor : int
        The number of the chosen line, where ``has_cursor``.
    head : sequence of Line
        Lines above the list, which do not scroll.
    """

    DEFAULT_CSS = "LineList { height: 1fr; background: ansi_default; color: ansi_default; }"
    has_cursor: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("g,home", "go_first", "first", show=False),
        Binding("G,end", "go_last", "last", show=False),
        Binding("left", "shift(-1)", "left", show=False),
        Binding("right", "shift(1)", "right", show=False),
        Binding("enter", "choose", "choose", show=False),
    ]

    class Moved(Message):
        """The window or the cursor is elsewhere."""

        def __init__(self, source: LineList) -> None:
            super().__init__()
            self.source = source

    class Chosen(Message):
        """The line under the cursor was chosen."""

        def __init__(self, source: LineList) -> None:
            super().__init__()
            self.source = source

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as Textual calls it
        super().__init__(id=id)
        self.first = self.cursor = self.count = self.left = 0
        self.head: Sequence[Line] = ()

    # --- what a list gives
    def line(self, number: int) -> Line:
        """Return the text of one line."""
        raise NotImplementedError

    def mark_of(self, number: int) -> str:
        """Return the style over a whole line; the chosen one is reversed."""
        return "reverse" if self.has_cursor and number == self.cursor else ""

    # --- what its owner does
    @property
    def rows(self) -> int:
        """How many lines are seen at once."""
        return max(1, self.size.height - len(self.head))

    def set_count(self, count: int) -> None:
        """Have so many lines from now on; cursor and window stay within them."""
        self.count = count
        self._settle()
        self.refresh()

    def go(self, number: int) -> None:
        """Choose a line, or have it at the top where none is chosen."""
        if self.has_cursor:
            self.cursor = number
        else:
            self.first = number
        self._settle()
        self.refresh()
        self.post_message(self.Moved(self))

    def _settle(self) -> None:
        self.cursor = min(max(self.cursor, 0), max(self.count - 1, 0))
        if self.has_cursor:
            self.first = min(max(self.first, self.cursor - self.rows + 1), self.cursor)
        self.first = min(max(self.first, 0), max(self.count - self.rows, 0))

    def on_resize(self) -> None:
        """Keep the cursor on the screen, and ask for what is seen now."""
        self._settle()
        self.post_message(self.Moved(self))

    # --- keys and mouse
    def action_move(self, by: int) -> None:
        """Go some lines down or up."""
        self.go((self.cursor if self.has_cursor else self.first) + by)

    def action_page(self, by: int) -> None:
        """Go some pages down or up."""
        self.first += by * self.rows
        self.action_move(by * self.rows if self.has_cursor else 0)

    def action_go_first(self) -> None:
        """Go to the first line."""
        self.go(0)

    def action_go_last(self) -> None:
        """Go to the last line."""
        self.go(self.count)

    def action_shift(self, by: int) -> None:
        """Show what is further to the left or right."""
        self.left = max(0, self.left + by * 8)
        self.refresh()

    def action_choose(self) -> None:
        """Tell that the line under the cursor was chosen."""
        if self.count:
            self.post_message(self.Chosen(self))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Go down by the wheel."""
        event.stop()
        self.action_move(_WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Go up by the wheel."""
        event.stop()
        self.action_move(-_WHEEL)

    def on_click(self, event: events.Click) -> None:
        """Choose a line; twice: open it."""
        event.stop()
        if event.y < len(self.head):
            self.click_head(event.x)
        elif self.has_cursor and self.first + event.y - len(self.head) < self.count:
            self.click_line(self.first + event.y - len(self.head), event.x)
            if event.chain > 1:
                self.action_choose()

    def click_head(self, x: int) -> None:
        """Do what a click on the lines above the list means: nothing."""

    def click_line(self, number: int, x: int) -> None:  # noqa: ARG002 - where lists have columns
        """Do what a click on a line means: choose it."""
        self.go(number)

    # --- drawing
    def render_line(self, y: int) -> Strip:
        """Return one line of the widget."""
        width = self.size.width
        if y < len(self.head):
            return strip_of(self.head[y], width, self.left)
        number = self.first + y - len(self.head)
        if number >= self.count:
            return strip_of((), width)
        return strip_of(self.line(number), width, self.left, self.mark_of(number))


class TextLines(LineList):
    """Lines of text that are read and not chosen; those that ``found`` names are marked."""

    has_cursor: ClassVar[bool] = False

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as Textual calls it
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()
        self.found: int | None = None

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines from now on, from where one reads."""
        self.lines = lines
        self.set_count(len(lines))

    def line(self, number: int) -> Line:
        """Return the text of one line."""
        return self.lines[number] if number < len(self.lines) else ()

    def mark_of(self, number: int) -> str:
        """Return the style of what was searched for."""
        return "reverse" if number == self.found else ""
