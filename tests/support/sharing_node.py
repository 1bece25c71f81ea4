"""
A node whose pages, broker and desk are real, and whose processes take one step at a time, in one process; for tests.

Time is what the test says. The processes of a gang wait for each other in each iteration, as in a collective operation:
none ends its iteration before all have begun it. An executor that is killed leaves its pages to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock_executor.run_state import Key
from penstock_executor.sharing.lane_coordinator import RETURN_S, LaneCoordinator
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import ShareRequest
from penstock_log import AnyEvent, Device, MemoryNeed
from penstock_sharing.lanes import LaneRules, MemoryReading
from penstock_sharing.token import LaneClient, LaneClientId, TokenBroker
from penstock_sharing.token.shared_page import FutexWord

NEED = MemoryNeed(10, 0, 100)
LOOK_S = 0.5


class Actor:
    """One process: between two iterations, waiting for its turn, or in an iteration."""

    def __init__(self, path: Path, who: LaneClientId, devices: tuple[int, ...]) -> None:
        self.who, self.devices = who, devices
        self.member = LaneClient(str(path), who)
        self.inside = False
        self.begun = 0

    @property
    def done(self) -> int:
        """Return how many iterations it has ended."""
        return self.begun - self.inside

    def look(self) -> None:
        """Read what the broker has sent, and look for a new one, as a process does now and then."""
        if not self.inside:
            self.member.look()

    def try_to_begin(self) -> None:
        """
        Begin an iteration if it has its turn, else ask for it; as :meth:`LaneClient.enter` does between two
        sleeps.
        """
        slots = self.member.slots
        if not (slots and all(slot.enter() for slot in slots)):
            self.member.look()
            slots = self.member.slots
            if not (slots and all(slot.enter() or (slot.wait(0.0) and not slot.called) for slot in slots)):
                return
        self.inside, self.begun = True, self.begun + 1

    def end(self) -> None:
        """End an iteration, and give the turn on if somebody is to have it."""
        self.inside = False
        self.member.exit()


class Stage:
    """
    The node.

    Parameters
    ----------
    runs : dict of str to tuple of tuple of int
        By job: the devices of each of its processes.
    needs : dict of str to MemoryNeed
        By job, of those that need something else than the others.
    """

    def __init__(
        self,
        folder: Path,
        runs: dict[str, tuple[tuple[int, ...], ...]],
        rules: LaneRules | None = None,
        needs: dict[str, MemoryNeed] | None = None,
    ) -> None:
        self.path, self.runs, self.needs = folder / "lanes.sock", dict(runs), needs or {}
        self.rules = rules or LaneRules(policy="round-robin", most_lanes=1, patience_s=None)
        self.now_s, self.lives = 1000.0, count()
        self.facts: list[AnyEvent] = []
        self.overlaps: list[tuple[LaneClientId, LaneClientId]] = []
        self.ended: list[tuple[Key, str]] = []
        self.back_s = 0.0
        self.given_up = False
        self.kept_bytes = NEED.persistent_bytes
        self.actors: dict[LaneClientId, Actor] = {}
        self._open()
        for job_id in runs:
            self._arrive(job_id, adopted=False)
        for job_id, ranks in runs.items():
            for rank, devices in enumerate(ranks):
                who = LaneClientId(job_id, 1, rank)
                self.actors[who] = Actor(self.path, who, devices)
        for _ in range(4):
            self.turn()
            for actor in self.actors.values():
                actor.look()

    def _open(self) -> None:
        devices = {device for ranks in self.runs.values() for each in ranks for device in each}
        kinds = [Device(index=i, kind="fast", memory_bytes=1000, backend="emulated") for i in sorted(devices)]
        self.broker = TokenBroker(self.path)
        self.coordinator = LaneCoordinator(
            self.broker,
            NodeLanes("n1", kinds, self.rules),
            life=f"life{next(self.lives)}",
            clock=lambda: self.now_s,
            is_of=lambda who, _: who in self.actors,
            report=self.facts.append,
            limit=lambda *_: None,
            end=lambda key, reason: self.ended.append((key, reason)),
            wake=lambda: None,
            again=lambda _: None,
        )

    def _arrive(self, job_id: str, *, adopted: bool) -> None:
        ranks = dict(enumerate(self.runs[job_id]))
        if adopted:
            ranks = {who.rank: self.actors[who].devices for who in self.of(job_id)}
        need = self.needs.get(job_id, NEED)
        self.coordinator.lanes.arrive(
            ShareRequest(job_id=job_id, epoch=1, ranks=ranks, need=need, adopted=adopted), self.now_s
        )
        if adopted:
            self.coordinator.await_return([LaneClientId(job_id, 1, rank) for rank in ranks])
        self.coordinator.turn()

    def of(self, job_id: str) -> list[LaneClientId]:
        """Return the processes of a job."""
        return [who for who in self.actors if who.job_id == job_id]

    # --- what happens
    def restart(self) -> None:
        """The executor is killed, and another one begins."""
        self.broker.close()
        self._open()
        self.back_s = self.now_s + RETURN_S
        for job_id in self.runs:
            if self.of(job_id):
                self._arrive(job_id, adopted=True)

    def step(self, who: LaneClientId) -> None:
        """Let a process do the next thing: begin an iteration or ask for its turn; or end one, if it can."""
        actor = self.actors[who]
        if not actor.inside:
            actor.try_to_begin()
            self._note_overlaps(actor)
        elif all(self.actors[other].begun >= actor.begun for other in self.of(who.job_id)):
            actor.end()

    def kill(self, job_id: str) -> None:
        """All processes of a run end."""
        whos = self.of(job_id)
        for who in whos:
            actor = self.actors.pop(who)
            actor.member._hang_up()  # as the kernel does it
            for slot in actor.member.slots:
                slot.close()
        self.turn()
        self.coordinator.lanes.leave(job_id, self.now_s, "its run has ended")
        self.turn()

    def turn(self, after_s: float = 0.001) -> None:
        """The executor takes in what has happened."""
        self.now_s += after_s
        self.coordinator.turn()

    def look(self) -> None:
        """The executor looks after those who do not come on."""
        self.now_s += LOOK_S
        self.given_up |= bool(self.coordinator.lanes.state.awaited) and self.now_s >= self.back_s
        self.coordinator.look_again()

    def measure(self, who: LaneClientId) -> None:
        """A process says that it holds a little more: for that, pages are written before news are heard."""
        self.kept_bytes += 1
        sample = MemoryReading(self.kept_bytes, self.kept_bytes + NEED.ephemeral_bytes)
        self.coordinator.lanes.see(who, sample, self.actors[who].done + 2, self.now_s)
        self.coordinator.turn()

    def play_on(self, looks: int = 12) -> None:
        """Let everybody do what it can, for so many looks of the executor."""
        for _ in range(looks):
            for _ in range(5):
                for who in list(self.actors):
                    self.step(who)
                self.turn(0.02)
            for actor in self.actors.values():
                actor.look()
            self.look()

    def done(self) -> dict[str, int]:
        """Return how many iterations each job has done: those of the last of its processes."""
        return {job: min(self.actors[who].done for who in self.of(job)) for job in self.runs if self.of(job)}

    def story(self) -> str:
        """Return where everybody is, for a test that failed."""
        lanes = self.coordinator.lanes
        lines = [f"{who}: {a.begun} begun, inside {a.inside}, holds {a.member.holds}" for who, a in self.actors.items()]
        lines += [f"{place}: {view}; {lanes.desired_turn(place)}" for place, view in self.coordinator.views().items()]
        return "\n".join([*lines, *map(repr, lanes.state.shared_runs.values())])

    def close(self) -> None:
        """Close everything."""
        for actor in self.actors.values():
            actor.member._hang_up()
            for slot in actor.member.slots:
                slot.close()
        self.broker.close()

    def _note_overlaps(self, actor: Actor) -> None:
        """Nobody is to be in an iteration on a device beside another, but where that one did not come back in time."""
        inside = [other for other in self.actors.values() if other.inside and not self.given_up]
        for other in inside if actor.inside else ():
            if other.who.job_id != actor.who.job_id and set(other.devices) & set(actor.devices):
                self.overlaps.append((actor.who, other.who))


@contextmanager
def stage(
    runs: dict[str, tuple[tuple[int, ...], ...]],
    rules: LaneRules | None = None,
    needs: dict[str, MemoryNeed] | None = None,
) -> Iterator[Stage]:
    """Open a stage, and close it. Nobody sleeps there: who waits is asked again and again."""
    with TemporaryDirectory(prefix="stage") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(FutexWord, "wait", lambda *_: None)
        played = Stage(Path(folder), runs, rules, needs)
        try:
            yield played
        finally:
            played.close()
