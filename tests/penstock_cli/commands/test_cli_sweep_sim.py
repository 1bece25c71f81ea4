"""`penstock sweep sim`: no cluster, no gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
SWEEP = """
name = "s"
metric = "acc"
search = "halving"
trials = 9
[budget]
param = "steps"
least = 1
most = 9
[job]
name = "t"
command = ["true"]
[space.lr]
kind = "uniform"
low = 0.001
high = 1.0
log = true
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    rows = [f"{10 ** -(i / 4)},{i % 3 + 1},{i / 20},{i / 10}" for i in range(1, 12)]
    (tmp_path / "curves.csv").write_text("\n".join(["lr,unit_s,1,9", *rows]))
    return [str(tmp_path / "sweep.toml"), "--curves", str(tmp_path / "curves.csv"), "--gpus", "4"]


def test_ways_of_filling_are_compared_in_one_table(penstock: Run, files: list[str]) -> None:
    code, out, _ = penstock("sweep", "sim", *files, "--target", "0.5")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:5] == ["FILLING", "one", "fixed", "spread", "water"]
    found = json.loads(penstock("sweep", "sim", *files, "-o", "json", "-f", "water,one")[1])
    assert found.keys() == {"water", "one"}
    assert found["water"]["makespan_s"] < found["one"]["makespan_s"]
    assert found["water"]["runs"] == 13
    other = json.loads(penstock("sweep", "sim", *files, "-o", "json", "-f", "one", "--search", "random")[1])
    assert other["one"]["runs"] == 9


def test_several_seeds_are_compared_seed_by_seed(penstock: Run, files: list[str]) -> None:
    both = ["--policy", "one,water", "--seeds", "3"]
    played = json.loads(penstock("sweep", "sim", *files, *both, "-o", "json")[1])
    assert [len(outcomes) for outcomes in played.values()] == [3, 3]
    third = json.loads(penstock("sweep", "sim", *files, "-f", "one", "--seed", "2", "-o", "json")[1])
    assert played["one"][2] == third["one"]
    ratios = [w["makespan_s"] / o["makespan_s"] - 1 for w, o in zip(played["water"], played["one"], strict=True)]
    head, one, water = (line.split() for line in penstock("sweep", "sim", *files, *both)[1].splitlines())
    assert head[:5] == ["FILLING", "MAKESPAN", "VS", "ONE", "FROM..TO"]
    assert one[2:5] == ["0", "%", "0..0"]
    assert water[2:5] == [f"{100 * sum(ratios) / 3:.0f}", "%", f"{100 * min(ratios):.0f}..{100 * max(ratios):.0f}"]


@pytest.mark.parametrize("flag", [("--sweep", "{}"), ("--sweep={}",)])
def test_sim_with_a_sweep_is_the_same_command(penstock: Run, files: list[str], flag: tuple[str, ...]) -> None:
    file, *options = files
    options += ["-o", "json", "-f", "one,water"]
    asked = ["sim", *options, *(word.format(file) for word in flag)]
    assert penstock(*asked) == penstock("sweep", "sim", file, *options)
    code, _, err = penstock("sim", "--sweep", file)
    assert (code, "--curves" in err) == (2, True)
    assert "--sweep" in penstock("sim", "--help")[1]


def test_each_step_can_be_made_to_take_longer(penstock: Run, files: list[str]) -> None:
    spans = [
        json.loads(penstock("sweep", "sim", *files, "-f", "one", "-o", "json", "--slower", times)[1])["one"][
            "makespan_s"
        ]
        for times in ("1", "10")
    ]
    assert spans[1] == pytest.approx(10 * spans[0])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-f", "wattr"], "--filling: 'wattr' is not known; expected some of one, fixed, spread, water"),
        (["--curves", "gone.csv"], "--curves: "),
        (["--gpus", "0"], "--gpus"),
        (["--beta", "1e10", "--max-gpus", "64"], "--beta"),
        (["--alpha", "9", "--packing", "400"], "--packing"),
    ],
)
def test_what_cannot_be_simulated_is_told(penstock: Run, files: list[str], words: list[str], told: str) -> None:
    code, _, err = penstock("sweep", "sim", *files, *words)
    assert code == 2
    assert told in err


def test_a_bad_space_is_told_with_its_line(penstock: Run, files: list[str], tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("low = 0.001", "low = 2.0"))
    code, _, err = penstock("sweep", "sim", *files)
    assert code == 2
    assert "sweep.toml:13: space.lr: low 2.0 is not below high 1.0; expected low < high" in err
    (tmp_path / "sweep.toml").write_text(SWEEP.replace('"halving"', '"halvin"'))
    assert "sweep.toml:4: search 'halvin' is not known" in penstock("sweep", "sim", *files)[2]
    assert "did you mean `halving`?" in penstock("tune", files[0], "--no-check")[2]
