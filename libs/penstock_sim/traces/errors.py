"""What can be wrong with a trace, and how it is said."""

from __future__ import annotations

from penstock_events.strict import BadInput


class TraceError(BadInput):
    """A trace, or a request about one, that makes no sense: says where, what was wrong, what was expected."""


def broken_row(path: str, line: int, wrong: str, expected: str) -> TraceError:
    """Return the error of one row, by its line in the (uncompressed) file."""
    return TraceError(
        f"{path}:{line}: {wrong}; expected {expected}; correct the row, "
        "or drop broken rows and count them (--lenient of `penstock trace`)"
    )
