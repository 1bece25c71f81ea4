"""Aggregators as processes, and who orders them about: what an agent does, enough of it to test the data plane."""

from __future__ import annotations

import itertools
import secrets
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from forked_programs import ProgramTemplate

from penstock.aggregation.exchange import VectorExchange
from penstock.aggregation.rules import state_size, update
from penstock.leased_connection import boot_id
from penstock_log.aggregation_messages import (
    COPY_RANK,
    AggregatorAddress,
    AggregatorPong,
    AggregatorReady,
    CopyFailed,
    FromAggregator,
    GrantLease,
    LostAggregator,
    OpenPart,
    PartAt,
    PartCopied,
    PartsAt,
    PingAggregator,
    SendPart,
    ToAggregator,
    UpdateRule,
    VectorLayout,
)

LOCAL = "127.0.0.1"
WAIT_S = 60.0
Said = TypeVar("Said")
HEARD = threading.Condition()
"""Notified where any aggregator has said something."""
TEMPLATE = ProgramTemplate("penstock_aggregator.process")


class AggregatorProcess:
    """A process of ``penstock_aggregator.process``, and the agent's end of its orders."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.path = name, folder / f"{name.replace('/', '-')}-{secrets.token_hex(4)}.sock"
        self._mine, theirs = socket.socketpair()
        with theirs:
            self.process = TEMPLATE.start(theirs.fileno(), "--orders={}", f"--host={LOCAL}", f"--socket={self.path}")
        self._said: deque[FromAggregator] = deque()
        self._heard = HEARD
        self._over = False
        self._numbers = itertools.count(1)
        threading.Thread(target=self._listen, daemon=True).start()
        self.port = self.wait_for(AggregatorReady).port

    def order(self, message: ToAggregator) -> None:
        self._mine.sendall(msgspec.json.encode(message) + b"\n")

    def wait_for(self, kind: type[Said], match: Callable[[Any], bool] = lambda _: True) -> Said:
        """Return what it said of a kind, once, as soon as it has."""
        found: list[Said] = []

        def is_there() -> bool:
            found.extend(self.take_said(kind, match))
            return bool(found) or self._over

        with self._heard:
            assert self._heard.wait_for(is_there, WAIT_S), f"{self.name} said no {kind.__name__}"
        assert found, f"{self.name} has ended"
        return found[0]

    def take_said(self, kind: type[Said], match: Callable[[Any], bool]) -> list[Said]:
        """Return the first that it has said of a kind, once; nothing if it has not."""
        with self._heard:
            for message in self._said:
                if isinstance(message, kind) and match(message):
                    self._said.remove(message)
                    return [message]
        return []

    def said(self, kind: type[Said]) -> list[Said]:
        with self._heard:
            return [message for message in self._said if isinstance(message, kind)]

    def ping(self) -> AggregatorPong:
        """Return what it says of itself now; all orders before have been followed."""
        number = next(self._numbers)
        self.order(PingAggregator(number=number))
        return self.wait_for(AggregatorPong, lambda pong: pong.number == number)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def hang_up(self) -> int:
        """Close the agent's end of the orders, and return how the process ends."""
        self._mine.shutdown(socket.SHUT_RDWR)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.returncode is None:
            self.hang_up()
        self._mine.close()

    def _listen(self) -> None:
        rest = b""
        while chunk := self._receive():
            *lines, rest = (rest + chunk).split(b"\n")
            with self._heard:
                self._said.extend(msgspec.json.decode(line, type=FromAggregator) for line in lines)
                self._heard.notify_all()
        with self._heard:
            self._over = True
            self._heard.notify_all()

    def _receive(self) -> bytes:
        try:
            return self._mine.recv(65_536)
        except OSError:
            return b""


