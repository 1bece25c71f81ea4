"""A folder of the submitter's as a code tree: what is in it, what is left out, and what is refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from other_users import ALICE, acting_as, as_root, let_through

from penstock import code_folder
from penstock.code_folder import CodeFolder, CodeFolderError
from penstock_log import code_tree
from penstock_log.code_tree import PART_BYTES, BadTree, CodeTree, TreeEntry

ODD = ["<script>alert(1)<script>", "two\nlines", "-rf", " ", "ü", "a*b?", "%s{}", "\\", '"', "'; drop", "x" * 255]


def read(folder: Path) -> CodeFolder:
    return code_folder.read(code_folder.scan(folder))


def digest(folder: Path) -> str:
    return code_tree.digest_of(code_tree.encode(read(folder).tree))


def paths(folder: Path) -> list[bytes]:
    return [entry.path for entry in read(folder).tree.entries]


def refused(folder: Path) -> str:
    with pytest.raises(CodeFolderError) as caught:
        read(folder)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small project."""
    made = tmp_path / "project"
    (made / "pkg").mkdir(parents=True)
    (made / "train.py").write_text("import pkg\n")
    (made / "pkg" / "__init__.py").write_text("VALUE = 1\n")
    return made


def test_a_tree_has_files_links_and_empty_folders_and_whether_files_may_be_executed(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "train.py").chmod(0o600)
    (folder / "to").symlink_to("pkg/__init__.py")
    (folder / "empty" / "deeper").mkdir(parents=True)
    (folder / "none").touch()
    found = {entry.path: entry for entry in read(folder).tree.entries}
    assert sorted(found) == [b"empty/deeper", b"none", b"pkg/__init__.py", b"run.sh", b"to", b"train.py"]
    assert (found[b"run.sh"].mode, found[b"train.py"].mode) == (0o755, 0o644)
    assert (found[b"to"].kind, found[b"to"].target) == ("link", b"pkg/__init__.py")
    assert (found[b"empty/deeper"].kind, found[b"none"].size) == ("folder", 0)


def test_the_same_content_has_the_same_digest_wherever_and_whenever_it_was_written(folder: Path) -> None:
    other = folder.parent / "elsewhere"
    shutil.copytree(folder, other)
    os.utime(other / "train.py", (1, 1))
    (other / "train.py").chmod(0o664)
    assert digest(folder) == digest(other)
    (other / "train.py").write_text("import pkg \n")
    assert digest(folder) != digest(other)


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_kept_and_others_are_not_confused_with_them(folder: Path, name: str) -> None:
    (folder / name).write_text("x")
    assert os.fsencode(name) in paths(folder)
    assert code_tree.decode(code_tree.encode(read(folder).tree)) == read(folder).tree


def test_a_name_that_is_no_text_is_kept(folder: Path) -> None:
    with open(os.path.join(os.fsencode(folder), b"\xff\xfe.bin"), "wb"):
        pass
    assert b"\xff\xfe.bin" in paths(folder)


def test_what_nobody_wants_is_left_out_and_said_and_can_be_taken_in(folder: Path) -> None:
    for name in (".git", "__pycache__", "pkg/__pycache__", ".venv", "penstock-data"):
        (folder / name).mkdir()
        (folder / name / "x").touch()
    found = code_folder.scan(folder)
    assert [entry.path for entry in found.entries] == [b"pkg/__init__.py", b"train.py"]
    assert found.left_out == {".git": 1, "__pycache__": 2, ".venv": 1, "penstock-data": 1}
    (folder / ".penstockignore").write_text("!.git\n")
    assert b".git/x" in paths(folder)


