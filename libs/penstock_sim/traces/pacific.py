"""Local times of the machines that wrote the Philly logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock_sim.trace import Floats

_SUMMER_ENDS: Final = np.datetime64("2017-11-05T02:00:00")
_SUMMER_S: Final = 7 * 3600.0
_WINTER_S: Final = 8 * 3600.0


def epoch_s(times: Sequence[str]) -> Floats:
    """
    Return seconds since 1970 (UTC) of Pacific local times such as ``2017-10-09 07:01:55``; nan for what is none.

    The logs run from August 2017 to January 2018; on 2017-11-05 at 02:00 the clocks go back to 01:00, so the hour from
    01:00 to 02:00 is there twice and a time in it says not which. It is taken for the first of the two: in the
    published log one job comes every ten minutes without a break up to 01:52, and none an hour later.

    Parameters
    ----------
    times : sequence of str, (N,)

    Returns
    -------
    (N,) float array, seconds

    Examples
    --------
    >>> epoch_s(["2017-11-05 01:52:10", "2017-11-05 02:02:11", "None"]).tolist()
    [1509871930.0, 1509876131.0, nan]
    """
    try:
        local = np.array(times, "datetime64[s]")
    except ValueError:
        local = np.array([_local(time) for time in times], "datetime64[s]")
    behind_s = np.where(local < _SUMMER_ENDS, _SUMMER_S, _WINTER_S)
    return np.where(np.isnat(local), np.nan, local.astype(np.int64) + behind_s)


def _local(time: str) -> np.datetime64:
    try:
        return np.datetime64(time, "s")
    except ValueError:
        return np.datetime64("NaT")
