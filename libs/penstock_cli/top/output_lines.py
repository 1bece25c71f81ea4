"""A job's output as a bounded list of lines that can be searched."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock_cli.terminal_output import TerminalOutput
from penstock_log.request_bodies import OutputOffset

if TYPE_CHECKING:
    from penstock_bus.port import LogLine

MOST_LINES: Final = 20_000
MOST_COLUMNS: Final = 4_000
"""What a line has beyond is not kept: nobody reads so far to the right."""
_PAINT: Final = re.compile(r"\x1b\[[0-9;]*m|\x1b\[[0-2]?K")
Source = tuple[int, str]
"""Process rank and stream."""


class OutputLines:
    r"""
    Lines of a job's output, as a terminal would show them: a progress bar is its last state.

    Parameters
    ----------
    ranks : bool
        Whether lines begin with the rank of the process that wrote them.
    most : int
        So many lines are kept at least, the last ones, and a tenth more at most.

    Examples
    --------
    >>> from penstock_bus.port import LogLine
    >>> lines = OutputLines(ranks=False)
    >>> lines.add_piece(LogLine(seq=1, job_id="j", rank=0, stored_s=0.0, data=b"10 %\r20 %\na\x1b[2Jb"))
    >>> [lines.line(number) for number in range(len(lines))], lines.dropped
    (['20 %', 'a\\x1b[2Jb'], 0)
    """

    def __init__(self, *, ranks: bool, most: int = MOST_LINES) -> None:
        self._ranks = ranks
        self._terminal = TerminalOutput()
        self._open: dict[Source, str] = {}
        self._lines: list[str] = []
        self._most = most
        self.dropped = 0
        """Lines that were there before those that are kept."""
        self.version = 0
        """Grows with each piece."""

    def add_piece(self, piece: LogLine) -> None:
        """Add what a process wrote, or that some of it is missing."""
        self.version += 1
        if piece.missing:
            self._keep(f"[{piece.missing}]")
        place = piece.place
        source = (piece.rank, place.channel.stream if isinstance(place, OutputOffset) else "")
        text = self._open.pop(source, "") + self._terminal.feed(source, piece.data).decode()
        *whole, rest = text.split("\n")
        for line in whole:
            self._keep(self._prefix(source) + _settled(line))
        if rest:
            self._open[source] = _shortened(rest)

    def __len__(self) -> int:
        return len(self._lines) + len(self._open)

    def line(self, number: int) -> str:
        """Return one line; behind those that have ended are those that go on, one of each stream."""
        if number < len(self._lines):
            return self._lines[number]
        source, text = list(self._open.items())[number - len(self._lines)]
        return self._prefix(source) + _settled(text)

    def find(self, wanted: str, begin: int, step: int) -> int | None:
        """
        Return the number of the next line that has a text, whatever its case; None where none has.

        Parameters
        ----------
        begin : int
            Where it starts to look, this line included; behind the last line comes the first.
        step : {1, -1}
            Forwards or backwards.
        """
        count, wanted = len(self), wanted.casefold()
        for number in range(count):
            at = (begin + step * number) % count
            if wanted in self.line(at).casefold():
                return at
        return None

    def _prefix(self, source: Source) -> str:
        return f"[{source[0]}] " if self._ranks else ""

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) > self._most + self._most // 10:  # many at once: each time costs a copy
            over = len(self._lines) - self._most
            del self._lines[:over]
            self.dropped += over


def _settled(line: str) -> str:
    """Return what is seen of a line after it was written over, without colours."""
    text = _PAINT.sub("", line).rstrip("\r")
    text = text.rpartition("\r")[2].replace("\b", "").expandtabs(8)
    return text[:MOST_COLUMNS]


def _shortened(rest: str) -> str:
    """Return of a line that goes on what may still be seen: a progress bar may never end its line."""
    return rest[-MOST_COLUMNS:] if "\r" in rest else rest[:MOST_COLUMNS]
