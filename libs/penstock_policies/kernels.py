"""
Kernels compiled by numba: where they are kept, and that it never matters to anyone but the clock if they cannot be.

Numba's own cache finds out by writing whether a directory is any good. One that came with a read-only image is refused,
and a disk that is full fails the call that compiles. Here a directory that can be read is good enough, and what cannot
be saved is compiled again by the next process.

A kernel contains those that it calls, and numba's cache looks at its own file only. So the name of the directory tells
the state of all files of the package.

Compiling takes half a minute, once on a machine. Meanwhile :class:`SwitchedKernel` runs the same source interpreted: a
hundred times slower, which nobody notices on a queue of hundreds of jobs, and with the same results.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, TypeVar, cast

Kernel = TypeVar("Kernel", bound=Callable[..., object])

PREFIX: Final = "penstock-kernels-"
_LOCK: Final = "compiling.lock"
_ALL_KEPT: Final = "all-kept-"
_compiled_here: Final[ContextVar[bool]] = ContextVar("compiled_here", default=False)


class Kernels:
    """
    The kernels of one package.

    Parameters
    ----------
    name : str
        Told apart by it where kernels of several packages are kept side by side.
    package : Path
        The directory of all sources that the kernels are made of.
    """

    def __init__(self, name: str, package: Path) -> None:
        sources = b"".join(path.read_bytes() for path in sorted(package.glob("*.py")))
        self._prefix = f"{PREFIX}{name}-"
        self.directory: Path | None = open_directory(
            f"{self._prefix}{hashlib.sha256(sources).hexdigest()[:16]}", package
        )
        """Where they are kept; None where nothing can be read or written: each process compiles for itself."""
        self.interpreted = False
        """Whether those that can be switched run as plain Python now; set it between calls, not during one."""

    def compiled(self, function: Kernel, **options: Any) -> Kernel:
        """Return a function compiled for the machine at its first call, or loaded from where kernels are kept."""
        from penstock_policies.kernel_cache import compiled  # noqa: PLC0415 - a second, for those who compile or load

        return cast("Kernel", compiled(function, self.directory, options))

    def switched(self, function: Kernel, **options: Any) -> Kernel:
        """Return a kernel that is compiled at its first call, and runs interpreted while ``interpreted`` is set."""
        return cast("Kernel", SwitchedKernel(self, function, options))

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile, or load, what is called within, in this thread or task, whatever the others do meanwhile."""
        token = _compiled_here.set(True)
        try:
            yield
        finally:
            _compiled_here.reset(token)

    def are_kept(self) -> bool:
        """Say whether all of them were compiled for this machine before, by :meth:`keep_all`, and are kept."""
        if self.directory is None or not any(self.directory.glob(f"{_ALL_KEPT}*")):
            return False
        return (self.directory / self._all_kept()).exists()

    def can_be_kept(self) -> bool:
        """Say whether another process would find what this one compiles."""
        return self.directory is not None and os.access(self.directory, os.W_OK)

    def keep_all(self, compile_all: Callable[[], None]) -> None:
        """
        Compile all for the processes to come, unless they are kept; a second process that wants to waits for the first.

        Parameters
        ----------
        compile_all : callable
            Calls, within :meth:`compiling`, every kernel with arguments of all types that it is ever called with.
        """
        with self._locked():
            if not self.are_kept():
                compile_all()
                if self.directory is not None:
                    with suppress(OSError):
                        (self.directory / self._all_kept()).touch()

    def are_being_compiled(self) -> bool:
        """Say whether a process is in :meth:`keep_all` now."""
        if self.directory is None:
            return False
        try:
            lock = os.open(self.directory / _LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _all_kept(self) -> str:
        """Return the name of the file that says that all kernels are kept for this processor and this numba."""
        from penstock_policies.kernel_cache import made_for  # noqa: PLC0415 - as above

        return _ALL_KEPT + made_for()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only process that compiles; where no lock can be had, one of several."""
        lock = -1
        if self.directory is not None:
            with suppress(OSError):
                lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if lock >= 0:
                os.close(lock)

    def forget_older(self) -> None:
        """Remove what earlier versions of the package left beside the directory."""
        if self.directory is None:
            return
        for other in self.directory.parent.glob(f"{self._prefix}*"):
            if other != self.directory:
                rmtree(other, ignore_errors=True)


class SwitchedKernel:
    """
    A kernel that runs compiled or interpreted, as :class:`Kernels` say at each call.

    Other kernels call it by its name, compiled as well as interpreted: numba takes it for what it is made of.
    """

    def __init__(self, kernels: Kernels, function: Callable[..., object], options: dict[str, Any]) -> None:
        self._kernels, self._options = kernels, options
        self.py_func = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *args: object) -> object:
        """Call it."""
        interpreted = self._kernels.interpreted and not _compiled_here.get()
        return self.py_func(*args) if interpreted else self.dispatcher(*args)

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of it."""
        return self._kernels.compiled(self.py_func, **self._options)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_


def open_directory(name: str, package: Path) -> Path | None:
    """
    Return a directory of that name; None if there is none to read or to write.

    The first that holds something or can be written, in this order: under ``NUMBA_CACHE_DIR``, ``PENSTOCK_CACHE_DIR``,
    beside the package, ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    for base in _bases(package):
        with suppress(OSError):
            (base / name).mkdir(parents=True, exist_ok=True)
            if os.access(base / name, os.W_OK) or any((base / name).iterdir()):
                return base / name
    return None


def _bases(package: Path) -> Iterator[Path]:
    for variable in ("NUMBA_CACHE_DIR", "PENSTOCK_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    yield package / "__pycache__"
    if named := os.environ.get("XDG_CACHE_HOME"):
        yield Path(named) / "penstock"
    with suppress(RuntimeError):  # nobody's home
        yield Path.home() / ".cache" / "penstock"
