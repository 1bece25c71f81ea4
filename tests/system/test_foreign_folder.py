"""Penstock started in a folder whose files have the names of modules, as anybody's folder may."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import Cluster, until

FOREIGN = """
import os
with open(os.path.join(os.path.dirname(__file__), "imported"), "a") as said:
    print(__name__, file=said)
raise ImportError("of the folder")
"""
NAMES = {*sys.stdlib_module_names, "msgspec", "numpy", "penstock_bus", "penstock_executor", "scipy", "structlog"}


@pytest.mark.thorough
async def test_no_service_imports_from_where_it_was_started_and_a_script_does_from_its_own(tmp_path: Path) -> None:
    cluster, folder = Cluster(tmp_path / "data"), tmp_path / "folder"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(FOREIGN)
    own = tmp_path / "own"
    own.mkdir()
    (own / "beside.py").write_text("import os\nprint('beside', os.environ.get('PYTHONSAFEPATH'))\n")
    (own / "train.py").write_text("import beside\n")

    def ran(*words: str, cwd: Path = folder) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "NO_COLOR": "1"}
        if (cluster.data / "penstock.json").exists():
            env["PENSTOCK_URL"] = cluster.url
        command = [sys.executable, "-P", "-m", "penstock", *words]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    try:
        ran("up", "--detach", "--data", str(cluster.data), "--port", "-1", "--emulate", "fast:8")
        job = ran("submit", "--profile", "off", "--", "sleep", "600", cwd=tmp_path).stdout.strip()
        async with cluster.client() as client:
            await until(client, job, "run.started.v1")
        ran("exec", "-t", job, "--", "true")
        job = ran("submit", "--profile", "off", "--wait", "--", sys.executable, "train.py", cwd=own).stdout.split()[0]
        assert "beside None" in ran("logs", job).stdout
        assert not (folder / "imported").exists(), (folder / "imported").read_text()
    finally:
        cluster.kill_all()
