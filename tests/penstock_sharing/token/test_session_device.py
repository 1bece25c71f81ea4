"""What the session asks of a framework that the script has loaded, by a fake of the calls that it makes."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from token_clients import House, house

from penstock.sessions import torch_support
from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup
from penstock_log.agent_protocol import MemoryReport


@dataclass
class Cuda:
    """Two devices, each with what is held of it and the most that was held."""

    held: list[int] = field(default_factory=lambda: [100, 300])
    peak: list[int] = field(default_factory=lambda: [900, 700])
    done: list[str] = field(default_factory=list)
    ready: bool = True

    def is_initialized(self) -> bool:
        return self.ready

    def device_count(self) -> int:
        return 2

    def synchronize(self, index: int) -> None:
        self.done.append(f"synchronize {index}")

    def empty_cache(self) -> None:
        self.done.append("empty_cache")

    def memory_allocated(self, index: int) -> int:
        return self.held[index]

    def max_memory_allocated(self, index: int) -> int:
        return self.peak[index]

    def memory_reserved(self, index: int) -> int:
        return 1_000 + index

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peak[index] = self.held[index]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    return made


def test_memory_is_the_most_of_any_device_and_the_peak_is_counted_anew(cuda: Cuda) -> None:
    first, then = torch_support.measure(), torch_support.measure()
    assert first == MemoryReport(allocated_bytes=300, peak_bytes=900, reserved_bytes=1_001, on_device=True)
    assert then == MemoryReport(allocated_bytes=300, peak_bytes=300, reserved_bytes=1_001, on_device=True)


def test_a_framework_that_has_touched_no_device_is_left_alone(cuda: Cuda) -> None:
    cuda.ready = False
    torch_support.settle()
    measured = torch_support.measure()
    assert not cuda.done
    assert measured is not None
    assert not measured.on_device
    assert not torch_support.works_on()


def test_a_peak_that_cannot_begin_anew_is_not_reported_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch_support, "_CLEAR", tmp_path / "not there" / "clear_refs")
    assert torch_support.resident() is not None
    assert torch_support.measure() is None


def test_the_devices_are_done_and_their_reserve_is_given_back_before_the_token_goes_on(
    cuda: Cuda, tmp_path: Path
) -> None:
    with house(tmp_path) as served:
        neighbour = served.process("neighbour")
        with Session(ProcessSetup(job_id="script", epoch=1, lanes=str(served.path))) as session:
            for step in session.iterations(range(2)):
                if step == 0:
                    cuda.done.clear()
                    neighbour.tell("enter")
                    served.asks(neighbour)
                else:
                    break
                neighbour.tell("exit")
        assert neighbour.hear().startswith("entered")
    assert cuda.done[:3] == ["synchronize 0", "synchronize 1", "empty_cache"]


def fetch(index: int) -> int:
    return index * index


def test_batches_may_come_from_worker_processes(tmp_path: Path) -> None:
    served: House
    with house(tmp_path) as served, Session(ProcessSetup(job_id="s", epoch=1, lanes=str(served.path))) as session:
        with multiprocessing.get_context("fork").Pool(2) as workers:
            batches = session.iterations(workers.imap(fetch, range(20)))
            assert list(batches) == [index * index for index in range(20)]
        (counters,) = served.broker.view("0/0").members
    assert counters.iterations == 20
