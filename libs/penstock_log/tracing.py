"""
W3C trace context: how a trace that began elsewhere goes on in the log.

A submission may come with a ``traceparent``. Its commit keeps trace and parent as ``Commit.trace``, and the message has
the header ``traceparent`` again. See https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
from hashlib import blake2s
from typing import Final, Optional

import msgspec

HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-([0-9a-f]{16}))?(?:-[0-9a-f]{2})?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class TraceParent(msgspec.Struct, frozen=True):
    """A trace, and the span below which what comes next belongs; empty: at its root. In hexadecimal digits."""

    trace_id: str
    parent_id: str = ""

    @property
    def text(self) -> str:
        """As ``Commit.trace`` has it."""
        return f"{self.trace_id}-{self.parent_id}" if self.parent_id else self.trace_id

    def header(self, span_id: str) -> str:
        """Return the header of a message that belongs to a span of this trace."""
        return f"00-{self.trace_id}-{span_id}-01"


def span_of(commit_id: str) -> str:
    """Return the id of the span that a commit stands for, in 16 hexadecimal digits."""
    return blake2s(commit_id.encode(), digest_size=8).hexdigest()


def parsed(text: str) -> Optional[TraceParent]:
    """
    Return what a header, a variable or ``Commit.trace`` says; None for what is none.

    Examples
    --------
    >>> parsed("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    TraceParent(trace_id='0af7651916cd43dd8448eb211c80319c', parent_id='b7ad6b7169203331')
    >>> parsed("0af7651916cd43dd8448eb211c80319c").parent_id, parsed("00-0-0-00"), parsed("")
    ('', None, None)
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    return TraceParent(found[1], found[2] or "")
