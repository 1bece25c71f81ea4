"""The query ``timeline``: who held which device when, and when nodes were down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, refusal, started, submitted

from penstock_bus.memory import MemoryBus
from penstock_gateway.node_history import MOST_CHANGES, NodeHistory, note
from penstock_log import NodeDrained, NodeJoined, NodeLeaving, NodeLeft, NodeResumed, RoundDecided, UserSet, subjects

BEGIN_S = NOW_S - 3600.0


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    facts = (
        joined("n1", fast=2),
        joined("n2", slow=1, fast=0, pool="lab"),
        submitted("j1", user="ann", team="vision", name="hers", at_s=BEGIN_S),
        placed("j1", 0, 1, at_s=BEGIN_S + 100),
        started("j1", at_s=BEGIN_S + 110),
        ended("j1", "completed", at_s=BEGIN_S + 1100),
        submitted("j2", user="bob", at_s=BEGIN_S),
        placed("j2", 0, at_s=BEGIN_S + 2000),
        started("j2", at_s=BEGIN_S + 2000),
    )
    async with gateway(memory_bus, *facts) as running:
        yield running


def spans(view: dict[str, Any], node: str) -> dict[int, list[tuple[str, float, float, str]]]:
    """Return the runs on a node by device, as job, seconds since the beginning, and state."""
    (found,) = [one for one in view["nodes"] if one["id"] == node]
    return {
        device[0]: [(view["jobs"][span[2]]["id"], span[0] - BEGIN_S, span[1] - BEGIN_S, span[3]) for span in device[2]]
        for device in found["devices"]
    }


async def test_each_run_is_on_its_devices_from_grant_to_release(served: Gateway) -> None:
    view = await served.query("timeline")
    now = view["until_s"] - BEGIN_S
    assert spans(view, "n1") == {
        0: [("j1", 100.0, 1100.0, "completed"), ("j2", 2000.0, pytest.approx(now, abs=0.01), "running")],
        1: [("j1", 100.0, 1100.0, "completed")],
    }
    assert spans(view, "n2") == {0: []}


async def test_a_window_cuts_runs(served: Gateway) -> None:
    view = await served.query("timeline", {"since": BEGIN_S + 500, "until": BEGIN_S + 600})
    assert spans(view, "n1") == {0: [("j1", 500.0, 600.0, "completed")], 1: [("j1", 500.0, 600.0, "completed")]}
    assert [job["id"] for job in view["jobs"]] == ["j1"]


async def test_what_is_shorter_than_a_pixel_is_merged(served: Gateway) -> None:
    for number in range(50):
        at_s = BEGIN_S + 1200 + number
        job_id = f"s{number}"
        await served.told(submitted(job_id, at_s=at_s), placed(job_id, 1, at_s=at_s), ended(job_id, at_s=at_s + 0.5))
    fine = await served.query("timeline", {"since": BEGIN_S, "until": BEGIN_S + 3600, "pixels": 4000})
    coarse = await served.query("timeline", {"since": BEGIN_S, "until": BEGIN_S + 3600, "pixels": 36})
    of = [[device[2] for device in view["nodes"][0]["devices"]][1] for view in (fine, coarse)]
    assert len(of[0]) == 51
    assert len(of[1]) == 2
    assert of[1][1][4] == 50
    assert (of[1][1][0] - BEGIN_S, of[1][1][1] - BEGIN_S) == (1200.0, 1249.5)


async def test_nodes_are_chosen_by_pool_and_name_and_come_in_parts(served: Gateway) -> None:
    async def asked(**fields: Any) -> tuple[list[str], int]:
        view = await served.query("timeline", fields)
        return [node["id"] for node in view["nodes"]], view["total"]

    assert await asked() == (["n1", "n2"], 2)
    assert await asked(pool="lab") == (["n2"], 1)
    assert await asked(node="n1") == (["n1"], 1)
    assert await asked(limit=1, offset=1) == (["n2"], 2)


async def test_names_are_those_that_may_be_seen(served: Gateway) -> None:
    await served.told(
        UserSet(at_s=0.0, user="ann", role="user", teams=("vision",)), UserSet(at_s=0.0, user="eve", role="user")
    )
    for who, name in (("ann", "hers"), ("eve", ""), ("anonymous", "")):
        view = await served._ask(subjects.by_person(who, subjects.query("timeline")), b"")
        assert view["jobs"][0]["id"] == "j1"
        assert view["jobs"][0].get("name", "") == name


async def test_when_nodes_were_down_is_told(served: Gateway) -> None:
    await served.told(
        NodeDrained(at_s=NOW_S + 10, node_id="n1"),
        NodeResumed(at_s=NOW_S + 20, node_id="n1"),
        RoundDecided(at_s=NOW_S + 30, pool="default", lost_nodes=("n1",)),
    )
    view = await served.query("timeline")
    down = [(begin - NOW_S, end, state) for begin, end, state in view["nodes"][0]["down"]]
    assert [(begin, state) for begin, _, state in down] == [(10, "drained"), (30, "lost")]
    assert down[-1][1] == view["until_s"]


async def test_a_node_that_was_removed_shows_what_it_did(served: Gateway) -> None:
    await served.told(ended("j2", at_s=NOW_S), RoundDecided(at_s=NOW_S + 30, pool="default", forgotten_nodes=("n1",)))
    view = await served.query("timeline")
    assert [(node["id"], node["state"]) for node in view["nodes"]] == [("n1", "left"), ("n2", "up")]
    assert len(spans(view, "n1")[0]) == 2


@pytest.mark.parametrize("asked", [{"since": "yesterday"}, {"since": "1h", "until": "2h"}, {"pixels": 1}, {"limit": 0}])
async def test_what_is_no_window_is_refused(asked: dict[str, Any], served: Gateway) -> None:
    assert (await refusal(served.query("timeline", asked)))[0] == 400


def test_a_drained_node_that_joins_again_is_still_drained() -> None:
    histories: dict[str, NodeHistory] = {}
    for event in (
        NodeJoined(at_s=1.0, node_id="n1", devices=()),
        NodeDrained(at_s=2.0, node_id="n1"),
        NodeLeft(at_s=3.0, node_id="n1"),
        NodeJoined(at_s=4.0, node_id="n1", devices=()),
        NodeResumed(at_s=5.0, node_id="n1"),
        NodeResumed(at_s=6.0, node_id="unknown"),
    ):
        note(histories, event)
    assert list(histories["n1"].down(0.0, 9.0)) == [(2.0, 3.0, "drained"), (3.0, 4.0, "left"), (4.0, 5.0, "drained")]


def test_a_node_that_leaves_is_called_so_until_it_has_left() -> None:
    histories: dict[str, NodeHistory] = {}
    for event in (
        NodeJoined(at_s=1.0, node_id="n1", devices=()),
        NodeLeaving(at_s=2.0, node_id="n1"),
        NodeDrained(at_s=3.0, node_id="n1"),
        NodeLeft(at_s=4.0, node_id="n1"),
    ):
        note(histories, event)
    assert list(histories["n1"].down(0.0, 9.0)) == [(2.0, 4.0, "leaving"), (4.0, 9.0, "left")]


def test_of_a_node_that_comes_and_goes_the_last_changes_are_kept() -> None:
    history = NodeHistory()
    for number in range(1000):
        history.change(float(number), "left" if number % 2 else "up")
    assert len(history.changes) == MOST_CHANGES
    assert history.changes[-1] == (999.0, "left")
