"""Priority classes, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fake_gateway import FakeGateway

from penstock_log import request_bodies, views

Run = Callable[..., tuple[int, str, str]]


def asked(gateway: FakeGateway) -> request_bodies.PolicyRequest:
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.PolicyRequest)
    return ask


def test_a_class_is_set_whole(penstock: Run, gateway: FakeGateway) -> None:
    words = ("--weight", "10", "--preempts", "--most-gpus", "8", "--teams", "vision,nlp", "--pool", "lab")
    assert penstock("class", "set", "urgent", *words, "--reason", "deadlines")[:2] == (
        0,
        "pool lab: class urgent is set\n",
    )
    ask = asked(gateway)
    assert (ask.pool, ask.reason, ask.unset) == ("lab", "deadlines", ())
    assert ask.set == {
        "class.urgent.weight": 10,
        "class.urgent.preempts": True,
        "class.urgent.most_gpus": 8,
        "class.urgent.teams": ["vision", "nlp"],
    }


def test_a_weight_may_be_negative_and_what_is_left_out_has_its_default(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("class", "set", "night", "--weight", "-5")[0] == 0
    assert list(asked(gateway).set.values()) == [-5, False, 0, []]


def test_classes_are_listed_the_highest_first_and_removed_by_name(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("class", "ls")[1].startswith("no pool has a priority class; ")
    classes = {
        "night": views.ClassView(weight=-5),
        "urgent": views.ClassView(weight=10, preempts=True, most_gpus=8, teams=("vision", "nlp")),
    }
    pool = views.PolicyView(pool="lab", settings={"class.urgent.weight": 10}, classes=classes)
    gateway.policies = views.PoliciesView(pools=(pool,), defaults={}, seq=7)
    _, table, _ = penstock("class", "ls")
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["lab", "urgent", "10", "yes", "8", "vision,", "nlp", "yes", "0"],
        ["lab", "night", "-5", "-", "any", "all", "-", "0"],
    ]
    assert json.loads(penstock("class", "ls", "-o", "json")[1])["pools"][0]["classes"]["urgent"]["weight"] == 10
    gateway.asked.clear()
    code, said, _ = penstock("class", "rm", "urgent", "--pool", "lab")
    assert (code, said.endswith("class urgent\n")) == (0, True), said
    changes = [ask for ask in gateway.asked if isinstance(ask, request_bodies.PolicyRequest)]
    assert [ask.unset for ask in changes] == [
        ("class.urgent.weight", "class.urgent.preempts", "class.urgent.most_gpus", "class.urgent.teams")
    ]
    code, _, told = penstock("class", "rm", "urgnet", "--pool", "lab")
    assert (code, "pool lab has no class 'urgnet'; expected one of night, urgent" in told) == (2, True), told


@pytest.mark.parametrize("words", [("set", "urgent"), ("set", "--weight", "1"), ("rm",)])
def test_a_class_is_named_and_has_a_weight(penstock: Run, gateway: FakeGateway, words: tuple[str, ...]) -> None:
    assert penstock("class", *words)[0] == 2
    assert gateway.asked == []


def test_a_job_names_its_class(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--class", "urgent", "--no-check", "--", "true")[0] == 0
    (ask,) = [one for one in gateway.asked if isinstance(one, request_bodies.SubmitRequest)]
    assert ask.spec.priority_class == "urgent"
