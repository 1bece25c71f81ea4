"""
Lines of styled text, with the characters and colours that a terminal has.

A :data:`Line` is a sequence of spans, each a text and the name of a style; widgets draw it, and tests read it. Only the
sixteen colours of a terminal's own palette are named, and its own background is kept: so it looks as the terminal does,
dark or light. Words of others go through :meth:`Glyphs.plain`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size

from penstock_log.text import escaped

Span = tuple[str, str]
"""A text and the name of its style, such as ``bold red``; empty for none."""
Line = Sequence[Span]

STATE_STYLES: Final = {"R": "green", "PR": "yellow", "CG": "yellow", "F": "red", "CA": "magenta", "CD": "blue"}
NODE_STYLES: Final = {
    "up": "green",
    "draining": "yellow",
    "drained": "yellow",
    "leaving": "yellow",
    "lost": "red",
    "left": "red",
}
_PALETTE: Final = (
    *("cyan", "green", "yellow", "magenta", "blue"),
    *("bright_cyan", "bright_green", "bright_yellow", "bright_magenta", "bright_blue"),
)
"""Red is kept for what is lost or has failed."""


class Glyphs(NamedTuple):
    """
    The characters with which something is drawn.

    Attributes
    ----------
    cut : str
        Stands for what did not fit.
    levels : str
        Heights of a bar within one character, the empty one first.
    """

    cut: str
    levels: str
    rule: str
    mark: str
    rising: str
    falling: str
    is_ascii: bool

    def plain(self, text: str) -> str:
        r"""
        Return words of others in one line that no terminal obeys, in characters that this one has.

        Examples
        --------
        >>> UNICODE.plain("a\nb\x1b[2J é"), ASCII.plain("a\nb é")
        ('a\\nb\\x1b[2J é', 'a\\nb \\xe9')
        """
        shown = escaped(text)
        return shown.encode("ascii", "backslashreplace").decode() if self.is_ascii and not shown.isascii() else shown

    def drawn(self, text: str) -> str:
        """Return a drawing of ours, such as a chart's bars, in characters that this terminal has."""
        return text.translate(_AS_ASCII) if self.is_ascii else text

    def fitted(self, text: str, width: int, *, right: bool = False) -> str:
        """
        Return a text that takes exactly so many columns: padded, or cut at its end.

        Examples
        --------
        >>> UNICODE.fitted("名前は", 5), ASCII.fitted("train-large", 8), ASCII.fitted("7", 3, right=True)
        ('名前…', 'train-l~', '  7')
        """
        taken = len(text) if text.isascii() else cell_len(text)
        if taken > width:
            return set_cell_size(text, width - 1) + self.cut if width > 0 else ""
        return " " * (width - taken) + text if right else text + " " * (width - taken)


UNICODE: Final = Glyphs("…", " ▁▂▃▄▅▆▇█", "─", "●", "▲", "▼", is_ascii=False)
ASCII: Final = Glyphs("~", " ..::||##", "-", "*", "^", "v", is_ascii=True)
_AS_ASCII: Final = str.maketrans(dict(zip(UNICODE.levels + "…─", ASCII.levels + "~-", strict=True)))


def glyphs_of(environment: Mapping[str, str]) -> Glyphs:
    """
    Return the characters of a terminal, by the locale that its user has set.

    Examples
    --------
    >>> [glyphs_of(said).is_ascii for said in ({"LANG": "C"}, {"LANG": "C", "LC_ALL": "de_DE.utf8"}, {})]
    [True, False, True]
    """
    said = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"
    return UNICODE if "utf8" in said.lower().replace("-", "") else ASCII


_given: dict[str, str] = {}
"""Colours of the names that this process has shown."""


def colour_of(name: str) -> str:
    """
    Return the colour in which a user or a team is shown; none for nobody.

    It follows from the name, so it is mostly the same tomorrow. Two names that are shown together have two colours,
    as long as there are some left.
    """
    if name and name not in _given:
        first = zlib.crc32(name.encode()) % len(_PALETTE)
        by_turns = [*_PALETTE[first:], *_PALETTE[:first]]
        _given[name] = next((colour for colour in by_turns if colour not in _given.values()), by_turns[0])
    return _given.get(name, "")


def text_of(line: Line) -> str:
    """
    Return a line without its styles.

    Examples
    --------
    >>> text_of([("a", "red"), ("b", "")])
    'ab'
    """
    return "".join(text for text, _ in line)


def joined(parts: Iterable[Line], gap: str = "  ") -> list[Span]:
    """
    Return lines as one, with a gap between them; empty ones are left out.

    Examples
    --------
    >>> joined([[("a", "")], [], [("b", "red")]])
    [('a', ''), ('  ', ''), ('b', 'red')]
    """
    found: list[Span] = []
    for part in parts:
        if part:
            found += [(gap, ""), *part] if found else part
    return found
