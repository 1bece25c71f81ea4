"""
A job with a session: ``session_job.py STEPS STEP_S``. Each process notes its steps; the state is a sum over them.

A step that is lost or done twice on the way to the end makes another sum.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from command_job import NoteBook

import penstock


def main() -> None:
    """Train from the last checkpoint to the end."""
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    notes, state = NoteBook(), {"step": 0, "sum": 0}
    notes.begin()

    def save(folder: Path) -> None:
        notes.write("save", step=state["step"])
        (folder / "state.json").write_text(json.dumps(state))

    def load(folder: Path) -> None:
        state.update(json.loads((folder / "state.json").read_text()))
        notes.write("load", step=state["step"])

    with penstock.session() as session:
        session.on_checkpoint(save, load)
        for step in session.iterations(range(1, steps + 1)):
            notes.write("step", step=step)
            state["step"], state["sum"] = step, state["sum"] + step * step
            time.sleep(step_s)
            session.report(loss=1.0 / step)
    notes.write("end", code=0, sum=state["sum"], step=state["step"])


if __name__ == "__main__":
    main()
