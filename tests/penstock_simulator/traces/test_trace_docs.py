"""What docs/traces.md shows is what Penstock takes."""

from __future__ import annotations

import re
from pathlib import Path

from penstock_simulator import traces
from penstock_simulator.traces import generator
from penstock_simulator.traces.generator import generate

DOC = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()


def block(language: str, beginning: str) -> str:
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", DOC, re.DOTALL) if text.startswith(beginning))


def test_every_format_has_its_chapter() -> None:
    assert set(re.findall(r"^### (\S+)$", DOC, re.MULTILINE)) == set(traces.READERS)


def test_the_recipe_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(block("toml", "jobs"))
    assert len(generate(generator.read(tmp_path / "spec.toml"))) == 10_000


def test_the_line_of_our_own_form_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"penstock_trace": 1, "name": "t"}\n' + block("", '{"id"'))
    trace = traces.read(tmp_path / "t.jsonl")
    assert (trace.vcs, trace.kinds, trace.states) == (["nlp"], ["v100"], ["completed"])
