"""Work that a test bounds: how often functions are called, which no load of the machine changes."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable


def calls_of(act: Callable[[], object]) -> Counter[str]:
    """Return function → how often it is called while ``act`` runs; built-in functions count too."""
    profile = cProfile.Profile()
    profile.runcall(act)
    found = Counter[str]()
    for (_, _, name), (_, calls, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]  # undeclared
        found[name] += calls
    return found
