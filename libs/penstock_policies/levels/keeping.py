"""
Where compiled kernels are kept, and that it never matters to anyone but the clock if they cannot be.

Numba's own cache finds out by writing whether a directory is any good. One that came with a read-only image is refused,
and a disk that is full fails the call that compiles. Here a directory that can be read is good enough, and what cannot
be saved is compiled again by the next process.

A kernel contains those that it calls, and numba's cache looks at its own file only. So the name of the directory tells
the state of all files of the package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from shutil import rmtree
from typing import Any, Final

from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

PREFIX: Final = "penstock-kernels-"


def open_directory(digest: str) -> Path | None:
    """
    Return the directory for kernels of these sources; None if there is none to read or to write.

    The first that is there or can be made, in this order: under ``NUMBA_CACHE_DIR``, ``PENSTOCK_CACHE_DIR``, beside
    the package, ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    for base in _bases():
        found = base / f"{PREFIX}{digest}"
        with suppress(OSError):
            found.mkdir(parents=True, exist_ok=True)
            return found
    return None


def forget_older(directory: Path) -> None:
    """Remove what earlier versions of the package left beside a directory."""
    for other in directory.parent.glob(f"{PREFIX}*"):
        if other != directory:
            rmtree(other, ignore_errors=True)


_SOURCES: Final = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


def _bases() -> Iterator[Path]:
    for variable in ("NUMBA_CACHE_DIR", "PENSTOCK_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    yield Path(__file__).parent / "__pycache__"
    if named := os.environ.get("XDG_CACHE_HOME"):
        yield Path(named) / "penstock"
    with suppress(RuntimeError):  # nobody's home
        yield Path.home() / ".cache" / "penstock"


DIRECTORY: Final = open_directory(_SOURCES.hexdigest()[:16])
"""Where compiled kernels are kept; None where nothing can be read or written: each process compiles for itself."""


class _Kept(_CacheLocator):
    """Tells numba where: the directory's name stands for the sources, so there is nothing to compare."""

    def get_cache_path(self) -> str:
        return str(DIRECTORY)

    def get_source_stamp(self) -> str:
        return PREFIX

    def get_disambiguator(self) -> str:
        return "kernel"

    @classmethod
    def from_function(cls, py_func: object, py_file: str) -> _Kept:  # noqa: ARG003 - asked for by numba
        return cls()


class _Impl(CompileResultCacheImpl):
    _locator_classes: Any = (_Kept,)


class KernelCache(FunctionCache):
    """The cache of one kernel, for which not being able to read or write is no error."""

    _impl_class = _Impl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what is kept for a signature; None if nothing can be had, and then begin anew."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (OSError, EOFError, UnpicklingError):
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for a signature, where possible."""
        with suppress(OSError, EOFError, UnpicklingError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
