"""A process that dies: its members go on from their checkpoints, and those that were over are not begun again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from executor_stub import overlay, small_executor, without_digest
from packed_cases import Count, Ledger

from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup
from penstock_log.agent_protocol import EXIT_PREEMPTED, CheckpointSaved, SessionDone, StepProgress
from penstock_packed import LaneRules, MemoryNeed, PackedHost

pytestmark = pytest.mark.slow

SMALL = MemoryNeed(10, 0, 10)
MEMBERS = '''
import json, os, time
from pathlib import Path
from penstock_packed import MemoryNeed

log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class Counted:
    """Writes down each step before it counts it, in a file that outlives the process."""

    def __init__(self, name, fails_at=None):
        self.name, self.fails_at, self.count = name, fails_at, 0

    def note(self, what, number):
        os.write(log, (json.dumps([os.getpid(), self.name, what, number]) + "\\n").encode())

    def setup(self):
        self.note("setup", 0)

    def step(self, turn):
        if turn.step == self.fails_at:
            raise ValueError("as it should")
        if "SLOWLY" in os.environ and turn.step >= 100:  # who is to be ended is not over before
            time.sleep(0.05)
        self.note("step", turn.step)
        self.count += 1
        assert self.count == turn.step + 1, (self.count, turn.step)
        turn.report(count=self.count)

    def teardown(self):
        self.note("teardown", self.count)

    def save(self, folder):
        (folder / "count").write_text(str(self.count))

    def load(self, folder):
        self.count = int((folder / "count").read_text())
        self.note("load", self.count)


def members(host):
    for name, steps in json.loads(os.environ["STEPS"]).items():
        fails_at = 5 if name == "bad" else None
        host.train(name, Counted(name, fails_at), steps=steps, memory=MemoryNeed(2**20, 0, 2**20))
'''
STEPS = {"short": 20, "bad": 50, "a": 400, "b": 400, "c": 400}


def start(tmp_path: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    file = tmp_path / "counted.py"
    file.write_text(MEMBERS)
    command = [sys.executable, "-m", "penstock_packed", str(file)]
    environ = overlay(os.environ) | {"LOG": str(tmp_path / "log"), "STEPS": json.dumps(STEPS)} | env
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def notes(tmp_path: Path, pid: int) -> list[tuple[str, str, int]]:
    lines = (tmp_path / "log").read_text().splitlines()
    return [(name, what, number) for at, name, what, number in map(json.loads, lines) if at == pid]


def of(found: list[tuple[str, str, int]], name: str, what: str) -> list[int]:
    return [number for at, kind, number in found if (at, kind) == (name, what)]


def is_well_on_its_way(tmp_path: Path, pid: int) -> bool:
    """Those that are to be over are, and all others have begun."""
    found = notes(tmp_path, pid)
    return all(of(found, name, "teardown") for name in ("short", "bad")) and all(
        of(found, name, "step") for name in "abc"
    )


def test_after_kill_9_each_member_goes_on_from_its_checkpoint_and_does_each_step_once(tmp_path: Path) -> None:
    with small_executor(tmp_path) as executor:
        env = executor.env(CHECKPOINT_DIR=str(tmp_path / "checkpoints"), CHECKPOINT_S="0.05")
        first = start(tmp_path, env | {"SLOWLY": "1"})
        executor.wait(CheckpointSaved, when=lambda _: is_well_on_its_way(tmp_path, first.pid))
        executor.wait(CheckpointSaved, count=len(executor.of(CheckpointSaved)) + 2)  # one that was begun after that
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=60)
        second = start(tmp_path, env)
        output, errors = second.communicate(timeout=100)
        done = executor.wait(SessionDone)
    assert second.returncode == 0, errors
    before, after = notes(tmp_path, first.pid), notes(tmp_path, second.pid)
    for name in "abc":
        loaded = of(after, name, "load")
        assert len(loaded) == 1, "nothing was saved before the kill"
        assert 0 < loaded[0] < 400
        assert of(before, name, "step")[: loaded[0]] == list(range(loaded[0]))
        assert of(after, name, "step") == list(range(loaded[0], 400))  # each step once, after its checkpoint
        assert done.metrics[f"{name}/count"] == 400
    for name in ("short", "bad"):
        assert of(before, name, "teardown")
        assert not [note for note in after if note[0] == name], "it was over, and has been begun again"
    assert "ValueError: as it should" in output


def test_a_preempted_host_saves_all_members_leaves_and_goes_on_elsewhere(tmp_path: Path) -> None:
    with small_executor(tmp_path) as executor:
        env = executor.env(CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
        first = start(tmp_path, env | {"SLOWLY": "1"})
        executor.wait(StepProgress, when=lambda progress: progress.step > 100)
        step = executor.preempt()
        first.communicate(timeout=60)
        assert first.returncode == EXIT_PREEMPTED
        assert without_digest(executor.wait(CheckpointSaved)) == CheckpointSaved(step=step, leaving=True)
        second = start(tmp_path, env)
        assert second.wait(100) == 0
        second.communicate(timeout=10)
    before, after = notes(tmp_path, first.pid), notes(tmp_path, second.pid)
    for name in "abc":
        assert of(before, name, "step") + of(after, name, "step") == list(range(400))


def hosted(folder: Path, device: Ledger, epoch: int) -> PackedHost:
    """Turns go round, so that who has had how many does not depend on how busy the machine is."""
    within = Session(ProcessSetup(checkpoint_dir=folder, checkpoint_s=1e-9, epoch=epoch))
    return PackedHost(device, rules=LaneRules(policy="round-robin"), within=within)


class Died(BaseException):
    """What a test raises in place of a signal; not an error of a member."""


class Killed(Ledger):
    """A device that takes the process with it after some turns."""

    def __init__(self, capacity_bytes: int, turns: int) -> None:
        super().__init__(capacity_bytes)
        self._turns = turns

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, Died)

    def take_turn(self) -> None:
        self._turns -= 1
        if self._turns < 0:
            raise Died


def test_a_trial_that_has_no_room_yet_after_a_restart_keeps_its_state_through_many_checkpoints(tmp_path: Path) -> None:
    """The checkpoint it has to load is long gone when there is room for it."""
    killed = Killed(1000, turns=20)
    host = hosted(tmp_path, killed, epoch=1)
    for name in "ab":
        host.train(name, Count(lambda _: killed.take_turn()), steps=24, memory=SMALL)
    with pytest.raises(Exception, match="Died"):
        host.run()
    narrow = Killed(25, turns=5)  # room for one: the other's state goes from checkpoint to checkpoint
    host = hosted(tmp_path, narrow, epoch=2)
    for name in "ab":
        host.train(name, Count(lambda _: narrow.take_turn()), steps=24, memory=SMALL)
    with pytest.raises(Exception, match="Died"):
        host.run()
    host = hosted(tmp_path, Ledger(25), epoch=3)
    trials = {name: Count() for name in "ab"}
    for name, trial in trials.items():
        host.train(name, trial, steps=24, memory=SMALL)
    outcomes = host.run()
    assert [outcomes[name][:2] for name in "ab"] == [("finished", 24), ("finished", 24)]
    for trial in trials.values():
        assert trial.calls == ["setup", "load", "teardown"]
        assert 5 < trial.seen[0] < 20
        assert trial.count == 24
        assert trial.seen == list(range(trial.seen[0], 24))
    assert not list((tmp_path / "packed-resume").glob("*"))


def test_with_several_lanes_no_member_is_saved_in_the_middle_of_its_step(tmp_path: Path) -> None:
    pause = threading.Event()
    saved: list[str] = []

    class Careful(Count):
        inside = False

        def step(self, turn: object) -> None:
            self.inside = True
            pause.wait(0.004)
            super().step(turn)
            self.inside = False

        def save(self, folder: Path) -> None:
            assert not self.inside
            saved.append(folder.name)
            super().save(folder)

    host = hosted(tmp_path, Ledger(1000, lanes=2), epoch=1)
    for name in "ab":
        host.train(name, Careful(), steps=120, memory=SMALL)
    outcomes = host.run()
    assert saved, "no checkpoint was taken while they ran"
    assert [outcomes[name].reason for name in "ab"] == ["", ""]


def test_a_member_that_cannot_be_saved_or_loaded_fails_alone(tmp_path: Path) -> None:
    class NoSave(Count):
        def save(self, _: Path) -> None:
            raise TypeError("cannot write a lock")

    class Exits(Count):
        def save(self, _: Path) -> None:
            sys.exit("no room")

    class NoLoad(Count):
        def load(self, _: Path) -> None:
            raise KeyError("weights")

    killed = Killed(1000, turns=10)
    host = hosted(tmp_path, killed, epoch=1)
    host.train("save", NoSave(), steps=24, memory=SMALL)
    host.train("exits", Exits(), steps=24, memory=SMALL)
    for name in ("load", "good"):
        host.train(name, Count(lambda _: killed.take_turn()), steps=24, memory=SMALL)
    with pytest.raises(Exception, match="Died"):
        host.run()
    host = hosted(tmp_path, Ledger(1000), epoch=2)
    host.train("save", Count(), steps=24, memory=SMALL)
    host.train("exits", Count(), steps=24, memory=SMALL)
    host.train("load", NoLoad(), steps=24, memory=SMALL)
    host.train("good", Count(), steps=24, memory=SMALL)
    outcomes = host.run()
    assert outcomes["save"].reason == "its state could not be saved: TypeError: cannot write a lock"
    assert outcomes["exits"].reason == "its state could not be saved: it called sys.exit('no room')"
    assert outcomes["load"].reason == "KeyError: 'weights'"
    assert outcomes["good"][:2] == ("finished", 24)


def test_a_full_disk_is_nobodys_fault(tmp_path: Path) -> None:
    class Full(Count):
        def save(self, _: Path) -> None:
            raise OSError(28, "No space left on device")

    host = hosted(tmp_path, Ledger(), epoch=1)
    host.train("a", Full(), steps=20, memory=SMALL)
    assert host.run()["a"][:2] == ("finished", 20)


def test_a_device_that_breaks_while_members_are_saved_fails_none_of_them(tmp_path: Path) -> None:
    class Breaks(Count):
        def save(self, _: Path) -> None:
            raise Died

    broken = Killed(1000, turns=3)
    host = hosted(tmp_path, broken, epoch=1)
    for name in "ab":
        host.train(name, Breaks(lambda _: broken.take_turn()), steps=24, memory=SMALL)
    with pytest.raises(Exception, match="Died"):
        host.run()
    assert [host.why(name) for name in "ab"] == ["", ""]
    host = hosted(tmp_path, Ledger(1000), epoch=2)
    for name in "ab":
        host.train(name, Count(), steps=24, memory=SMALL)
    assert [outcome.stage for outcome in host.run().values()] == ["finished", "finished"]


def test_a_checkpoint_of_another_kind_of_job_is_not_taken_for_one_of_ours(tmp_path: Path) -> None:
    other = tmp_path / "c"
    session = Session(ProcessSetup(checkpoint_dir=other, checkpoint_s=1e-9))
    with session as entered:
        entered.on_checkpoint(lambda folder: (folder / "w").write_text("1"), lambda _: None)
        for _ in entered.iterations(range(3)):
            pass
    host = hosted(other, Ledger(), epoch=1)
    host.train("a", Count(), steps=20, memory=SMALL)
    with pytest.raises(Exception, match="no list of members that can be read"):
        host.run()


def test_a_member_in_whose_same_step_the_process_dies_twice_has_failed(tmp_path: Path) -> None:
    def poison(device: Killed) -> Count:
        return Count(lambda step: device.take_turn() if step == 7 else None)

    for epoch in (1, 2):
        device = Killed(1000, turns=0)
        host = hosted(tmp_path, device, epoch)
        host.train("poison", poison(device), steps=24, memory=SMALL)
        host.train("good", Count(), steps=24, memory=SMALL)
        with pytest.raises(Exception, match="Died"):
            host.run()
    host = hosted(tmp_path, Ledger(1000), epoch=3)
    host.train("poison", Count(), steps=24, memory=SMALL)
    host.train("good", Count(), steps=24, memory=SMALL)
    outcomes = host.run()
    assert outcomes["poison"].reason == "the process has died twice in the same step of it"
    assert outcomes["poison"].steps == 7
    assert outcomes["good"][:2] == ("finished", 24)
