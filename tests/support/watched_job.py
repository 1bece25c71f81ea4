"""
An example whose processes write down the rows of each step that they did: ``watched_job.py MODULE``.

In the folder ``WATCH`` each process has a file of its own, with a line for each step: its epoch and its rows. With
``HOLD_AT`` the last of them waits, before the end of that step, until it is told to stop; its peers wait for it.
With ``UNLOADABLE_RANK`` that process cannot load a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock.sessions.setup import read

EXAMPLES = Path(__file__).parents[2] / "examples"


class Watched(penstock.Session):
    """A session that keeps a record of what its sampler handed out."""

    def iterations(self, items: Any) -> Iterator[Any]:
        """Yield the items; a step is written down when it is done."""
        seen = Path(os.environ["WATCH"]) / f"{os.environ['PENSTOCK_EPOCH']}-{self.rank}"
        with seen.open("a") as file:
            for rows in super().iterations(items):
                yield rows
                print(json.dumps([items.epoch, rows.tolist()]), file=file, flush=True)

    def report(self, **metrics: Any) -> None:
        """Report, and wait where it is to."""
        super().report(**metrics)
        agent = self._boundary._agent
        if self.rank == self.world_size - 1 and self.step + 1 == int(os.environ.get("HOLD_AT", "-1")):
            while agent is not None and agent.stop_at is None:  # until all have answered, so that the step is known
                time.sleep(0.01)

    def on_checkpoint(self, save: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        """Say how to save and load, and fail to load where that is wanted."""
        super().on_checkpoint(save, _refuse if os.environ.get("UNLOADABLE_RANK") == str(self.rank) else load)


def _refuse(folder: Path) -> None:
    raise RuntimeError(f"no room for {folder.name} on this device")


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLES))
    penstock.session = lambda: Watched(read(os.environ))
    module = __import__(sys.argv[1])
    module.train() if sys.argv[1] == "digits_torch" else module.train(module.build, lr=0.1, steps=0)
