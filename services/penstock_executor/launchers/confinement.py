"""
What a process of a job gives up before its program begins: the executor's user, new privileges, the host's files.

The executor writes a :class:`Confinement` into the process's folder. The shim, which stays the executor's user so that
no job can end or change it, reads it there, and its child :meth:`enters <Confinement.enter>` it between fork and exec.
As the shim loads this file by itself, under ``-I -S``, it needs the standard library alone.

A process whose job has an image enters the mount namespace of a container that an engine has made of it. It stays a
child of its shim, so that it is signalled, stopped, held to its memory and found again as any other. The host's folders
that it needs are attached in a copy of that namespace which is the process's own. They are opened before, as the job's
user: a container opens nothing to a user that is closed to him outside.

References
----------
Linux, *open_tree(2)*, *move_mount(2)*, *setns(2)*: a mount that is cloned in one namespace and attached in another.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import marshal
import os
import platform
import resource
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

FILE: Final = "confinement"
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - these are what is replaced
_NO_NEW_PRIVS: Final = 38
_NOT_DUMPABLE: Final = (4, 0)
_NEW_MOUNTS: Final = 0x00020000
_BIND: Final = 1 << 12
_RECURSIVE: Final = 1 << 14
_SLAVE: Final = 1 << 19
_PRIVATE: Final = 1 << 18
_DETACH: Final = 0x2
_NO_LINK: Final = 0x8
_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_CLONE_TREE: Final = 0x1 | os.O_CLOEXEC | 0x8000 | 0x1000
"""Cloned, closed on exec, with the mounts below it, and from the descriptor itself."""
_FD_TO_FD: Final = 0x4 | 0x40
_NO_SET_ID_NO_DEVICES: Final = 0x2 | 0x4
_DROP_FROM_BOUND: Final = 24
_KEPT_BY_ROOT: Final = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31})
"""What root may do in a container: as Docker has it, without the making of devices."""
_LOOKS: Final = 500
_LOOK_S: Final = 0.01
_IS_ENTERED: Final = "."
"""In place of a namespace in which the process is already."""
HOLD: Final = "/.penstock-hold"
"""The program that keeps a container there; no other has it."""
_KEYCTL: Final = {"x86_64": 250, "aarch64": 219}.get(platform.machine())
_JOIN_SESSION_KEYRING: Final = 1
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
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
    namespace : str
        The mount namespace of a container, as a file; empty: the host's.
    attached : tuple of (str, str)
        Within the container: where, and which folder of the host is there; one that is not there is left out. With no
        folder: what is there is hidden.
    data_bytes : tuple of int
        The limits on its data, soft and hard; empty: none, or its command line sets them.
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
    namespace: str = ""
    attached: tuple[tuple[str, str], ...] = ()
    data_bytes: tuple[int, ...] = ()

    @property
    def is_slight(self) -> bool:
        """Whether nothing is to be given up that its shim could not do without as well."""
        return self._replace(new_privileges=False) == Confinement()

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
        self._enter_cgroup()
        if self.namespace and self.namespace != _IS_ENTERED:
            self._enter_container()
        elif self.tmp and not (self.uid >= 0 and self._replace_tmp()):
            env.setdefault(b"TMPDIR", os.fsencode(self.tmp))
        if self.most_tasks:
            limit = (self.most_tasks, self.most_tasks)
            _try("limit its processes", lambda: resource.setrlimit(resource.RLIMIT_NPROC, limit))
        if self.data_bytes:
            soft, hard = self.data_bytes
            _try("limit its memory", lambda: resource.setrlimit(resource.RLIMIT_DATA, (soft, hard)))
        leave_keyring()
        if self.namespace:
            _bound_capabilities()
        if self.uid >= 0:
            _try(f"become user {self.user!r} (uid {self.uid}, gid {self.gid})", self._change_user)
        if not self._leaves_new_privileges():
            raise ConfinementError("the kernel does not take new privileges away (no_new_privs)")

    def enter_as_shim(self) -> bool:
        """Give up what is slight, in the shim itself, whose child has it no more then; return whether that is done."""
        leave_keyring()
        return self._leaves_new_privileges()

    def _leaves_new_privileges(self) -> bool:
        return self.new_privileges or not _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)

    def _change_user(self) -> None:
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        if {*os.getresuid()} != {self.uid} or {*os.getresgid()} != {self.gid}:
            raise OSError(0, "the kernel has changed nothing")

    def enter_beside(self, pid: int, env: dict[bytes, bytes]) -> None:
        """
        Give it all up as a program in a container has that runs already, with whose files this process goes on.

        Raises
        ------
        ConfinementError
            If that is impossible, or the program does not get there.
        """
        self._enter_cgroup()  # which is not seen from within a container
        for _ in range(_LOOKS):
            handle = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(handle).st_ino != os.stat("/proc/self/ns/mnt").st_ino:
                break
            os.close(handle)
            time.sleep(_LOOK_S)
        else:
            raise ConfinementError(f"the program (process {pid}) has not come to its container yet; try again")
        _try("enter the job's container", lambda: _checked(_libc.setns(handle, _NEW_MOUNTS)))
        self._replace(cgroup="", tmp="", namespace=_IS_ENTERED).enter(env)

    def become(self, cwd: str, program: Sequence[str], env: Mapping[bytes, bytes]) -> None:
        """
        Become a program, after :meth:`enter`, without a shell: in a container there may be none.

        A script that does not say what runs it is run by ``/bin/sh``, as a shell would.

        Raises
        ------
        ConfinementError
            If it is not there, or is no program, or its folder is not there.
        """
        before = os.getcwd()
        place = "neither on this node nor in the image" if self.namespace else "not to be entered"
        try:
            os.chdir(cwd)
        except OSError as error:
            raise ConfinementError(
                f"the working directory {cwd} is {place} ({error.strerror}); set cwd to one that is, such as /"
            ) from error
        where = os.fsdecode(env.get(b"PATH", os.fsencode(os.defpath)))
        folders = {b"PWD": os.fsencode(cwd), b"OLDPWD": os.fsencode(before)}  # as a shell has them after `cd`
        problem = _replaced_by(program, where, {**env, **folders})
        own = " in the image" if self.namespace else ""
        unused = "; the image's own entry point and command are not run" if self.namespace else ""
        raise ProgramNotFound(
            f"program {program[0]!r} cannot be run{own}: {problem.strerror}; looked in {cwd} and PATH ({where}){unused}"
        ) from problem

    def _enter_cgroup(self) -> None:
        if self.cgroup:
            _try("enter the control group", lambda: _write(os.path.join(self.cgroup, "cgroup.procs"), b"0"))

    def _enter_container(self) -> None:
        """Enter the container's files, with the folders of the host that the process needs."""
        trees = {where: self._open_folder(folder) for where, folder in self.attached if folder}
        handle = os.open(self.namespace, os.O_RDONLY | os.O_CLOEXEC)
        _try("enter the container of its image", lambda: _checked(_libc.setns(handle, _NEW_MOUNTS)))
        if not os.path.exists(HOLD):
            raise ConfinementError("the container of its image is gone; was it removed, or its engine stopped?")
        _try("have mounts of its own", lambda: _checked(_libc.unshare(_NEW_MOUNTS)))
        _try("keep its mounts", lambda: _checked(_libc.mount(None, b"/", None, _PRIVATE | _RECURSIVE, None)))
        for where, folder in sorted(self.attached):
            if not folder:
                _try(f"hide {where}", lambda where=where: _hide(where))
            elif (tree := trees[where]) is not None:
                _try(f"attach {where}", lambda where=where, tree=tree: _attach(tree, where))

    def _open_folder(self, folder: str) -> int | None:
        """Return the mount of a folder, or file, that the process's user comes to; None where it is not there."""
        try:
            with self._as_user():
                handle = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfinementError(f"user {self.user!r} cannot come to {folder}: {error.strerror}") from error
        tree = int(_libc.syscall(_OPEN_TREE, handle, b"", _CLONE_TREE))
        if tree < 0:
            number = ctypes.get_errno()
            raise ConfinementError(f"cannot attach {folder} to a container: {os.strerror(number)} (Linux 5.2 or later)")
        os.close(handle)
        return tree

    @contextlib.contextmanager
    def _as_user(self) -> Iterator[None]:
        """Have the rights of the process's user on files, for a while."""
        before = os.geteuid(), os.getegid(), os.getgroups()
        if self.uid >= 0:
            os.setgroups(self.groups)
            os.setegid(self.gid)
            os.seteuid(self.uid)
        try:
            yield
        finally:
            if self.uid >= 0:
                os.seteuid(before[0])
                os.setegid(before[1])
                os.setgroups(before[2])

    def open_temporary(self) -> list[tuple[str, int]]:
        """
        Return what replaces ``/tmp``, as mounts that are to be attached, in this order, in a namespace that is there.
        """
        wanted = [(where, self.tmp) for where in TEMPORARY] if self.tmp else []
        wanted += [(path, path) for path in sorted(self.kept) if is_temporary(path)]
        handles = [(where, _open_straight(path, _PLACE)) for where, path in wanted]
        return [(where, _clone_of(handle)) for where, handle in handles]

    def _replace_tmp(self) -> bool:
        """Put the run's folder in the place of ``/tmp``, for this process alone; return whether it may."""
        if _libc.unshare(_NEW_MOUNTS) or _libc.mount(None, b"/", None, _SLAVE | _RECURSIVE, None):
            return False
        own = os.open(self.tmp, _FOLDER)  # among the new mounts, and before the folders above it are replaced
        handles = {path: _open_straight(path, _FOLDER) for path in self.kept if is_temporary(path)}
        for where in TEMPORARY:
            _try(f"mount its folder on {where}", lambda where=where: _bind(f"/proc/self/fd/{own}", where))
        for path, handle in handles.items():
            _try(f"keep {path} where it is", lambda path=path, handle=handle: _bind_through(handle, path))
        return True


