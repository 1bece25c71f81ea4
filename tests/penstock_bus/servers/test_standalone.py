"""The server by itself, as containers start it: what it refuses, and what it makes of keys that are given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_bus.made_keys import FolderSecrets, Names, make_all

NAMES = Names(keys="keys", logins="login-", url="tls://p:4222", authority=None)
THREE = "a:6222,b:6222,c:6222"


def started(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start it with words that it refuses."""
    command = [sys.executable, "-m", "penstock_bus.standalone", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_all(FolderSecrets(tmp_path / "made"), NAMES, 1.0)
    return tmp_path / "made" / "keys"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--credentials says where logins are to be written; without it, --keys has to give the keys"),
        (["--credentials=c", "--tls-cert=x"], "--tls-cert and --tls-key belong together"),
        (["--credentials=c", "--plain", "--tls-cert=x", "--tls-key=y"], "--plain is without TLS"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = started(f"--data={tmp_path}", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--members=a:6222,b:6222"], "--members names 2 servers, and --member is 1; expected one or three"),
        ([f"--members={THREE}", "--member=4"], "and --member is 4; expected one or three, and a number of one of them"),
        (["--tls-cert=/nowhere/x", "--tls-key=/nowhere/y"], "there is no /nowhere/x"),
    ],
)
def test_members_and_certificates_that_cannot_be_are_refused(
    words: list[str], said: str, tmp_path: Path, keys: Path
) -> None:
    done = started(f"--data={tmp_path / 'data'}", f"--keys={keys}", *words)
    assert done.returncode == 1
    assert said in done.stderr


def test_one_server_does_not_start_on_the_log_of_three(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "data" / "nats" / "jetstream" / "A" / "_js_" / "_meta_").mkdir(parents=True)
    done = started(f"--data={tmp_path / 'data'}", f"--keys={keys}", "--members=a:6222")
    assert done.returncode == 1
    assert "the log here is kept by 3 servers, and one alone would not see it" in done.stderr


def test_a_setting_that_is_none_is_named(tmp_path: Path, keys: Path) -> None:
    done = started(f"--data={tmp_path}", f"--keys={keys}", PENSTOCK_EXTENSIONS_NAMES="No-Name")
    assert done.returncode == 78
    assert "'No-Name' names no extension" in done.stderr
