"""
Processes that take turns, and a broker to serve them: a test tells each process step by step what to do.

Run as a script it is such a process: ``python taking_turns.py SOCKET JOB``. It does one word of its standard input
after the other, and answers each with a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock_sharing.token import (
    FifoOwner,
    LaneClient,
    LaneClientId,
    NoTokenSlot,
    TokenBroker,
    TokenEvent,
    TurnRequested,
)

PATIENCE_S = 60


def who(name: str) -> LaneClientId:
    return LaneClientId(name, 1, 0)


class Process:
    """One of them, from the test's side."""

    def __init__(self, path: Path, name: str, *drains: str) -> None:
        self.who = who(name)
        self.popen = subprocess.Popen(
            [sys.executable, __file__, str(path), name, *drains],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: str) -> None:
        """Have it do something, without waiting for that."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("".join(f"{word}\n" for word in words))
        self.popen.stdin.flush()

    def hear(self) -> str:
        """Wait for its next answer."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def do(self, *words: str) -> list[str]:
        """Have it do something, and wait until it has."""
        self.tell(*words)
        return [self.hear() for _ in words]

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


class House:
    """A broker that serves in a thread, and processes."""

    def __init__(self, folder: Path, lanes_of: Callable[[LaneClientId], list[str]]) -> None:
        self.path = folder / "lanes.sock"
        self.broker = TokenBroker(self.path)
        self.rota = FifoOwner(self.broker, lanes_of)
        self._stack = ExitStack()
        self._changed = threading.Condition()
        self._known: list[TokenEvent] = []  # and answered
        self._over = False
        self._orders: list[Callable[[TokenBroker], object]] = []
        self._thread = threading.Thread(target=self.rota.serve, args=(self._between,))
        self._thread.start()

    def process(self, name: str, *drains: str) -> Process:
        """Start one; with another word, its device is at work even after an iteration is over."""
        process = Process(self.path, name, *drains)
        self._stack.callback(process.end)
        return process

    def count(self, events: type | TokenEvent) -> int:
        """How many news of a kind, or just these, there have been: also those that the broker has yet to hear of."""
        self.order(lambda _: self.rota.turn())
        return self._count(events)

    def wait_for(self, events: type | TokenEvent, count: int = 1) -> None:
        """Wait until there have been so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count(events) >= count, PATIENCE_S), (events, self.rota.events)

    def wait_for_more(self, than: int) -> None:
        """Wait until something happens after so many news, or all are done."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._known) > than, 0.02)

    def order(self, order: Callable[[TokenBroker], object]) -> None:
        """Have something done with the broker, by the thread that serves."""
        with self._changed:
            self._orders.append(order)
            self.rota.wake()
            assert self._changed.wait_for(lambda: order not in self._orders, PATIENCE_S)

    def _between(self) -> bool:
        with self._changed:
            for order in self._orders:
                order(self.broker)
            self._orders.clear()
            self._known = list(self.rota.events)
            self._changed.notify_all()
        return self._over

    def _count(self, events: type | TokenEvent) -> int:
        return sum(each == events or type(each) is events for each in self._known)

    def asks(self, process: Process, lane: str = "0/0") -> None:
        """Wait until a process waits for its turn."""
        self.wait_for(TurnRequested(lane, process.who))

    def close(self) -> None:
        self._stack.close()
        self.fall()

    def fall(self) -> None:
        """The broker goes, and its processes stay."""
        if self._over:
            return
        self._over = True
        self.rota.wake()
        self._thread.join()
        self.rota.close()
        self.broker.close()


@contextmanager
def house(folder: Path, lanes_of: Callable[[LaneClientId], list[str]] = lambda _: ["0/0"]) -> Iterator[House]:
    """Serve until the end of the block."""
    opened = House(folder, lanes_of)
    try:
        yield opened
    finally:
        opened.close()


def spin(us: int) -> None:
    end = time.monotonic_ns() + us * 1000
    while time.monotonic_ns() < end:
        pass


def work(member: LaneClient, iterations: int, us: int, fetch: Callable[[], object] = lambda: None) -> str:
    """Take turns, and return when each iteration began and ended."""
    done = []
    for _ in range(iterations):
        fetch()
        member.enter()
        begun = time.monotonic_ns()
        spin(us)
        done.append(f"{begun}-{time.monotonic_ns()}")
        member.exit()
    return " ".join(done)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def fork(member: LaneClient) -> None:
    """Have a child say whether it has the token; it outlives its parent."""
    if os.fork():
        return
    say("child", member.holds or bool(member.slots))
    sys.stdin.buffer.raw.read(1)  # the end of the test
    os._exit(0)


def main(path: str, name: str, *drains: str) -> None:
    member = LaneClient(path, who(name), lambda: say("settled") if drains else None, lambda: bool(drains))
    for line in sys.stdin:
        word, *numbers = line.split()
        match word:
            case "enter":
                try:
                    member.enter()
                except NoTokenSlot as error:
                    say("no slot:", error)
                    return
                say("entered", time.monotonic_ns())
            case "exit":
                member.exit()
                say("exited", member.holds, time.monotonic_ns())
            case "rest":
                member.rest()
                say("rested", member.holds)
            case "work":
                say(work(member, *map(int, numbers)))
            case "fork":
                fork(member)
            case "look":
                member.look()
                say("looked")
            case "close":
                member.close()
                say("closed")


if __name__ == "__main__":
    main(*sys.argv[1:])
