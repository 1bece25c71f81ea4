"""What PyTorch holds on a device, moved to the host's memory and back: tried on the processor's own tensors."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sessions.parking import ParkRule
from penstock.sessions.setup import SessionError
from penstock.sessions.torch_parking import TorchParking, all_tensors, room_bytes

MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def _frozen_again() -> Iterator[None]:
    """Freeze what stays for the session, as it was before (tests/conftest.py)."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: its tensors are not moved")


class Training:
    """A net with shared weights, buffers and views, and an optimizer with a state."""

    def __init__(self, torch: Any) -> None:
        torch.manual_seed(1)
        self.torch = torch
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
        self.net[2].weight = self.net[0].weight
        self.row = self.net[0].weight.detach()[3]
        self.descent = torch.optim.Adam(self.net.parameters(), lr=0.05)
        self.rng = torch.Generator().manual_seed(2)
        self.last: Any = None

    def steps(self, count: int) -> list[float]:
        return list(map(self._step, range(count)))

    def _step(self, _: int) -> float:
        x = self.torch.randn(16, 8, generator=self.rng)
        self.descent.zero_grad()
        self.last = self.net(x).square().mean()
        self.last.backward()
        self.descent.step()
        return float(self.last.detach())

    def tensors(self) -> Iterator[Any]:
        yield from (*self.net.parameters(), *self.net.buffers(), self.row, self.last.detach())
        yield from (each.grad for each in self.net.parameters())
        for state in self.descent.state.values():
            yield from (value for value in state.values() if self.torch.is_tensor(value))


def test_a_training_goes_on_as_if_nothing_had_been_moved(torch: Any) -> None:
    twin, parked = Training(torch), Training(torch)
    expected = twin.steps(9)
    seen = parked.steps(3)
    parking = TorchParking("cpu")
    for _ in range(2):
        objects = list(map(id, parked.net.parameters()))
        parking.leave(parked.tensors())
        assert {tensor.untyped_storage().nbytes() for tensor in parked.tensors()} == {0}
        parking.come_back()
        assert list(map(id, parked.net.parameters())) == objects
        assert torch.equal(parked.row, parked.net[2].weight[3])
        seen += parked.steps(3)
    assert seen == expected
    assert parked.row.data_ptr() == parked.net[0].weight[3].data_ptr()


def test_all_tensors_of_a_training_are_found_without_being_named(torch: Any) -> None:
    training = Training(torch)
    training.steps(1)
    found = {tensor.untyped_storage().data_ptr() for tensor in all_tensors(torch) if tensor.device.type == "cpu"}
    assert {tensor.untyped_storage().data_ptr() for tensor in training.tensors()} <= found


def test_parameters_of_a_compiled_module_and_tensors_that_the_collector_was_told_to_leave_are_found(torch: Any) -> None:
    module = torch.jit.script(torch.nn.Linear(3, 3))
    frozen = [torch.ones(7)]
    gc.freeze()
    found = {tensor.untyped_storage().data_ptr() for tensor in all_tensors(torch) if tensor.device.type == "cpu"}
    assert frozen[0].untyped_storage().data_ptr() in found
    assert next(iter(module.parameters())).untyped_storage().data_ptr() in found


def test_a_process_without_devices_has_nothing_to_move(torch: Any) -> None:
    rule = ParkRule("cuda")
    assert not rule.allows
    rule.move_torch()
    assert rule.allows
    kept = torch.ones(3)
    assert rule.leave_device()
    assert kept.tolist() == [1.0, 1.0, 1.0]
    rule.stay()


def test_memory_of_another_library_stays_and_much_of_it_is_refused(torch: Any) -> None:
    numpy = pytest.importorskip("numpy")
    own, small = torch.arange(5.0), torch.from_numpy(numpy.ones(1000, "f4"))
    parking = TorchParking("cpu")
    parking.leave([own, small])
    assert parking.left == "3.906 KiB, of which 3.906 KiB of another library or process"
    assert own.untyped_storage().nbytes() == 0
    parking.come_back()
    large = torch.from_numpy(numpy.zeros(300 * MIB, "u1"))
    with pytest.raises(SessionError, match=r"300 MiB, of which 300 MiB of another library .* cannot be moved"):
        parking.leave([own, large])
    assert own.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_host_without_room_is_refused_and_nothing_is_moved(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["penstock.sessions.torch_parking"], "room_bytes", lambda: 1000)
    kept = torch.ones(4096)
    with pytest.raises(SessionError, match=r"16 KiB of the device do not fit into the \S+ \S+ of host memory"):
        TorchParking("cpu").leave([kept])
    assert float(kept.sum()) == 4096.0


def test_a_process_with_graphs_of_its_device_is_refused(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    parking = TorchParking("cpu")
    parking.leave([])
    kept = Graph()
    with pytest.raises(SessionError, match="CUDA graphs, which remember addresses"):
        parking.leave([])
    assert kept


def test_the_room_is_what_is_free_of_the_host_and_of_each_control_group(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 * 1024} kB\nMemAvailable: {9 * 1024} kB\n")
    assert room_bytes(groups, proc) == 8 * MIB
    (proc / "self" / "cgroup").write_text("0::/jobs/j1\n")
    own = groups / "jobs" / "j1"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    assert room_bytes(groups, proc) == 8 * MIB
    (own.parent / "memory.max").write_text(f"{6 * MIB}\n")
    (own.parent / "memory.current").write_text(f"{5 * MIB}\n")
    (own.parent / "memory.stat").write_text(f"anon {MIB}\nactive_file {2 * MIB}\ninactive_file {MIB}\n")
    assert room_bytes(groups, proc) == 4 * MIB
    assert room_bytes(groups, tmp_path / "none") == sys.maxsize


class Plain:
    """A tensor and a module in place of PyTorch's, in a cycle, so that only the collector can do away with it."""

    is_leaf = False

    def __init__(self) -> None:
        self.itself = self


def test_cycles_of_what_lived_at_a_look_for_tensors_are_collected_later() -> None:
    torch = SimpleNamespace(Tensor=Plain, nn=SimpleNamespace(Module=Plain))
    frozen = Plain()
    gc.freeze()
    later = Plain()
    found = list(all_tensors(torch))
    assert {id(frozen), id(later)} <= set(map(id, found))
    gone = [weakref.ref(frozen), weakref.ref(later)]
    del frozen, later, found
    gc.collect()
    assert [each() for each in gone] == [None, None]
