"""How comparisons of policies are shown and kept: by `penstock sim` and `penstock replay`."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from penstock.cli import render
from penstock.cli.errors import Failure, bad_input, tell
from penstock.cli.session import Output
from penstock.cli.times import span
from penstock_sim.report import folder, table, text_gantt
from penstock_sim.report.addition import Addition
from penstock_sim.report.comparison import Comparison

_WIDTH: Final = 100
"""Of charts where standard output is no terminal."""


@dataclass(frozen=True)
class Wanted:
    """What is to become of the results."""

    output: Output = "table"
    out: Path | None = None
    gantt: bool = False

    def words(self) -> list[str]:
        """Return the arguments that ask for this again."""
        return [
            *(["-o", self.output] if self.output != "table" else []),
            *(["--out", str(self.out)] if self.out is not None else []),
            *(["--gantt"] if self.gantt else []),
        ]

    def check(self) -> None:
        """End with a message if it makes no sense."""
        if self.gantt and self.output == "json":
            bad_input("--gantt is for people and -o json for programs; leave one of them out")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            bad_input(f"--out {self.out} is a file; expected a folder, which is made if there is none")


def present(comparison: Comparison, wanted: Wanted, title: str, addition: Addition | None = None) -> None:
    """Show the results on standard output, and write them into the folder where one was named."""
    if wanted.output == "json":
        render.show_json(comparison.document if addition is None else addition.document)
    else:
        show(comparison, wide=wanted.output == "wide")
        if addition is not None:
            render.say_lines(["", *addition.lines])
    if wanted.gantt:
        for outcome in comparison.outcomes:
            render.say()
            render.say_lines(text_gantt.lines(outcome, render.terminal_width() or _WIDTH))
    if wanted.out is not None:
        missing = folder.write(comparison, wanted.out, title, addition)
        tell(f"wrote {wanted.out / folder.PAGE}")
        if missing:
            raise Failure(missing)


def show(comparison: Comparison, *, wide: bool = False) -> None:
    """Show the table and what its readers have to know."""
    if wide:
        render.show_table(table.WIDE, table.wide_rows(comparison), wide=True)
    else:
        render.show_table(table.HEADERS, table.rows(comparison, span))
    for line in render.wrapped(table.notes(comparison)):
        render.say(line)


def versions() -> dict[str, str]:
    """Return the versions on which results rest."""
    return {
        "penstock": metadata.version("penstock"),
        "Python": platform.python_version(),
        "NumPy": metadata.version("numpy"),
    }
