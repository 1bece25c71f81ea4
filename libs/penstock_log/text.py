"""
Text for people: foreign text made harmless, and durations, sizes and lists in words.

A job's standard error, a name, a reason or a rejected message may hold what a terminal obeys: escape sequences that
rename the window, move the cursor or hide what follows, and marks that turn the direction of writing. :func:`escaped`
and :func:`escaped_json` show such characters by their codes, so that a terminal does not obey them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock_log import Setting

_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = frozenset("\u200c\u200d")
"""Of letters in some scripts, and of emoji: they change nothing beside them."""


def escaped(text: str) -> str:
    r"""
    Return text in one line, with every invisible character as its code.

    Examples
    --------
    >>> escaped("train\x1b]0;mine\x07"), escaped("a\nb"), escaped("\u202eexe.txt"), escaped("Zoë 名前")
    ('train\\x1b]0;mine\\x07', 'a\\nb', '\\u202eexe.txt', 'Zoë 名前')
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def escaped_lines(text: str) -> str:
    r"""
    Return text with its lines as they are, and every other invisible character as its code.

    Examples
    --------
    >>> print(escaped_lines("<h1>train\x1b[2J</h1>\n<p>\u202eexe.txt</p>"))
    <h1>train\x1b[2J</h1>
    <p>\u202eexe.txt</p>
    """
    return text if text.isprintable() else "\n".join(map(escaped, text.split("\n")))


def escaped_json(text: str) -> str:
    r"""
    Return JSON text of the same meaning, with every invisible character as its escape.

    Examples
    --------
    >>> escaped_json('{"name": "\u202eexe.txt\x9b"}')
    '{"name": "\\u202eexe.txt\\u009b"}'
    """
    return "".join(c if c == "\n" or _is_seen(c) else _utf16(c) for c in text)


def _is_seen(character: str) -> bool:
    return unicodedata.category(character) not in _ESCAPED or character in _JOINERS


def _shown(character: str) -> str:
    return character if _is_seen(character) else character.encode("unicode_escape").decode()


def _utf16(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def duration(seconds: float) -> str:
    """
    Return a duration for people.

    Examples
    --------
    >>> duration(0.25), duration(75), duration(7_500), duration(200_000)
    ('0.2 s', '1 min 15 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def count(number: int, noun: str) -> str:
    """
    Return a number with its noun.

    Examples
    --------
    >>> count(1, "device"), count(2, "device")
    ('1 device', '2 devices')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Iterable[str], *, nothing: str = "none") -> str:
    """Return names with commas."""
    return ", ".join(names) or nothing


def pairs(settings: Mapping[str, Setting]) -> str:
    """
    Return settings as people write them.

    Examples
    --------
    >>> pairs({"order": "las", "thresholds_gpu_s": [60.0, 600.0], "promote_knob": None})
    'order = las, thresholds_gpu_s = 60,600, promote_knob = off'
    """
    from penstock_log.facts import worded  # noqa: PLC0415 - a command that lists jobs needs no facts

    return ", ".join(f"{name} = {worded(value)}" for name, value in settings.items())


_DIGITS: Final = 4
"""How many digits of a size are shown."""


def gibibytes(size_bytes: int) -> str:
    """
    Return a size for people.

    Examples
    --------
    >>> gibibytes(8 * 2**30), gibibytes(600)
    ('8 GiB', '600 B')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.4g} {unit}"
    return f"{size_bytes} B"


def rounded_down(size_bytes: int) -> int:
    """
    Return the largest size not above another that :func:`gibibytes` shows exactly, so that people can copy it.

    Examples
    --------
    >>> size = rounded_down(23_128_000_000)
    >>> gibibytes(23_128_000_000), gibibytes(size), size == int(21.53 * 2**30)
    ('21.54 GiB', '21.53 GiB', True)
    """
    for unit in (2**30, 2**20, 2**10):
        if size_bytes >= unit:
            scale: int = 10 ** max(0, _DIGITS - len(str(size_bytes // unit)))
            return (size_bytes * scale // unit) * unit // scale
    return size_bytes
