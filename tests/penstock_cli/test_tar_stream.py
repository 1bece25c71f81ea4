"""Copies as streams of tar: what comes back is what was, and nothing is written elsewhere."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest

from penstock_cli.invocation import Failure
from penstock_cli.tar_stream import Packing, Unpacking


async def unpacked(archive: bytes, into: Path, part: int = 1000) -> Unpacking:
    unpacking = Unpacking(into)
    try:
        for start in range(0, len(archive), part):
            await unpacking.put(archive[start : start + part])
        await unpacking.finish()
    finally:
        unpacking.stop()
    return unpacking


async def packed(source: Path) -> bytes:
    packing = Packing(source)
    return b"".join([block async for block in packing.blocks()])


def archive(*members: tuple[str, bytes, bytes, str]) -> bytes:
    """Return an archive of ``(name, type, data, link)``."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name, kind, data, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), link
            file.addfile(member, io.BytesIO(data))
    return made.getvalue()


async def test_a_folder_comes_back_under_another_name(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "<b>\n").write_bytes(os.urandom(700_000))
    (tree / "run").write_text("#!/bin/sh")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("run")
    os.link(tree / "run", tree / "same")
    done = await unpacked(await packed(tree), tmp_path / "back")
    back = tmp_path / "back"
    assert sorted(os.listdir(back)) == sorted(os.listdir(tree))
    assert (back / "<b>\n").read_bytes() == (tree / "<b>\n").read_bytes()
    assert (os.readlink(back / "link"), os.access(back / "same", os.X_OK)) == ("run", True)
    assert (done.left_out, done.files >= 2) == (0, True)


async def test_a_file_takes_the_name_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    await unpacked(await packed(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new"


@pytest.mark.parametrize(
    "hostile",
    [
        [("top/../../evil", tarfile.REGTYPE, b"x", "")],
        [("/top/evil", tarfile.REGTYPE, b"x", "")],
        [("top", tarfile.DIRTYPE, b"", ""), ("top/l", tarfile.SYMTYPE, b"", "/etc"), ("top/l/evil", b"0", b"x", "")],
        [("top", tarfile.DIRTYPE, b"", ""), ("top/l", tarfile.SYMTYPE, b"", "../.."), ("top/l/evil", b"0", b"x", "")],
        [("top", tarfile.DIRTYPE, b"", ""), ("top/h", tarfile.LNKTYPE, b"", "../../secret")],
        [("top", tarfile.DIRTYPE, b"", ""), ("top/d", tarfile.CHRTYPE, b"", "")],
        [("top", tarfile.SYMTYPE, b"", "/etc/passwd")],
    ],
)
async def test_what_would_be_written_elsewhere_is_left_out(
    tmp_path: Path, hostile: list, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("kept")
    into = tmp_path / "deep" / "into"
    into.parent.mkdir()
    done = await unpacked(archive(*hostile), into)
    assert done.left_out >= 1
    assert "left out: " in capsys.readouterr().err
    assert not [found for found in tmp_path.rglob("*") if found.name == "evil" and not found.is_relative_to(into)]
    assert not os.path.lexists("/etc/evil")
    assert not (into / "h").exists()


async def test_half_an_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(50_000))
    whole = await packed(tmp_path / "a")
    with pytest.raises(Failure, match="no whole archive"):
        await unpacked(whole[:30_000], tmp_path / "b")


async def test_who_stops_in_the_midst_waits_for_no_thread(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(30_000_000))
    packing = Packing(tmp_path / "a")
    blocks = packing.blocks()
    assert await anext(blocks)
    packing.stop()
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(anext(blocks), 30)
