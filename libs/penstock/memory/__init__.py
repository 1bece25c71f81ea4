"""
Memory of other nodes: a tier above the own disk, for data that is larger than the host's memory.

The names are loaded when they are first used, so that who imports one module pays for it only.

In reading order:

* ``block_store``: A store of blocks above the disk: local cache, borrowed slabs, and the file that has everything.
* ``remote_file``: A store as a file, and as an array that is used as ``numpy.memmap`` is.
* ``spill_dict``: A mapping whose values are in a store.
* ``chunk_cache``: The least recently used chunks, in the process's own memory.
* ``backing_file``: The disk below a store, and the writes that are on their way there.
* ``slab_ranges``: Which slab is bound to which range of a store, by how active it is.
* ``slab_binding``: One borrowed slab, over TCP or as shared memory.
* ``agent_link``: The conversation with the node's agent, which lends slabs and wants them back.
* ``checkpoint_copies``: Copies of a job's checkpoint in the memory of other nodes.
* ``fork_guard``: Locks around a fork.
* ``frames``: Frames of the slab protocol, by which a client reads and writes a borrowed slab.
* ``nbd_server``: NBD server: any program has a store of bytes as a block device, unmodified.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in penstock: importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock.memory.block_store import BlockStore, open_store
    from penstock.memory.remote_file import RemoteArray, RemoteFile
    from penstock.memory.slab_ranges import StoreStats
    from penstock.memory.spill_dict import SpillDict

_HOMES = {
    "BlockStore": "penstock.memory.block_store",
    "RemoteArray": "penstock.memory.remote_file",
    "RemoteFile": "penstock.memory.remote_file",
    "SpillDict": "penstock.memory.spill_dict",
    "StoreStats": "penstock.memory.slab_ranges",
    "open_store": "penstock.memory.block_store",
}

__all__ = ["BlockStore", "RemoteArray", "RemoteFile", "SpillDict", "StoreStats", "open_store"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
