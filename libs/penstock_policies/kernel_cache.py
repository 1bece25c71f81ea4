"""Where numba keeps what it compiled: a part of :mod:`penstock_policies.kernels` that loads the compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.registry import cpu_target

_STAMP = "penstock-kernels-"


def compiled(function: Callable[..., object], directory: Path | None, options: dict[str, Any]) -> Any:
    """Return a function compiled for the machine at its first call, or loaded from the directory."""
    made = numba.njit(**options)(function)
    if directory is not None:
        made._cache = _cache_in(directory)(function)
    return made


def made_for() -> str:
    """Return a word for the processor, and the numba, that kernels are compiled for."""
    target = (numba.__version__, *cpu_target.target_context.codegen().magic_tuple())
    return hashlib.sha256(repr(target).encode()).hexdigest()[:16]


def _cache_in(directory: Path) -> type[_KernelCache]:
    class Here(_Locator):
        place = str(directory)

    class Impl(CompileResultCacheImpl):
        _locator_classes: Any = (Here,)

    class Cache(_KernelCache):
        _impl_class: Any = Impl

    return Cache


class _Locator(_CacheLocator):
    """Tells numba where: the directory's name stands for the sources, so there is nothing to compare."""

    place: str

    def get_cache_path(self) -> str:
        return self.place

    def get_source_stamp(self) -> str:
        return _STAMP

    def get_disambiguator(self) -> str:
        return "kernel"

    @classmethod
    def from_function(cls, py_func: object, py_file: str) -> _Locator:  # noqa: ARG003 - asked for by numba
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
