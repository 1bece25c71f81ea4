"""The PyTorch example, in which the last rank waits within a step, so that its gang stands still at a known place.

It waits until it is asked to stop, or until a file is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import penstock

EXAMPLES = Path(__file__).parents[2] / "examples"


class Held(penstock.Session):
    """A session whose process waits after so many steps; its peers wait for it in the next one."""

    def report(self, **metrics: float) -> None:
        """Report, and wait; say so by a file beside the one that is waited for."""
        super().report(**metrics)
        go = Path(os.environ["GO"])
        if self.step + 1 == int(os.environ["HOLD_AT"]) and self.rank == self.world_size - 1:
            go.with_name("held").touch()
            agent = self._boundary._agent
            while not (go.exists() or (agent is not None and agent.asked)):
                time.sleep(0.01)


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLES))
    from penstock.sessions.setup import read

    penstock.session = lambda: Held(read(os.environ))
    import digits_torch

    digits_torch.train()
