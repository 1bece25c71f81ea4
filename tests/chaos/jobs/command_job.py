"""
A job that knows nothing of sessions: works for a while, fails as often as it is to, and ends with its exit code.

``command_job.py LENGTH_S CODE FAILURES [leaves] [stubborn]``. With ``leaves`` it leaves a process behind that has left
its session; with ``stubborn`` it does not heed TERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

ALIVE_S = 0.02


class NoteBook:
    """A job's own file, outside of everything that is checked: each line has the time of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        environ = os.environ
        self.job_id, self.epoch = environ["PENSTOCK_JOB_ID"], int(environ["PENSTOCK_EPOCH"])
        self.rank = int(environ.get("PENSTOCK_RANK", "0"))
        self._path = os.path.join(environ["CHAOS_NOTES"], f"{self.job_id}.jsonl")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def begin(self) -> None:
        """Note that this process has begun, and on which devices."""
        devices = os.environ.get("PENSTOCK_DEVICES", "")
        self.write("begin", node=os.environ.get("PENSTOCK_NODE", ""), devices=devices, ppid=os.getppid())

    def write(self, what: str, **more: object) -> None:
        """Write one line at once: a kill between two lines tears none."""
        line = {"what": what, "epoch": self.epoch, "rank": self.rank, "pid": os.getpid(), **more}
        line["t_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def ends(self, code: int) -> int:
        """Return how often a process of this job has ended with this code before."""
        with open(self._path, "rb") as file:
            lines = [json.loads(line) for line in file]
        return sum(line["what"] == "end" and line["code"] == code for line in lines)


def leave_a_process() -> None:
    """Start a process that leaves the session and outlives its parent."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execvp("sleep", ["sleep", "600"])  # noqa: S606


def main() -> int:
    """Work, and return the exit code."""
    length_s, code, failures, flags = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    notes = NoteBook()
    notes.begin()
    if "stubborn" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "leaves" in flags:
        leave_a_process()
    fails = notes.ends(9) < failures
    end_s = time.clock_gettime(time.CLOCK_MONOTONIC) + (length_s / 2 if fails else length_s)
    number = 0
    while time.clock_gettime(time.CLOCK_MONOTONIC) < end_s:
        number += 1
        notes.write("alive", number=number)
        print(f"line {number}", flush=True)  # noqa: T201
        time.sleep(ALIVE_S)
    code = 9 if fails else code
    notes.write("end", code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
