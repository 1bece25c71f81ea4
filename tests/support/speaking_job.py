"""
A job that speaks the agent protocol with nothing but the standard library; for tests.

``speaking_job.py STEPS [stubborn] [deaf] [save_at=N] [fail_save] [crash_at=N] [only_rank=N]
[mute_rank=N] [hang_at=N]``: ``stubborn`` answers no
question, ``deaf`` ignores TERM, and after ``hang_at`` steps it does no other.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

EXIT_PREEMPTED = 75
OPTIONS = dict(argument.partition("=")[::2] for argument in sys.argv[2:])
STEPS = int(sys.argv[1])
RANK = int(os.environ["PENSTOCK_RANK"])
FOLDER = Path(os.environ["PENSTOCK_CHECKPOINT_DIR"])


class Job:
    """Counts steps, and stops where it is told to."""

    def __init__(self) -> None:
        self.step = int((FOLDER / "step").read_text()) if (FOLDER / "step").exists() else 0
        self.first = self.step
        self.stop_at: int | None = None
        self.answer: int | None = None
        self.rest = b""
        self.connect()

    def connect(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        for left in reversed(range(1000)):
            try:
                self.socket.connect(os.environ["PENSTOCK_SOCKET"])
                break
            except OSError:
                if not left:
                    raise
                time.sleep(0.02)
        self.answer = None
        epoch = int(os.environ["PENSTOCK_EPOCH"])
        job_id = os.environ["PENSTOCK_JOB_ID"]
        self.say("hello", version=1, job_id=job_id, epoch=epoch, rank=RANK, pid=os.getpid())

    def say(self, kind: str, **fields: object) -> None:
        line = json.dumps({"type": kind, "step": self.step, **fields}).encode() + b"\n"
        try:
            self.socket.sendall(line)
        except OSError:
            self.connect()

    def listen(self, wait_s: float) -> None:
        if not select.select([self.socket], [], [], wait_s)[0]:
            return
        try:
            data = self.socket.recv(4096)
        except OSError:
            data = b""
        if not data:
            self.connect()
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.understand(json.loads(line))

    def understand(self, message: dict[str, Any]) -> None:
        if message["type"] == "stop" and "stubborn" not in OPTIONS:
            self.answer = self.step
            self.say("at")
        if message["type"] == "stop_at":
            self.stop_at = message["step"]

    def run(self) -> None:
        sys.stdout.write(f"resumed at {self.step}\n")
        sys.stdout.flush()
        while self.step < STEPS:
            self.listen(0.01)
            if self.answer is not None and self.stop_at is None and self.step >= self.answer + 2:
                continue
            if self.stop_at is not None and self.step >= self.stop_at:
                self.leave()
            if self.step != int(OPTIONS.get("hang_at", -1)):
                self.one_step()
        self.say("done", loop_steps=self.step - self.first, loop_s=0.5, metrics={"loss": 0.25, "rank": RANK})

    def one_step(self) -> None:
        self.step += 1
        with (FOLDER.parent / f"steps-{RANK}").open("a") as file:
            file.write(f"{self.step}\n")
        self.say("progress", loop_steps=self.step - self.first, loop_s=0.1 * self.step, metrics={"loss": 1.0})
        if self.step == int(OPTIONS.get("crash_at", -1)) and int(OPTIONS.get("only_rank", RANK)) == RANK:
            raise RuntimeError(f"crashed at step {self.step}")
        if self.step == int(OPTIONS.get("save_at", -1)):
            self.save(leaving=False)

    def save(self, leaving: bool) -> None:
        if "fail_save" in OPTIONS:
            self.say("save_failed", error="No space left on device")
            return
        if RANK == 0:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / "step").write_text(str(self.step))
            self.say("saved", leaving=leaving)

    def leave(self) -> None:
        self.save(leaving=True)
        sys.exit(EXIT_PREEMPTED)


FOLDER.parent.mkdir(parents=True, exist_ok=True)
if OPTIONS.get("mute_rank") == str(RANK):
    time.sleep(600)
if "deaf" in OPTIONS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Job().run()
