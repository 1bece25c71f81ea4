"""The product broken on purpose, in the process of a client, to see that the verifier finds it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Any, Final

from penstock.memory.slab_binding import RemoteSlab, SharedSlab, SlabLost
from penstock.memory.slab_ranges import SlabRange, SlabRanges


def keep_bitmap() -> None:
    """After a slab was lost, believe that the next one has what that had."""
    unbind, is_used = SlabRange.unbind, SlabRanges._is_used
    kept: dict[int, bytearray] = {}

    def keeping(self: SlabRange) -> None:
        if self.binding is not None:
            kept[self.number] = self.valid
        unbind(self)

    def restoring(self: SlabRanges, part: SlabRange, turn: int, binding: Any) -> bool:
        done = is_used(self, part, turn, binding)
        if done and part.number in kept and len(kept[part.number]) == len(part.valid):
            part.valid = kept[part.number]
        return done

    SlabRange.unbind, SlabRanges._is_used = keeping, restoring  # type: ignore[method-assign]


def ignore_generation() -> None:
    """Read and write shared memory without looking whether it counts still, whoever says that it goes."""
    SharedSlab._check_state = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
    SlabRanges.slab_evicted = lambda self, slab, reason: None  # type: ignore[method-assign]  # noqa: ARG005


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
