"""Secrets of jobs on their node: which file or variable has them, and who may have them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from penstock_executor import run_credentials
from penstock_executor.run_credentials import (
    OWN_FOLDER,
    CredentialLookups,
    NodeSecrets,
    SecretRefused,
    SecretValues,
    SharedSecret,
)
from penstock_executor.run_identity import IdentityRule, RunIdentity
from penstock_executor.settings import ExecutorSettings
from penstock_log import JobSpec

ME = RunIdentity(name="alice", uid=os.geteuid(), gid=os.getegid())
VALUE = "s3cr3t-v4lue"


def job(**fields: object) -> JobSpec:
    given = {"name": "j", "command": ("true",), "user": "alice", "team": "vision", "secrets": {"KEY": "wandb"}}
    return msgspec.convert({**given, **fields}, JobSpec)


def write(path: Path, content: str = f"{VALUE}\n", mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def own(home: Path) -> Path:
    return home / OWN_FOLDER / "wandb"


def values(tmp_path: Path, spec: JobSpec | None = None, **fields: object) -> dict[str, str]:
    return NodeSecrets("n1", **fields).values(spec or job(), ME, str(tmp_path)).variables


def test_a_users_own_file_comes_before_what_is_shared(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    write(folder / "teams/vision/wandb", "team")
    shared = {"folder": str(folder), "shared": {"wandb": SharedSecret(env="W")}, "environ": {"W": "env"}}
    assert values(tmp_path, **shared) == {"KEY": "team"}
    write(folder / "users/alice/wandb", "users")
    assert values(tmp_path, **shared) == {"KEY": "users"}
    write(own(tmp_path))
    assert values(tmp_path, **shared) == {"KEY": VALUE}
    assert values(tmp_path, job(user="bob", team="nlp"), folder=str(folder)) == {"KEY": VALUE}  # bob runs as alice here


@pytest.mark.parametrize("name", ["../alice", "..", "a/b", "", "a\n"])
def test_no_user_or_team_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "node"
    write(folder / "users/alice/wandb")
    write(folder / "alice/wandb")
    write(folder / "wandb")
    spec = job(user=f"x/{name}", team=name)
    with pytest.raises(SecretRefused, match="was not found"):
        NodeSecrets("n1", str(folder)).values(spec, ME, "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_refused_and_no_other_is_taken(tmp_path: Path, mode: int) -> None:
    path = write(own(tmp_path), mode=mode)
    with pytest.raises(SecretRefused, match=rf"open to others \(mode {mode:04o}\).*chmod 600 {path}") as caught:
        values(tmp_path, shared={"wandb": SharedSecret(env="W")}, environ={"W": "env"})
    assert VALUE not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_link_to_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    target = write(tmp_path / "shadow")
    own(tmp_path).parent.mkdir(parents=True)
    own(tmp_path).symlink_to(target)
    nobody = RunIdentity(name="alice", uid=54_321, gid=54_321, switches=True)
    with pytest.raises(SecretRefused, match=r"belongs to uid 0; expected uid 54321") as caught:
        NodeSecrets("n1").values(job(), nobody, str(tmp_path))
    assert VALUE not in str(caught.value)


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    own(tmp_path).parent.mkdir(parents=True)
    os.mkfifo(own(tmp_path), 0o600)
    with pytest.raises(SecretRefused, match="no regular file"):
        values(tmp_path)


def test_a_file_that_opens_and_does_not_read_is_refused(tmp_path: Path) -> None:
    own(tmp_path).parent.mkdir(parents=True)
    own(tmp_path).symlink_to(f"/proc/{os.getpid()}/mem")
    with pytest.raises(SecretRefused, match=r"'wandb' cannot be read on node n1: .*Input/output error"):
        values(tmp_path)


def test_what_is_no_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, other = os.openpty()
    own(tmp_path).parent.mkdir(parents=True)
    own(tmp_path).symlink_to(os.ttyname(other))
    real, opened = os.open, list[int]()

    def noted(path: str, flags: int, *rest: object, **more: object) -> int:
        opened.append(flags)
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(SecretRefused, match="no regular file"):
        values(tmp_path)
    assert [flags & os.O_PATH for flags in opened] == [os.O_PATH]
    os.close(terminal)
    os.close(other)


async def test_what_nobody_expected_of_credentials_is_a_refused_run(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, found, looks = NodeSecrets("n1"), asyncio.Event(), list[asyncio.Task[None]]()

    def fails(*_: object) -> SecretValues:
        raise RuntimeError(VALUE)

    monkeypatch.setattr(secrets, "values", fails)
    lookups = CredentialLookups(
        IdentityRule(run_as="executor", node_id="n1"),
        lambda look: looks.append(asyncio.create_task(look)),
        lambda _: found.set(),
        secrets,
    )
    assert lookups.take(("j1", 1), job()) is None
    await found.wait()
    await looks[0]
    credentials = lookups.take(("j1", 1), job())
    assert credentials is not None
    assert "could not be looked up on this node: RuntimeError" in str(credentials.account)
    assert VALUE not in str(credentials.account)


def test_a_variable_of_the_executor_goes_to_those_for_whom_it_is_shared(tmp_path: Path) -> None:
    shared = {"wandb": SharedSecret(env="W", users=("bob",), teams=("vision",))}
    how = {"shared": shared, "environ": {"W": VALUE}}
    assert values(tmp_path, **how) == {"KEY": VALUE}
    assert values(tmp_path, job(user="bob", team=""), **how) == {"KEY": VALUE}
    with pytest.raises(SecretRefused, match=r"is there, and is not shared with user 'carol' on node n1"):
        values(tmp_path, job(user="carol", team=""), **how)
    with pytest.raises(SecretRefused, match="the variable W of the executor of node n1, which has none"):
        values(tmp_path, shared=shared, environ={})


def test_a_missing_secret_is_refused_with_what_to_do(tmp_path: Path) -> None:
    expected = r"'wandb' was not found for user 'alice' of team 'vision' on node n1; write it to ~/.config/penstock"
    with pytest.raises(SecretRefused, match=expected):
        values(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"), [("\n", "is empty"), ("a\0b", "zero byte"), ("x" * 200_000, "200000 bytes")]
)
def test_what_no_variable_can_hold_is_refused_and_a_file_takes_it(tmp_path: Path, content: str, why: str) -> None:
    write(own(tmp_path), content)
    with pytest.raises(SecretRefused, match=why):
        values(tmp_path)
    found = NodeSecrets("n1").values(job(secrets={}, secret_files={"F": "wandb"}), ME, str(tmp_path))
    assert found.files == {"F": content.encode()}


def test_files_are_the_accounts_alone_and_nothing_shows_a_value(tmp_path: Path) -> None:
    write(own(tmp_path))
    found = NodeSecrets("n1").values(job(secret_files={"NETRC": "wandb"}), ME, str(tmp_path))
    folder = tmp_path / "run/secrets/j-1"
    found.write_files(folder, ME)
    found.write_files(folder, ME)  # a start that is tried again
    assert (folder / "NETRC").read_text() == f"{VALUE}\n"
    assert [(folder / "NETRC").stat().st_mode & 0o777, folder.stat().st_mode & 0o777] == [0o400, 0o700]
    assert found.environment(folder) == {"KEY": VALUE, "NETRC": str(folder / "NETRC")}
    assert repr(found) == "SecretValues(['KEY', 'NETRC'])"


def test_the_settings_say_who_may_have_a_variable() -> None:
    given = {"secrets_dir": "/etc/s", "secrets": {"wandb": {"env": "W", "teams": ["vision"]}}}
    settings = msgspec.convert(given, ExecutorSettings)
    assert settings.secrets["wandb"] == SharedSecret(env="W", teams=("vision",))


def test_files_of_secrets_go_however_deep_their_owner_has_nested_folders_beside_them(passing: Path) -> None:
    """A job owns the folder of its secrets."""
    at = os.open(passing, os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    run_credentials.remove_files(passing)
    assert not passing.exists()
