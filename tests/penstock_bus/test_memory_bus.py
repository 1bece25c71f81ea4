"""The bus in memory against a model: what is acknowledged is in the log, in order, once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from hypothesis import given
from hypothesis import strategies as st

from penstock_bus import Append, Conflict, Lease
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.stored_messages import matches
from penstock_log import Commit, subjects

JOBS = st.sampled_from(["j1", "j2", "j3"])
STEPS = st.lists(st.tuples(JOBS, st.integers(0, 9), st.sampled_from(["right", "wrong", "any", "again"])), max_size=40)


@given(STEPS)
def test_the_log_is_what_was_acknowledged(steps: list[tuple[str, int, str]]) -> None:
    asyncio.run(_check_log(steps))


async def _check_log(steps: list[tuple[str, int, str]]) -> None:
    async with MemoryBus() as bus:
        log: list[Append] = []
        heads: dict[str, int] = {}
        for n, (job_id, wrong, how) in enumerate(steps):
            head = heads.get(job_id, 0)
            expected = {"right": head, "wrong": head + 1 + wrong, "any": None, "again": head}[how]
            commit = log[wrong % len(log)].commit if how == "again" and log else Commit(id=f"c{n}", actor="t", facts=())
            item = Append(subject=subjects.job(job_id), commit=commit, expected=expected)
            try:
                seq = await bus.append(item)
            except Conflict:
                assert how == "wrong"
                continue
            if commit in [one.commit for one in log]:
                assert log[seq - 1].commit == commit
            else:
                log.append(item)
                assert seq == len(log)
                heads[job_id] = seq
        assert await bus.last_seq() == len(log)
        async with aclosing(bus.follow()) as deliveries:
            for i, item in enumerate(log, 1):
                one = await anext(deliveries)
                assert (one.seq, one.commit, one.subject, one.pending) == (i, item.commit, item.subject, len(log) - i)


LEASE_STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["acquire", "renew", "release"]), st.floats(0, 2)), max_size=40
)


@given(LEASE_STEPS)
def test_a_lease_has_one_owner_at_any_time_and_tokens_rise(steps: list[tuple[str, str, float]]) -> None:
    now_s = [0.0]
    server = MemoryServer(now=lambda: now_s[0])
    leases: dict[str, Lease] = {}
    owner_until: tuple[str, float] = ("", 0.0)
    highest = 0
    for owner, what, passed_s in steps:
        now_s[0] += passed_s
        holder = owner_until[0] if owner_until[1] > now_s[0] else ""
        if what == "acquire":
            lease = server.acquire("x", owner, 1.0)
            assert (lease is not None) == (holder in ("", owner))
            if lease is not None:
                assert lease.token == highest if holder else lease.token > highest
                leases[owner], highest, owner_until = lease, lease.token, (owner, now_s[0] + 1.0)
        elif owner in leases and what == "renew":
            assert server.renew(leases[owner]) == (holder == owner and leases[owner].token == highest)
            owner_until = (owner, now_s[0] + 1.0) if holder == owner else owner_until
        elif owner in leases:
            server.release(leases[owner])
            owner_until = ("", 0.0) if holder == owner else owner_until


@given(st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4), st.text("ab.", min_size=1, max_size=7))
def test_a_star_is_exactly_one_token(tokens: list[str], subject: str) -> None:
    given_tokens = subject.split(".")
    fits = len(tokens) == len(given_tokens) and all(t in ("*", g) for t, g in zip(tokens, given_tokens, strict=False))
    assert matches(".".join(tokens), subject) is fits


def test_a_greater_sign_is_one_token_or_more() -> None:
    assert matches("a.>", "a.b")
    assert matches("a.>", "a.b.c")
    assert not matches("a.>", "a")
