"""Whether a subject fits a pattern, by the rules of NATS: ``*`` is one token, ``>`` is all the rest."""

from __future__ import annotations

from collections.abc import Sequence


def matches(pattern: str, subject: str) -> bool:
    """
    Return whether the subject fits the pattern.

    Examples
    --------
    >>> matches("penstock.evt.*.j1", "penstock.evt.job.j1"), matches("penstock.evt.>", "penstock.evt")
    (True, False)
    """
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":  # noqa: S105 - a token of a subject
            return len(given) > i
        if i >= len(given) or token not in ("*", given[i]):
            return False
    return len(wanted) == len(given)


def matches_any(patterns: Sequence[str], subject: str) -> bool:
    """Return whether the subject fits one of the patterns; no patterns fit everything."""
    return not patterns or any(matches(pattern, subject) for pattern in patterns)
