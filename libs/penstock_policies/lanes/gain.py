"""Whether one more lane is worth it: remembered from what running side by side has gained."""

from __future__ import annotations

import math


class Gains:
    """
    What each number of lanes has gained over one fewer, as measured outside.

    Not measured is taken to be worth a try. A number that was not worth it is not tried again for ``retry_s``, and no
    larger one either; then the jobs are others.

    Parameters
    ----------
    least : float
        The least gain that counts as real: 0.05 is 5 % more throughput.
    retry_s : float, seconds

    Examples
    --------
    >>> gains = Gains(least=0.05, retry_s=600.0)
    >>> gains.see(lanes=2, ratio=1.40, now_s=0.0)
    >>> gains.see(lanes=3, ratio=1.02, now_s=10.0)
    >>> gains.most(20.0), gains.most(610.0)
    (2, inf)
    """

    def __init__(self, least: float, retry_s: float) -> None:
        self._least, self._retry_s = least, retry_s
        self._until_s: dict[int, float] = {}  # by number of lanes that were not worth it

    def see(self, lanes: int, ratio: float, now_s: float) -> None:
        """
        Take in a measurement.

        Parameters
        ----------
        lanes : int
            2 or more.
        ratio : float
            Throughput of so many lanes over that of one fewer, with the same jobs.
        now_s : float, seconds
        """
        if lanes < 2 or not ratio > 0:
            raise ValueError(f"lanes={lanes}, ratio={ratio} are out of range; expected 2 or more, and more than 0")
        if ratio < 1.0 + self._least:
            self._until_s[lanes] = now_s + self._retry_s
        else:
            self._until_s.pop(lanes, None)

    def most(self, now_s: float) -> float:
        """Return how many lanes are worth it at most; infinite where nothing speaks against another."""
        return min((lanes - 1 for lanes, until_s in self._until_s.items() if now_s < until_s), default=math.inf)
