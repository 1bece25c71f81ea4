"""Room on devices for trials of different widths, with packed trials side by side on one device."""

from __future__ import annotations


class Room:
    """
    Devices: idle ones, and places on devices that hold packed trials of one width.

    Parameters
    ----------
    gpus : int
        All of them, idle at first.

    Examples
    --------
    >>> room = Room(2)
    >>> room.take(0.5), room.take(0.5), room.take(1.0), room.take(0.5)
    (True, True, True, False)
    """

    def __init__(self, gpus: int) -> None:
        self.idle = gpus
        self.packed: dict[float, int] = {}  # width → trials of it

    def take(self, width: float) -> bool:
        """Give a trial its width, if there is room; say whether there was."""
        new = self._devices(width, 1) if width < 1 else int(width)
        if new > self.idle:
            return False
        self._add(width, 1, new)
        return True

    def free(self, width: float) -> None:
        """Take a trial's width back."""
        self._add(width, -1, self._devices(width, -1) if width < 1 else -int(width))

    def _devices(self, width: float, more: int) -> int:
        """Return how many devices more (or fewer) the packed trials take; they move together as they end."""
        side_by_side, now = round(1 / width), self.packed.get(width, 0)
        return -(-(now + more) // side_by_side) + (-now // side_by_side)

    def _add(self, width: float, more: int, devices: int) -> None:
        self.idle -= devices
        if width < 1:
            self.packed[width] = self.packed.get(width, 0) + more
