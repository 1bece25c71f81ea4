"""TOML, YAML and JSON that somebody wrote to do harm: refused by a sentence, soon, and in little memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from penstock_cli import spec_file
from penstock_cli.plain_values import Format, Malformed, parse_text

NINE = [chr(97 + i) for i in range(13)]
LAUGHS = "a: &a [l,l,l,l,l,l,l,l,l]\n" + "\n".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in pairwise(NINE)
)
MERGES = "a: &a {x1: 1, x2: 2}\n" + "\n".join(
    f"{name}: &{name}\n  <<: [{','.join([f'*{before}'] * 9)}]" for before, name in pairwise(NINE)
)
ATTACKS: list[tuple[Format, str, str]] = [
    ("json", '{"a":' + "[" * 500_000, "nested more than 100 levels"),
    ("json", '{"a":' * 900 + "1" + "}" * 900, "nested more than 100 levels"),
    ("toml", "a = " + "[" * 500_000, "nested more than 100 levels"),
    ("yaml", "a: " + "[" * 500_000, "nested more than 100 levels"),
    ("yaml", "\n".join(" " * i + "a:" for i in range(1_200)), "nested more than 100 levels"),
    ("toml", "a." * 300_000 + "a = 1", "a name has more than 100 parts"),
    ("toml", "a = 1\nb = {" + "'x' . " * 100_000 + "a = 1}", "a name has more than 100 parts"),
    ("json", '{"gpus": ' + "1" * 500_000 + "}", "a whole number has 500000 digits"),
    ("toml", "gpus = " + "1" * 500_000, "a whole number has more than 400 digits"),
    ("yaml", "gpus: " + "1" * 500_000, "a whole number has more than 400 digits"),
    ("json", '{"gpus": 1, "gpus": 2}', "'gpus' stands twice in one table"),
    ("json", '{"job": {"a": {}, "a": {}}}', "'a' stands twice in one table"),
    ("yaml", "gpus: 1\ngpus: 2", "'gpus' stands twice in one table"),
    ("yaml", "job: {a: 1, a: 2}", "'a' stands twice in one table"),
    ("toml", "gpus = 1\ngpus = 2", "Cannot overwrite a value"),
    ("json", '{"lr": NaN}', "NaN is not a JSON number"),
    ("yaml", LAUGHS, "more than 100,000 values"),
    ("yaml", MERGES, "more than 100,000 values"),
    ("yaml", "a: [" + ",".join("x" * 200_000) + "]", "more than 100,000 values"),
    ("yaml", "a: &a [*a]", "the alias *a stands within what it names"),
    ("yaml", "&a\nb: {c: *a}", "the alias *a stands within what it names"),
    ("yaml", '!!python/object/apply:os.system ["id"]', "could not determine a constructor"),
    ("yaml", "a: !!bool x", "not what its tag says"),
    ("yaml", "a: !!timestamp x", "not what its tag says"),
    ("yaml", "a: !!int x", "not what its tag says"),
    ("yaml", "a: 2024-99-99", "month must be in 1..12"),
    ("toml", "a = 2024-99-99", "Expected newline"),
    ("yaml", "? [a]\n: 1", "unhashable key"),
]


@pytest.mark.parametrize(("format_", "text", "why"), ATTACKS, ids=[f"{a[0]}-{a[2][:30]}" for a in ATTACKS])
def test_text_that_is_meant_to_do_harm_is_refused_by_a_sentence(format_: Format, text: str, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_text(text, format_)
    assert why in refused.value.why
    assert len(refused.value.why) < 200


@pytest.mark.parametrize("format_", ["toml", "yaml", "json"])
def test_nesting_of_a_hundred_levels_is_read(format_: Format) -> None:
    inner: object = 1
    for _ in range(98):
        inner = [inner]
    text = {"toml": "a = ", "yaml": "a: ", "json": '{"a": '}[format_] + "[" * 98 + "1" + "]" * 98
    assert parse_text(text + ("}" if format_ == "json" else ""), format_) == {"a": inner}


def test_aliases_and_merges_of_yaml_are_read_as_ever() -> None:
    text = "base: &b {gpus: 1, name: a}\njob: {<<: *b, name: c}\nboth: {<<: [*b, *b]}\nlist: &l [1, 2]\nagain: [*l, *l]"
    assert parse_text(text, "yaml") == {
        "base": {"gpus": 1, "name": "a"},
        "job": {"gpus": 1, "name": "c"},
        "both": {"gpus": 1, "name": "a"},
        "list": [1, 2],
        "again": [[1, 2], [1, 2]],
    }


def test_versions_and_addresses_are_no_long_names() -> None:
    assert parse_text('a = "' + "1." * 60 + '"\nb."c.d".e = 1', "toml") == {"a": "1." * 60, "b": {"c.d": {"e": 1}}}


SCRIPT = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {1 << 30}))
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_plain_values import ATTACKS, Malformed, parse_text
for format_, text, _ in ATTACKS:
    try:
        parse_text(text, format_)
    except Malformed:
        print("refused")
"""


def test_nothing_of_it_takes_more_than_a_gibibyte_of_address_space() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["refused"] * len(ATTACKS), "")
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != 1 << 30


@pytest.mark.parametrize("suffix", ["toml", "yaml", "json"])
def test_a_file_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"job.{suffix}"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(spec_file.SpecError, match="is larger than 1,048,576 bytes; a job is a few lines"):
        spec_file.read(str(path), lambda _: "")


def test_standard_input_is_not_read_to_its_end() -> None:
    asked = []

    def endless(most: int) -> str:
        asked.append(most)
        return "x" * most

    with pytest.raises(spec_file.SpecError, match="<stdin> is larger than"):
        spec_file.read("-", endless)
    assert asked == [spec_file.MOST_BYTES + 1]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "job.toml").symlink_to("/dev/zero")
    with pytest.raises(spec_file.SpecError, match="is no regular file"):
        spec_file.read(str(tmp_path / "job.toml"), lambda _: "")


def test_a_problem_of_a_deep_value_is_told_without_a_line() -> None:
    source = spec_file.SpecSource(name="a.json", text="[" * 5_000, format="json", folder=Path())
    assert spec_file.locate(source, ("name",)) is None
