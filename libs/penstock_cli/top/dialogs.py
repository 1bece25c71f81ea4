"""A question before something is changed, a text over the screen, and the help."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from penstock_cli.top.cluster_watch import DUTY
from penstock_cli.top.line_widgets import LineBlock, TextLines
from penstock_cli.top.terminal_style import Glyphs, Line

_WIDEST: Final = 76
_ANSWERS: Final[Line] = [(" y ", "reverse bold"), (" yes    ", ""), (" n ", "reverse bold"), (" no", "")]
_NO_AT: Final = 11
"""Column from which on a click on the answers means no."""

HELP: Final = """\
Panes
  1 2 3 4 Tab  devices, queue, job, log
  Up Down j k  a line; PgUp PgDn a page; g G the first, the last; the mouse too
  Left Right   a device in the devices; elsewhere further to the left or right
  Enter        open the job; Esc and q go back, and in the first place q ends it
Queue
  /            only jobs with these words in id, name, user, team, state, pool
  t u          all, open, running, waiting or ended; mine or everybody's
  s S          sort by the next column; the other way round (or click a header)
  Space        mark; c, H and R act on all that are marked
A job: the marked ones, the one under the cursor, or the one that is open
  c H R        cancel (asks first), hold, release
  w e l y      why it is where it is; its events; its log; copy its id
Log
  / n N f      search, next, before; follow
Devices
  o            colour by user, team, state
  d            drain the node, or resume a drained one (asks first)
Everywhere
  r ?          ask anew now; this help"""


class AnswerLine(LineBlock):
    """The two answers of a question, which can be clicked on."""

    def on_click(self, event: events.Click) -> None:
        """Take the answer that was clicked on."""
        self.screen.dismiss(event.x < _NO_AT)


class QuestionDialog(ModalScreen[bool]):
    """
    A question that is answered with yes or no; anything else does nothing.

    Parameters
    ----------
    lines : sequence of str
        Plain text, made harmless already.
    """

    DEFAULT_CSS = """
    QuestionDialog { align: center middle; background: transparent; }
    QuestionDialog > Vertical { height: auto; padding: 0 1; background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", "yes"),
        Binding("n,N,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, lines: Sequence[str], glyphs: Glyphs) -> None:
        super().__init__()
        self._lines, self._glyphs = lines, glyphs

    def compose(self) -> ComposeResult:
        """Compose the box."""
        with Vertical() as box:
            box.styles.border = ("ascii" if self._glyphs.is_ascii else "round", "ansi_yellow")
            box.styles.width = min(_WIDEST, self.app.size.width - 2)
            yield LineBlock(id="question")
            yield AnswerLine(id="answers")

    def on_mount(self) -> None:
        """Show the question."""
        shown: list[Line] = [[(self._glyphs.fitted(line, min(len(line), _WIDEST - 6)), "")] for line in self._lines]
        question = self.query_one("#question", LineBlock)
        question.styles.height = len(shown) + 1
        question.show_lines(shown)
        answers = self.query_one("#answers", AnswerLine)
        answers.styles.height = 1
        answers.show_lines([_ANSWERS])

    def action_answer(self, is_yes: bool) -> None:
        """Take the answer."""
        self.dismiss(is_yes)


class TextOverlay(ModalScreen[None]):
    """
    A text over the whole screen.

    Parameters
    ----------
    title : str
        Plain text, made harmless already.
    ask : callable, optional
        Returns the lines, for a width; awaited once when it opens, and again at each refresh.
    """

    DEFAULT_CSS = """
    TextOverlay { background: ansi_default; }
    TextOverlay > LineBlock { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,w,e", "dismiss", "back")]

    def __init__(self, title: str, ask: Callable[[int], Awaitable[Sequence[Line]]]) -> None:
        super().__init__()
        self._title, self._ask = title, ask
        self._text = TextLines(id="overlay-text")
        self._again_at = 0.0

    def compose(self) -> ComposeResult:
        """Compose the screen."""
        yield LineBlock(id="overlay-title")
        yield self._text

    async def on_mount(self) -> None:
        """Show the title."""
        hint = " (Esc goes back)"
        self.query_one("#overlay-title", LineBlock).show_lines([[(f"{self._title}{hint}", "reverse bold")]])
        self._text.focus()

    async def refresh_text(self) -> None:
        """Ask for the text anew, as often as what it costs allows."""
        ticks = asyncio.get_running_loop().time
        began_s = ticks()
        if began_s < self._again_at:
            return
        self._text.show_lines(list(await self._ask(self.app.size.width)))
        now_s = ticks()
        self._again_at = now_s + DUTY * (now_s - began_s)


async def help_lines(_width: int) -> list[Line]:
    """Return what the keys do."""
    return [[(line, "bold" if line and not line.startswith(" ") else "")] for line in HELP.split("\n")]
