"""
What a process of a job gives up before its program begins: the executor's user, new privileges, the host's ``/tmp``.

The executor writes a :class:`Confinement` into the process's folder. The shim, which stays the executor's user so that
no job can end or change it, reads it there, and its child :meth:`enters <Confinement.enter>` it between fork and exec.
As the shim loads this file by itself, under ``-I -S``, it needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import platform
import resource
from collections.abc import Iterator
from typing import Final, NamedTuple

FILE: Final = "confinement"
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - these are what is replaced
_NO_NEW_PRIVS: Final = 38
_NOT_DUMPABLE: Final = (4, 0)
_NEW_MOUNTS: Final = 0x00020000
_BIND: Final = 1 << 12
_RECURSIVE: Final = 1 << 14
_SLAVE: Final = 1 << 19
_KEYCTL: Final = {"x86_64": 250, "aarch64": 219}.get(platform.machine())
_JOIN_SESSION_KEYRING: Final = 1
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p)


class Confinement(NamedTuple):
    """
    What is true of a process of a job, beside its program.

    Attributes
    ----------
    user : str
        Name of the account, for messages.
    uid, gid, groups : int, int, tuple of int
        What the process changes to; -1: it stays what the executor is.
    new_privileges : bool
        Whether programs with set-user-ID bits and file capabilities work in it.
    tmp : str
        A folder of the run's own in place of ``/tmp`` and ``/var/tmp``; where the kernel lets the executor have no
        mounts of its own, ``TMPDIR`` names it. Empty: those of the host.
    kept : tuple of str
        Folders that stay where they are, although they lie below ``/tmp``.
    cgroup : str
        The control group that it enters; empty: none.
    most_tasks : int
        The most processes and threads of its user; 0: no limit.
    wrapper : tuple of str
        A command line that runs the program's.
    """

    user: str = ""
    uid: int = -1
    gid: int = -1
    groups: tuple[int, ...] = ()
    new_privileges: bool = False
    tmp: str = ""
    kept: tuple[str, ...] = ()
    cgroup: str = ""
    most_tasks: int = 0
    wrapper: tuple[str, ...] = ()

    def write(self, folder: str) -> None:
        """Leave it in a process's folder, for its shim."""
        fd = os.open(os.path.join(folder, FILE), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(marshal.dumps(tuple(self)))

    def enter(self, env: dict[bytes, bytes]) -> None:
        """
        Give it all up, in this process; ``env`` is what its program will have.

        Raises
        ------
        ConfinementError
            If that is impossible; the program must not run then.
        """
        if self.cgroup:
            _try("enter the control group", lambda: _write(os.path.join(self.cgroup, "cgroup.procs"), b"0"))
        if self.tmp and not (self.uid >= 0 and self._replace_tmp()):
            env.setdefault(b"TMPDIR", os.fsencode(self.tmp))
        if self.most_tasks:
            limit = (self.most_tasks, self.most_tasks)
            _try("limit its processes", lambda: resource.setrlimit(resource.RLIMIT_NPROC, limit))
        _leave_keyring()
        if self.uid >= 0:
            _try(f"become user {self.user!r} (uid {self.uid}, gid {self.gid})", self._change_user)
        if not self.new_privileges and _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise ConfinementError("the kernel does not take new privileges away (no_new_privs)")

    def _change_user(self) -> None:
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        if {*os.getresuid()} != {self.uid} or {*os.getresgid()} != {self.gid}:
            raise OSError(0, "the kernel has changed nothing")

    def _replace_tmp(self) -> bool:
        """Put the run's folder in the place of ``/tmp``, for this process alone; return whether it may."""
        if _libc.unshare(_NEW_MOUNTS) or _libc.mount(None, b"/", None, _SLAVE | _RECURSIVE, None):
            return False
        own = os.open(self.tmp, _FOLDER)  # among the new mounts, and before the folders above it are replaced
        handles = {path: os.open(path, _FOLDER) for path in self.kept if is_temporary(path)}
        for where in TEMPORARY:
            _try(f"mount its folder on {where}", lambda where=where: _bind(f"/proc/self/fd/{own}", where))
        for path, handle in handles.items():
            _try(f"keep {path} where it is", lambda path=path, handle=handle: _bind_through(handle, path))
        return True


class ConfinementError(Exception):
    """A process of a job cannot be confined as it has to be; the message says at what."""


def read(folder: str) -> Confinement | None:
    """Return what the executor has left in a process's folder; None where it has left nothing."""
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            return Confinement(*marshal.loads(file.read()))  # noqa: S302 - the executor's own file, as the shim is
    except FileNotFoundError:
        return None


def hide_from_jobs() -> None:
    """Keep processes of the same user from reading this one's memory, environment and descriptors."""
    _libc.prctl(*_NOT_DUMPABLE, 0, 0, 0)


def is_temporary(path: str) -> bool:
    """Return whether a folder lies below one that is replaced."""
    return any(path.startswith(f"{where}/") for where in TEMPORARY)


def _try(what: str, act: object) -> None:
    try:
        act()  # type: ignore[operator]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfinementError(f"cannot {what}: {why}") from error


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _bind(source: str, target: str) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, _BIND | _RECURSIVE, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bind_through(handle: int, path: str) -> None:
    """
    Mount a folder at its old place, below a folder that has been replaced.

    That one is the user's, who may have put links there: each step is taken from folder to folder, and follows none.
    """
    where = next(where for where in TEMPORARY if path.startswith(f"{where}/"))
    at = os.open(where, _FOLDER)
    for name in _names(path[len(where) :]):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o711, dir_fd=at)
        below = os.open(name, _FOLDER, dir_fd=at)
        os.close(at)
        at = below
    _bind(f"/proc/self/fd/{handle}", f"/proc/self/fd/{at}")
    os.close(at)


def _names(path: str) -> Iterator[str]:
    return (name for name in path.split("/") if name)


def _leave_keyring() -> None:
    """Begin with a keyring of its own: that of the executor's login may hold what opens its files and hosts."""
    if _KEYCTL is not None:
        _libc.syscall(_KEYCTL, _JOIN_SESSION_KEYRING, None)  # where there are no keyrings, there is nothing to leave
