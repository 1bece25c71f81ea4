"""Folders of jobs, read and handed over by an executor that may do more than their users."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import msgspec
import pytest
from other_users import ALICE, BOB, acting_as, as_root, let_through

from penstock_bus.memory import MemoryBus
from penstock_executor import job_folders
from penstock_executor.checkpoint_folder import MANIFEST, CheckpointFolder, CheckpointUnavailable, PieceRequest, serving
from penstock_executor.checkpoint_transfer import CheckpointFinder, CopyLimits, ResumeRequest
from penstock_log import Checkpoint


def checkpoint(job: Path, step: int, files: dict[str, bytes]) -> Path:
    """Write a checkpoint as a session would."""
    folder = job / f"step-{step}"
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    body = {"format": 1, "step": step, "files": {name: len(data) for name, data in files.items()}, "generation": 1}
    (folder / MANIFEST).write_bytes(msgspec.json.encode(body))
    return folder


@pytest.fixture(params=["openat2", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the kernel's own call, and as where it has none."""
    if request.param != "openat2":

        def without(*_: object) -> int:
            ctypes.set_errno(errno.ENOSYS)
            return -1

        monkeypatch.setattr(job_folders, "_libc", type("Libc", (), {"syscall": staticmethod(without)}))
    return str(request.param)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "../elsewhere/secret"])
def test_a_link_out_of_a_jobs_folder_is_not_read(way: str, tmp_path: Path, target: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"private key")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"private key")
    folder = checkpoint(tmp_path / "j", 7, {"weights": b"x"})
    (folder / "weights").unlink()
    (folder / "weights").symlink_to(target)
    held = CheckpointFolder(tmp_path, "n1")
    assert held.held("j") == []
    with pytest.raises(CheckpointUnavailable, match=r"cannot be read|no checkpoint"):
        held.read(PieceRequest(job_id="j", step=7, name="weights"), 1000)


def test_a_checkpoint_that_is_a_link_to_another_jobs_is_not_read(way: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "bobs", 7, {"weights": b"bob's"})
    (tmp_path / "alices").mkdir()
    (tmp_path / "alices" / "step-7").symlink_to("../bobs/step-7")
    assert CheckpointFolder(tmp_path, "n1").held("alices") == []


def test_a_link_that_stays_within_the_jobs_folder_is_read(tmp_path: Path) -> None:
    checkpoint(tmp_path / "j", 5, {"shard": b"old shard"})
    later = checkpoint(tmp_path / "j", 7, {"weights": b"new", "shard": b"old shard"})
    (later / "shard").unlink()
    (later / "shard").symlink_to("../step-5/shard")
    held = CheckpointFolder(tmp_path, "n1")
    assert [one.step for one in held.held("j")] == [7, 5]
    assert held.read(PieceRequest(job_id="j", step=7, name="shard"), 1000).data == b"old shard"


@as_root
def test_root_reads_nothing_in_a_users_folder_that_is_not_the_users(way: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "j", 7, {"weights": b"x"})
    job_folders.hand_over(tmp_path / "j", *ALICE)
    held = CheckpointFolder(tmp_path, "n1")
    assert [one.step for one in held.held("j")] == [7]
    secret = tmp_path / "bobs"
    secret.write_bytes(b"y")
    os.chown(secret, *BOB)
    secret.rename(folder / "weights")  # as out of a folder that both may write
    assert held.held("j") == []
    with pytest.raises(CheckpointUnavailable, match=r"belongs to uid 54322, and its folder to uid 54321"):
        held.read(PieceRequest(job_id="j", step=7, name="weights"), 1000)


@as_root
async def test_a_copied_checkpoint_is_its_users_alone(tmp_path: Path, memory_bus: MemoryBus) -> None:
    let_through(tmp_path)
    checkpoint(tmp_path / "n1" / "j", 7, {"weights": b"x" * 3000})
    job_folders.hand_over(tmp_path / "n1" / "j", *ALICE)
    there, here = (CheckpointFolder(tmp_path / name, name, passable=True) for name in ("n1", "n2"))
    here.give("j", *ALICE)
    digest = there.held("j")[0].digest
    wanted = Checkpoint(step=7, generation=1, digest=digest, node_ids=("n1",))
    limits = CopyLimits(largest_bytes=1 << 30, longest_s=10.0)
    async with serving(memory_bus, [there], "n1"):
        finder = CheckpointFinder(memory_bus, here, "n2", lambda _: True, limits)
        assert (await finder.find(ResumeRequest(job_id="j", own=wanted))).copied_from == "n1"
    copied = here.path("j", 7)
    assert {path.lstat().st_uid for path in (copied.parent, copied, *copied.iterdir())} == {ALICE[0]}
    assert [path.stat().st_mode & 0o777 for path in (copied.parent, copied)] == [0o700, 0o700]
    acting_as(ALICE, (copied / "weights").read_bytes)
    with pytest.raises(AssertionError):
        acting_as(BOB, (copied / "weights").read_bytes)


@as_root
def test_a_folder_that_an_executor_has_filled_goes_to_its_user_and_links_in_it_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("root's")
    held = CheckpointFolder(tmp_path / "checkpoints", "n1", passable=True)
    folder = checkpoint(tmp_path / "checkpoints" / "j", 7, {"weights": b"x"})
    (folder / "link").symlink_to(outside)
    (folder / "hard").hardlink_to(outside)
    held.give("j", *ALICE)
    assert outside.stat().st_uid == 0
    assert [path.lstat().st_uid for path in (folder.parent, folder, folder / "weights")] == [ALICE[0]] * 3
    held.give("j", *ALICE)  # once more, for its next run
    with pytest.raises(job_folders.FolderNotOurs, match=r"belongs to uid 54321.*the run is uid 54322's.*chown -R"):
        held.give("j", *BOB)


def test_a_folder_of_earlier_executors_is_opened_for_passing_and_no_further(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir(mode=0o700)
    job_folders.make_passable(folder)
    assert folder.stat().st_mode & 0o777 == 0o711
    folder.chmod(0o750)  # as an operator wants it
    job_folders.make_passable(folder)
    assert folder.stat().st_mode & 0o777 == 0o750
