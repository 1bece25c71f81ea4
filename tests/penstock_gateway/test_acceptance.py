"""Which jobs are accepted, and what is said of those that are not."""

from __future__ import annotations

import subprocess

import pytest
from gateway_cases import NOW_S, ended, joined, placed, spec, started, submitted

from penstock_gateway import acceptance, dry_run
from penstock_gateway.machine import GatewayState, apply
from penstock_log import AggregatorsOffered, RunCheckpointed
from penstock_log.validation import BadInput


@pytest.fixture
def state() -> GatewayState:
    state = GatewayState()
    apply(state, submitted("a", user="ada", keep_checkpoint=True), 1)
    return state


def test_a_job_may_begin_where_another_one_of_its_user_ended(state):
    made = acceptance.job(state, spec(id="b", user="ada", begins_from="a"), strict=False, now_s=1.0)
    assert made.fact is not None


@pytest.mark.parametrize(
    ("origin", "told", "said"),
    [
        ({}, [], ""),  # it may still save
        ({}, [placed("o"), started("o"), ended("o")], "has ended without one"),
        ({"opaque": True}, [], "saves none, as its command does not use penstock.session"),
        (
            {},
            [placed("o"), RunCheckpointed(at_s=NOW_S, job_id="o", epoch=1, node_id="n1", step=3), ended("o")],
            "",
        ),
    ],
)
def test_who_begins_from_a_job_that_has_no_checkpoint_is_told_unless_it_may_still_save_one(state, origin, told, said):
    for seq, fact in enumerate((joined(), submitted("o", user="ada", **origin), *told), 2):
        apply(state, fact, seq)
    asked = spec(id="b", user="ada", begins_from="o")
    texts = [f"there is no checkpoint to begin from: job o {said}; this job begins from its own beginning"]
    for warnings in (acceptance.job(state, asked, strict=False, now_s=1.0), dry_run.dry_run(state, asked, NOW_S)):
        assert [text for text in warnings.warnings if "checkpoint" in text] == (texts if said else [])


@pytest.mark.parametrize(("user", "begins_from", "why"), [("ada", "x", "job x is not there"), ("eve", "a", "is ada's")])
def test_a_job_may_not_begin_from_what_is_not_there_or_not_its_users(state, user, begins_from, why):
    with pytest.raises(BadInput, match=rf"\$\.begins_from: .*{why}; expected a job of the same user"):
        acceptance.job(state, spec(id="b", user=user, begins_from=begins_from), strict=False, now_s=1.0)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"env": {"LONG": "x" * 131_067}}, r"env: `LONG` takes 131073 bytes"),
        ({"env": {"LONG": "ä" * 65_600}}, r"env: `LONG` takes 131206 bytes"),
        ({"command": ("true", "x" * 131_072)}, r"command\[1\] takes 131073 bytes"),
        ({"params": {"text": "x" * 131_072}}, r"params: `PENSTOCK_PARAMS` takes 131100 bytes"),
    ],
)
def test_a_job_that_the_kernel_would_not_start_is_refused_with_what_to_do(state, fields, what):
    with pytest.raises(BadInput, match=rf"\$\.{what}, .* of more than 131072; write it to a file") as refused:
        acceptance.job(state, spec(id="b", **fields), strict=False, now_s=1.0)
    assert "xxx" not in str(refused.value)


def test_the_longest_strings_that_a_program_can_start_with_are_accepted(state):
    longest = {"command": ("/bin/true", "x" * 131_071), "env": {"LONG": "x" * 131_066}}
    assert acceptance.job(state, spec(id="b", **longest), strict=False, now_s=1.0).fact is not None
    command, env = longest["command"], longest["env"]
    assert subprocess.run(command, env=env, check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(command, env={"LONG": env["LONG"] + "x"}, check=False)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run((command[0], command[1] + "x"), check=False)


def test_who_asks_for_more_aggregators_than_there_are_is_warned(state):
    apply(state, joined("n1"), 2)
    apply(state, AggregatorsOffered(at_s=1.0, node_id="n1", pool="default", most=2, incarnation="a"), 3)
    told = [
        acceptance.job(state, spec(id=f"b{number}", **fields), strict=False, now_s=1.0).warnings
        for number, fields in enumerate(({"servers": 2}, {"servers": 3}, {"servers": 3, "aggregation": "none"}, {}))
    ]
    assert told[1] == (
        "its script would be refused aggregation: it asks for 3 aggregators, and the nodes of pool 'default' run 2 at "
        "most (--servers)",
    )
    assert not any((told[0], *told[2:]))


def test_long_ids_that_end_alike_no_more_are_retried_under_ids_of_their_own() -> None:
    names = ["x" * 62 + last for last in "ab"]
    for _ in range(12):
        names = [acceptance.retry_id(name) for name in names]
        assert len(set(names)) == 2
        assert {len(name) for name in names} == {63}
    assert all(name.startswith("xxx") and name.endswith("-r12") for name in names)
