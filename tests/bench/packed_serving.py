"""
The two servers that ``bench_packed.py`` compares, and what loads them: 42 numpy models in one packed host, and one
process for each of them. All run on one processor, which is the device; requests come from another one.
"""

# ruff: noqa: E402 - the number of threads is read once, when numpy is imported

from __future__ import annotations

import json
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock_packed import CpuDevice, MemoryNeed, PackedHost
from penstock_packed.request_server import RequestServer

MODELS = 42
TRIALS = 4
WIDTHS = (64, 96, 128, 192, 256, 384)
LATE_S, LATE_TIMES = 0.010, 10.0
"""A model's target: 10 ms, and ten times its own computing time."""


class Request(NamedTuple):
    """When it is sent, in seconds from the start, and to which model."""

    at_s: float
    model: int


class Dense:
    """Layers of one width; model ``number`` has width ``WIDTHS[number % 6]`` and 8 to 56 layers."""

    def __init__(self, number: int) -> None:
        self.number, self.width, self.layers = number, WIDTHS[number % len(WIDTHS)], 8 + 8 * (number // len(WIDTHS))

    def setup(self) -> None:
        rng = np.random.default_rng(self.number)
        self.weights = rng.standard_normal((self.layers, self.width, self.width), dtype=np.float32)
        self.weights /= np.float32(np.sqrt(self.width))

    def step(self, requests: Sequence[list[float]], /) -> Sequence[float]:
        return [self.answer(request) for request in requests]

    def answer(self, request: list[float]) -> float:
        x = np.resize(np.array(request, np.float32), (16, self.width))
        for layer in self.weights:
            x = np.tanh(x @ layer)
        return float(x.sum())

    def teardown(self) -> None:
        pass


class Training(Dense):
    """A training with no end, which counts its steps in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(2)  # 0.3 ms a step or so
        self._path, self._count = path, 0

    def step(self, _: object) -> None:
        for _ in range(5):
            self.answer([1.0])
        self._count += 1
        with self._path.open("r+b", buffering=0) as file:
            file.write(self._count.to_bytes(8, "big"))

    def save(self, folder: Path) -> None:
        pass

    def load(self, folder: Path) -> None:
        pass


def computing_s() -> list[float]:
    """Return the time that each model takes for an answer, the least of five, each after all others have had theirs."""
    models = [Dense(number) for number in range(MODELS)]
    for model in models:
        model.setup()
    least = [float("inf")] * MODELS
    for _ in range(5):
        for number, model in enumerate(models):
            before = time.perf_counter()
            model.answer([0.1] * 16)
            least[number] = min(least[number], time.perf_counter() - before)
    return least


# --- the servers, each a process of its own
def serve_packed(path: str, targets_s: list[float], counts: list[str]) -> None:
    """Serve all models from one process, with trainings besides."""
    need = MemoryNeed(2**20, 0, 2**20)
    host = PackedHost(CpuDevice(2**32))
    for number in range(MODELS):
        host.serve(f"m{number}", Dense(number), target_s=targets_s[number], memory=need)
    for number, count in enumerate(counts):
        host.train(f"t{number}", Training(Path(count)), memory=need)
    with RequestServer(Path(path), host.endpoints):
        host.run()


def serve_alone(path: str, number: int) -> None:
    """Serve one model, as simply as can be."""
    model = Dense(number)
    model.setup()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                asked = json.loads(line)
                answer = model.answer(asked["request"])
                connection.sendall(json.dumps({"id": asked["id"], "answer": answer}).encode() + b"\n")


def train_alone(path: str) -> None:
    """Train without an end."""
    training = Training(Path(path))
    training.setup()
    while True:
        training.step(None)


@contextmanager
def running(*commands: Sequence[object]) -> Iterator[None]:
    """Run this file's servers on the first processor until the end."""
    cpu = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        for command in commands:
            arguments = [sys.executable, __file__, str(cpu), *map(str, command)]
            process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


class Served(NamedTuple):
    """A server under load: one connection for each model, and where trainings count their steps."""

    connections: list[socket.socket]
    counts: list[Path]

    def steps(self) -> int:
        """Return the steps that all trainings have done."""
        return sum(int.from_bytes(count.read_bytes(), "big") for count in self.counts)


@contextmanager
def packed(folder: Path, targets_s: list[float], trials: int) -> Iterator[Served]:
    """Run all models in a packed host."""
    path, counts = folder / "packed", counters(folder, trials)
    command = ["packed", path, json.dumps(targets_s), json.dumps([str(count) for count in counts])]
    with running(command), connected([path] * MODELS) as connections:
        yield Served(connections, counts)


@contextmanager
def processes(folder: Path, _: list[float], trials: int) -> Iterator[Served]:
    """Run each model, and each training, in a process of its own."""
    paths, counts = [folder / f"m{number}" for number in range(MODELS)], counters(folder, trials)
    trainings = [["train", count] for count in counts]
    models = [["alone", path, number] for number, path in enumerate(paths)]
    with running(*models, *trainings), connected(paths) as connections:
        yield Served(connections, counts)


def counters(folder: Path, trials: int) -> list[Path]:
    counts = [folder / f"t{number}" for number in range(trials)]
    for count in counts:
        count.write_bytes(bytes(8))
    return counts


@contextmanager
def connected(paths: Sequence[Path]) -> Iterator[list[socket.socket]]:
    """Yield a connection for each model, which has answered already."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(path)) for path in paths]
        warm(connections)
        yield connections


def connect(path: Path) -> socket.socket:
    """Connect as soon as somebody listens."""
    for _ in range(6000):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            time.sleep(0.01)
        else:
            return connection
    raise TimeoutError(f"nobody listens at {path}")


def warm(connections: Sequence[socket.socket]) -> None:
    """Ask each model three times, one after the other."""
    for _ in range(3):
        for number, connection in enumerate(connections):
            connection.sendall(line(0, number))
            connection.recv(4096)


def line(number: int, model: int) -> bytes:
    return json.dumps({"id": number, "model": f"m{model}", "request": [0.1] * 16}).encode() + b"\n"


# --- the load
def arrivals(computing: Sequence[float], load: float, length_s: float, seed: int = 1) -> list[Request]:
    """Return requests, Poisson, equally many to each model; computing them keeps the device busy for ``load`` of it."""
    rng = np.random.default_rng(seed)
    found = []
    for model in range(MODELS):
        rate = load / sum(computing)
        times = np.cumsum(rng.exponential(1 / rate, size=int(3 * rate * length_s) + 20))
        found += [Request(float(at_s), model) for at_s in times[times < length_s]]
    return sorted(found)


def latencies(connections: Sequence[socket.socket], requests: Sequence[Request]) -> list[list[float]]:
    """Send the requests at their times; return each model's latencies in seconds, counted from these times."""
    selector = selectors.DefaultSelector()
    rest = dict.fromkeys(range(MODELS), b"")
    found: list[list[float]] = [[] for _ in range(MODELS)]
    for model, connection in enumerate(connections):
        connection.setblocking(True)
        selector.register(connection, selectors.EVENT_READ, model)
    start_s, sent, answered = time.perf_counter() + 0.05, 0, 0
    while answered < len(requests):
        now_s = time.perf_counter() - start_s
        while sent < len(requests) and requests[sent].at_s <= now_s:
            connections[requests[sent].model].sendall(line(sent, requests[sent].model))
            sent += 1
        wait_s = requests[sent].at_s - now_s if sent < len(requests) else 30.0
        events = selector.select(max(0.0, wait_s))
        now_s = time.perf_counter() - start_s
        if not events and sent == len(requests):
            raise TimeoutError(f"{len(requests) - answered} requests were not answered within 30 s")
        for key, _ in events:
            *lines, rest[key.data] = (rest[key.data] + connections[key.data].recv(65_536)).split(b"\n")
            for text in lines:
                found[key.data].append(now_s - requests[json.loads(text)["id"]].at_s)
                answered += 1
    selector.close()
    return found


def main() -> None:
    """Be one of the servers."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    match sys.argv[2:]:
        case ["packed", path, targets_s, counts]:
            serve_packed(path, json.loads(targets_s), json.loads(counts))
        case ["alone", path, number]:
            serve_alone(path, int(number))
        case ["train", path]:
            train_alone(path)


if __name__ == "__main__":
    main()
