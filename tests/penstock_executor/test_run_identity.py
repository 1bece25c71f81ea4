"""As whom jobs run: each row of the table in ``docs/isolation.md``, by the rule and with real users."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from pathlib import Path
from typing import Any

import pytest
from executor_cases import World
from other_users import ALICE, as_root, let_through

from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_executor import job_folders, run_identity
from penstock_executor.run_credentials import CredentialLookups
from penstock_executor.run_folders import ExecutorError
from penstock_executor.run_identity import IdentityRefused, IdentityRule
from penstock_executor.runner import run
from penstock_executor.settings import ExecutorSettings
from penstock_log import JobSpec
from penstock_testing import eventually

ACCOUNTS = {
    "root": (0, 0),
    "toor": (0, 0),
    "daemon": (1, 1),
    "alice": (54_321, 54_321),
    "svc-alice": (54_322, 54_322),
    "penstock": (999, 999),
}


def account(name: str) -> pwd.struct_passwd:
    """Return what a name service would; one that takes ``ALICE`` for ``alice``, as some do."""
    uid, gid = ACCOUNTS[name.lower()]
    return pwd.struct_passwd((name.lower(), "x", uid, gid, "", f"/home/{name.lower()}", "/bin/sh"))


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", account)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 70_000 + len(name)])


def rule(executor_uid: int = 0, **settings: Any) -> IdentityRule:
    return IdentityRule(node_id="n1", executor_uid=executor_uid, **settings)


def who(rule: IdentityRule, user: str) -> tuple[int, bool]:
    """Return the uid that a user's jobs have, and whether they have to change to it."""
    found = rule.identity(user)
    return found.uid, found.switches


@pytest.mark.parametrize("user", ["alice", "root", "daemon", "nobody-knows", ""])
def test_with_run_as_executor_all_jobs_are_the_executors_own(accounts: None, user: str) -> None:
    assert who(rule(run_as="executor"), user) == (0, False)
    assert who(rule(999, run_as="executor"), user) == (999, False)


def test_an_executor_that_is_root_becomes_the_user_with_all_of_his_groups(accounts: None) -> None:
    found = rule().identity("alice")
    assert (found.uid, found.gid, found.groups, found.switches) == (54_321, 54_321, (54_321, 70_005), True)
    assert found.environment() == {
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/sh",
    }


def test_an_executor_that_is_not_root_runs_its_own_users_jobs_as_it_is(accounts: None) -> None:
    assert who(rule(54_321), "alice") == (54_321, False)
    assert who(rule(999), "penstock") == (999, False)
    assert who(rule(999, users={"alice": "penstock"}), "alice") == (999, False)


def test_the_settings_name_another_account_for_a_user(accounts: None) -> None:
    assert who(rule(users={"alice": "svc-alice"}), "alice") == (54_322, True)
    assert who(rule(users={"carol@example.org": "svc-alice"}), "carol@example.org") == (54_322, True)
    assert who(rule(users={"batch": "daemon"}), "batch") == (1, True)


def test_root_runs_jobs_only_where_that_is_allowed(accounts: None) -> None:
    assert who(rule(allow_root=True), "root") == (0, False)
    assert who(rule(allow_root=True, users={"alice": "root"}), "alice") == (0, False)


@pytest.mark.parametrize(
    ("executor_uid", "settings", "user", "reason"),
    [
        (0, {}, "root", r"user 'root' is root on node n1, and no job runs as root there.*allow_root = true"),
        (0, {}, "toor", r"user 'toor' is root on node n1"),
        (0, {"users": {"alice": "root"}}, "alice", r"'root', the account of user 'alice', is root on node n1"),
        (0, {}, "daemon", r"uid 1 on node n1, an account of the system \(below least_uid = 1000\).*\[executor.users\]"),
        (
            0,
            {},
            "mallory",
            r"there is no account 'mallory' on node n1; make one there, or name the account of 'mallory'",
        ),
        (
            0,
            {"users": {"alice": "gone"}},
            "alice",
            r"there is no account 'gone' \(for user 'alice', by \[executor.users",
        ),
        (0, {}, "", r"the job names no user, and node n1 runs jobs as their users"),
        (0, {}, "ALICE", r"node n1 knows 'ALICE' as 'alice'; two users must not share an account by chance"),
        (0, {}, "a\0b", r"there is no account 'a\\x00b'"),
        (0, {}, "\udcff", r"there is no account"),
        (999, {}, "alice", r"the executor of node n1 runs as .* and is not root, so it runs only that user's jobs"),
        (
            999,
            {"users": {"alice": "svc-alice"}},
            "alice",
            r"is not root, so it runs only that user's jobs, not .*'alice'",
        ),
        (999, {}, "root", r"no job runs as root there"),
    ],
)
def test_refused(accounts: None, executor_uid: int, settings: dict[str, Any], user: str, reason: str) -> None:
    with pytest.raises(IdentityRefused, match=reason):
        rule(executor_uid, **settings).identity(user)


