"""Job and sweep files: what is read, and what people are told about bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_cli import spec_file
from penstock_cli.spec_file import SpecError
from penstock_log.spec import job_schema, sweep_schema

TOML = """\
# a job
[job]
name = "mnist"
command = ["python", "train.py"]
gpus = 2
kinds = ["fast"]

[job.params]
lr = 0.1
"""
YAML = """\
name: mnist
command: [python, train.py]
gpus: 2
kinds: [fast]
params: {lr: 0.1}
"""
JSON = '{"name": "mnist", "command": ["python", "train.py"], "gpus": 2, "kinds": ["fast"], "params": {"lr": 0.1}}'

SWEEP = """\
name = "search"
metric = "accuracy"
trials = 8

[job]
name = "trial"
command = ["python", "train.py"]
cwd = "code"

[space.lr]
kind = "uniform"
low = 0.001
high = 0.1
log = true
"""


def write(folder: Path, name: str, text: str) -> spec_file.SpecSource:
    path = folder / name
    path.write_text(text, newline="")
    return spec_file.read(str(path), lambda _: "")


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.json", JSON)])
def test_a_file_whose_lines_end_as_on_windows_says_the_same(tmp_path: Path, name: str, text: str) -> None:
    same = spec_file.job(write(tmp_path, name, text))
    assert spec_file.job(write(tmp_path, name, text.replace("\n", "\r\n"))) == same


def message(folder: Path, name: str, text: str, **overrides: object) -> str:
    with pytest.raises(SpecError) as caught:
        spec_file.job(write(folder, name, text), overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_the_three_formats_say_the_same(tmp_path: Path) -> None:
    jobs = {
        spec_file.job(write(tmp_path, name, text)).params["lr"]: name
        for name, text in (("a.toml", TOML), ("a.yaml", YAML), ("a.json", JSON))
    }
    assert len(jobs) == 1
    first, *others = [
        spec_file.job(write(tmp_path, n, t)) for n, t in (("a.toml", TOML), ("a.yml", YAML), ("a.json", JSON))
    ]
    assert all(other == first for other in others)
    assert (first.gpus, first.kinds, first.command) == (2, ("fast",), ("python", "train.py"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'name = "a"\ncommand = ["x"]\nmemory = { local = "2GiB", spill = "16GiB" }'),
        ("b.toml", 'name = "a"\ncommand = ["x"]\n[memory]\nlocal = "2GiB"\nspill = 17179869184'),
        ("a.yaml", "name: a\ncommand: [x]\nmemory: {local: 2GiB, spill: 16GiB}"),
        ("a.json", '{"name": "a", "command": ["x"], "memory": {"local": "2GiB", "spill": "16GiB"}}'),
    ],
)
def test_each_format_says_what_a_job_borrows(tmp_path: Path, name: str, text: str) -> None:
    spec = spec_file.job(write(tmp_path, name, text))
    assert (spec.local_memory_bytes, spec.spill_bytes, spec.memory) == (2 << 30, 16 << 30, None)


def test_a_bad_amount_is_named_with_its_line_and_what_is_typed_wins_over_the_file(tmp_path: Path) -> None:
    text = 'name = "a"\ncommand = ["x"]\nmemory = { local = "2GiB", spill = "16 GiBs" }'
    assert message(tmp_path, "a.toml", text).startswith("a.toml:3: memory.spill: '16 GiBs' is no amount of memory")
    source = write(tmp_path, "b.toml", text.replace("GiBs", "GiB"))
    assert spec_file.job(source, {"spill_bytes": 5}).spill_bytes == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'name = "a"\ncommand = ["x"]\naggregation = { mode = "own", servers = 2 }'),
        ("b.toml", 'name = "a"\ncommand = ["x"]\naggregation = "own"\nservers = 2'),
        ("a.yaml", "name: a\ncommand: [x]\naggregation: {mode: own, servers: 2}"),
        ("a.json", '{"name": "a", "command": ["x"], "aggregation": {"mode": "own"}, "servers": 2}'),
    ],
)
def test_each_format_says_how_a_job_aggregates(tmp_path: Path, name: str, text: str) -> None:
    spec = spec_file.job(write(tmp_path, name, text))
    assert (spec.aggregation, spec.servers) == ("own", 2)
    assert spec_file.job(write(tmp_path, name, text), {"servers": 3}).servers == 3


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ('{ mode = "mine" }', 'aggregation.mode: expected "shared", "own" or "none", got "mine"'),
        ("{ servers = 0 }", "aggregation.servers: expected a whole number from 1 to 64, got 0"),
        ("{ server = 2 }", "aggregation.server: unknown field; did you mean `servers`?"),
        ('"mine"', "aggregation"),
        ("{ servers = 2 }\nservers = 3", "servers: 3 stands beside aggregation.servers; leave one out"),
    ],
)
def test_what_aggregation_cannot_be_is_said(tmp_path: Path, given: str, problem: str) -> None:
    assert problem in message(tmp_path, "a.toml", f'name = "a"\ncommand = ["x"]\naggregation = {given}')


@pytest.mark.parametrize(("text", "format_"), [(TOML, "toml"), (YAML, "yaml"), (JSON, "json"), ('"a" = 1', "toml")])
def test_standard_input_is_recognised_by_its_text(text: str, format_: str) -> None:
    assert spec_file.read("-", lambda _: text).format == format_


def test_flags_win_over_the_file_and_parameters_are_merged(tmp_path: Path) -> None:
    job = spec_file.job(write(tmp_path, "a.toml", TOML), {"gpus": 4, "params": {"width": 32}})
    assert job.gpus == 4
    assert job.params == {"lr": 0.1, "width": 32}


def test_a_relative_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    assert spec_file.sweep(write(tmp_path, "s.toml", SWEEP)).job.cwd == str(tmp_path / "code")


def test_a_sweeps_own_job_table_is_not_taken_for_a_job_file(tmp_path: Path) -> None:
    sweep = spec_file.sweep(write(tmp_path, "s.toml", SWEEP), {"trials": 2})
    assert (sweep.name, sweep.trials, sweep.job.name) == ("search", 2, "trial")


def test_a_sweeps_job_has_the_sweeps_name_where_it_has_none_of_its_own(tmp_path: Path) -> None:
    nameless = SWEEP.replace('name = "trial"', "")
    assert nameless != SWEEP
    source = write(tmp_path, "s.toml", nameless)
    assert spec_file.sweep(source).job.name == "search"
    assert spec_file.sweep(source, {"name": "other"}).job.name == "other"
    assert "name" not in sweep_schema()["$defs"]["JobSpec"]["required"]
    assert "name" in job_schema()["required"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", TOML.replace("gpus", "gpu"), "a.toml:5: gpu: unknown field; did you mean `gpus`?"),
        (
            "a.toml",
            TOML.replace("gpus = 2", "gpus = 0"),
            "a.toml:5: gpus: expected a whole number from 1 to 65536, got 0",
        ),
        ("a.yaml", YAML.replace("2", "-1"), "a.yaml:3: gpus: expected a whole number from 1 to 65536, got -1"),
        (
            "a.yaml",
            YAML.replace("2", "two"),
            'a.yaml:3: gpus: expected a whole number from 1 to 65536, or a range such as "1..8", got "two"',
        ),
        ("a.json", JSON.replace("2", "2.5"), "a.json:1: gpus: expected a whole number from 1 to 65536, got 2.5"),
        ("a.toml", "name = 'a'\n", "a.toml: command: missing; it is required"),
        ("a.toml", "name = 'a'\ncommand = 'ls'\n", 'a.toml:2: command: expected an array, got "ls"'),
        ("a.toml", "name = 'a'\ngpus = \n", "a.toml:2 is not valid TOML: Invalid value"),
        ("a.json", '{"name": "a",\n "gpus" 2}', "a.json:2 is not valid JSON: Expecting ':' delimiter at column 9"),
        ("a.yaml", "name: a\n  gpus: 2\n", "a.yaml:2 is not valid YAML: mapping values are not allowed"),
        ("a.yaml", "- a\n", "a.yaml holds a list; expected a table of fields such as name and command"),
        ("a.yaml", "", "a.yaml holds nothing; expected a table of fields such as name and command"),
        ("a.toml", "x = 1\n" + TOML, "a.toml:1: 'x' stands beside [job]; put all fields under [job] or none"),
        ("a.json", '{"gpus": NaN}', "a.json is not valid JSON: NaN is not a JSON number"),
    ],
)
def test_a_bad_file_is_named_with_line_field_and_what_was_expected(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    assert message(tmp_path, name, text) == expected


def test_what_the_flags_said_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    assert message(tmp_path, "a.toml", TOML, pool="no way").startswith("pool (given on the command line): expected")


def test_a_file_that_is_not_there_or_not_text_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml cannot be read \(No such file"):
        spec_file.read(str(tmp_path / "none.toml"), lambda _: "")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        spec_file.read(str(tmp_path / "a.json"), lambda _: "")


def test_a_script_in_place_of_a_file_is_told_about_the_dashes(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(SpecError, match=r"penstock submit -- python \S*/train\.py"):
        spec_file.read(str(tmp_path / "train.py"), lambda _: "")
    with pytest.raises(SpecError, match=r"there is no file sweep\.tml"):
        spec_file.read("sweep.tml", lambda _: "")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml"])
def test_a_file_that_is_nested_too_deeply_is_told_so(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"job{suffix}"
    path.write_text(("a = " if suffix == ".toml" else "") + "[" * 100_000)
    with pytest.raises(SpecError, match=r"it is nested more than 100 levels deep"):
        spec_file.job(spec_file.read(str(path), str))
