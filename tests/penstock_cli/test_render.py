"""Tables, spans and what people type: the pure parts of the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_cli import render, value_formats
from penstock_cli.commands.jobs import Printer
from penstock_cli.invocation import Failure
from penstock_cli.value_formats import span

MODULES = (
    "cli",
    "cli.doctor",
    "cli.output",
    "cli.render",
    "cli.times",
    "cli.typed",
    "specfile",
    "submission",
    "supervisor",
)


def test_a_table_is_cut_at_the_terminals_edge_and_only_there() -> None:
    lines = render.table(("ID", "REASON"), [("a", "a very long reason")], width=12)
    assert lines == ["ID  REASON", "a   a very …"]
    assert render.table(("ID", "REASON"), [("a", "a very long reason")])[1].endswith("long reason")


def test_a_cell_never_breaks_its_line() -> None:
    assert render.table(("A", "B"), [("x\ny", "")]) == ["A    B", "x y  -"]


def test_a_name_gives_way_before_the_last_column() -> None:
    row = ("a", "a-very-long-name", "vm/fast0")
    assert render.table(("ID", "NAME", "NODES"), [row], width=24)[1] == "a   a-very-lo…  vm/fast0"
    assert render.table(("ID", "NAME", "NODES"), [row], width=14)[1] == "a   a-very-… …"


def test_sentences_are_broken_between_words_in_their_column() -> None:
    lines = render.table(("AFTER", "WHAT"), [("+1.0s", "waits until the first of both is free")], width=30, wrap=True)
    assert lines == ["AFTER  WHAT", "+1.0s  waits until the first", "       of both is free"]


def test_only_numbers_and_spans_are_set_to_the_right() -> None:
    rows = [("3aaa", "1m05s", "16GiB", "2026-01-02 10:00:00", "8/8"), ("b", "0.4s", "-", "-", "10/12")]
    assert render.table(("ID", "WAIT", "MEMORY", "TIME", "DONE"), rows) == [
        "ID     WAIT  MEMORY  TIME                  DONE",
        "3aaa  1m05s   16GiB  2026-01-02 10:00:00    8/8",
        "b      0.4s       -  -                    10/12",
    ]


def test_only_the_state_is_painted() -> None:
    plain = render.table(("ID", "ST"), [("a", "R")])
    painted = render.table(("ID", "ST"), [("a", "R")], colour=True)
    assert painted[0] == plain[0]
    assert painted[1] == "a   \x1b[32mR\x1b[0m"


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=5))
def test_a_table_has_a_line_for_each_row_and_the_header(rows: list[tuple[str, str]]) -> None:
    lines = render.table(("A", "B"), rows)
    assert len(lines) == len(rows) + 1
    assert all("\n" not in line for line in lines)


@given(st.floats(min_value=0, max_value=1e8))
def test_a_span_is_short(seconds: float) -> None:
    assert len(span(seconds)) <= 8


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=12)), max_size=20))
def test_a_gangs_lines_are_whole_and_nothing_is_lost(pieces: list[tuple[int, bytes]]) -> None:
    printer = Printer(ranks=True)
    shown = b"".join(printer.feed((rank, "stdout"), data) for rank, data in pieces) + printer.rest()
    for rank in range(4):
        written = b"".join(data for r, data in pieces if r == rank)
        mine = [line[4:] for line in shown.split(b"\n") if line.startswith(b"[%d] " % rank)]
        assert b"\n".join(mine) == written.removesuffix(b"\n")


@pytest.mark.parametrize("text", ["", "x", "8XB", "-1G", "1e3"])
def test_an_amount_of_memory_is_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(Failure, match="no amount of memory"):
        value_formats.size(text)


@pytest.mark.parametrize("text", ["", "a", "2-1", "1,1", "0-10000", "1-"])
def test_array_indices_rise_and_are_few(text: str) -> None:
    with pytest.raises(Failure, match="--array"):
        value_formats.array(text)