class ConfinementError(Exception):
    """
    A process of a job cannot be confined as it has to be; the message says at what.

    Attributes
    ----------
    status : int
        The exit status of the process instead of its program's.
    """

    status = 126


class ProgramNotFound(ConfinementError):
    """A container has no such program; the message says where it was looked for."""

    status = 127


def _replaced_by(program: Sequence[str], where: str, env: Mapping[bytes, bytes]) -> OSError:
    """Become a program that is looked for in these folders; return why that is impossible."""
    name = program[0]
    problem = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in [name] if "/" in name else [os.path.join(folder, name) for folder in where.split(":")]:
        try:
            os.execve(path, [*program], env)  # noqa: S606 - what the shim is for
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve("/bin/sh", ["/bin/sh", path, *program[1:]], env)  # noqa: S606
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                problem = error
    return problem


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


def _open_straight(path: str, flags: int) -> int:
    """
    Open what is at a path whose links were resolved before; return its descriptor.

    Folders below ``/tmp`` are users' own. One of them may have put a link in the place of a folder since, by which root
    would come to what this user must not see.

    Raises
    ------
    OSError
        If there is a link on the way, or nothing.
    """
    *above, last = [name for name in path.split("/") if name]
    at = os.open("/", _PLACE | os.O_DIRECTORY)
    try:
        for name in above:
            below = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        return os.open(last, flags, dir_fd=at)
    finally:
        os.close(at)


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
    _checked(_libc.mount(os.fsencode(source), os.fsencode(target), None, _BIND | _RECURSIVE, None))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bound_capabilities() -> None:
    """Let a process that is root here, and all programs that it starts, have no more than root of a container has."""
    for number in range(64):
        if number not in _KEPT_BY_ROOT:
            _libc.prctl(_DROP_FROM_BOUND, number, 0, 0, 0)  # those that the kernel does not know are not there anyway


