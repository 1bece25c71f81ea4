"""A session holds torch's allocator to its part of the devices: told by a torch of ours that notes what it is told."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import penstock
from penstock.sessions.setup import BadEnvironment, read
from penstock.sessions.torch_support import AllocatorLimit
from penstock_log.agent_protocol import AgentEnv

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


class FakeCuda:
    """Runs what waits for its devices when they are opened, as ``torch.cuda`` does."""

    def __init__(self, devices: int = 2) -> None:
        self.told: list[tuple[float, int]] = []
        self._devices = devices
        self._waiting: list[Callable[[], None]] = []
        self._is_open = False

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self._is_open:
            call()
        else:
            self._waiting.append(call)

    def open(self) -> None:
        self._is_open = True
        for call in self._waiting:
            call()

    def is_initialized(self) -> bool:
        return self._is_open

    def device_count(self) -> int:
        return self._devices

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        assert self._is_open, "this would open the device"
        self.told.append((fraction, device))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    return found


def test_the_limit_waits_until_the_devices_are_opened(cuda: FakeCuda) -> None:
    AllocatorLimit(0.25).apply()
    assert cuda.told == []
    cuda.open()
    assert cuda.told == [(0.25, 0), (0.25, 1)]


def test_the_limit_is_told_once(cuda: FakeCuda) -> None:
    cuda.open()
    limit = AllocatorLimit(0.25)
    limit.apply()
    limit.apply()
    assert cuda.told == [(0.25, 0), (0.25, 1)]


def test_a_limit_that_changes_is_told_again(cuda: FakeCuda) -> None:
    cuda.open()
    limit = AllocatorLimit(0.25)
    limit.apply()
    limit.change(0.5)
    assert cuda.told == [(0.25, 0), (0.25, 1)], "only at a boundary"
    for _ in range(2):
        limit.apply()
    assert cuda.told[2:] == [(0.5, 0), (0.5, 1)]


def test_without_a_limit_nothing_is_told(cuda: FakeCuda) -> None:
    cuda.open()
    AllocatorLimit(0.0).apply()
    assert cuda.told == []


def test_a_torch_that_comes_later_is_told_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    limit, found = AllocatorLimit(0.5), FakeCuda(devices=1)
    limit.apply()
    found.open()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    limit.apply()
    assert found.told == [(0.5, 0)]


def test_a_session_tells_what_its_executor_says(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AgentEnv.MEMORY_FRACTION, "0.125")
    cuda.open()
    with penstock.session():
        assert cuda.told == [(0.125, 0), (0.125, 1)]


def test_a_session_loads_no_torch_to_limit_it() -> None:
    script = "import penstock, sys\nwith penstock.session(): print('torch' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={AgentEnv.MEMORY_FRACTION: "0.5", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "False\n"


@needs_torch
def test_a_real_torch_keeps_the_limit_until_it_opens_a_device_and_runs_on_where_there_is_none() -> None:
    script = (
        "import penstock, torch\n"
        "with penstock.session() as session:\n"
        "    waiting = len(torch.cuda._queued_calls)\n"
        "    print(sum(1 for _ in session.iterations(range(3))), waiting, torch.cuda.is_initialized())"
    )
    without, limited = (
        subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
        for env in ({"PATH": ""}, {AgentEnv.MEMORY_FRACTION: "0.5", "PATH": ""})
    )
    steps, waiting, is_open = without.split()
    assert limited.split() == [steps, str(int(waiting) + 1), is_open] == ["3", limited.split()[1], "False"]


@needs_torch
def test_a_real_torch_is_told_in_its_own_words() -> None:
    import torch  # noqa: PLC0415 - only where it is

    told = inspect.signature(torch.cuda.set_per_process_memory_fraction)
    told.bind(0.5, 0)
    assert list(told.parameters)[:2] == ["fraction", "device"]


def test_a_fraction_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadEnvironment, match=AgentEnv.MEMORY_FRACTION):
        read({AgentEnv.MEMORY_FRACTION: "half"})
