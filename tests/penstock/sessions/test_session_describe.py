"""A script describes its model: what is read from it, and how far the figure gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from executor_stub import small_executor

from penstock.sessions.session import Session, session
from penstock.sessions.setup import read
from penstock_log.agent_protocol import SessionDone


@dataclass
class Tensor:
    count: int
    bytes_each: int = 4

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.bytes_each


@dataclass
class Model:
    tensors: list[Tensor]

    def parameters(self) -> Iterator[Tensor]:
        return iter(self.tensors)


def test_the_skew_is_that_of_bytes_not_of_elements() -> None:
    with session() as alone:
        assert alone.describe(Model([Tensor(100), Tensor(100, bytes_each=2), Tensor(100, bytes_each=2)])) == 0.5


def test_a_model_without_tensors_is_not_skewed() -> None:
    with session() as alone:
        assert alone.describe(Model([])) == 0.0


def test_a_torch_module_is_read_as_it_is() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    model = torch.nn.Sequential(torch.nn.Linear(30, 20, bias=False), torch.nn.Linear(20, 20, bias=False))
    with session() as alone:
        assert alone.describe(model) == pytest.approx(0.6)


@pytest.mark.parametrize(("described", "told"), [(True, 0.75), (False, 0.0)])
def test_the_executor_hears_of_it_with_the_last_words(tmp_path: Path, described: bool, told: float) -> None:
    with small_executor(tmp_path) as executor:
        with Session(read(executor.env())) as inside:
            if described:
                inside.describe(Model([Tensor(300), Tensor(100)]))
            for _ in inside.iterations(range(3)):
                pass
        assert executor.wait(SessionDone).skew == told
