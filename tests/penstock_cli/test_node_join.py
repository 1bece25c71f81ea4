"""How a machine is given its token, and what it keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_bus.identity.claims import SigningKey
from penstock_bus.identity.logins import Login, write_login
from penstock_bus.service_folder import alone_in
from penstock_bus.shell import EX_UNAVAILABLE
from penstock_cli.node_join import VARIABLE, parsed, written

Run = Callable[..., tuple[int, str, str]]
TOKEN = written(Login(url="nats://127.0.0.1:9", user="join", user_jwt="a.e30.c"))
SPOILT = TOKEN[:-8]


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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--devices", "banana"), "--devices: 'banana' at column 1 is no group of devices; expected kind:count"),
        (("--name", "a b"), "--name 'a b' is no name of a node; expected at most 63 letters, digits, - and _"),
    ],
)
def test_what_a_node_is_to_be_is_checked_before_the_token_is_used(
    penstock: Run, tmp_path: Path, flags: tuple[str, str], said: str
) -> None:
    code, _, err = penstock("node", "join", TOKEN, "--data", str(tmp_path / "node"), *flags)
    assert (code, said in err) == (2, True)
    assert not (tmp_path / "node").exists()


def test_the_folder_of_a_running_node_is_joined_with_and_started_by_no_other(penstock: Run, tmp_path: Path) -> None:
    write_login(tmp_path / "executor.json", Login(url="nats://127.0.0.1:9", user="executor", user_jwt="a.e30.c"))
    (tmp_path / "node.json").write_text('{"node_id": "n2", "devices": "cpu"}')

    def there() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with alone_in(str(tmp_path / "executor"), "executor", OSError):
        before = there()
        for command in (("join", TOKEN, "--name", "n9"), ("start",)):
            code, _, err = penstock("node", *command, "--data", str(tmp_path))
            assert code == 5
            assert f"node n2 runs in {tmp_path}: stop it first, or name another folder with --data" in err
        assert there() == before


def test_a_node_whose_devices_are_none_is_not_started(penstock: Run, tmp_path: Path) -> None:
    write_login(tmp_path / "executor.json", Login(url="nats://127.0.0.1:9", user="executor", user_jwt="a.e30.c"))
    (tmp_path / "node.json").write_text('{"node_id": "n2", "devices": "banana"}')
    code, _, err = penstock("node", "start", "--data", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "--devices: 'banana' at column 1 is no group of devices" in err


def started(folder: Path, *flags: str, node: str) -> str:
    """Start a node whose server is gone, with the executor's login alone; return what it says until it gives up."""
    key = SigningKey.derived("user", bytes(32), "machine")
    write_login(
        folder / "executor.json",
        Login(url="nats://127.0.0.1:9", user="executor", user_jwt="a.e30.c", user_seed=key.seed),
    )
    (folder / "node.json").write_text(node)
    command = [
        sys.executable,
        "-c",
        "import penstock_cli; penstock_cli.main()",
        "node",
        "start",
        "--data",
        str(folder),
        *flags,
    ]
    env = {**os.environ, "PENSTOCK_CONNECT_S": "0.1", "PENSTOCK_EXECUTOR_DEVICES": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == EX_UNAVAILABLE, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_machine_that_joined_before_memory_agents_starts_and_is_told_how_it_gets_one(tmp_path: Path) -> None:
    told = started(tmp_path, node='{"node_id": "n2", "devices": ""}')
    assert "this node runs without a memory agent: it joined before there were any" in told
    assert f"join again with a new token of `penstock node token`, and --data {tmp_path}" in told
    assert "bus_unreachable" in told  # which the executor says


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "memory"), [((), "false"), (("--no-memory",), "true")])
def test_a_machine_that_wants_no_memory_agent_is_told_nothing(
    tmp_path: Path, flags: tuple[str, ...], memory: str
) -> None:
    assert "memory agent" not in started(tmp_path, *flags, node=f'{{"node_id": "n2", "memory": {memory}}}')