def test_penstockignore_has_the_syntax_of_gitignore(folder: Path) -> None:
    for name in ("a.ckpt", "keep.ckpt", "pkg/b.ckpt", "data/big.bin", "pkg/data/small.bin", "out/deep/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    text = "# weights\n*.ckpt\n!keep.ckpt\n/data/\nout/**\n"
    (folder / ".penstockignore").write_text(text.replace("\n", "\r\n"))  # as an editor on Windows writes it
    assert paths(folder) == [b".penstockignore", b"keep.ckpt", b"pkg/__init__.py", b"pkg/data/small.bin", b"train.py"]


def test_links_that_lead_out_are_refused_by_name_and_those_that_stay_are_kept(folder: Path) -> None:
    outside = folder.parent / "secret"
    outside.write_text("x")
    (folder / "inside").symlink_to(folder / "pkg")  # absolute, and kept as a relative one
    (folder / "pkg" / "up").symlink_to("../train.py")
    (folder / "dangling").symlink_to("not/there")
    found = {entry.path: entry.target for entry in read(folder).tree.entries if entry.kind == "link"}
    assert found == {b"inside": b"pkg", b"pkg/up": b"../train.py", b"dangling": b"not/there"}
    (folder / "out").symlink_to(outside)
    (folder / "pkg" / "etc").symlink_to("/etc/passwd")
    (folder / "pkg" / "back").symlink_to("../..")
    assert refused(folder).startswith("out, pkg/back, pkg/etc lead out of the folder")


def test_a_link_that_leads_out_by_way_of_another_one_is_refused(folder: Path) -> None:
    (folder / "pkg" / "up").symlink_to("..")
    (folder / "sly").symlink_to("pkg/up/../project/../secret")
    assert "sly" in refused(folder)


def test_a_link_by_way_of_another_one_is_kept_as_where_it_leads(folder: Path) -> None:
    (folder / "pkg" / "up").symlink_to("..")
    (folder / "sly").symlink_to("pkg/up/pkg/../train.py")
    found = {entry.path: entry.target for entry in read(folder).tree.entries if entry.kind == "link"}
    assert found == {b"pkg/up": b"..", b"sly": b"train.py"}
    sly = CodeTree(
        (TreeEntry(b"a/b/up", "link", target=b"../.."), TreeEntry(b"sly", "link", target=b"a/b/up/../secret"))
    )
    assert code_tree.problem(sly).startswith("the link b'sly' goes up again after a name")


def test_files_and_links_that_are_gone_since_they_were_listed_are_left_out_or_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "link").symlink_to("train.py")
    found = code_folder.scan(folder)
    (folder / "link").unlink()
    with pytest.raises(CodeFolderError, match=r"link \(No such file or directory\) cannot be read"):
        code_folder.read(found)
    real = os.scandir

    def late(path: bytes) -> list[os.DirEntry[bytes]]:
        entries = list(real(path))
        (folder / "train.py").unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(code_folder.os, "scandir", late)
    assert paths(folder) == [b"pkg/__init__.py"]


def test_a_folder_that_is_too_deep_is_refused_and_may_be_left_out(folder: Path) -> None:
    deep = folder.joinpath("deep", *["a"] * 126)
    deep.mkdir(parents=True)
    (deep / "last").touch()
    assert code_tree.problem(read(folder).tree) == ""
    (deep / "a").mkdir()
    (deep / "a" / "x").touch()
    assert "lies in more than 127 folders; name one of them in .penstockignore" in refused(folder)
    (folder / ".penstockignore").write_text("deep/\n")
    assert paths(folder) == [b".penstockignore", b"pkg/__init__.py", b"train.py"]
    (folder / ".penstockignore").unlink()
    shutil.rmtree(folder / "deep" / "a" / "a")
    where = os.open(folder / "deep" / "a", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=where)
        below = os.open("a", os.O_RDONLY, dir_fd=where)
        os.close(where)
        where = below
    os.close(where)
    try:
        assert "lies in more than 127 folders" in refused(folder)
    finally:
        subprocess.run(["rm", "-r", str(folder / "deep")], check=True)  # as pytest removes by recursion


@as_root
def test_files_that_cannot_be_read_are_refused_by_name(folder: Path) -> None:
    let_through(folder)
    (folder / "key.pem").write_text("x")
    (folder / "key.pem").chmod(0o600)
    (folder / "closed").mkdir(mode=0o700)
    said = folder.parent / "said"
    said.mkdir(mode=0o777)
    said.chmod(0o777)

    def read_as_alice() -> None:
        (said / "scan").write_text(refused_by(lambda: code_folder.scan(folder)))
        (folder / ".penstockignore").exists()

    acting_as(ALICE, read_as_alice)
    assert (said / "scan").read_text().startswith("closed cannot be listed; let yourself read them")
    (folder / "closed").rmdir()
    acting_as(ALICE, lambda: (said / "read").write_text(refused_by(lambda: read(folder))))
    assert (said / "read").read_text().startswith("key.pem (Permission denied) cannot be read")


def refused_by(act: Callable[[], object]) -> str:
    try:
        act()
    except CodeFolderError as error:
        return str(error)
    return "it was not refused"


