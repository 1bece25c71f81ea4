"""The coordinator with a real broker: who asks to join, and who is gone before it is answered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharing_node import stage

from penstock_executor.sharing.lane_coordinator import LaneCoordinator, TurnClock, TurnLimits
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import NodeLane, ShareRequest
from penstock_log import AnyEvent, Device, MemoryNeed
from penstock_sharing.lanes import LaneRules
from penstock_sharing.token import LaneClient, LaneClientId, TokenBroker
from penstock_sharing.token.shared_page import Token

KNOCKING = """
import socket, sys
from penstock_sharing.token.protocol import VERSION, JoinLane, LaneClientId, send
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
send(connection, JoinLane(VERSION, LaneClientId("stranger", 1, 0), ()))
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[LaneCoordinator]:
    device = Device(index=0, kind="fast", memory_bytes=1000, backend="emulated")
    facts: list[AnyEvent] = []
    broker = TokenBroker(tmp_path / "lanes.sock")
    yield LaneCoordinator(
        broker,
        NodeLanes("n1", [device], LaneRules()),
        life="life",
        clock=lambda: 1.0,
        is_of=lambda who, _: who.job_id != "stranger",
        report=facts.append,
        limit=lambda *_: None,
        end=lambda *_: None,
        wake=lambda: None,
        again=lambda _: None,
    )
    broker.close()


def test_one_that_dies_before_it_is_refused_costs_no_other_its_news(
    coordinator: LaneCoordinator, tmp_path: Path
) -> None:
    coordinator.lanes.arrive(ShareRequest(job_id="j1", epoch=1, ranks={0: (0,)}, need=MemoryNeed(10, 0, 10)), 0.0)
    coordinator.turn()
    knocking = subprocess.Popen([sys.executable, "-c", KNOCKING, str(tmp_path / "lanes.sock")])
    os.waitid(os.P_PID, knocking.pid, os.WEXITED | os.WNOWAIT)
    member = LaneClient(str(tmp_path / "lanes.sock"), LaneClientId("j1", 1, 0))
    for _ in range(4):
        coordinator.turn()
    knocking.wait()
    member.look()
    assert len(member.slots) == 1
    member.close()


def test_a_parked_process_that_comes_back_sits_where_it_sat(coordinator: LaneCoordinator, tmp_path: Path) -> None:
    for job_id in ("j1", "j2"):
        request = ShareRequest(job_id=job_id, epoch=1, ranks={0: (0,)}, need=MemoryNeed(10, 0, 400))
        coordinator.lanes.arrive(request, 0.0)
    coordinator.turn()
    coordinator.lanes.state.carry_out(coordinator.lanes.state.gangs.measured("j2", {0: MemoryNeed(10, 0, 985)}, 1.0))
    coordinator.turn()
    assert coordinator.lanes.state.lanes_of[0].parked == ("j2",)
    assert len(coordinator.lanes.state.lanes_of[0].lanes) == 1
    assert len(coordinator.broker.lanes) == 1
    member = LaneClient(str(tmp_path / "lanes.sock"), LaneClientId("j2", 1, 0))
    for _ in range(4):
        coordinator.turn()
    member.look()
    assert len(member.slots) == 1
    member.close()
    for _ in range(4):
        coordinator.turn()
    assert len(coordinator.broker.lanes) == 1


def test_one_whose_turn_ends_as_it_is_seated_anew_is_not_named_for_it_again() -> None:
    bad, both, after = LaneClientId("bad", 1, 0), LaneClientId("both", 1, 0), LaneClientId("after", 1, 0)
    with stage({"bad": ((0,),), "both": ((0, 1),), "after": ((1,),)}) as played:
        while not played.actors[both].inside:
            for who in (bad, after, both):
                played.step(who)
            played.turn()
        played.step(both)
        assert played.actors[both].member.holds
        (slot,) = played.actors[bad].member.slots
        slot._page.words[slot._page.row + 1 + slot.number] = Token(generation=7, turn=2**39, slot=0).word
        slot._call_broker()
        played.turn()  # both is seated on another page of device 0, and so loses its token of device 1 as well
        assert played.coordinator.views()[NodeLane(1, 0)].holder == after
        played.step(both)
        played.turn()
        tokens = played.coordinator.lanes.tokens
        assert not [place for place in tokens.holders if tokens.unexpected(place) is not None]


def test_of_turns_that_are_over_nothing_is_kept() -> None:
    turns = TurnClock(TurnLimits(warn_s=10.0, take_s=60.0))
    turns.look(dict.fromkeys(range(5), (1, 1)), now_s=0.0)
    turns.look({3: (1, 1)}, now_s=1.0)
    assert turns.look({3: (1, 1), 4: (1, 1)}, now_s=11.0) == {3: "warn", 4: "go"}
