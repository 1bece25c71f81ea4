"""Two executors of one name: the second is refused while the first lives, and takes its place when that is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from executor_cases import PATIENCE_S, Node, World

from penstock_bus.settings import SettingsError
from penstock_bus.shell import Shell
from penstock_executor.name_claim import NameClaim
from penstock_executor.runner import run
from penstock_log import NodeJoined, subjects

pytestmark = pytest.mark.slow


async def incarnations(world: World) -> list[str]:
    deliveries = await world.bus.read(subjects.node("n1"))
    return [fact.incarnation for one in deliveries for fact in one.commit.facts if isinstance(fact, NodeJoined)]


async def test_a_second_machine_of_a_living_nodes_name_is_refused_and_the_first_goes_on(
    world: World, tmp_path: Path
) -> None:
    first = await world.node(labels={"address": "10.0.0.7"})
    before = await incarnations(world)
    second = Node(world.bus, world.folder, data_dir=str(tmp_path / "other"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ExceptionGroup) as refused:
            await run(Shell(world.bus, "executor"), second.settings)
    said = refused.value.exceptions[0]
    assert isinstance(said, SettingsError)
    assert "another executor runs as node n1, on 10.0.0.7" in str(said)
    assert "penstock node join --name" in str(said)
    assert await incarnations(world) == before
    await world.run("j1", "true")
    assert (await world.ended("j1")).outcome == "completed"
    assert not first.task.done()


async def test_a_machine_whose_folder_is_gone_takes_the_name_of_one_that_is_silent(
    world: World, tmp_path: Path
) -> None:
    first = await world.node()
    await first.kill()
    await world.node(data_dir=str(tmp_path / "other"), heartbeat_s=0.1)
    old, new = await incarnations(world)
    assert old.partition("-")[0] != new.partition("-")[0]


async def test_a_restart_on_the_same_folder_listens_to_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def heard(_: NameClaim) -> None:
        raise AssertionError("it listened for another executor")

    node = await world.node()
    await node.kill()
    monkeypatch.setattr(NameClaim, "_hear_another", heard)
    await node.start()
    assert len(await incarnations(world)) == 2
