"""Warm starts on a real cluster: asked for by a flag, with a script of another folder, with signals and sessions."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from clusters import Cluster

MOST_RUNS = 40
NOT_YET = ("its server is still importing", "all servers of its node are used by other commands")
"""Why a first run begins cold: the jobs of modules before may have left servers in all places."""
SCRIPT = """
import os, sys, statistics
import helper
print(helper.here, sorted(sys.argv[1:]), os.getcwd() == os.path.dirname(os.path.abspath(__file__)))
"""


def line_of(cluster: Cluster, job: str, label: str) -> str:
    """Return what is shown of a job behind a label; empty where nothing is."""
    lines = cluster.run("show", job).stdout.splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{label}:")), "")


def test_a_job_that_names_modules_begins_warm_when_it_comes_again_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("here = 'the first helper'")
    command = ["--preload", "statistics, json", "--cwd", str(tmp_path), "--", sys.executable, "train.py"]
    first = cluster.run("run", "--id", "first", *command, "a").stdout
    assert "the first helper ['a'] True" in first
    why = re.fullmatch(r"no \((.+)\)", line_of(cluster, "first", "warm"))
    assert why is not None
    assert why[1] in NOT_YET
    assert f"(cold: {why[1]})" in cluster.run("story", "first").stdout
    for number in range(MOST_RUNS):
        (tmp_path / "helper.py").write_text(f"here = 'helper {number}'")
        said = cluster.run("run", "--id", f"again{number}", *command, str(number)).stdout
        assert f"helper {number} ['{number}'] True" in said  # what is a user's own is imported anew
        if line_of(cluster, f"again{number}", "warm") == "yes":
            break
    assert "started warm on" in cluster.run("story", f"again{number}").stdout
    detail = json.loads(cluster.run("show", f"again{number}", "-o", "json").stdout)
    assert [run["start"] for run in detail["runs"]] == ["warm"]


def test_what_is_no_module_is_refused_when_it_is_submitted(cluster: Cluster) -> None:
    refused = cluster.tried("submit", "--preload", "torch; import os", "--", "python", "-c", "")
    assert refused.returncode != 0
    assert "preload" in refused.stderr
    assert "torch or torch.optim" in refused.stderr


def test_a_job_that_asks_in_vain_runs_and_is_told_why(cluster: Cluster) -> None:
    cluster.run("run", "--id", "shell", "--preload", "torch", "--", "sh", "-c", "exit 0")
    assert line_of(cluster, "shell", "warm") == "no (its program is not called python)"
