"""Charts of metrics on a terminal: scales, gaps, labels, and what cannot be drawn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_cli.metric_chart import chart_lines


def test_a_metric_without_a_value_and_one_with_a_single_point_are_a_sentence() -> None:
    assert chart_lines("loss", [1, 2], [None, None]) == ["loss: no value was reported"]
    assert chart_lines("loss", [], []) == ["loss: no value was reported"]
    assert chart_lines("loss", [7], [0.5]) == ["loss: 0.5 at step 7"]


def test_values_that_are_no_finite_number_are_named_and_leave_a_gap() -> None:
    head, *rows = chart_lines("loss", [1, 2, 3, 4], [1.0, math.nan, math.inf, 2.0], 40, rows=2, is_ascii=True)
    assert head == "loss: 2 at step 4; from 1 to 2; no finite number at 2 rows, first at step 2"
    assert "".join(rows).count("*") == 2
    [only] = chart_lines("loss", [1, 2], [math.nan, -math.inf])
    assert only == "loss: -inf at step 2; no value was a finite number"


def test_values_over_decades_are_drawn_on_a_logarithmic_scale_and_values_below_zero_are_not() -> None:
    assert "(logarithmic scale)" in chart_lines("loss", [1, 2], [100.0, 0.5])[0]
    assert "(logarithmic scale)" not in chart_lines("loss", [1, 2], [10.0, 0.5])[0]
    assert "(logarithmic scale)" not in chart_lines("loss", [1, 2], [100.0, -0.5])[0]
    assert "(logarithmic scale)" not in chart_lines("loss", [1, 2], [100.0, 0.0])[0]


def test_a_constant_metric_has_one_label() -> None:
    _, *rows, _axis = chart_lines("lr", [1, 50], [3.0, 3.0], 60)
    assert [row for row in rows if row.startswith("3")] == [rows[3]]


def test_a_terminal_without_braille_gets_ascii() -> None:
    lines = chart_lines("loss", [*range(50)], [1.0 / (1 + step) for step in range(50)], 60, is_ascii=True)
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("width", [1, 10, 80, 400])
def test_no_line_is_wider_than_the_terminal_where_that_is_wide_enough(width: int) -> None:
    lines = chart_lines("loss", [1, 10**9], [1e-300, 1e300], width)
    assert all(len(line) <= max(width, 30) for line in lines[1:])


@given(
    st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=60),
    st.integers(-5, 200),
    st.integers(2, 12),
    st.booleans(),
)
def test_whatever_was_reported_can_be_drawn(values: list[float | None], width: int, rows: int, is_ascii: bool) -> None:
    lines = chart_lines("m", [*range(1, len(values) + 1)], values, width, rows=rows, is_ascii=is_ascii)
    assert len(lines) in (1, rows + 2)
