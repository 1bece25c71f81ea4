"""The thread that waits for the device between two iterations."""

from __future__ import annotations

import os
import threading

from penstock_lanes.drain import Drain
from penstock_lanes.lane import open_lane
from penstock_lanes.news import Passed
from penstock_lanes.page import DRAINING, Page
from penstock_lanes.seat import Seat
from penstock_lanes.wire import Who


def test_one_that_is_told_to_drain_before_its_thread_looks_does_so_at_once() -> None:
    lane, who, settled = open_lane("0/0", seats=4), Who("one", 1, 0), threading.Event()
    one = Seat(lane.name, Page(os.dup(lane.page.fd)), lane.seat_for(who, os.getpid()), os.dup(lane.bell))
    one.wait(0.0)
    lane.name_next(who)
    assert one.enter()
    assert not one.exit(DRAINING)
    assert lane.recall() == []
    drain = Drain(one, settled.set, threading.Lock())
    assert settled.wait(30.0)
    drain.end()  # not before it has said that the device is done
    assert lane.look(0) == [Passed("0/0", who, None)]
