"""What a script says of its model reaches the log."""

from __future__ import annotations

import pytest
from executor_cases import World, python

DESCRIBING = """
import penstock
class Tensor:
    def __init__(self, count): self.count = count
    def numel(self): return self.count
    def element_size(self): return 4
class Model:
    def parameters(self): return [Tensor(300), Tensor(100)]
with penstock.session() as session:
    session.describe(Model())
    for _ in session.iterations(range(3)):
        pass
"""


@pytest.mark.parametrize(("code", "skew"), [(DESCRIBING, 0.75), ("pass", 0.0)])
async def test_a_run_ends_with_the_skew_of_the_model_that_it_trained(world: World, code: str, skew: float) -> None:
    await world.node()
    await world.run("j1", *python(code))
    assert (await world.ended("j1")).skew == skew
