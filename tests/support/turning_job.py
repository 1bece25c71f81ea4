"""
A job that takes turns, and notes in one file for all jobs when each of its iterations began and ended; for tests.

``turning_job.py NOTES ITERATIONS [busy_ms=N] [hang_at=N] [crash_at=N] [leak_at=N] [keep_at=N] [peak_at=N] [mib=N]
[go=FILE]``: it begins when ``go`` is there; ``hang_at`` never ends that iteration, ``leak_at`` takes memory endlessly.
``keep_at`` takes ``mib`` from that iteration on, ``peak_at`` takes them in that one alone. ``meet=FOLDER``: within each
iteration all processes of the job wait for each other, as in a collective operation.
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


def meet(session: penstock.Session, step: int) -> None:
    folder = Path(OPTIONS["meet"])
    os.close(os.open(folder / f"{step}.{session.rank}", os.O_CREAT))
    while not all((folder / f"{step}.{rank}").exists() for rank in range(session.world_size)):
        time.sleep(0.0005)


def iterate(session: penstock.Session, step: int) -> None:
    begin = time.monotonic_ns()
    os.write(NOTES, f"{session.job_id} {session.rank} {os.getpid()} {begin} 0 {step}\n".encode())
    if wanted("crash_at", step):
        os._exit(7)
    while wanted("hang_at", step):
        time.sleep(0.05)
    if "meet" in OPTIONS:
        meet(session, step)
    if wanted("leak_at", step):
        while True:
            kept.append(bytearray(os.urandom(1 << 20)) * 8)
    if wanted("keep_at", step):
        kept.append(bytearray(os.urandom(1 << 20)) * int(OPTIONS["mib"]))
    if wanted("peak_at", step):
        del [bytearray(os.urandom(1 << 20)) * int(OPTIONS["mib"])][:]
    end = begin + int(1e6 * float(OPTIONS.get("busy_ms", 1)))
    while time.monotonic_ns() < end:
        pass
    os.write(NOTES, f"{session.job_id} {session.rank} {os.getpid()} {begin} {time.monotonic_ns()} {step}\n".encode())


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
