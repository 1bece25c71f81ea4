"""What a command has to say about a comparison beyond what all comparisons say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock_sim.report.picture import Picture


@dataclass(frozen=True)
class Addition:
    """
    More about a comparison, in three forms.

    Attributes
    ----------
    document : object
        For programs, instead of the comparison's own; what msgspec can encode.
    lines : sequence of str
        For terminals, behind the table.
    sections : sequence of str
        HTML for the page, behind the table of figures.
    pictures : callable
        Draws what comes before the other pictures; only called where matplotlib is there.
    """

    document: object
    lines: Sequence[str] = ()
    sections: Sequence[str] = ()
    pictures: Callable[[], Iterable[Picture]] = tuple
