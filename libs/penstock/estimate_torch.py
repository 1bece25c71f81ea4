"""Adds up the storages of all tensors that are made, on content or without; imported only where torch is."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from penstock.estimate_recurrent import scratch_bytes, workspace_bytes

torch: Any = import_module("torch")
_fake_tensor: Any = import_module("torch._subclasses.fake_tensor")
_dispatch: Any = import_module("torch.utils._python_dispatch")
_overrides: Any = import_module("torch.overrides")
_pytree: Any = import_module("torch.utils._pytree")

_READS_A_NUMBER = torch.ops.aten._local_scalar_dense.default
_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default
_RECURRENT_BOTH = _RECURRENT, torch.ops.aten.mkldnn_rnn_layer_backward.default


class Storages:
    """What lives now, and the most that lived at once; in blocks of ``block_bytes``."""

    def __init__(self, block_bytes: int) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._block_bytes = block_bytes
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def see(self, tensor: Any) -> None:
        """Count a tensor's storage, unless it is known, and until it ends."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        size_bytes = -(-storage.nbytes() // self._block_bytes) * self._block_bytes
        known = self._known.get(key)
        if known and known[0]() is not None:
            self._count(size_bytes - known[1])  # the same, or resized
        else:
            self._count(size_bytes)
        self._known[key] = weakref.ref(storage, lambda gone: self._forget(key, gone)), size_bytes

    def see_in_passing(self, size_bytes: int) -> None:
        """Count what an operation takes beside its results and has given back."""
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + size_bytes)

    def reset_peak(self) -> None:
        """Reset the peak to what lives now."""
        self.peak_bytes = self.live_bytes

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        known = self._known.get(key)
        if known and known[0] is gone:
            del self._known[key]
            self._count(-known[1])

    def _count(self, size_bytes: int) -> None:
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


class _Watch(_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch's classes are Any here
    """Sees the results of every operation."""

    def __init__(self, storages: Storages, *, fake: bool) -> None:
        super().__init__()
        self._storages = storages
        self._fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if self._fake and func is _READS_A_NUMBER:
            return _number(args[0])
        result = func(*args, **(kwargs or {}))
        if self._fake and func is _RECURRENT:
            *results, _ = result  # torch describes its workspace as empty
            result = (*results, torch.empty(workspace_bytes(*_lengths(args)), dtype=torch.uint8))
        _pytree.tree_map_only(torch.Tensor, self._storages.see, result)
        if self._fake and func in _RECURRENT_BOTH:
            self._storages.see_in_passing(scratch_bytes(*_lengths(args), backward=func is not _RECURRENT))
        return result


def _lengths(args: Any) -> tuple[int, int, int, int]:
    """Return steps, rows, inputs and hidden units of a recurrent layer, from its input and its second weights."""
    steps, rows, inputs = args[0].shape
    return steps, rows, inputs, args[2].shape[1]


def _number(tensor: Any) -> Any:
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        return constant.item()
    return True if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1


@contextmanager
def real(block_bytes: int) -> Iterator[Storages]:
    """Watch what is really made."""
    storages = Storages(block_bytes)
    with _Watch(storages, fake=False):
        yield storages


@contextmanager
def fake(block_bytes: int) -> Iterator[Storages]:
    """Make nothing that has content, and watch what would have been made."""
    storages = Storages(block_bytes)
    with (
        warnings.catch_warnings(),
        _as_it_was(),
        _moving(),
        _fake_tensor.FakeTensorMode(allow_non_fake_inputs=True),
        _Watch(storages, fake=True),
        _OnHost(),
    ):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # torch's own deepcopy does
        yield storages


@contextmanager
def _moving() -> Iterator[None]:
    """
    Let modules be moved: ``module.to(device)`` swaps tensors, and refuses where anybody has a weak reference to one.

    Torch's own fake mode has one to each of its tensors, by which it finds none again, so that it minds no swap.
    """
    if not hasattr(torch.utils, "weakref"):  # where swap_tensors looks
        yield
        return
    with patch.object(torch.utils, "weakref", _NobodyRefers):
        yield


class _NobodyRefers:
    getweakrefs = staticmethod(lambda _: ())


class _OnHost(_overrides.TorchFunctionMode):  # type: ignore[misc]  # torch's classes are Any here
    """
    Leaves on the host what a script puts on a GPU: a backward pass opens the device of its tensors, fake or not.

    From then on it does without oneDNN, which computes recurrent layers on the CPU alone: they are counted in parts.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.Tensor.cuda:
            torch._C._set_mkldnn_enabled(False)
            return args[0]
        return func(*map(_on_host, args), **{name: _on_host(value) for name, value in (kwargs or {}).items()})


def _on_host(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        moved: Any = "cpu"
    elif isinstance(value, torch.device) and value.type == "cuda":
        moved = torch.device("cpu")
    else:
        return value
    torch._C._set_mkldnn_enabled(False)
    return moved


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Leave oneDNN as it was found: see :class:`_OnHost`."""
    before = torch._C._get_mkldnn_enabled()
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
