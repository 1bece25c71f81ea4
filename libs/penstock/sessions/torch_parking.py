"""
Parking of a PyTorch script: what it holds on its GPUs goes to the host's memory, and comes back to the same tensors.

:class:`TorchParking` moves storages and not tensors: one on the device is emptied in place, and filled again later.
So every tensor, parameter, view, gradient and optimizer state stays the object that it was, those that share memory
share it afterwards, and nothing of the script has to be named. The tensors are those that Python's garbage collector
knows, with the parameters of modules and the gradients that only PyTorch holds.

What cannot be moved stays where it is and is told of: memory of another library, and tensors that nothing but a kept
graph of gradients holds. A script with CUDA graphs is not parked, because a graph remembers addresses.

References
----------
Empty storages that are filled again are what PyTorch's fully sharded data parallel does with parameters between uses
(``torch.distributed.fsdp._common_utils._free_storage``).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Optional

from penstock.sessions.setup import SessionError
from penstock_log.text import gibibytes

MOST_LEFT_BYTES: Final = 256 << 20
"""So much may stay on the devices: as much as the context of a process takes there in any case."""
LEAST_FREE: Final = 16
"""One of so many parts of the host's memory is left free: where there is less, an executor ends parked runs."""
_ALIGNED: Final = 4096
_GROUPS: Final = Path("/sys/fs/cgroup")
_log = logging.getLogger("penstock.session")


class _Moved(NamedTuple):
    """A storage whose content is in the host's memory, from a position on."""

    storage: Any
    device: Any
    bytes: int
    at: int


class TorchParking:
    """
    What a process holds on its GPUs by PyTorch, moved to the host's memory and back.

    Parameters
    ----------
    kind : str
        Of devices, as PyTorch names it.

    Attributes
    ----------
    left : str
        After :meth:`leave`: what stays on the devices; empty where nothing does.
    """

    def __init__(self, kind: str = "cuda") -> None:
        self.left = ""
        self._kind = kind
        self._moved: list[_Moved] = []
        self._memory: Optional[HostCopy] = None

    def leave(self, tensors: Optional[Iterable[Any]] = None) -> None:
        """
        Move everything off the devices, and give their memory back.

        Parameters
        ----------
        tensors : iterable of torch.Tensor, optional
            What is to be moved; all that the process has.

        Raises
        ------
        SessionError
            If there is a CUDA graph, if the host has too little memory, or if more stays on the devices than
            :data:`MOST_LEFT_BYTES`. Everything is where it was then.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None or (self._kind == "cuda" and not torch.cuda.is_initialized()):
            return
        objects = _objects()
        _refuse_graphs(torch, objects)
        _settle(torch)
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            storages, fixed = _storages(all_tensors(torch, objects) if tensors is None else tensors, self._kind)
            del objects
            self._move(torch, storages)
        _give_back(torch)
        self._look_at_rest(torch, fixed)

    def come_back(self) -> None:
        """Move everything back; what does not fit into a device raises what PyTorch raises then."""
        torch: Any = sys.modules.get("torch")
        memory = self._memory
        if memory is None:
            return
        with torch.no_grad():
            for each in self._moved:
                each.storage.resize_(each.bytes)
                _content(torch, each).copy_(memory.part(each.at, each.bytes), non_blocking=True)
        _settle(torch)
        self._moved, self._memory = [], None
        threading.Thread(target=memory.free, daemon=True).start()  # 20 GiB take half a second

    def _move(self, torch: Any, storages: list[Any]) -> None:
        self._moved, at = [], 0
        for storage in storages:
            self._moved.append(_Moved(storage, storage.device, storage.nbytes(), at))
            at += -(-storage.nbytes() // _ALIGNED) * _ALIGNED
        if not at:
            return
        self._memory = HostCopy(torch, at, pinned=self._kind == "cuda")
        for each in self._moved:
            self._memory.part(each.at, each.bytes).copy_(_content(torch, each), non_blocking=True)
        _settle(torch)
        for each in self._moved:
            each.storage.resize_(0)

    def _look_at_rest(self, torch: Any, fixed: dict[str, int]) -> None:
        """Say what is left; where that is much, come back and refuse."""
        cuda = torch.cuda
        left = sum(cuda.memory_allocated(at) for at in range(cuda.device_count())) if self._kind == "cuda" else 0
        left = max(left, sum(fixed.values()))
        self.left = ""
        if not left:
            return
        known = [f"{gibibytes(size)} {why}" for why, size in fixed.items()]
        self.left = f"{gibibytes(left)}" + (f", of which {' and '.join(known)}" if known else "")
        if left > MOST_LEFT_BYTES:
            self.come_back()
            raise SessionError(
                f"{self.left} cannot be moved off the device; parking wants less than {gibibytes(MOST_LEFT_BYTES)}. "
                "A loss whose graph is kept holds such tensors: keep loss.detach()"
            )
        _log.info("parking_leaves_on_device %s", self.left)


def all_tensors(torch: Any, objects: Optional[Iterable[Any]] = None) -> Iterator[Any]:
    """Yield the tensors of this process that can be found, with the gradients of leaves; some more than once."""
    tensor_kinds: dict[type, bool] = {}
    module_kinds: dict[type, bool] = {}
    for each in _objects() if objects is None else objects:
        kind = type(each)  # an instance's own word, __class__, may be a proxy's
        if kind not in tensor_kinds:
            tensor_kinds[kind] = issubclass(kind, torch.Tensor)
            module_kinds[kind] = issubclass(kind, torch.nn.Module)
        if tensor_kinds[kind]:
            yield from _with_gradient(each)
        elif module_kinds[kind] and "_parameters" in vars(each):
            for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False)):
                yield from _with_gradient(tensor)


def _objects() -> list[Any]:
    """Return what the collector knows, without garbage; it looks after what a script has frozen from then on."""
    gc.unfreeze()  # for good: to freeze again would take in all that lives now, and cycles of it would never go
    gc.collect()
    return gc.get_objects()


def _with_gradient(tensor: Any) -> Iterator[Any]:
    yield tensor
    with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):  # of a subclass that has none
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad


def _storages(tensors: Iterable[Any], kind: str) -> tuple[list[Any], dict[str, int]]:
    """Return the storages on devices that can be emptied, each once, and the bytes that cannot, by the reason."""
    found: dict[int, Any] = {}
    fixed: dict[str, int] = {}
    seen: set[int] = set()
    for tensor in tensors:
        try:
            if tensor.device.type != kind:
                continue
            storage = tensor.untyped_storage()
            at, size = storage._cdata, storage.nbytes()
            if at in seen or not size or storage.device.type != kind or not storage.data_ptr():
                continue
        except (RuntimeError, NotImplementedError, AttributeError):
            continue  # without a storage of its own: sparse, or made of other tensors, which are found by themselves
        seen.add(at)
        if storage.resizable():
            found[at] = storage
        else:
            fixed[_OTHERS] = fixed.get(_OTHERS, 0) + size
    return list(found.values()), fixed


_OTHERS: Final = "of another library or process"


def _content(torch: Any, moved: _Moved) -> Any:
    """Return the bytes of a storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=moved.device).set_(moved.storage)


