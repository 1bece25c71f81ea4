"""
Pictures and their colours, without matplotlib.

A :class:`Picture` is SVG that a page takes in (:func:`inline`). :func:`looks` gives each policy its colour, the same on
every picture and page. A :class:`ReportAddition` is what one command shows of a comparison beyond what all comparisons
show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from penstock_policies.queue_policies import QUEUE_POLICIES

INK: Final = "#1b1f24"
FAINT: Final = "#5b6470"
GRID: Final = "#d9dde2"
PAPER: Final = "#fefefe"
"""Colours that a page replaces by its own; a file of its own keeps them."""


class NoPlots(Exception):
    """Matplotlib is not installed."""


@dataclass(frozen=True)
class Picture:
    """
    A picture of a comparison.

    Attributes
    ----------
    name : str
        Name of its file, without an ending.
    title, caption : str
        What it shows, and how to read it.
    svg : str
    """

    name: str
    title: str
    caption: str
    svg: str


def require() -> None:
    """Raise :class:`NoPlots` if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise NoPlots("plots need matplotlib, which is not installed; try: pip install 'penstock[plot]'")


def inline(picture: Picture) -> str:
    """Return the picture for a page: without a head, in the page's colours, with names that no other picture has."""
    text = picture.svg[picture.svg.index("<svg ") :]
    prefix = re.sub(r"[^\w-]", "-", picture.name)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for colour, name in ((INK, "ink"), (FAINT, "faint"), (GRID, "grid"), (PAPER, "paper")):
        text = text.replace(colour, f"var(--{name})")
    return text


_PALETTE: Final = ("#7a828c", "#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a89600")
"""After Okabe and Ito's colours that most colour-blind people can tell apart; readable on white and on black."""
_DASHES: Final = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_HOME: Final = {
    **{name: policy.colour for name, policy in QUEUE_POLICIES.items() if policy.colour is not None},
    "allox+2d-gittins": 5,
}
"""Where a policy's colour is, if no other took it: the same policy looks the same in most reports."""


@dataclass(frozen=True)
class PolicyLook:
    """Colour and dashes of one policy's marks on every plot."""

    colour: str
    dashes: Any


def looks(policies: Sequence[str]) -> dict[str, PolicyLook]:
    """
    Return each policy's look: no two of up to eight share a colour, and of up to 32 no two look the same.

    Examples
    --------
    >>> [look.colour for look in looks(["fifo", "mine", "srtf"]).values()]
    ['#7a828c', '#d55e00', '#e69f00']
    """
    size = len(_PALETTE)
    homes = [_HOME[policy] for policy in policies if policy in _HOME]
    free = iter([*(at for at in range(size) if at not in homes), *range(size, 4 * size + len(policies))])
    slots = [_HOME[policy] if policy in _HOME else next(free) for policy in policies]
    return {
        policy: PolicyLook(colour=_PALETTE[slot % size], dashes=_DASHES[(slot // size + at % 2) % len(_DASHES)])
        for at, (policy, slot) in enumerate(zip(policies, slots, strict=True))
    }


@dataclass(frozen=True)
class ReportAddition:
    """
    What one command shows of a comparison beside what all comparisons show, in its several forms.

    Attributes
    ----------
    document : object
        Document for programs, in place of the comparison's own; msgspec can encode it.
    lines : sequence of str
        Lines for terminals, after the table.
    sections : sequence of str
        HTML for the page, after the table of figures.
    pictures : callable
        Draws the pictures before the other ones; only called if matplotlib is installed.
    """

    document: object
    lines: Sequence[str] = ()
    sections: Sequence[str] = ()
    pictures: Callable[[], Iterable[Picture]] = tuple
