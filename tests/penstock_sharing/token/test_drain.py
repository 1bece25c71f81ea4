"""The thread that waits for the device between two iterations."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from penstock_sharing.token.lane_client import LaneClient
from penstock_sharing.token.lane_token import open_lane
from penstock_sharing.token.protocol import LaneClientId, TokenPassed
from penstock_sharing.token.shared_page import DRAINING, SharedPage
from penstock_sharing.token.token_slot import DeviceDrain, TokenSlot


def test_one_that_is_told_to_drain_before_its_thread_looks_does_so_at_once() -> None:
    lane, who, settled = open_lane("0/0", slots=4), LaneClientId("one", 1, 0), threading.Event()
    one = TokenSlot(lane.name, SharedPage(os.dup(lane.page.fd)), lane.slot_for(who, os.getpid()), os.dup(lane.call_fd))
    one.wait(0.0)
    lane.name_next(who)
    assert one.enter()
    assert not one.exit(DRAINING)
    assert lane.recall() == []
    drain = DeviceDrain(one, settled.set, threading.Lock())
    assert settled.wait(30.0)
    drain.end()  # not before it has said that the device is done
    assert lane.look(0) == [TokenPassed("0/0", who, None)]


class Quiet:
    """A slot that has its token after so many looks, and notes whether the thread could act in its place meanwhile."""

    holds = called = False

    def __init__(self, member: LaneClient, looks: int) -> None:
        self.member, self.looks = member, looks
        self.guarded: list[bool] = []

    def enter(self) -> bool:
        self.guarded.append(self.member._between.locked())
        self.looks -= 1
        return self.looks < 0

    def wait(self, _: float) -> bool:
        return True


def test_no_device_is_said_to_be_at_rest_while_its_process_begins_there_after_a_wait(tmp_path: Path) -> None:
    member = LaneClient(str(tmp_path / "nobody.sock"), LaneClientId("one", 1, 0))
    first, second = Quiet(member, looks=1), Quiet(member, looks=0)
    slots: Any = (first, second)
    drains: Any = {second: None}
    member.slots, member._drains = slots, drains
    assert member.enter()
    member.slots, member._drains = (), {}
    assert first.guarded == [True, True]
    assert second.guarded == [True]
