"""Reservations, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

import pytest
from fake_gateway import FakeGateway

from penstock_cli import value_formats
from penstock_log import request_bodies, views

Run = Callable[..., tuple[int, str, str]]


def test_a_reservation_goes_from_a_time_of_day_to_the_next_one(penstock: Run, gateway: FakeGateway) -> None:
    words = ("reserve", "vision", "--gpus", "8", "--from", "22:00", "--until", "06:00", "--kind", "fast")
    words += ("--reason", "a deadline")
    assert penstock(*words)[:2] == (0, "reserved\n")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.ReserveRequest)
    assert (ask.team, ask.gpus, ask.pool, ask.kind, ask.reason) == ("vision", 8, "default", "fast", "a deadline")
    begin, end = (datetime.fromtimestamp(at_s).astimezone() for at_s in (ask.from_s, ask.until_s))
    assert (begin.hour, end.hour) == (22, 6)
    assert ask.from_s < ask.until_s < ask.from_s + 86_400
    assert ask.by


def test_without_a_begin_it_is_from_now_on(penstock: Run, gateway: FakeGateway) -> None:
    before_s = value_formats.now_s()
    penstock("reserve", "vision", "--gpus", "1", "--until", "2h", "--pool", "lab")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.ReserveRequest)
    assert (ask.from_s, ask.pool, ask.until_s >= before_s + 7200) == (0.0, "lab", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "1", "--until", "soon"), "--until 'soon' is no time"),
        (("--gpus", "1", "--until", "1h", "--from", "2h"), "expected a reservation that ends after it begins"),
        (("--gpus", "0", "--until", "1h"), "--gpus"),
        (("--until", "1h"), "--gpus"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_asked(
    penstock: Run, gateway: FakeGateway, words: tuple[str, ...], said: str
) -> None:
    code, _, told = penstock("reserve", "vision", *words)
    assert (code, said in told, gateway.asked) == (2, True, []), told


def test_reservations_are_listed_with_their_pool_and_cancelled_by_id(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("reservations")[1].startswith("nothing is reserved; ")
    one = views.ReservationView(
        id="vision-1", team="vision", gpus=8, pool="lab", state="to come", from_s=1e9, until_s=2e9, made_s=1.0, by="ada"
    )
    pool = views.PolicyView(pool="lab", settings={}, reservations=(one,))
    gateway.policies = views.PoliciesView(pools=(pool,), defaults={}, seq=7)
    head, row = penstock("reservations")[1].splitlines()
    assert head.split() == ["ID", "POOL", "TEAM", "DEVICES", "STATE", "FROM", "UNTIL", "BY", "REASON"]
    assert row.split()[:6] == ["vision-1", "lab", "vision", "8", "to", "come"]
    (listed,) = json.loads(penstock("reservations", "-o", "json")[1])
    assert (listed["id"], listed["pool"]) == ("vision-1", "lab")
    assert penstock("unreserve", "vision-1", "--pool", "lab")[:2] == (0, "cancelled\n")
    ask = gateway.asked[-1]
    assert isinstance(ask, request_bodies.UnreserveRequest)
    assert (ask.id, ask.pool) == ("vision-1", "lab")