class AggregatedRun:
    """A run on some aggregators: what their agents and the assigner would order and say."""

    def __init__(
        self,
        folder: Path,
        layout: VectorLayout,
        world_size: int,
        rule: UpdateRule | None = None,
        *,
        aggregators: int = 1,
        shared: bool = False,
        job_id: str = "j1",
    ) -> None:
        self.folder, self.layout, self.world_size = folder, layout, world_size
        self.rule = rule or UpdateRule()
        self.shared, self.job_id, self.epoch = shared, job_id, 1
        self.generation = 1
        self.lock = threading.RLock()
        self.processes: dict[str, AggregatorProcess] = {}
        self.exchanges: list[VectorExchange] = []
        self.lost: list[LostAggregator] = []
        self._numbers = itertools.count()
        names = [self.start().name for _ in range(aggregators)]
        self.at = [
            PartAt(part=part, aggregator=names[part % aggregators], generation=1) for part in range(len(layout.parts))
        ]
        for at in self.at:
            self.open(at)

    def start(self) -> AggregatorProcess:
        process = AggregatorProcess(f"n1/{next(self._numbers)}", self.folder)
        self.processes[process.name] = process
        return process

    def open(self, at: PartAt) -> None:
        self.processes[at.aggregator].order(
            OpenPart(
                job_id=self.job_id,
                epoch=self.epoch,
                part=at.part,
                generation=at.generation,
                elements=self.layout.parts[at.part],
                dtype=self.layout.dtype,
                world_size=self.world_size,
                rule=self.rule,
                how=at.how,
            )
        )

    def lease(self, aggregator: str, rank: int) -> AggregatorAddress:
        process = self.processes[aggregator]
        lease, token = secrets.token_hex(16), secrets.token_hex(32)
        process.order(GrantLease(job_id=self.job_id, epoch=self.epoch, rank=rank, lease=lease, token=token))
        process.ping()
        return AggregatorAddress(
            aggregator=aggregator,
            lease=lease,
            token=token,
            host=LOCAL,
            port=process.port,
            boot_id=boot_id() if self.shared else "",
            socket=str(process.path) if self.shared else "",
        )

    def exchange(self, rank: int, **settings: Any) -> VectorExchange:
        exchange = VectorExchange(
            self.layout,
            self.rule,
            rank=rank,
            world_size=self.world_size,
            on_lost=lambda lost: self.on_lost(lost),  # noqa: PLW0108 - tests put another one there
            **settings,
        )
        self.exchanges.append(exchange)
        exchange.placed(self.where(rank))
        return exchange

    def where(self, rank: int) -> PartsAt:
        names = sorted({at.aggregator for at in self.at})
        addresses = tuple(self.lease(name, rank) for name in names)
        return PartsAt(generation=self.generation, parts=tuple(self.at), aggregators=addresses)

    def announce(self) -> None:
        """Tell all ranks where the parts are."""
        for rank, exchange in enumerate(self.exchanges):
            exchange.placed(self.where(rank))

    def announce_move(self, parts: Sequence[int], to: str) -> dict[int, str]:
        """Have parts wait for their copies on another aggregator, and tell the ranks; return where they were."""
        with self.lock:
            self.generation += 1
            before = {part: self.at[part].aggregator for part in parts}
            for part in parts:
                self.at[part] = PartAt(part=part, aggregator=to, generation=self.generation, how="copy")
                self.open(self.at[part])
            self.announce()
            return before

    def move(self, parts: Sequence[int], to: str) -> list[PartCopied]:
        """Move parts to another aggregator, those that are not there, and wait until they are."""
        with self.lock:
            before = self.announce_move([part for part in parts if self.at[part].aggregator != to], to)
            self.send_parts(before, to)
            number = self.generation
            return [copied for part, source in before.items() for copied in self._moved(part, number, source, to)]

    def _moved(self, part: int, generation: int, source: str, to: str) -> list[PartCopied]:
        """Return that a part was copied; nothing if it could not be, and has to be joined where it is now."""
        copied: list[PartCopied] = []
        failed: list[CopyFailed] = []
        match = _copy_of(part, generation)

        def is_known() -> bool:
            copied.extend(self.processes[to].take_said(PartCopied, match))
            failed.extend(self.processes[source].take_said(CopyFailed, match))
            return bool(copied or failed)

        with HEARD:
            assert HEARD.wait_for(is_known, WAIT_S), f"nothing was heard of the copy of part {part}"
        if failed:
            self.join_anew([part])
        return copied

    def send_parts(self, before: Mapping[int, str], to: str) -> None:
        """Order parts to be sent from where they were."""
        address = self.lease(to, COPY_RANK)
        for part, aggregator in before.items():
            self.processes[aggregator].order(
                SendPart(job_id=self.job_id, epoch=self.epoch, part=part, generation=self.generation, to=address)
            )

    def replace(self, aggregator: str) -> str:
        """Open the parts of an aggregator that is gone on a new one, which ranks join."""
        with self.lock:
            new = self.start().name
            self.generation += 1
            for at in list(self.at):
                if at.aggregator == aggregator:
                    self.at[at.part] = PartAt(part=at.part, aggregator=new, generation=self.generation)
                    self.open(self.at[at.part])
            self.announce()
            return new

    def join_anew(self, parts: Sequence[int]) -> None:
        """Have ranks join parts where they are, since what was to be copied there did not come."""
        with self.lock:
            self.generation += 1
            for part in parts:
                self.at[part] = PartAt(part=part, aggregator=self.at[part].aggregator, generation=self.generation)
                self.open(self.at[part])
            self.announce()

    def on_lost(self, lost: LostAggregator) -> None:
        self.lost.append(lost)

    def close(self) -> None:
        for exchange in self.exchanges:
            exchange.close()
        for process in self.processes.values():
            process.close()