def _attach(tree: int, path: str) -> None:
    """Attach a mount at a path, which is made where it is not there."""
    is_folder = stat.S_ISDIR(os.fstat(tree).st_mode)
    at = _open_below(path, is_folder=is_folder)
    _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", at, b"", _FD_TO_FD))
    os.close(at)


def have_own_mounts() -> bool:
    """Have mounts of one's own, which later ones of the host come to; return whether the kernel lets this process."""
    return not (_libc.unshare(_NEW_MOUNTS) or _libc.mount(None, b"/", None, _SLAVE | _RECURSIVE, None))


def attach_temporary(trees: Sequence[tuple[str, int]], *, instead: bool) -> None:
    """
    Put folders in the place of ``/tmp``, for all processes of this one's mount namespace.

    Parameters
    ----------
    trees : sequence of (str, int)
        Of :meth:`Confinement.open_temporary`.
    instead : bool
        Whether others are there in their place, which are taken away.

    Raises
    ------
    OSError
        If the kernel does not let this process.
    """
    for where in TEMPORARY if instead else ():
        _checked(_libc.umount2(os.fsencode(where), _DETACH | _NO_LINK))
    given = {where for where, _ in trees}
    for where in TEMPORARY:
        if where not in given:
            options = b"mode=1777,size=64m"
            _checked(_libc.mount(b"none", os.fsencode(where), b"tmpfs", _NO_SET_ID_NO_DEVICES, options))
    for where, tree in trees:
        _attach(tree, where)


def enter_mounts(handle: int) -> None:
    """
    Enter a mount namespace.

    Raises
    ------
    OSError
        If the kernel does not let this process.
    """
    _checked(_libc.setns(handle, _NEW_MOUNTS))


def _clone_of(handle: int) -> int:
    tree = int(_libc.syscall(_OPEN_TREE, handle, b"", _CLONE_TREE))
    _checked(tree)
    os.close(handle)
    return tree


def _hide(path: str) -> None:
    """Mount an empty folder over one that a job has no business in."""
    if os.path.isdir(path):
        at = os.fsencode(path)
        _checked(_libc.mount(b"none", at, b"tmpfs", _NO_SET_ID_NO_DEVICES, b"mode=0711,size=1m"))


def _open_below(path: str, *, is_folder: bool) -> int:
    """
    Return a folder or file by its path from the top, made as far as it is not there.

    Links are followed in folders that only root may write to: any other's owner could have put them there meanwhile.
    """
    at = os.open("/", _FOLDER)
    names = [*_names(path)]
    for number, name in enumerate(names, 1):
        about = os.fstat(at)
        of_root = about.st_uid == 0 and not about.st_mode & 0o022
        links = 0 if of_root else os.O_NOFOLLOW
        if is_folder or number < len(names):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=at)
            below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | links, dir_fd=at)
        else:
            flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            below = os.open(name, flags, 0o644, dir_fd=at)
        os.close(at)
        at = below
    return at


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


def leave_keyring() -> None:
    """Begin with a keyring of its own: that of the executor's login may hold what opens its files and hosts."""
    if _KEYCTL is not None:
        _libc.syscall(_KEYCTL, _JOIN_SESSION_KEYRING, None)  # where there are no keyrings, there is nothing to leave
