"""Finding what people mean by an id: the whole of it, or a beginning that only one thing has."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from penstock_gateway.words import listed

T = TypeVar("T")
BAD: Final = 400
NOT_FOUND: Final = 404
AMBIGUOUS: Final = 409
_SHOWN: Final = 5


class Refused(Exception):
    """What was asked is answered with an error code (HTTP-like) and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        """Keep the code; the sentence says what was wrong and what to do."""
        super().__init__(message)
        self.code = code


def one(known: Mapping[str, T], wanted: str, what: str, *, names: Iterable[tuple[str, str]] = ()) -> T:
    """
    Return the one thing that an id or its beginning names.

    Parameters
    ----------
    what : str
        ``job``, ``sweep`` or ``node``, for the message.
    names : iterable of (name, id)
        Other words that people may have meant; only suggested.

    Raises
    ------
    Refused
        404 with the nearest ids, or 409 where several begin like that.

    Examples
    --------
    >>> one({"ab1": 1, "cd2": 2}, "ab", "job")
    1
    """
    if wanted in known:
        return known[wanted]
    begin = [key for key in known if wanted and key.startswith(wanted)]
    if len(begin) == 1:
        return known[begin[0]]
    if begin:
        shown = listed(begin[:_SHOWN]) + (", …" if len(begin) > _SHOWN else "")
        raise Refused(AMBIGUOUS, f"{len(begin)} {what}s begin with {wanted!r}: {shown}; write more of the id")
    raise Refused(NOT_FOUND, f"no {what} {wanted!r}{_suggestion(known, wanted, names)}")


def _suggestion(known: Mapping[str, T], wanted: str, names: Iterable[tuple[str, str]]) -> str:
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for name, key in names:
        ids[name].append(key)
    if named := ids.get(wanted):
        return f"; that is a name, its {'id is' if len(named) == 1 else 'ids are'} {listed(named[-_SHOWN:])}"
    close = difflib.get_close_matches(wanted, [*known, *(name for name in ids if name not in known)], n=3, cutoff=0.5)
    if close:
        return f"; did you mean {listed(close)}?"
    return f"; there are {len(known)}, and none is like it" if known else "; there is none at all"