def _refuse_graphs(torch: Any, objects: Iterable[Any]) -> None:
    """Refuse a process with CUDA graphs: by the graphs themselves, and by the memory that is kept for them."""
    graph_kind = getattr(torch.cuda, "CUDAGraph", None)
    graphs = graph_kind is not None and any(issubclass(type(each), graph_kind) for each in objects)
    if not graphs and torch.cuda.is_initialized() and _has_pools(torch):
        torch.cuda.empty_cache()  # of graphs that are gone
        graphs = _has_pools(torch)
    if graphs:
        raise SessionError(
            "it has CUDA graphs, which remember addresses; they are torch.cuda.CUDAGraph or torch.compile with "
            "mode='reduce-overhead' or 'max-autotune'"
        )


def _has_pools(torch: Any) -> bool:
    """Return whether PyTorch keeps memory apart from the rest, as it does for CUDA graphs."""
    return any(segment.get("segment_pool_id", (0, 0)) != (0, 0) for segment in torch.cuda.memory_snapshot())


def _settle(torch: Any) -> None:
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


def _give_back(torch: Any) -> None:
    if torch.cuda.is_initialized():
        with contextlib.suppress(AttributeError, RuntimeError):  # the workspaces of products; of its own, undocumented
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


class HostCopy:
    """
    Memory of the host's, one mapping of this process's own; its pages are locked for copies where the driver does that.

    PyTorch's own pinned memory would be rounded up to a power of two, and kept afterwards.

    Raises
    ------
    SessionError
        If the host, or the control group, has no room for it.
    """

    def __init__(self, torch: Any, size: int, *, pinned: bool) -> None:
        room = room_bytes()
        if size > room:
            raise SessionError(
                f"{gibibytes(size)} of the device do not fit into the {gibibytes(max(0, room))} of host memory that "
                "the process may still take; ask for more by host_memory_bytes"
            )
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise SessionError(f"no {gibibytes(size)} of host memory to move the device's to: {error}") from error
        with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._torch, self._bytes = torch, torch.frombuffer(self._map, dtype=torch.uint8)
        self._bytes.zero_()  # by all threads of PyTorch: the driver would have the pages made one after the other
        self._pinned = pinned and self._pin(size)

    def part(self, at: int, size: int) -> Any:
        """Return a part, as a tensor of bytes."""
        return self._bytes[at : at + size]

    def free(self) -> None:
        """Give it back to the host."""
        if self._pinned:
            self._torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
        del self._bytes
        with contextlib.suppress(BufferError):  # a part of it is still in somebody's hands, and goes with him
            self._map.close()

    def _pin(self, size: int) -> bool:
        """Lock the pages for the driver; without that, copies are slower."""
        cuda = self._torch.cuda
        if int(cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), size, 0)) == 0:
            return True
        with contextlib.suppress(
            RuntimeError
        ):  # the driver keeps its last error, and PyTorch raises it at the next kernel
            self._torch.zeros(1, device="cuda")
        _log.warning("host_memory_not_pinned; copies to the device are slower")
        return False


def room_bytes(groups: Path = _GROUPS, proc: Path = Path("/proc")) -> int:
    """Return how much more of the host's memory this process may take, by what is free and by its control groups."""
    sizes = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            sizes[name] = int(value.split()[0]) * 1024
    if "MemAvailable" not in sizes:
        return sys.maxsize  # nobody knows; the kernel decides
    return min([sizes["MemAvailable"] - sizes.get("MemTotal", 0) // LEAST_FREE, *_rooms(groups, proc)])


def _rooms(groups: Path, proc: Path) -> Iterator[int]:
    """Yield what is left in each control group of this process that has a limit: files do not count, they can go."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    own = next((line[3:] for line in lines if line.startswith("0::")), "/").strip("/")
    group = groups / own
    while group != groups.parent:
        with contextlib.suppress(OSError, ValueError):
            most = (group / "memory.max").read_text().strip()
            if most != "max":
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                files = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
                yield int(most) - int((group / "memory.current").read_text()) + files
        group = group.parent
