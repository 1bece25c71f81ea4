"""
The folder of a service that works on one node: the instance lock, and Unix sockets for the processes of the node.

:func:`alone_in` makes a service the only one of its folder. :func:`path_in` says where a socket of it is, :func:`bind`
listens there, and :func:`peer` says who has connected, as the kernel knows it. :func:`secret_in` is what an aggregation
agent and the executor of its node share.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MEMORY_SOCKET: Final = "memory"
"""Name of the socket of a memory agent, which an executor tells its jobs of."""
AGGREGATOR_SOCKET: Final = "aggregator"
"""The same of an aggregation agent."""
SECRET_BYTES: Final = 32
LONGEST_PATH: Final = 100
"""Bytes of a socket's path in a data folder: some are left of what the kernel takes."""
KERNELS_LONGEST: Final = 107


@contextmanager
def alone_in(path: str, who: str, error_type: type[Exception]) -> Iterator[Path]:
    """
    Hold a data folder for one service alone, while the context is open.

    Parameters
    ----------
    who : str
        What the service is called in errors.
    error_type : type
        Raised if another one holds the folder, or it cannot be written.
    """
    data = Path(path).absolute()
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise error_type(f"data_dir {data} cannot be written: {error.strerror}; set another one") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise error_type(f"another {who} works in {data}; stop it, or set another data_dir") from error
        yield data
    finally:
        os.close(handle)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def path_in(data: Path, name: str = "agent", *, for_all: bool = False) -> Path:
    """
    Return where a socket is: in the data folder, or under the temporary folder where that path is too long.

    The path is the same at every start, since jobs of an earlier executor look for it. ``for_all``: processes of other
    users have to come to it. A folder that others may pass through does for both: who may connect is said by the
    socket's own mode (``bind``).
    """
    path = data / f"{name}.sock"
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if for_all and folder.lstat().st_uid == os.getuid():
        folder.chmod(0o711)
    if folder.lstat().st_uid != os.getuid() or folder.lstat().st_mode & 0o066:
        raise PermissionError(
            f"{folder} is open to others; remove it, or use a data_dir with a shorter path than {data}"
        )
    short = folder / f"{digest}.sock"
    if len(os.fsencode(short)) > KERNELS_LONGEST:
        raise OSError(
            errno.ENAMETOOLONG,
            f"a socket has no place in {data}, whose path is too long, nor in TMPDIR, {folder.parent}; use a data_dir "
            f"with a path of at most {LONGEST_PATH - 10} bytes",
        )
    return short


def bind(path: Path, *, for_all: bool = False) -> socket.socket:
    """
    Return the listening socket, readable and writable for this user alone from its first moment.

    ``for_all``: every user may connect, since jobs run as several; who it is, the kernel says of each connection.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o111 if for_all else 0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return listener


def secret_in(folder: Path) -> bytes:
    """
    Return the secret of a folder, which its owner alone can read; whoever asks first makes it.

    Raises
    ------
    OSError
        If it cannot be read or made.
    ValueError
        If the file holds something else.
    """
    path = folder / "secret"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=folder, prefix="secret-")  # open to its owner alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(new, path)  # whole from its first moment, and never a second one
        finally:
            os.unlink(new)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"{path} holds {len(secret)} bytes, expected {SECRET_BYTES}; delete it, and start again")
    return secret
