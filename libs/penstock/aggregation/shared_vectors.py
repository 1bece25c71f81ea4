"""
Vectors in memory that ranks and aggregators of one host share: pushes that may be needed again, and results.

:class:`SharedVectors` is a rank's pushes, which aggregators read; :class:`SharedResult` is a part's result, which ranks
read. The memory is sealed against shrinking, since who reads memory that was cut off dies of it, and results against
being written by others. Where the system has no such memory, it is ordinary, and everything goes over sockets.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.leased_connection import sealed_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

_ALIGNED: Final = 4096
_ADD_SEALS: Final = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEAL_SHRINK: Final = getattr(fcntl, "F_SEAL_SHRINK", 2)
_SEAL_GROW: Final = getattr(fcntl, "F_SEAL_GROW", 4)
_SEAL_FUTURE_WRITE: Final = 16  # Linux 5.1


class SharedVectors:
    """
    A rank's pushes, by their steps: vectors of one length.

    Parameters
    ----------
    elements, dtype : int, str
        Of one vector.
    most_pushes : int
        So many may be kept at a time.

    Attributes
    ----------
    descriptor : int
        Of the memory; -1 where it cannot be shared.
    """

    def __init__(self, elements: int, dtype: str, most_pushes: int) -> None:
        itemsize = np.dtype(dtype).itemsize
        self._stride = -(-elements * itemsize // _ALIGNED) * _ALIGNED
        self.descriptor, buffer = _shared_memory(self._stride * most_pushes, _SEAL_SHRINK)
        self._vectors: list[Vector] = [
            np.frombuffer(buffer, dtype, elements, at * self._stride) for at in range(most_pushes)
        ]
        self._free = list(range(most_pushes))
        self._steps: dict[int, int] = {}

    @property
    def oldest(self) -> int | None:
        """The first step whose push is kept; None where there is none."""
        return min(self._steps, default=None)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another push."""
        return not self._free

    def keep(self, step: int) -> Vector:
        """Return the vector for the push of a step, to be filled."""
        self._steps[step] = self._free.pop()
        return self.push_of(step)

    def push_of(self, step: int) -> Vector:
        """Return what was pushed in a step that is kept."""
        return self._vectors[self._steps[step]]

    def push_at(self, step: int) -> int:
        """Return where in the memory the push of a step begins, in bytes."""
        return self._steps[step] * self._stride

    def forget(self, safe_step: int) -> None:
        """Forget the pushes of a step and of all before."""
        for step in [step for step in self._steps if step <= safe_step]:
            self._free.append(self._steps.pop(step))

    def close(self) -> None:
        """Close the descriptor; the memory goes with its last user."""
        if self.descriptor >= 0:
            with suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1


class SharedResult:
    """
    A part's result in an aggregator's memory.

    Parameters
    ----------
    elements, dtype : int, dtype

    Attributes
    ----------
    vector : (elements,) array
    descriptor : int
        Of the memory, which others can only read; -1 where it cannot be shared.
    """

    def __init__(self, elements: int, dtype: Any) -> None:
        size = elements * np.dtype(dtype).itemsize
        self.descriptor, buffer = _shared_memory(size, _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE)
        self.vector: Vector = np.frombuffer(buffer, dtype, elements)

    @property
    def is_shared(self) -> bool:
        """Whether others can read it."""
        return self.descriptor >= 0

    def close(self) -> None:
        """Close the descriptor; the memory goes with its last user."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def map_result(descriptor: int, elements: int, dtype: str) -> Vector | None:
    """Return a part's result in an aggregator's memory, to be read; None if that memory is too short, or not sealed."""
    size = elements * np.dtype(dtype).itemsize
    if sealed_bytes(descriptor) < size:
        return None
    result: Vector = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), dtype, elements)
    return result


def _shared_memory(size: int, seals: int) -> tuple[int, Any]:
    try:
        descriptor = os.memfd_create("penstock-vectors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # no Linux, or not allowed
        return -1, bytearray(size)
    try:
        os.ftruncate(descriptor, size)
        buffer = mmap.mmap(descriptor, size)
        fcntl.fcntl(descriptor, _ADD_SEALS, seals)
    except OSError:
        os.close(descriptor)
        return -1, bytearray(size)
    return descriptor, buffer
