"""
Iterate, as the parameters say; for recorded streams of mixed jobs.

``steps`` iterations, in each of which the process works for ``busy_ms`` and waits for ``idle_ms``; ``crash_at`` ends
the first run at that step, if ``marker`` names a file that is not there yet. ``saves`` false: nothing of a run is kept.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import penstock

done = {"steps": 0}


def load(folder: Path) -> None:
    """Take up what was saved."""
    done["steps"] = int((folder / "steps").read_text())


with penstock.session() as session:
    p = session.params
    if p.get("saves", True):
        session.on_checkpoint(lambda folder: (folder / "steps").write_text(str(done["steps"])), load)
    items = range(int(p["steps"]))
    for _ in session.iterations(session.sampler(64 * len(items), batch_size=64) if p.get("samples") else items):
        until_s = time.process_time() + float(p.get("busy_ms", 2)) / 1e3
        while time.process_time() < until_s:
            pass
        time.sleep(float(p.get("idle_ms", 10)) / 1e3)
        done["steps"] += 1
        if done["steps"] == p.get("crash_at") and not Path(str(p["marker"])).exists():
            Path(str(p["marker"])).touch()
            os._exit(3)
    session.report(score=float(p.get("x", 0.0)))
sys.stdout.write(f"{done['steps']} steps\n")
