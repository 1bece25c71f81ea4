"""
Text of others, before it is shown on a terminal.

A job's standard error, a name, a reason or a rejected message may hold what a terminal obeys: escape sequences that
rename the window, move the cursor or hide what follows, and marks that turn the direction of writing. Shown is what
they are, not what they do.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = frozenset("\u200c\u200d")
"""Of letters in some scripts, and of emoji: they change nothing beside them."""


def escaped(text: str) -> str:
    r"""
    Return text in one line, with everything that is no character to be seen as its code.

    Examples
    --------
    >>> escaped("train\x1b]0;mine\x07"), escaped("a\nb"), escaped("\u202eexe.txt"), escaped("Zoë 名前")
    ('train\\x1b]0;mine\\x07', 'a\\nb', '\\u202eexe.txt', 'Zoë 名前')
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def escaped_json(text: str) -> str:
    r"""
    Return JSON text that means the same, with everything that is no character to be seen as its escape.

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
