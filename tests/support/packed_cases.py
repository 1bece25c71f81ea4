"""Members and a device for tests: trials that count, models that echo, and a device whose memory is a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock_packed import TrialTurn, TurnMemory


class Count:
    """Counts its steps; ``then`` is called in each of them, with the number of the step."""

    def __init__(self, then: Callable[[int], None] = lambda _: None) -> None:
        self.then = then
        self.count = 0
        self.seen: list[int] = []
        self.calls: list[str] = []

    def setup(self) -> None:
        self.calls.append("setup")

    def step(self, turn: TrialTurn) -> None:
        self.seen.append(turn.step)
        self.then(turn.step)
        self.count += 1
        turn.report(count=self.count)

    def teardown(self) -> None:
        self.calls.append("teardown")

    def save(self, folder: Path) -> None:
        (folder / "count").write_text(str(self.count))

    def load(self, folder: Path) -> None:
        self.calls.append("load")
        self.count = int((folder / "count").read_text())


class Echo:
    """Answers what it is asked; an exception that it is asked for, it answers or raises."""

    def __init__(self, log: list[str] | None = None, *, raises: bool = False) -> None:
        self.log: list[str] = [] if log is None else log
        self.batches: list[int] = []
        self._raises = raises

    def setup(self) -> None:
        pass

    def step(self, requests: Sequence[object], /) -> Sequence[object]:
        self.batches.append(len(requests))
        self.log += [str(request) for request in requests]
        errors = [request for request in requests if isinstance(request, Exception)]
        if errors and self._raises:
            raise errors[0]
        return requests

    def teardown(self) -> None:
        pass


class Ledger:
    """A device whose memory is a number that members change."""

    def __init__(self, capacity_bytes: int = 100, lanes: int = 1) -> None:
        self.capacity_bytes, self.reserve_bytes, self.lanes = capacity_bytes, 0, lanes
        self.used_bytes = self.most_bytes = 0
        self.in_turn = self.most_in_turn = 0

    @contextmanager
    def turn(self, lane: int, room_bytes: int) -> Iterator[TurnMemory]:  # noqa: ARG002 - a device has them
        reading, before = TurnMemory(), self.used_bytes
        self.most_bytes = before
        try:
            yield reading
        finally:
            reading.grew_bytes, reading.peak_bytes = self.used_bytes - before, self.most_bytes - before

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def pool(self, lane: int) -> None:  # noqa: ARG002 - see above
        return None

    def reclaim(self) -> None:
        pass

    def lost(self, error: BaseException) -> bool:  # noqa: ARG002 - see above
        return False
