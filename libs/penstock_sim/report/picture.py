"""A picture of a comparison, and how a page takes it in; nothing here needs matplotlib."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

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
        Of its file, without an ending.
    title, caption : str
        What it shows, and how to read it.
    svg : str
    """

    name: str
    title: str
    caption: str
    svg: str


def require() -> None:
    """Raise an error that says what to install if matplotlib is not there."""
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