@contextmanager
def aggregated(*arguments: Any, **settings: Any) -> Iterator[AggregatedRun]:
    run = AggregatedRun(*arguments, **settings)
    try:
        yield run
    finally:
        run.close()


def in_threads(work: Callable[[int], Said], count: int) -> list[Said]:
    """Return what a function returns for 0 to ``count - 1``, each in a thread; raise what one of them raises."""
    results: dict[int, Said] = {}
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:  # raised below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a rank does not come to an end"
    if errors:
        raise errors[0]
    return [results[number] for number in range(count)]


def plain_results(layout: VectorLayout, rule: UpdateRule, world_size: int, steps: int) -> list[bytes]:
    """Return each step's result, computed here: sums in the order of ranks, and the rule on the whole vector."""
    elements = sum(layout.parts)
    params = values_of(-1, 0, elements, layout.dtype)
    state = np.zeros((state_size(rule), elements), layout.dtype)
    results = []
    for step in range(1, steps + 1):
        contributions = [values_of(rank, step, elements, layout.dtype) for rank in range(world_size)]
        if rule.name == "mean":
            mean = contributions[0]
            for more in contributions[1:]:
                mean = mean + more
            params = mean / mean.dtype.type(world_size)
        else:
            update(rule, step, contributions, params, list(state))
        results.append(params.tobytes())
    return results


class Training:
    """Ranks that push :func:`values_of` and remember each step's result, each in a thread."""

    def __init__(self, run: AggregatedRun, **settings: Any) -> None:
        self.run = run
        self.elements = sum(run.layout.parts)
        self.exchanges = [run.exchange(rank, **settings) for rank in range(run.world_size)]
        for exchange in self.exchanges:
            exchange.begin(values_of(-1, 0, self.elements, run.layout.dtype))
        self.results: list[list[bytes]] = [[] for _ in self.exchanges]
        self._progress = threading.Condition()

    def train(self, steps: int, before: Callable[[int, int], object] = max) -> list[list[bytes]]:
        """Train to the end; ``before`` is called with rank and step before each push, and does nothing by default."""

        def one(rank: int) -> None:
            for step in range(self.exchanges[rank].step + 1, steps + 1):
                before(rank, step)
                values = values_of(rank, step, self.elements, self.run.layout.dtype)
                self.exchanges[rank].exchange(values)
                with self._progress:
                    self.results[rank].append(values.tobytes())
                    self._progress.notify_all()

        in_threads(one, len(self.exchanges))
        return self.results

    def wait_for_step(self, step: int) -> None:
        """Wait until a rank has so many results."""
        with self._progress:
            assert self._progress.wait_for(lambda: max(map(len, self.results)) >= step, WAIT_S)


def values_of(rank: int, step: int, elements: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    """Return what a rank pushes in a step: always the same, and nothing that sums up without rounding."""
    return np.random.default_rng([rank + 1, step]).standard_normal(elements).astype(dtype)


def _copy_of(part: int, generation: int) -> Callable[[Any], bool]:
    return lambda copied: bool(copied.part == part and copied.generation == generation)


__all__ = [
    "AggregatedRun",
    "AggregatorProcess",
    "CopyFailed",
    "Training",
    "aggregated",
    "in_threads",
    "plain_results",
    "values_of",
]
