"""
Folders that belong to a job's user, as an executor reads them and hands them over that may do more than this user.

An executor that runs as root reads what a job has written, and copies it for the job's next run. A link out of the
folder, or another's file in it, would have root read what the job's user must not: :func:`open_beneath` opens neither.
:func:`hand_over` gives a folder that the executor has filled to its user, and follows no link on the way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import threading
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

OWNER_ONLY: Final = 0o700
PASSABLE: Final = 0o711
"""Of a folder that holds folders of several users: they may go through, and see no names."""
_ACL: Final = "system.posix_acl_access"
"""A folder with an access list may be open to users of whom its mode says nothing."""
_OPENAT2: Final = 437
"""The same number on all processors that have Linux 5.6 and later."""
_BENEATH: Final = 0x08 | 0x02
"""``RESOLVE_BENEATH``: links may lead wherever they stay below; ``RESOLVE_NO_MAGICLINKS``."""
_NO_SUCH_CALL: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL)
_libc: Final = ctypes.CDLL(None, use_errno=True)


class FolderNotOurs(Exception):
    """A job's folder belongs to somebody else; the message says to whom, and what to do."""


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(folder: Path, name: str) -> int:
    """
    Open a regular file below a job's folder for reading; return its descriptor, which the caller closes.

    Raises
    ------
    OSError
        If it is not there, or lies outside of the folder.
    ValueError
        If it is no regular file, or another user's whom the folder's owner might not read.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(top).st_uid
        handle = _openat2(top, name)
    finally:
        os.close(top)
    status = os.fstat(handle)
    problem = "" if stat.S_ISREG(status.st_mode) else "is no regular file"
    if not problem and owner != os.geteuid() and status.st_uid != owner:
        problem = f"belongs to uid {status.st_uid}, and its folder to uid {owner}"
    if problem:
        os.close(handle)
        raise ValueError(f"{folder / name} {problem}")
    return handle


def open_plainly(path: Path) -> int:
    """
    Open a regular file for reading; return its descriptor. A link or a pipe in its place is neither followed nor read.

    Raises
    ------
    FileNotFoundError
        If there is no regular file.
    OSError
        If it cannot be read.
    """
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise missing if error.errno in {errno.ELOOP, errno.ENXIO} else error from error
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise missing


def _openat2(top: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    how = _How(flags=flags, resolve=_BENEATH)
    handle = int(_libc.syscall(_OPENAT2, top, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how)))
    if handle >= 0:
        return handle
    number = ctypes.get_errno()
    if number in _NO_SUCH_CALL:
        return _open_step_by_step(top, name, flags)
    raise OSError(number, os.strerror(number), name)


def _open_step_by_step(top: int, name: str, flags: int) -> int:
    """Open a file where the kernel does not keep below a folder by itself: no link at all is followed."""
    *folders, last = PurePosixPath(name).parts
    if os.path.isabs(name) or ".." in (*folders, last):
        raise OSError(errno.EXDEV, "lies outside of the folder", name)
    at = os.dup(top)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def make_passable(folder: Path) -> None:
    """Make a folder in which several users have folders of their own; one of an earlier executor is opened so far."""
    folder.mkdir(parents=True, exist_ok=True, mode=PASSABLE)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o777 == OWNER_ONLY:
        folder.chmod(PASSABLE)


def closed_above(folder: Path) -> Path | None:
    """Return the folder on the way to one that keeps other users out; None where none does, as far as modes say."""
    for path in reversed((folder.absolute(), *folder.absolute().parents)):
        try:
            status = path.stat()
        except OSError:
            return None  # not made yet: those that this executor makes are open so far
        if not status.st_mode & stat.S_IXOTH and _ACL not in os.listxattr(path):
            return path
    return None


def make_owned(folder: Path, uid: int, gid: int) -> None:
    """
    Make a folder that is its user's alone; one that the executor has filled before is handed over whole.

    Raises
    ------
    FolderNotOurs
        If it is somebody else's.
    OSError
        If it cannot be made.
    """
    folder.mkdir(exist_ok=True, mode=OWNER_ONLY)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise FolderNotOurs(f"{folder} is no folder; move it away")
    if status.st_uid == uid:
        return
    if status.st_uid != os.geteuid():
        raise FolderNotOurs(
            f"{folder} belongs to uid {status.st_uid}, and the run is uid {uid}'s: has the account changed? "
            f"An operator may hand it over: chown -R {uid}:{gid} {folder}"
        )
    hand_over(folder, uid, gid)


def remove(folder: Path) -> None:
    """Remove a folder that a job may have filled, as far as that is possible and however deep it is."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        with suppress(OSError):
            subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def remove_soon(folder: Path) -> None:
    """
    Remove a folder that a job may have filled, as :func:`remove` does, and do not wait for it.

    A job may leave hundreds of thousands of files; the thread that removes them ends with the executor.
    """
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return
    except OSError:
        removing = threading.Thread(target=remove, args=(folder,), name="remove", daemon=True)
        try:
            removing.start()
        except RuntimeError:  # no thread can be had
            remove(folder)


def hand_over(folder: Path, uid: int, gid: int) -> None:
    """
    Give a folder that is the executor's own, and what is its own there, to a user.

    Nobody else may write there until then: the folder itself goes last.
    """
    mine = os.geteuid()
    for _, _, names, at in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in names:
            status = os.lstat(name, dir_fd=at)
            if status.st_uid == mine and status.st_nlink == 1:
                os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)
        if os.fstat(at).st_uid == mine:
            os.fchown(at, uid, gid)
