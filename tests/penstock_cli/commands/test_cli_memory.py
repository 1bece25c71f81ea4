"""What nodes lend, as ``memory ls``, ``show`` and ``top`` and ``nodes -o wide`` say it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from fake_gateway import FakeGateway, node_view

from penstock_cli.commands.cluster import node_table
from penstock_cli.commands.memory import memory_table, rate_table
from penstock_log import views

Run = Callable[..., tuple[int, str, str]]
MIB = 1 << 20


def lending(node_id: str = "n1", **more: object) -> views.NodeMemoryView:
    about = {"id": node_id, "slab_bytes": 64 * MIB, "offered": 64, "lent": 3, "heard_s": 100.0, **more}
    return msgspec.convert(about, views.NodeMemoryView)


def test_nodes_show_in_wide_what_they_lend() -> None:
    headers, rows = node_table([node_view("n1"), node_view("n2")], 0.0, wide=True, memory=[lending()])
    assert headers[-1] == "LENDS"
    assert [(row[0], row[-1]) for row in rows] == [("n1", "192MiB of 4GiB")] * 2 + [("n2", "-")] * 2


def test_memory_is_listed_by_node() -> None:
    _, ((*row,),) = memory_table([lending(evicted=2, errors={"STALE": 1, "BAD_PROOF": 4})], 101.0)
    assert row == ["n1", "64MiB", "4GiB", "192MiB", "-", "-", "2", "5", "1.0s ago"]


def test_rates_are_of_the_time_between_two_reports_and_the_busiest_node_comes_first() -> None:
    before = {one.id: one for one in (lending("n1"), lending("n2"), lending("n3", sent_bytes=5))}
    now = [
        lending("n1", heard_s=102.0),
        lending("n2", heard_s=102.0, sent_bytes=200 * MIB, received_bytes=20 * MIB, evicted=1),
        lending("n3", heard_s=102.0),
    ]
    _, rows = rate_table(before, now)
    assert rows[0] == ("n2", "192MiB of 4GiB", "100MiB/s", "10MiB/s", "1")
    assert ("n3", "192MiB of 4GiB", "-", "-", "0") in rows, "its agent has begun anew"


def test_one_node_is_shown_with_whom_it_lends_to(penstock: Run, gateway: FakeGateway) -> None:
    gateway.memory = (lending(lent_to={"j1": 2, "ada": 1}, errors={"STALE": 1}),)
    assert penstock("memory", "ls")[1].splitlines()[1].split()[:4] == ["n1", "64MiB", "4GiB", "192MiB"]
    said = dict(line.split(":", 1) for line in penstock("memory", "show", "n")[1].splitlines())
    assert said["to"].strip() == "ada: 64MiB, j1: 128MiB"
    assert said["refused"].strip() == "STALE: 1"


def test_a_node_that_lends_nothing_is_named_with_those_that_do(penstock: Run, gateway: FakeGateway) -> None:
    gateway.memory = (lending(),)
    code, _, error = penstock("memory", "show", "x")
    assert code != 0
    assert "'x' names 0 nodes that lend memory; expected one of n1" in error


@pytest.mark.parametrize("times", [1, 2])
def test_top_looks_so_many_times(penstock: Run, gateway: FakeGateway, times: int) -> None:
    gateway.memory = (lending(),)
    out = penstock("memory", "top", "--times", str(times), "--every", "0.5")[1]
    assert out.count("WRITTEN") == times
