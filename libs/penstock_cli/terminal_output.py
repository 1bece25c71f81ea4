"""A job's output on a terminal: colours and progress bars stay, and nothing else is obeyed."""

from __future__ import annotations

import codecs
import re
from typing import Final

from penstock_log.text import escaped

Source = tuple[int, str]
"""Process rank and stream."""

_KEPT: Final = re.compile(r"\x1b\[(?P<style>[0-9;]*)m|\x1b\[[0-2]?K|[\n\r\t\b]")
"""Colours, erasing in a line, and what moves within a line."""
_BEGUN: Final = re.compile(r"\x1b(\[[0-9;]{0,30})?\Z")
"""The beginning of what may be kept, where a piece of output ends."""
_CONCEAL: Final = "8"
_LONG_COLOURS: Final = re.compile(r"[34]8;(5;[0-9]*|2;[0-9]*;[0-9]*;[0-9]*)")
_RESET: Final = "\x1b[0m"


class TerminalOutput:
    r"""
    Turns pieces of a job's output into what a terminal may be given.

    A colour, and the erasing of a line, are kept. What moves the cursor to other lines, names the window, asks the
    terminal for something, hides text or turns the direction of writing is shown by its codes.

    Examples
    --------
    >>> shown, out = TerminalOutput(), (0, "stdout")
    >>> shown.feed(out, b"10 %\r20 %\n\x1b[3"), shown.feed(out, b"1mred \x1b]0;mine\x07"), shown.rest()
    (b'10 %\r20 %\n', b'\x1b[31mred \\x1b]0;mine\\x07', [((0, 'stdout'), b'\x1b[0m')])
    """

    def __init__(self) -> None:
        self._decoders: dict[Source, codecs.IncrementalDecoder] = {}
        self._begun: dict[Source, str] = {}
        self._styled: set[Source] = set()

    def feed(self, source: Source, data: bytes, *, last: bool = False) -> bytes:
        """Return what to write after one more piece of a stream; what may go on in the next piece is kept back."""
        decoder = self._decoders.get(source)
        if decoder is None:
            decoder = self._decoders[source] = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        text = self._begun.pop(source, "") + decoder.decode(data, final=last)
        if not last and (begun := _BEGUN.search(text)) is not None:
            self._begun[source] = begun[0]
            text = text[: begun.start()]
        return self._shown(source, text).encode()

    def rest(self) -> list[tuple[Source, bytes]]:
        """Return what is left of each stream at the end, where colours end too."""
        found = []
        for source in list(self._decoders):
            data = self.feed(source, b"", last=True) + (_RESET.encode() if source in self._styled else b"")
            if data:
                found.append((source, data))
        return found

    def _shown(self, source: Source, text: str) -> str:
        if text.isprintable():
            return text
        parts, at = [], 0
        for kept in _KEPT.finditer(text):
            style = kept["style"]
            if style is not None and _conceals(style):
                continue
            if style is not None:
                self._styled.add(source)
            parts += [escaped(text[at : kept.start()]), kept[0]]
            at = kept.end()
        return "".join([*parts, escaped(text[at:])])


def _conceals(style: str) -> bool:
    return _CONCEAL in (part.lstrip("0") for part in _LONG_COLOURS.sub("", style).split(";"))
