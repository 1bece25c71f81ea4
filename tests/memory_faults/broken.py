"""The product broken on purpose, in the process of a client, to see that the verifier finds it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Any, Final

from penstock.memory.block_store import BlockStore
from penstock.memory.slab_binding import RemoteSlab, SharedSlab, SlabLost


def keep_bitmap() -> None:
    """After a slab was lost, believe that the next one has what that had."""
    unbind, bound = BlockStore._unbind, BlockStore._bound
    kept: dict[int, bytearray] = {}

    def keeping(self: BlockStore, part: Any) -> None:
        if part.binding is not None:
            kept[part.number] = part.valid
        unbind(self, part)

    def restoring(self: BlockStore, part: Any, turn: int, binding: Any) -> bool:
        done = bound(self, part, turn, binding)
        if done and part.number in kept and len(kept[part.number]) == len(part.valid):
            part.valid = kept[part.number]
        return done

    BlockStore._unbind, BlockStore._bound = keeping, restoring  # type: ignore[method-assign]


def ignore_generation() -> None:
    """Read and write shared memory without looking whether it counts still, whoever says that it goes."""
    SharedSlab._check_state = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
    BlockStore._slab_evicted = lambda self, number, reason: None  # type: ignore[method-assign]  # noqa: ARG005


def acknowledge_early() -> None:
    """Say that the slab has a write before it was sent."""
    write = RemoteSlab.write

    def late(self: RemoteSlab, offset: int, data: Any) -> None:
        def send() -> None:
            sleep(0.01)
            try:
                write(self, offset, copy)
            except SlabLost:
                return

        copy = bytes(data)
        threading.Thread(target=send, daemon=True).start()

    RemoteSlab.write = late  # type: ignore[method-assign]


BROKEN: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each for each in (keep_bitmap, ignore_generation, acknowledge_early)
}