def test_a_uid_that_the_executors_namespace_lacks_is_refused(
    accounts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uid_map = tmp_path / "uid_map"
    uid_map.write_text("         0       1000          1\n         1     100000      65536\n")
    assert run_identity._is_mapped(54_321, str(uid_map))
    assert not run_identity._is_mapped(70_000, str(uid_map))
    monkeypatch.setattr(run_identity, "_is_mapped", lambda _: False)
    with pytest.raises(IdentityRefused, match=r"cannot become uid 54321 of user 'alice'.*user namespace.*subuid"):
        rule().identity("alice")


def job_of(user: str) -> JobSpec:
    return JobSpec(name="j", command=("true",), user=user)


async def test_a_name_service_that_takes_long_keeps_nobody_else_waiting(
    accounts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, found, tasks = threading.Event(), [], set()
    monkeypatch.setattr(pwd, "getpwnam", lambda name: (answers.wait(60), account(name))[1])
    lookups = CredentialLookups(rule(), lambda coroutine: tasks.add(asyncio.create_task(coroutine)), found.append)
    assert lookups.take(("j1", 1), job_of("alice")) is None
    assert lookups.take(("j1", 1), job_of("alice")) is None
    await asyncio.sleep(0)
    assert (len(tasks), found) == (1, [])
    answers.set()
    await eventually(lambda: found == [("j1", 1)])
    known = lookups.take(("j1", 1), job_of("alice"))
    assert known is not None
    assert isinstance(known.account, run_identity.RunIdentity)
    assert known.account.uid == 54_321
    assert lookups.take(("j2", 1), job_of("mallory")) is None  # each run asks anew: accounts come and go
    await eventually(lambda: ("j2", 1) in found)
    refused = lookups.take(("j2", 1), job_of("mallory"))
    assert refused is not None
    assert isinstance(refused.account, IdentityRefused)
    assert lookups.take(("j3", 1), job_of("alice")) is None
    await eventually(lambda: ("j3", 1) in found)
    lookups.tidy(lambda _: False, ())
    assert lookups.take(("j3", 1), job_of("alice")) is None


# --- with real users
SHARED = {"run_as": "user", "users": {"alice": "nobody", "bob": "daemon"}}
"""The accounts that every Debian has, under the names of users."""


def test_a_node_whose_settings_say_nothing_is_safe_to_share() -> None:
    assert ExecutorSettings().run_as == "user"
    assert not ExecutorSettings().allow_root


@as_root
async def test_a_job_runs_as_its_user_by_the_host_s_accounts(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **SHARED)
    nobody = pwd.getpwnam("nobody")
    await world.run("j1", "/bin/sh", "-c", 'id -u; id -g; echo "$HOME $USER"; umask', user="alice", cwd="/")
    assert (await world.ended("j1")).outcome == "completed"
    said = (await world.output("j1")).decode().split("\n")
    assert said[:3] == [str(nobody.pw_uid), str(nobody.pw_gid), f"{nobody.pw_dir} nobody"]


@as_root
@pytest.mark.parametrize(
    ("user", "settings", "reason"),
    [
        ("mallory", {}, "there is no account 'mallory' on node n1"),
        ("root", {}, "user 'root' is root on node n1, and no job runs as root there"),
        ("daemon", {}, "an account of the system"),
        ("", {}, "the job names no user"),
    ],
)
async def test_a_job_whose_user_may_not_run_here_is_given_back_with_why(
    world: World, user: str, settings: dict[str, Any], reason: str
) -> None:
    let_through(world.folder)
    await world.node("n1", **SHARED, **settings)
    await world.run("j1", "/bin/sh", "-c", f"touch {world.folder}/ran", user=user, cwd="/")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.refuses_user) == ("preempted", True)
    assert reason in ended.reason
    assert not (world.folder / "ran").exists()


@as_root
async def test_root_is_a_user_like_any_other_where_that_is_allowed(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **SHARED, allow_root=True)
    await world.run("j1", "/bin/sh", "-c", "id -u", user="root", cwd="/")
    assert (await world.ended("j1")).outcome == "completed"
    assert await world.output("j1") == b"0\n"


@as_root
async def test_a_data_folder_that_users_cannot_come_to_is_refused_at_the_start(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    closed = let_through(tmp_path) / "closed"
    closed.mkdir(mode=0o700)
    settings = ExecutorSettings(node_id="n1", devices="cpu", data_dir=str(closed / "n1"), **SHARED)
    with pytest.raises(
        ExecutorError, match=r"cannot come to data_dir .*/n1: .*/closed is closed to them; .*chmod o\+x"
    ):
        await run(Shell(memory_bus, "executor"), settings)


@as_root
async def test_a_job_whose_folder_is_another_accounts_is_refused_and_nothing_of_it_is_touched(world: World) -> None:
    let_through(world.folder)
    earlier = world.folder / "checkpoints" / "j1"
    earlier.mkdir(parents=True)
    (earlier / "file").write_text("kept")
    job_folders.hand_over(earlier, *ALICE)
    await world.node("n1", **SHARED)
    await world.run("j1", "/bin/sh", "-c", "true", user="alice", cwd="/")
    ended = await world.ended("j1")
    assert (ended.outcome, "has the account changed?" in ended.reason) == ("failed", True)
    assert ((earlier / "file").read_text(), earlier.stat().st_uid) == ("kept", ALICE[0])


@as_root
async def test_a_working_directory_that_is_closed_to_the_user_fails_and_says_so(world: World) -> None:
    closed = world.folder / "closed"
    closed.mkdir(mode=0o700)
    let_through(world.folder)
    await world.node("n1", **SHARED)
    await world.run("j1", "/bin/sh", "-c", "pwd", user="alice", cwd=str(closed))
    ended = await world.ended("j1")
    assert ended.outcome == "failed"
    assert "is not to be entered (Permission denied)" in ended.reason


@as_root
async def test_an_adopted_run_is_still_its_users(world: World) -> None:
    let_through(world.folder)
    node = await world.node("n1", **SHARED)
    await world.run("j1", "/bin/sh", "-c", "echo up; sleep 600", user="alice", cwd="/")
    await world.says("j1", "up")
    await node.kill()
    await node.start()
    run = next(iter((world.folder / "n1" / "runs" / "j1" / "1").glob("run.json"))).read_text()
    assert f'"uid":{pwd.getpwnam("nobody").pw_uid}' in run
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
