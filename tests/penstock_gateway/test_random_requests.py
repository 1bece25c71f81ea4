"""
Random requests: whatever comes in, the gateway answers, and never with an error of its own.

``PENSTOCK_TEST_INPUTS`` says how many there are; the seed is fixed, so that a failure comes again.
"""

from __future__ import annotations

import json
import os
import random  # noqa: TID251 - seeded; arrays would only be in the way
from typing import Any, Final

import msgspec
from gateway_cases import answer_or_error, gateway, joined

from penstock_bus.memory import MemoryBus
from penstock_log import Choice, JobSpec, SweepSpec, Uniform, request_bodies, subjects

INPUTS: Final = int(os.environ.get("PENSTOCK_TEST_INPUTS", "600"))
JOB: Final = msgspec.to_builtins(JobSpec(name="j", command=("true",)))
SWEEP: Final = msgspec.to_builtins(
    SweepSpec(
        name="s",
        metric="x",
        trials=2,
        job=JobSpec(name="t", command=("true",)),
        space={"lr": Uniform(low=0.1, high=1.0), "width": Choice(values=(1, 2))},
    )
)
ACT: Final = {"id": "j1", "by": "ann", "reason": "why not"}
POLICY: Final = {"pool": "default", "set": {"order": "fifo", "levels": 3}, "unset": ["order"], "reset": False}
JOBS: Final = msgspec.to_builtins(request_bodies.JobsRequest(state=("R",), ids=("j1",), at=3))
EVENTS: Final = msgspec.to_builtins(request_bodies.EventsRequest(id="j1", after=0, limit=10))
COMMANDS: Final[dict[str, Any]] = {
    "submit": {"spec": JOB, "strict": False},
    "submit_all": {"specs": [JOB, {**JOB, "id": "j1"}], "strict": True},
    "bulk": {"verb": "hold", "ids": [], "where": {"state": ["PD"], "text": "j"}, "limit": 3, "dry_run": True},
    "tune": {"spec": SWEEP},
    "policy": POLICY,
    **dict.fromkeys(("cancel", "hold", "release"), ACT),
    **{key: {**ACT, "id": "n1"} for key in ("drain", "resume", "remove")},
    "cancel_sweep": {"id": "s1"},
}
ONE: Final = {"id": "j1", "at": None}
QUERIES: Final[dict[str, Any]] = {
    "jobs": JOBS,
    "events": EVENTS,
    "dryrun": {"spec": JOB},
    **dict.fromkeys(("job", "why", "story", "profile"), ONE),
    "sweep": {"id": "s1"},
    **{key: {"at": 1} for key in ("nodes", "sweeps", "policies", "status")},
    **{key: {} for key in ("rejected", "schema")},
}
ODD: Final[list[Any]] = [
    *(None, True, False, "", "x", "n1", "j1", "s1", "default", "é", "\u202e", "\x00", "\ud800", "a" * 300, "1e999"),
    *(0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 10**400, 0.5, 1e308, -1e308, 1e-320),
    *([], {}, [[]], [1], ["x"] * 50, {"a": 1}, {"": None}, {"a": {"b": [{"c": 10**400}]}}),
    {"kind": "integers", "low": -(2**62), "high": 2**62},
    {"kind": "integers", "low": 1, "high": 10**400, "log": True},
    {"kind": "uniform", "low": 1e-320, "high": 1e308, "log": True},
    {"kind": "choice", "values": [10**30, "x", None]},
    {"min": 1, "max": 2**63 - 1, "step": 1},
]


def changed(value: Any, rng: random.Random) -> Any:
    """Return a value with something odd in one or a few of its places."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        value = dict(value)
        for key in rng.sample(list(value), min(len(value), rng.choice([1, 1, 1, 2, 3]))):
            match rng.random():
                case low if low < 0.85:
                    value[key] = changed(value[key], rng)
                case low if low < 0.92:
                    del value[key]
                case _:
                    value[rng.choice(["zz", "", "id", "spec"])] = rng.choice(ODD)
        return value
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def as_bytes(value: Any, rng: random.Random) -> bytes:
    """Return a body, which once in a while is broken."""
    body = json.dumps(value).encode()
    match rng.randrange(40):
        case 0:
            at = rng.randrange(len(body))
            return body[:at] + rng.randbytes(1) + body[at + 1 :]
        case 1:
            return body[: rng.randrange(len(body))]
        case 2:
            return rng.choice([b"[", b'{"a":']) * 50_000
        case 3:
            return rng.randbytes(rng.randrange(60))
        case 4:
            return body.replace(b"1", b"1" + b"0" * rng.choice([20, 400, 5_000]), 1)
        case _:
            return body


async def test_every_random_request_is_answered_and_none_with_an_error_of_the_gateways_own() -> None:
    rng = random.Random(19)  # noqa: S311
    answered = 0
    async with MemoryBus() as bus, gateway(bus, joined()) as served:
        await served.command("submit", {**JOB, "id": "j1"})
        await served.command("tune", {"spec": {**SWEEP, "id": "s1"}})
        for _ in range(INPUTS):
            kinds, subject_of = rng.choice([(COMMANDS, subjects.command), (QUERIES, subjects.query)])
            name = rng.choice(list(kinds))
            body = as_bytes(changed(kinds[name], rng), rng)
            refused = await answer_or_error(bus.request(subject_of(name), body, 60.0))
            answered += refused is None
            code, message = refused or (200, "")
            assert code in {200, 400, 404, 409, 413}, (name, message, body[:1000])
        assert (await served.query("status"))["backlog"] == 0
    assert answered > INPUTS / 20  # else it is only bodies that nobody could mean
