"""Secrets on a real cluster: the job has the value, and nothing that is kept has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from clusters import Cluster

VALUE = "never-in-the-log-5f1c"
SCRIPT = """
import os, pathlib
path = pathlib.Path(os.environ["NETRC"])
value = os.environ["WANDB_API_KEY"]
assert value == path.read_text().strip()
assert path.stat().st_mode & 0o777 == 0o400
assert value.encode() not in pathlib.Path("/proc/self/cmdline").read_bytes()
parent = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
assert value.encode() not in parent
print("length", len(value))
"""


def test_a_job_has_its_secrets_and_the_log_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".config/penstock/secrets").mkdir(parents=True)
    secret = home / ".config/penstock/secrets/wandb"
    secret.write_text(f"{VALUE}\n")
    secret.chmod(0o600)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("HOME", str(home))
    cluster = Cluster(tmp_path / "data", "--devices", "fast:1")
    cluster.up()
    try:
        named = ["--secret", "WANDB_API_KEY=wandb", "--secret-file", "NETRC=wandb"]
        python = ["python", str(tmp_path / "train.py")]
        done = cluster.run("run", "--id", "good", *named, "--", *python)
        assert f"length {len(VALUE)}" in done.stdout
        shown = cluster.run("show", "good").stdout
        assert "WANDB_API_KEY (by secret wandb), NETRC (a file, by secret wandb)" in " ".join(shown.split())

        missing = cluster.tried("run", "--id", "bad", "--secret", "nosuch", "--", *python)
        assert missing.returncode != 0
        reason = " ".join(cluster.run("show", "bad").stdout.split())
        assert "secret 'nosuch' was not found for user" in reason
        assert "~/.config/penstock/secrets/nosuch" in reason

        warned = cluster.run("submit", "--env", "WANDB_API_KEY=abc", "--", "true")
        assert "the value of WANDB_API_KEY in `env` will stay in the log" in " ".join(warned.stderr.split())
        refused = cluster.tried("submit", "-e", "A=1", "--secret", "A=wandb", "--", "true")
        assert refused.returncode == 2
        assert "has a value already, by `env`" in " ".join(refused.stderr.split())
    finally:
        cluster.down()
    assert not [path for path in _files(cluster.data) if VALUE.encode() in path.read_bytes()]


def _files(folder: Path) -> list[Path]:
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names if Path(at, name).is_file()]
