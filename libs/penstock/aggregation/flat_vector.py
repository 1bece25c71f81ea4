"""
A job's values as one flat vector: numpy arrays, or tensors of PyTorch, in the order in which they were given.

A mapping's are in the order of their names, so that processes that have filled theirs in other orders agree.

Aggregators know one vector of one type, cut into parts. :class:`FlatVector` copies values into it and back, whatever
their shapes, and whatever device a tensor is on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Union

import numpy as np

from penstock.sessions.setup import SessionError
from penstock_log.aggregation_messages import MOST_PARTS, PART_BYTES, VectorLayout

Values = Union[Any, Sequence[Any], Mapping[str, Any]]
"""An array or a tensor, several of them, a mapping of names to them, or a module of PyTorch: its parameters."""
_WIDENED: Final = frozenset({"float16", "bfloat16", "float32"})


def arrays_of(values: Values) -> list[Any]:
    """
    Return the arrays or tensors of what was given, in order; those of a mapping in the order of their names.

    Raises
    ------
    SessionError
        If there is none, or one of them is neither.

    Examples
    --------
    >>> [array.shape for array in arrays_of({"w": np.zeros((2, 3)), "b": np.zeros(3)})]
    [(3,), (2, 3)]
    """
    if isinstance(values, np.ndarray) or _is_tensor(values):
        found = [values]
    elif isinstance(values, Mapping):
        found = [values[name] for name in _names_of(values)]
    elif callable(parameters := getattr(values, "parameters", None)):
        found = list(parameters())
    elif isinstance(values, Iterable):
        found = list(values)
    else:
        found = []
    if not found:
        raise SessionError(f"aggregation needs arrays or tensors, and got {type(values).__name__} without any")
    for number, each in enumerate(found):
        if not isinstance(each, np.ndarray) and not _is_tensor(each):
            what = "None" if each is None else type(each).__name__
            hint = "; of a parameter without a gradient, give zeros" if each is None else ""
            raise SessionError(f"value {number} is {what}; expected a numpy array or a torch tensor{hint}")
    return found


class FlatVector:
    """
    The flat vector of some values, and how it is cut into parts.

    Parameters
    ----------
    values : array, tensor, sequence or mapping of them, or module
        Their shapes and types are taken from them; all floating. If all are float64, so is the vector; else it has
        float32, into which narrower types are widened.
    servers : int
        The vector has so many parts at least, if it has as many elements.

    Attributes
    ----------
    data : numpy.ndarray
        The vector, of shape (elements,).
    layout : VectorLayout

    Raises
    ------
    SessionError
        If a value is of no floating type, or float64 stands beside narrower ones, or there is no element at all.

    Examples
    --------
    >>> vector = FlatVector([np.ones((2, 2), "f4"), np.zeros(1, "f4")], servers=2)
    >>> vector.pack([np.ones((2, 2), "f4"), np.zeros(1, "f4")])
    >>> vector.data.tolist(), vector.layout.parts
    ([1.0, 1.0, 1.0, 1.0, 0.0], (3, 2))
    """

    def __init__(self, values: Values, servers: int = 1) -> None:
        arrays = arrays_of(values)
        self._shapes = [tuple(each.shape) for each in arrays]
        self._names = _names_of(values) if isinstance(values, Mapping) else []
        dtype = _common_type(arrays)
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        if not sum(sizes):
            raise SessionError("aggregation needs at least one element, and all values are empty")
        self.data = np.zeros(sum(sizes), dtype)
        ends = np.cumsum(sizes).tolist()
        self._views = [
            self.data[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, self._shapes)
        ]
        self._tensors: list[Any] = []
        self.layout = VectorLayout(
            dtype="f8" if dtype == np.float64 else "f4",
            parts=parts_of(self.data, servers),
            values=sha256(repr((list(map(str, self._names)), self._shapes)).encode()).hexdigest()[:32],
        )

    def pack(self, values: Values) -> None:
        """Copy values of the same shapes into the vector; raises SessionError where a shape is another."""
        for number, array in enumerate(self._checked(values)):
            if isinstance(array, np.ndarray):
                np.copyto(self._views[number], array, casting="same_kind")
            else:
                self._tensor(number).copy_(array.detach())

    def unpack(self, values: Values) -> None:
        """Copy the vector into values of the same shapes, in place; raises as :meth:`pack` does."""
        for number, array in enumerate(self._checked(values)):
            if isinstance(array, np.ndarray):
                if not array.flags.writeable:
                    raise SessionError(f"value {number} is read-only, and results are written into it; give a copy")
                np.copyto(array, self._views[number], casting="same_kind")
            else:
                array.detach().copy_(
                    self._tensor(number)
                )  # shares the tensor's memory, and leaves no trace in autograd

    def _checked(self, values: Values) -> list[Any]:
        arrays = arrays_of(values)
        if self._names and isinstance(values, Mapping) and (names := _names_of(values)) != self._names:
            differ = sorted(map(str, set(names) ^ set(self._names)))
            raise SessionError(f"names are those that were aggregated at first; these differ: {', '.join(differ[:5])}")
        shapes = [tuple(each.shape) for each in arrays]
        if shapes != self._shapes:
            at = next((n for n, pair in enumerate(zip(shapes, self._shapes)) if pair[0] != pair[1]), None)
            wrong = f"{len(shapes)} values" if at is None else f"value {at} of shape {shapes[at]}"
            right = f"{len(self._shapes)}" if at is None else f"{self._shapes[at]}"
            raise SessionError(f"{wrong} came, and {right} was aggregated at first; shapes stay the same within a run")
        return arrays

    def _tensor(self, number: int) -> Any:
        if not self._tensors:
            torch = sys.modules["torch"]
            self._tensors = [torch.from_numpy(view) for view in self._views]
        return self._tensors[number]


def parts_of(vector: np.ndarray[Any, Any], servers: int) -> tuple[int, ...]:
    """
    Return the elements of each part: as many parts as servers at least, none longer than the longest.

    Raises
    ------
    SessionError
        If that are too many parts.

    Examples
    --------
    >>> parts_of(np.zeros(10, "f4"), 3), parts_of(np.zeros(2, "f4"), 3), len(parts_of(np.zeros(5 << 20, "f4"), 1))
    ((4, 3, 3), (1, 1), 5)
    """
    count = min(vector.size, max(servers, -(-vector.nbytes // PART_BYTES)))
    if count > MOST_PARTS:
        raise SessionError(
            f"{vector.nbytes} bytes are {count} parts of {PART_BYTES} bytes, and a job has {MOST_PARTS} at most"
        )
    least, more = divmod(vector.size, count)
    return (least + 1,) * more + (least,) * (count - more)


def _names_of(values: Mapping[Any, Any]) -> list[Any]:
    """Return a mapping's names in the one order that all processes agree on, however each has filled its own."""
    return sorted(values, key=str)


def _common_type(arrays: list[Any]) -> type[np.floating[Any]]:
    names = {str(each.dtype).rpartition(".")[2] for each in arrays}
    if names == {"float64"}:
        return np.float64
    if names <= _WIDENED:
        return np.float32
    found = ", ".join(sorted(names))
    raise SessionError(f"values of type {found} came; expected float32 or narrower floats, or float64 for all of them")


def _is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
