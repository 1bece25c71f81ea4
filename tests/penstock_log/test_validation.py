from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import JobSpec, SweepSpec, request_bodies, validation
from penstock_log.validation import MOST_PROBLEMS, BadInput, convert, decode, parse

GOOD: dict[str, Any] = {"name": "a", "command": ["x"]}
SWEEP: dict[str, Any] = {"name": "s", "job": GOOD, "metric": "m", "space": {"lr": {"kind": "choice", "values": [1]}}}


def message(raw: Any, type_: type = JobSpec) -> str:
    with pytest.raises(BadInput) as refused:
        decode(raw, type_) if isinstance(raw, bytes) else convert(raw, type_)
    return str(refused.value)


def test_what_is_right_is_decoded_as_msgspec_decodes_it() -> None:
    body = b'{"name": "a", "command": ["x", "y"], "gpus": 2, "backoff_s": 3, "params": {"lr": 0.1, "on": true}}'
    assert decode(body, JobSpec) == msgspec.json.decode(body, type=JobSpec)
    assert convert(SWEEP, SweepSpec) == msgspec.convert(SWEEP, SweepSpec)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"  ", "the body is empty; expected a JSON object"),
        (b'{"name": "a"', "malformed JSON: it ends too early"),
        (b'{"name": "a",\n "command": ["x"],}', "malformed JSON at line 2, column 19: trailing comma in object"),
        (
            b'{"backoff_s": NaN}',
            "malformed JSON at line 1, column 15: invalid character (JSON has no word for NaN; numbers are finite)",
        ),
        (
            b'{"backoff_s": -Infinity}',
            "malformed JSON at line 1, column 16: invalid character "
            "(JSON has no word for Infinity; numbers are finite)",
        ),
        (b'{"backoff_s": 1e999}', "malformed JSON: a number is too large; numbers are finite"),
        (b'{"name": "\xff"}', "the body is not UTF-8 text (invalid start byte in a string)"),
        (b"[" * 100_000, "the JSON is nested too deeply"),
    ],
)
def test_a_body_that_is_no_json_says_where(body: bytes, expected: str) -> None:
    assert message(body) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"gpu": 2}, "$.gpu: unknown field; did you mean `gpus`?"),
        ({"time_limit_s": "12h"}, '$.time_limit_s: expected a finite number from 0 to 1e+09 (seconds), got "12h"'),
        (
            {"time": "x"},
            "$.time: unknown field; it is called `time_limit_s` here, a number of seconds, such as 43200 "
            "(`--time` takes 12h, 90m and 1-00:00:00 too)",
        ),
        ({"zzz": 2}, "$.zzz: unknown field"),
        ({"gpus": 0}, "$.gpus: expected a whole number from 1 to 65536, got 0"),
        ({"gpus": 2.0}, "$.gpus: expected a whole number from 1 to 65536, got 2.0"),
        ({"gpus": True}, "$.gpus: expected a whole number from 1 to 65536, got true"),
        ({"gpus": None}, "$.gpus: expected a whole number from 1 to 65536, got null"),
        ({"retries": 101}, "$.retries: expected a whole number from 0 to 100, got 101"),
        ({"gpus": 10**30}, f"$.gpus: expected a whole number from 1 to 65536, got {10**30}"),
        (
            {"params": {"n": 10**30}},
            f"$.params.n: expected text, a finite number, true or false; whole numbers fit 64 bits, got {10**30}",
        ),
        ({"memory_bytes": 2**53 + 1}, f"$.memory_bytes: expected a whole number from 0 to {2**53}, got {2**53 + 1}"),
        ({"backoff_s": float("nan")}, "$.backoff_s: expected a finite number from 0 to 1e+09, got NaN"),
        ({"params": {"lr": float("inf")}}, "$.params.lr: expected text, a finite number, true or false, got Infinity"),
        ({"params": {"lr": [1]}}, "$.params.lr: expected text, a finite number, true or false, got an array"),
        ({"params": {"a b": None}}, '$.params["a b"]: expected text, a finite number, true or false, got null'),
        ({"name": "a b"}, '$.name: expected 1 to 63 letters, digits, - and _, got "a b"'),
        ({"name": "a\n"}, '$.name: expected 1 to 63 letters, digits, - and _, got "a\\n"'),
        ({"id": "A"}, '$.id: expected 1 to 63 lower-case letters, digits, - and _, got "A"'),
        ({"command": "x y"}, '$.command: expected an array, got "x y"'),
        ({"command": []}, "$.command: expected at least 1 element, got 0"),
        ({"command": ["x", 3]}, "$.command[1]: expected text, got 3"),
        ({"command": ["x\0"]}, "$.command[0]: contains a NUL character; leave it out"),
        ({"env": {"A": 1}}, "$.env.A: expected text, got 1"),
        ({"env": {"A\0": "1"}}, '$.env: expected names that are text without NUL characters, got "A\\u0000"'),
        ({"env": ["A=1"]}, "$.env: expected an object, got an array"),
        ({"profile": "aut"}, '$.profile: expected one of "auto", "off", "on", got "aut"; did you mean `auto`?'),
        ({"hold": "yes"}, '$.hold: expected true or false, got "yes"'),
    ],
)
def test_each_wrong_field_is_named_with_its_path(change: dict[str, Any], expected: str) -> None:
    assert message({**GOOD, **change}) == expected