def test_a_file_that_changes_while_it_is_read_is_read_again_and_then_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, changes = os.fstat, iter(range(3))

    def changing(fd: int) -> os.stat_result:
        if next(changes, None) is not None:
            with (folder / "train.py").open("a") as file:
                file.write("x")
        return real(fd)

    found = code_folder.scan(folder)
    monkeypatch.setattr(os, "fstat", changing)
    assert code_folder.read(found).tree.files == 2  # three changes, and then it kept still
    changes = iter(range(1000))
    with pytest.raises(CodeFolderError, match="changes while it is read"):
        code_folder.read(found)


def test_a_file_that_has_changed_since_it_was_read_is_not_sent_as_something_else(folder: Path) -> None:
    code = read(folder)
    (part,) = code_tree.parts_of(code.tree.entries[-1])
    assert code.part(part) == b"import pkg\n"
    (folder / "train.py").write_text("import gkp\n")
    with pytest.raises(CodeFolderError, match=r"train\.py has changed while it was uploaded"):
        code.part(part)
    (folder / "train.py").unlink()
    with pytest.raises(CodeFolderError, match=r"train\.py cannot be read any more"):
        code.part(part)


def test_large_files_come_in_parts_that_make_up_the_file(folder: Path) -> None:
    body = os.urandom(2 * PART_BYTES + 17)
    (folder / "weights.bin").write_bytes(body)
    code = read(folder)
    entry = next(entry for entry in code.tree.entries if entry.path == b"weights.bin")
    assert [part.size for part in code_tree.parts_of(entry)] == [PART_BYTES, PART_BYTES, 17]
    assert b"".join(code.part(part) for part in code_tree.parts_of(entry)) == body


def test_pipes_and_sockets_are_left_out(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "socket"))
    found = code_folder.scan(folder)
    assert found.left_out == {"pipe": 1, "socket": 1}


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(CodeFolderError, match="is no folder"):
            code_folder.scan(path)
    (tmp_path / "empty").mkdir()
    assert paths(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (TreeEntry(b"/etc/x", "folder"), "does not lie in the folder"),
        (TreeEntry(b"a/../../x", "folder"), "does not lie in the folder"),
        (TreeEntry(b"", "folder"), "does not lie in the folder"),
        (TreeEntry(b"a\0b", "folder"), "does not lie in the folder"),
        (TreeEntry(b"a" * 256, "folder"), "is longer than"),
        (TreeEntry(b"/".join([b"a"] * 1100), "folder"), "is longer than"),
        (TreeEntry(b"/".join([b"a"] * 1024), "folder"), "has more than 128 names"),
        (TreeEntry(b"l", "link", target=b"../x"), "leads out of the folder"),
        (TreeEntry(b"l", "link", target=b"/etc"), "leads out of the folder"),
        (TreeEntry(b"l", "link", target=b"deep/link/../x"), "goes up again after a name"),
        (TreeEntry(b"f", "file", 0o4755, 1, bytes(32)), "a mode that no file has"),
        (TreeEntry(b"f", "file", 0o644, 1, b"x"), "does not say what is in it"),
        (TreeEntry(b"f", "file", 0o644, 2 * PART_BYTES, bytes(32)), "does not say what is in it"),
        (TreeEntry(b"f", "file", 0o644, -1, bytes(32)), "a size or a mode"),
    ],
)
def test_a_tree_that_would_write_elsewhere_is_no_tree(entry: TreeEntry, what: str) -> None:
    with pytest.raises(BadTree, match=what):
        code_tree.decode(code_tree.encode(CodeTree((entry,))))


def test_a_tree_with_a_path_twice_or_below_a_file_or_a_link_is_none() -> None:
    link, below = TreeEntry(b"a", "link", target=b"b"), TreeEntry(b"a/b", "folder")
    for entries in ((link, below), (TreeEntry(b"a", "file", 0o644, 0, bytes(32)), below), (below, below)):
        with pytest.raises(BadTree):
            code_tree.decode(code_tree.encode(CodeTree(entries)))
    for body in (b"", b"\xc1", b"{}", code_tree.encode(CodeTree((), 2))):
        with pytest.raises(BadTree):
            code_tree.decode(body)


def test_the_whole_file_system_is_no_folder_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "all").symlink_to("/")
    for folder in (Path("/"), tmp_path / "all"):
        with pytest.raises(
            CodeFolderError, match=r"is the whole file system; give the folder in which the job's files"
        ):
            code_folder.scan(folder)
