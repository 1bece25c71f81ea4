"""The executor's data folder, which it has to itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ExecutorError(Exception):
    """The executor cannot work here; says what to do."""


@contextmanager
def alone_in(path: str) -> Iterator[Path]:
    """
    Hold the data folder.

    Raises
    ------
    ExecutorError
        If another executor holds it, or it cannot be written.
    """
    data = Path(path).absolute()
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ExecutorError(f"data_dir {data} cannot be written: {error.strerror}; set another one") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield data
    except BlockingIOError as error:
        raise ExecutorError(f"another executor works in {data}; stop it, or set another data_dir") from error
    finally:
        os.close(handle)