@pytest.mark.parametrize(
    ("teams", "expected"),
    [
        (["a,b"], '$.teams[0]: expected 1 to 63 letters, digits, - and _, got "a,b"'),
        ("a", '$.teams: expected an array, null, got "a"'),
    ],
)
def test_a_list_that_may_be_left_out_is_checked_item_by_item(teams: Any, expected: str) -> None:
    assert message({"user": "bob", "teams": teams}, request_bodies.UserRequest) == expected


def test_a_missing_field_is_named() -> None:
    assert message({"command": ["x"]}) == "$.name: missing; it is required"


def test_all_problems_are_named_at_once_but_not_endlessly() -> None:
    assert message({"gpu": 1, "gpus": 0}) == (
        "$.gpu: unknown field; did you mean `gpus`?; $.name: missing; it is required; "
        "$.command: missing; it is required; $.gpus: expected a whole number from 1 to 65536, got 0"
    )
    with pytest.raises(BadInput) as refused:
        convert({**GOOD, **{f"x{i}": 1 for i in range(20)}}, JobSpec)
    assert len(refused.value.problems) == MOST_PROBLEMS
    assert refused.value.problems[-1] == "and 16 more"


def test_a_long_value_is_not_repeated_in_full() -> None:
    assert len(message({**GOOD, "name": "a" * 10_000})) < 200


@pytest.mark.parametrize(
    ("dimension", "expected"),
    [
        (3, '$.space.lr: expected an object with `kind`: "choice", "uniform", "int", got 3'),
        ({"low": 1}, '$.space.lr.kind: missing; expected one of "choice", "uniform", "int"'),
        (
            {"kind": "unifrom", "low": 1, "high": 2},
            '$.space.lr.kind: expected one of "choice", "uniform", "int", got "unifrom"; did you mean `uniform`?',
        ),
        ({"kind": ["int"]}, '$.space.lr.kind: expected one of "choice", "uniform", "int", got an array'),
        ({"kind": "int", "low": 0.5, "high": 2}, "$.space.lr.low: expected a whole number, got 0.5"),
        ({"kind": "choice", "values": []}, "$.space.lr.values: expected at least 1 element, got 0"),
        ({"kind": "uniform", "low": 1, "high": 2, "logg": True}, "$.space.lr.logg: unknown field; did you mean `log`?"),
    ],
)
def test_a_dimension_of_a_sweep_is_checked_by_its_kind(dimension: Any, expected: str) -> None:
    assert message({**SWEEP, "space": {"lr": dimension}}, SweepSpec) == expected


def test_the_job_inside_a_sweep_is_checked_too() -> None:
    assert message({**SWEEP, "job": {**GOOD, "gpu": 1}}, SweepSpec) == (
        "$.job.gpu: unknown field; did you mean `gpus`?"
    )


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (3, "$.budget: expected an object, got 3"),
        ({"least": 1}, "$.budget.most: missing; it is required"),
        ({"most": 9, "least": 0}, "$.budget.least: expected a whole number from 1 to 1000000000, got 0"),
        ({"most": 9, "etta": 3}, "$.budget.etta: unknown field; did you mean `eta`?"),
    ],
)
def test_a_part_that_may_be_left_out_is_checked_where_it_is_there(budget: Any, expected: str) -> None:
    assert convert({**SWEEP, "budget": None}, SweepSpec).budget is None
    assert convert({**SWEEP, "budget": {"most": 9}}, SweepSpec).budget is not None
    assert message({**SWEEP, "budget": budget}, SweepSpec) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*JobSpec.__struct_fields__, "gpu"]), json_values))
def test_whatever_is_written_is_either_a_specification_that_the_log_can_hold_or_refused(raw: dict[str, Any]) -> None:
    try:
        spec = convert({**GOOD, **raw}, JobSpec)
    except BadInput:
        return
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=JobSpec) == spec


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_bad_input(body: bytes) -> None:
    with pytest.raises(BadInput):
        decode(body, JobSpec)


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 65_536},
        {"memory_bytes": 2**53},
        {"batch_size": 2**53},
        {"duration_s": 1e9},
        {"params": {"n": 2**63 - 1}},
    ],
)
def test_the_largest_numbers_that_are_accepted_fit_a_snapshot(change: dict[str, Any]) -> None:
    spec = convert({**GOOD, **change}, JobSpec)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"name": "a", "name": "b"}', "`name` stands twice in one object; leave one of them out"),
        (b'{"params": {"a": 1, "b": 2, "a": 3}}', "`a` stands twice in one object; leave one of them out"),
        (b'{"' + b"n" * 300 + b'": 1, "' + b"n" * 300 + b'": 2}', f"`{'n' * 79}…` stands twice in one object"),
    ],
)
def test_a_field_that_stands_twice_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=re.escape(why)):
        parse(body)


def test_of_many_problems_only_a_hundred_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sought: list[str] = []
    monkeypatch.setattr(validation, "nearest", lambda name, _: sought.append(name) or "")
    with pytest.raises(BadInput) as refused:
        convert({f"k{number}": 1 for number in range(20_000)}, JobSpec)
    assert refused.value.problems[-1] == "and more than 96 more"
    assert len(sought) == 100


def test_a_long_name_is_shortened_where_it_is_wrong() -> None:
    with pytest.raises(BadInput) as refused:
        convert({"n" * 200_000: 1}, JobSpec)
    assert len(str(refused.value)) < 300
