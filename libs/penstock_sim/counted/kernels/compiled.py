"""Compile kernels with numba, into its cache where one can be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])

_SOURCES: Final = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))

_OPTIONS: Final[dict[str, Any]] = {"_nrt": False}


def kernel(function: Kernel) -> Kernel:
    """
    Return the function compiled for the machine at its first call.

    A kernel contains those that it calls, and numba's cache looks at its own file only: so the name that it is kept by
    tells the state of all files of the package. Where no cache can be written, every process compiles for itself.

    Without numba's run time: no kernel makes an array, and counting the references to those that are handed from one to
    the next took two thirds of the time.
    """
    function.__qualname__ = f"{function.__qualname__}_{_SOURCES.hexdigest()[:12]}"
    try:
        return cast("Kernel", numba.njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        return cast("Kernel", numba.njit(**_OPTIONS)(function))
