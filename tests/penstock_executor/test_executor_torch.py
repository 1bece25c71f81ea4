"""A torch gang over two nodes meets at rank 0's node, and what it learns is what it would learn on one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from executor_cases import World

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here"),
    pytest.mark.timeout(600),  # seconds of processor time, in processes that load torch
]


async def test_a_torch_gang_over_two_nodes_meets_and_trains(world: World) -> None:
    import torch  # noqa: PLC0415 - only where it is

    found = []
    for node_id in ("n1", "n2"):
        await world.node(node_id, address="127.0.0.1")
    training = {"cwd": str(EXAMPLES), "batch_size": 128, "params": {"epochs": 1}, "keep_checkpoint": True}
    for job_id, slots in (("alone", {"n1": [0]}), ("apart", {"n1": [0], "n2": [1]})):
        await world.submit(job_id, sys.executable, "digits_torch.py", gpus=len(slots), **training)
        await world.place_on(job_id, slots)
        ends = [await world.ended(job_id, node_id=node_id) for node_id in slots]
        assert [end.outcome for end in ends] == ["completed"] * len(slots), ends
        path = world.folder / "checkpoints" / job_id / f"step-{ends[0].steps}" / "state.pt"
        found.append(torch.load(path, weights_only=True)["losses"])
    assert len(found[0]) == 12
    assert found[1] == pytest.approx(found[0], rel=1e-5)
