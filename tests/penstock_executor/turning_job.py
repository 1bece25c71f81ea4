"""
A job that takes turns, and notes in one file for all jobs when each of its iterations began and ended; for tests.

``turning_job.py NOTES ITERATIONS [busy_ms=N] [hang_at=N] [crash_at=N] [leak_at=N] [go=FILE]``: it begins when ``go`` is
there; ``hang_at`` never ends that iteration, ``leak_at`` takes memory and keeps it.
"""

import json
import os
import sys
import time
from pathlib import Path

import penstock

NOTES = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
OPTIONS = dict(argument.partition("=")[::2] for argument in sys.argv[3:])
kept: list[bytearray] = []


def wanted(option: str, step: int) -> bool:
    return step == int(OPTIONS.get(option, -1))


def iterate(session: penstock.Session, step: int) -> None:
    begin = time.monotonic_ns()
    os.write(NOTES, f"{session.job_id} {session.rank} {os.getpid()} {begin} 0\n".encode())
    if wanted("crash_at", step):
        os._exit(7)
    while wanted("hang_at", step):
        time.sleep(0.05)
    if wanted("leak_at", step):
        while True:
            kept.append(bytearray(os.urandom(1 << 20)) * 8)
    end = begin + int(1e6 * float(OPTIONS.get("busy_ms", 1)))
    while time.monotonic_ns() < end:
        pass
    os.write(NOTES, f"{session.job_id} {session.rank} {os.getpid()} {begin} {time.monotonic_ns()}\n".encode())


while "go" in OPTIONS and not Path(OPTIONS["go"]).exists():
    time.sleep(0.005)
state = {"done": 0}
with penstock.session() as session:
    session.on_checkpoint(
        lambda folder: (folder / "state").write_text(json.dumps(state)),
        lambda folder: state.update(json.loads((folder / "state").read_text())),
    )
    for step in session.iterations(range(int(sys.argv[2]))):
        iterate(session, step)
        state["done"] += 1
        session.report(done=state["done"])
