"""
A disk of the cluster's own, which can be full, hang, and lose what was not flushed to it.

:class:`LoopDisk` is an ext4 file system in a file, mounted as a loop device. Its power is cut by copying the file while
it is mounted: what has not been flushed by ``fsync``, or written back by the kernel, is not in the file yet, and
mounting the copy replays its journal as after a power cut. ``FIFREEZE`` makes it hang. :class:`PlainFolder` is what is
left without the right to mount: there nothing of that can be done, and a power cut loses nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

DISK_BYTES: Final = 2 << 30
_FREEZE: Final = 0xC0045877
_THAW: Final = 0xC0045878
_NEW_MOUNTS: Final = 0x00020000
_OPTIONS: Final = "loop,commit=300"
"""No commit of the journal but those that are asked for: what is not flushed is to be lost."""


class Disk(Protocol):
    """Where all data of one cluster are."""

    folder: Path
    able: bool
    """Whether it can be full, hang, and lose data."""

    def cut_power(self) -> None:
        """Keep only what has reached the medium by now; for the time when all who use it are stopped."""

    def restore_power(self) -> None:
        """Mount what :meth:`cut_power` has kept; for the time when all who used it are gone."""

    def fill(self) -> None:
        """Leave no room."""

    def make_room(self) -> None:
        """Undo :meth:`fill`."""

    def freeze(self, for_s: float) -> None:
        """Let every write hang for so long; waits in this thread, since whoever waits otherwise may hang as well."""

    def wait_until_thawed(self) -> None:
        """Return when writes go on."""

    def remove(self) -> None:
        """Remove it, with all that is on it."""


class PlainFolder:
    """A folder, for whoever may not mount."""

    able = False

    def __init__(self, home: Path) -> None:
        self.folder = home / "disk"
        self.folder.mkdir(mode=0o700)

    def cut_power(self) -> None: ...

    def restore_power(self) -> None: ...

    def fill(self) -> None: ...

    def make_room(self) -> None: ...

    def freeze(self, for_s: float) -> None: ...

    def wait_until_thawed(self) -> None: ...

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class LoopDisk:
    """An ext4 file system in a file."""

    able = True

    def __init__(self, home: Path) -> None:
        self.folder, self._image, self._kept = home / "disk", home / "disk.img", home / "disk.kept"
        self._ballast = self.folder / ".ballast"
        self._frozen = threading.Lock()
        self.folder.mkdir(mode=0o700)
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()

    def cut_power(self) -> None:
        _run("cp", "--sparse=always", str(self._image), str(self._kept))

    def restore_power(self) -> None:
        self._unmount()
        self._kept.replace(self._image)
        self._mount()
        self.make_room()

    def fill(self) -> None:
        file = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = 0
            for piece in (16 << 20, 1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file, size, piece)
                        size += piece
        finally:
            os.close(file)

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def freeze(self, for_s: float) -> None:
        with self._frozen:
            frozen = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.ioctl(frozen, _FREEZE, 0)
            try:
                time.sleep(for_s)
            finally:
                fcntl.ioctl(frozen, _THAW, 0)
                os.close(frozen)

    def wait_until_thawed(self) -> None:
        with self._frozen:
            return

    def remove(self) -> None:
        with self._frozen:
            self._unmount()
        self._image.unlink(missing_ok=True)
        self._kept.unlink(missing_ok=True)

    def _mount(self) -> None:
        _run("mount", "-o", _OPTIONS, str(self._image), str(self.folder))
        self.folder.chmod(0o700)

    def _unmount(self) -> None:
        if os.path.ismount(self.folder):
            try:
                _run("umount", str(self.folder))
            except subprocess.CalledProcessError:  # somebody looks at it
                _run("umount", "-l", str(self.folder))


def keep_mounts_private() -> None:
    """Give this process a mount namespace of its own, so that nothing stays mounted whatever becomes of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) == 0:
        with suppress(subprocess.CalledProcessError, OSError):
            _run("mount", "--make-rprivate", "/")


def problem(home: Path) -> str:
    """Return why no disk of its own can be had in a folder; empty where it can."""
    try:
        LoopDisk(home).remove()
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"") or str(error).encode()
        return told.decode(errors="replace").strip()
    finally:
        with suppress(OSError):
            (home / "disk").rmdir()
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
