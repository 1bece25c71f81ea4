"""Copies as streams of tar: what comes back is what was, and nothing is written elsewhere."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest

from penstock_cli import tar_stream
from penstock_cli.invocation import Failure
from penstock_cli.tar_stream import TarSource, TarTarget


@pytest.fixture(params=[True, False], autouse=True)
def filters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters of later versions of Python, and our own where there are none."""
    monkeypatch.setattr(tar_stream, "HAS_FILTERS", request.param)


async def unpacked(archive: bytes, into: Path, part: int = 1000) -> TarTarget:
    unpacking = TarTarget(into)
    try:
        for start in range(0, len(archive), part):
            await unpacking.put(archive[start : start + part])
        await unpacking.finish()
    finally:
        unpacking.stop()
    return unpacking


async def packed(source: Path) -> bytes:
    packing = TarSource(source)
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
        [("top", tarfile.SYMTYPE, b"", "own"), ("top/evil", tarfile.REGTYPE, b"x", "")],
        [("top", tarfile.SYMTYPE, b"", "own"), ("top", tarfile.DIRTYPE, b"", ""), ("top/evil", b"0", b"x", "")],
        [("top", tarfile.SYMTYPE, b"", "own/kept"), ("top", tarfile.REGTYPE, b"x", "")],
        [("top", tarfile.SYMTYPE, b"", "own/kept"), ("top", tarfile.LNKTYPE, b"", "top")],
        [("top/a/b", tarfile.DIRTYPE, b"", ""), ("top/l", tarfile.SYMTYPE, b"", "a/b/../../..")],
        [("top/a", tarfile.DIRTYPE, b"", ""), ("top/l", tarfile.SYMTYPE, b"", "a"), ("top/l/evil", b"0", b"x", "")],
        [("top/a/f", b"0", b"", ""), ("top/l", tarfile.SYMTYPE, b"", "a"), ("top/h", tarfile.LNKTYPE, b"", "top/l/f")],
        [("top/a", tarfile.REGTYPE, b"", ""), ("top/h", tarfile.LNKTYPE, b"", "top/none")],
        [("top", tarfile.LNKTYPE, b"", "own/kept")],
    ],
)
async def test_what_would_be_written_elsewhere_is_left_out(
    tmp_path: Path, hostile: list, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("kept")
    into = tmp_path / "deep" / "into"
    own = into.parent / "own"
    own.mkdir(parents=True)
    (own / "kept").write_text("kept")
    done = await unpacked(archive(*hostile), into)
    assert done.left_out >= 1
    assert "left out: " in capsys.readouterr().err
    assert not [found for found in tmp_path.rglob("*") if found.name == "evil" and not found.is_relative_to(into)]
    assert not os.path.lexists("/etc/evil")
    assert not (into / "h").exists()
    assert (os.listdir(own), (own / "kept").read_text()) == (["kept"], "kept")
    assert not into.is_symlink()
    assert set(os.listdir(into.parent)) <= {"own", "into"}


async def test_a_folder_that_is_there_is_written_into_and_keeps_what_else_it_has(tmp_path: Path) -> None:
    for name in ("tree", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "tree" / "a").write_text("new")
    (tmp_path / "real" / "b").write_text("mine")
    (tmp_path / "back").symlink_to("real")  # its owner's own
    assert (await unpacked(await packed(tmp_path / "tree"), tmp_path / "back")).left_out == 0
    assert sorted(os.listdir(tmp_path / "real")) == ["a", "b"]
    (tmp_path / "file").write_text("x")
    assert (await unpacked(await packed(tmp_path / "file"), tmp_path / "real")).left_out == 1
    assert sorted(os.listdir(tmp_path / "real")) == ["a", "b"]


LINK, FILE, FOLDER, SAME = tarfile.SYMTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "copies",
    [
        [
            ("top/p/q/l", LINK, b"", "../.."),
            ("top/p/q/l/evil", LINK, b"", "../../../victim"),
            ("top/evil/owned", FILE, b"x", ""),
        ],
        [("top/l", LINK, b"", "mine"), ("top/l/owned", FILE, b"x", "")],
        [("top/p/q/l", LINK, b"", "../.."), ("top/h", SAME, b"", "top/p/q/l"), ("top/h/victim/owned", FILE, b"x", "")],
        [("top/out", FOLDER, b"", ""), ("top/out/owned", FILE, b"x", "")],
        [("top/k", LINK, b"", "out/kept")],
    ],
)
async def test_several_copies_into_one_folder_write_nothing_by_way_of_links_in_it(
    tmp_path: Path, copies: list[tuple[str, bytes, bytes, str]]
) -> None:
    into, victim = tmp_path / "deep" / "into", tmp_path / "deep" / "victim"
    for folder in (into / "mine", victim):
        folder.mkdir(parents=True)
    (victim / "kept").write_text("kept")
    (tmp_path / "victim").symlink_to("deep/victim")
    victim.chmod(0o700)
    (into / "out").symlink_to("../victim")  # its owner's own
    done = [await unpacked(archive(copy), into) for copy in copies]
    assert sum(one.left_out for one in done) >= 1
    assert all(path.is_relative_to(into) for path in tmp_path.rglob("owned"))
    assert (os.listdir(into / "mine"), os.listdir(victim), victim.stat().st_mode & 0o777) == ([], ["kept"], 0o700)
    assert (victim / "kept").read_text() == "kept"
    links = [path for path in into.rglob("*") if path.is_symlink() and path.name != "out"]
    assert all(path.resolve().is_relative_to(into) for path in links)


async def test_a_file_takes_the_place_of_a_link_in_a_folder_and_not_of_what_that_leads_to(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "into" / "f").symlink_to("../kept")
    assert (await unpacked(archive(("top/f", FILE, b"new", "")), tmp_path / "into")).left_out == 0
    assert ((tmp_path / "into" / "f").read_text(), (tmp_path / "kept").read_text()) == ("new", "kept")


async def test_a_link_alone_is_a_link_and_a_file_replaces_one(tmp_path: Path) -> None:
    link = archive(("top", tarfile.SYMTYPE, b"", "kept"))
    (tmp_path / "kept").write_text("kept")
    assert (await unpacked(link, tmp_path / "m.pt")).left_out == 0
    assert os.readlink(tmp_path / "m.pt") == "kept"
    await unpacked(archive(("top", tarfile.REGTYPE, b"new", "")), tmp_path / "m.pt")
    assert ((tmp_path / "m.pt").read_text(), (tmp_path / "kept").read_text()) == ("new", "kept")


async def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_text("x")
    with pytest.raises(Failure, match="pipe is there, and is no file"):
        await unpacked(await packed(tmp_path / "a"), tmp_path / "pipe")
    assert sorted(os.listdir(tmp_path)) == ["a", "pipe"]


async def test_half_an_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(50_000))
    whole = await packed(tmp_path / "a")
    with pytest.raises(Failure, match="no whole archive"):
        await unpacked(whole[:30_000], tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


async def test_who_stops_in_the_midst_waits_for_no_thread(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(30_000_000))
    packing = TarSource(tmp_path / "a")
    blocks = packing.blocks()
    assert await anext(blocks)
    packing.stop()
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(anext(blocks), 30)
