"""
Kernels compiled by numba: where they are kept, and that it never matters to anyone but the clock if they cannot be.

Numba's own cache finds out by writing whether a directory is any good. One that came with a read-only image is refused,
and a disk that is full fails the call that compiles. Here a directory that can be read is good enough, and what cannot
be saved is compiled again by the next process.

A kernel contains those that it calls, and numba's cache looks at its own file only. So the name of the directory tells
the state of all files of the package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from shutil import rmtree
from typing import Any, Final, TypeVar, cast

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

Kernel = TypeVar("Kernel", bound=Callable[..., object])

PREFIX: Final = "penstock-kernels-"


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

    def compiled(self, function: Kernel, **options: Any) -> Kernel:
        """Return a function compiled for the machine at its first call, or loaded from where kernels are kept."""
        made = numba.njit(**options)(function)
        if self.directory is not None:
            made._cache = _cache_in(self.directory)(function)
        return cast("Kernel", made)

    def forget_older(self) -> None:
        """Remove what earlier versions of the package left beside the directory."""
        if self.directory is None:
            return
        for other in self.directory.parent.glob(f"{self._prefix}*"):
            if other != self.directory:
                rmtree(other, ignore_errors=True)


def open_directory(name: str, package: Path) -> Path | None:
    """
    Return a directory of that name; None if there is none to read or to write.

    The first that is there or can be made, in this order: under ``NUMBA_CACHE_DIR``, ``PENSTOCK_CACHE_DIR``, beside
    the package, ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    for base in _bases(package):
        with suppress(OSError):
            (base / name).mkdir(parents=True, exist_ok=True)
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


def _cache_in(directory: Path) -> type[_KernelCache]:
    class Kept(_Kept):
        place = str(directory)

    class Impl(CompileResultCacheImpl):
        _locator_classes: Any = (Kept,)

    class Cache(_KernelCache):
        _impl_class: Any = Impl

    return Cache


class _Kept(_CacheLocator):
    """Tells numba where: the directory's name stands for the sources, so there is nothing to compare."""

    place: str

    def get_cache_path(self) -> str:
        return self.place

    def get_source_stamp(self) -> str:
        return PREFIX

    def get_disambiguator(self) -> str:
        return "kernel"

    @classmethod
    def from_function(cls, py_func: object, py_file: str) -> _Kept:  # noqa: ARG003 - asked for by numba
        return cls()


class _KernelCache(FunctionCache):
    """The cache of one kernel, for which not being able to read or write is no error."""

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
