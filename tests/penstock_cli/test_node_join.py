"""How a machine is given its token, and what it keeps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_bus.logins import Login
from penstock_cli.node_join import VARIABLE, parsed, written

Run = Callable[..., tuple[int, str, str]]
SPOILT = written(Login(url="nats://127.0.0.1:9", user="join", user_jwt="a.e30.c"))[:-8]


def test_a_token_is_its_login_in_one_word() -> None:
    login = Login(url="tls://lab:4222", user="join", user_jwt="a.b.c", ca="PEM", hosts=("10.0.0.7",))
    assert parsed(written(login)) == login
    assert " " not in written(login)


def test_a_token_comes_by_file_by_standard_input_or_by_the_environment(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{SPOILT}\n")
    why = "this is no token"
    assert why in penstock("node", "join", str(tmp_path / "token"), "--data", str(tmp_path / "node"))[2]
    assert why in penstock("node", "join", SPOILT, "--data", str(tmp_path / "node"))[2]
    code, _, err = penstock("node", "join", "--data", str(tmp_path / "node"))
    assert code == 2
    assert f"expected one in {VARIABLE}, or - for standard input, or a file" in err
    monkeypatch.setenv(VARIABLE, SPOILT)
    assert why in penstock("node", "join", "--data", str(tmp_path / "node"))[2]
    assert "neither a token" in penstock("node", "join", str(tmp_path / "none"))[2]
    assert not (tmp_path / "node").exists()


def test_a_token_on_the_command_line_is_overwritten() -> None:
    code = (
        "import sys; from pathlib import Path; from penstock_cli.node_join import hide_argument; "
        "hide_argument(sys.argv[2]); print(Path('/proc/self/cmdline').read_text().split('\\0')[-4:])"
    )
    words = ("--token", "penstock-node-secret", "--data", "x")
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["x" * 20, "--data", "x", ""])


def test_a_machine_that_has_not_joined_is_told_how(penstock: Run, tmp_path: Path) -> None:
    code, _, err = penstock("node", "start", "--data", str(tmp_path))
    assert code == 4
    assert "this machine has not joined with this folder; join with what `penstock node token` prints" in err
