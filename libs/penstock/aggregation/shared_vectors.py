"""
A rank's pushes that may be needed again, and the place for its results, in memory that aggregators of its host share.

The memory is sealed against shrinking, since an aggregator that reads memory which was cut off dies of it. Where the
system has none of that kind, it is ordinary memory, and everything goes over TCP.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

_ALIGNED: Final = 4096
_ADD_SEALS: Final = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEAL_SHRINK: Final = getattr(fcntl, "F_SEAL_SHRINK", 2)


class SharedVectors:
    """
    Some vectors of one length: those of pushes, by their steps, and that of results.

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
    results : (elements,) array
        Where aggregators of this host write.
    """

    def __init__(self, elements: int, dtype: str, most_pushes: int) -> None:
        itemsize = np.dtype(dtype).itemsize
        self._stride = -(-elements * itemsize // _ALIGNED) * _ALIGNED
        size = self._stride * (most_pushes + 1)
        self.descriptor, buffer = _shared_memory(size)
        vectors = [np.frombuffer(buffer, dtype, elements, at * self._stride) for at in range(most_pushes + 1)]
        self.results: Vector = vectors.pop()
        self.results_at: Final = most_pushes * self._stride
        self._vectors: list[Vector] = vectors
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


def _shared_memory(size: int) -> tuple[int, Any]:
    try:
        descriptor = os.memfd_create("penstock-vectors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # no Linux, or not allowed
        return -1, bytearray(size)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
        return descriptor, mmap.mmap(descriptor, size)
    except OSError:
        os.close(descriptor)
        return -1, bytearray(size)
