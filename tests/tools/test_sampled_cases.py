"""What `make test` leaves out of sweeps is run by `make thorough`, and CI runs both."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

import sweeps

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("compose", "helm", "bench", "faults", "browser")
MARKS = (*ELSEWHERE, "thorough", "hypothesis")


def chosen_by(target: str) -> Expression:
    """Return by which expression of marks a target of the Makefile chooses tests."""
    makefile = (ROOT / "Makefile").read_text()
    (here,) = re.findall(r"^HERE := (.*)$", makefile, re.MULTILINE)
    (chosen,) = re.findall(rf'^{target}:.*\n.*\$\(PYTEST\).* -m "(.*?)"', makefile, re.MULTILINE)
    return Expression.compile(chosen.replace("$(HERE)", f"({here})"))


def test_each_test_that_needs_no_target_of_its_own_is_chosen_by_test_or_thorough() -> None:
    test, thorough = chosen_by("test"), chosen_by("thorough")
    for given in product((False, True), repeat=len(MARKS)):
        marks = dict(zip(MARKS, given, strict=True))

        def has(name: str, /, marks: dict[str, bool] = marks, **_: object) -> bool:
            return marks[name]

        elsewhere = any(marks[name] for name in ELSEWHERE)
        assert (test.evaluate(has) or thorough.evaluate(has)) is not elsewhere, marks


def test_a_property_is_tried_with_all_of_its_examples_by_thorough() -> None:
    assert chosen_by("thorough").evaluate(lambda name, /, **_: name == "hypothesis")


def test_ci_runs_what_check_leaves_out() -> None:
    ci = (ROOT / ".ci/run").read_text().splitlines()
    assert ci.index("make check") < ci.index("make thorough")


def test_a_sample_is_the_first_of_every_so_many_cases_and_the_others_are_marked() -> None:
    found = sweeps.sampled(["a", ("b", 1), pytest.param("c", id="see", marks=pytest.mark.slow), "d"], every=3)
    assert [found[0], found[3]] == ["a", "d"]
    assert [(case.values, case.id, [mark.name for mark in case.marks]) for case in found[1:3]] == [
        (("b", 1), None, ["thorough"]),
        (("c",), "see", ["slow", "thorough"]),
    ]


@pytest.mark.parametrize(("thorough", "expected"), [(False, [3, 8, 10, 50]), (True, [3, 12, 40, 200])])
def test_a_quarter_of_the_examples_are_tried_and_some_always(
    monkeypatch: pytest.MonkeyPatch, thorough: bool, expected: list[int]
) -> None:
    monkeypatch.setattr(sweeps, "THOROUGH", thorough)
    assert [sweeps.examples(number) for number in (3, 12, 40, 200)] == expected
