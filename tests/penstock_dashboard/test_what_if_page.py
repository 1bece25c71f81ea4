"""The page "What if" over real HTTP: who may ask, what is asked, and what is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from dashboards import RunningDashboard, WebVisitor, dashboard
from gateway_cases import Gateway, gateway, joined, submitted

from penstock_bus.memory import MemoryBus
from penstock_bus.port import Shadowed
from penstock_dashboard import computations
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.page import pieces
from penstock_dashboard.pages import what_if_page
from penstock_dashboard.pages.what_if_page import ReplayQuestion
from penstock_log import UserSet, subjects
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_simulator.engine.policies import SIMULATED_POLICIES
from penstock_testing.fixtures import eventually

PEOPLE = (
    UserSet(at_s=0.0, user="alice", role="user", teams=("vision",)),
    UserSet(at_s=0.0, user="bob", role="user"),
    UserSet(at_s=0.0, user="vera", role="viewer"),
)


def figures(avg_s: float) -> dict[str, float]:
    return {
        "jobs": 2, "finished": 2, "avg_jct_s": avg_s, "median_jct_s": avg_s, "p95_jct_s": avg_s, "avg_queue_s": 1.0,
        "makespan_s": 100.0, "utilisation": 0.5, "preemptions": 3,
    }  # fmt: skip


def change(was_s: float, is_s: float) -> dict[str, Any]:
    return {"jobs": 2, "was_avg_s": was_s, "avg_s": is_s, "ratio": is_s / was_s, "avg_change_s": is_s - was_s}


ANSWER = {
    "jobs": 3,
    "completed": 2,
    "policies": {"as it was": figures(100.0), "fifo": figures(80.0)},
    "changes": {
        "fifo": {
            "all": change(100.0, 80.0),
            "users": {"alice": change(100.0, 50.0), "<script>": change(10.0, 20.0)},
            "gained": [{"id": "j1", "name": "secret-plan", "was_s": 9.0, "jct_s": 5.0, "change_s": -4.0}],
        }
    },
    "check": {"off": 0.01, "tolerance": 0.05, "holds": True},
}


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(
        memory_bus, joined("n1", fast=2), *PEOPLE, submitted("j1", user="alice", name="secret-plan")
    ) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningDashboard]:
    script = f"import sys; sys.stdout.buffer.write({msgspec.json.encode(ANSWER)!r})"
    monkeypatch.setitem(computations.Computations.__init__.__kwdefaults__, "program", ("python3", "-c", script))
    async with dashboard(served.bus) as running:
        yield running


async def asked(visitor: WebVisitor, **fields: str) -> str:
    """Ask, and return the address of the answer once it is there."""
    await visitor.get("/what-if")
    answer = await visitor.post("/what-if", {"token": visitor.form_token, **fields})
    assert answer.status == 303, answer.text
    address = answer.headers["location"]

    async def is_there() -> bool:
        return 'aria-label="Comparison"' in (await visitor.get(address)).text

    await eventually(is_there)
    return address


async def test_a_replay_ends_with_the_comparison(site: RunningDashboard) -> None:
    alice = await site.visitor("alice")
    page = await alice.get(await asked(alice, policy="fifo"))
    row = page.rows["replay"]
    assert "2 of 3 jobs that ran have completed" in row
    assert "the same mean within 1.0 %" in row
    assert "fifo 2 1 min 20 s -20.0 %" in row
    assert "user alice 2 1 min 40 s 50.0 s -50.0 %" in row
    assert "<script>" not in page.text.partition("<main")[2].partition("</main>")[0]


async def test_names_of_jobs_are_those_that_the_visitor_may_see(site: RunningDashboard) -> None:
    for user, sees in (("alice", True), ("bob", False)):
        visitor = await site.visitor(user)
        page = await visitor.get(await asked(visitor, policy="fifo"))
        assert "j1" in page.rows["replay"]
        assert ("secret-plan" in page.text) is sees


async def test_the_answer_is_shown_to_nobody_else(site: RunningDashboard) -> None:
    address = await asked(await site.visitor("alice"))
    assert (await (await site.visitor("bob")).get(address)).status == 404
    assert (await (await site.visitor()).get(address)).status == 403


@pytest.mark.parametrize("user", [None, "vera"])
async def test_viewers_start_none(user: str | None, site: RunningDashboard) -> None:
    visitor = await site.visitor(user)
    page = await visitor.get("/what-if")
    assert page.status == 200
    assert "Replays are for users and above" in page.text
    token = visitor.form_token if user is not None else "forged"
    assert (await visitor.post("/what-if", {"token": token, "policy": "fifo"})).status == 403


async def test_a_form_of_another_site_starts_none(site: RunningDashboard) -> None:
    alice = await site.visitor("alice")
    await alice.get("/what-if")
    for fields, headers in (({"token": "forged"}, {}), ({"token": alice.form_token}, {"Sec_Fetch_Site": "cross-site"})):
        assert (await alice.post("/what-if", fields, **headers)).status == 403
        assert (await alice.post("/what-if/cancel", {**fields, "run": "x"}, **headers)).status == 403


async def test_all_policies_can_be_chosen_but_those_for_whom_there_is_no_log(site: RunningDashboard) -> None:
    page = await (await site.visitor("alice")).get("/what-if")
    for name in {*QUEUE_POLICIES, "allox", "max-min", "configured"}:
        assert f'<option value="{name}"' in page.text
    assert {*QUEUE_POLICIES, "allox", "max-min", "configured", "allox+2d-gittins"} == {*SIMULATED_POLICIES}


async def test_shadows_are_listed(served: Gateway, site: RunningDashboard) -> None:
    plan = {"name": "las", "policy": "las", "from_seq": 1, "from_s": 1.7e9, "settings": {"min_run_s": 5}}
    status = {"plan": plan, "seq": 9, "at_s": 1.7e9, "waiting": 4, "running": 2}
    await served.bus.write_shadow(subjects.shadow("las"), msgspec.json.encode(status))
    await served.bus.write_shadow(subjects.shadow("odd"), b"{")
    page = await (await site.visitor("alice")).get("/what-if")
    assert page.rows["las"].startswith("las las min_run_s=5 all")
    assert "4, 2" in page.rows["las"]
    assert "odd" not in page.rows
    assert "Score las" in page.rows["las"]
    assert "Score las" not in (await (await site.visitor()).get("/what-if")).text


def test_a_question_becomes_the_words_of_penstock_replay() -> None:
    asked = ReplayQuestion.of({"policy": "fifo", "preemption": "never", "more": "8", "kind": "fast", "since": "7d"})
    assert asked.words == ("--policy=fifo", "--set=min_run_s=1000000000", "--cluster=+8xfast", "--from=7d")
    assert asked.title == "fifo, preemption never, 8 more fast, jobs since 7d"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"more": "-1"}, "more devices are none"),
        ({"more": "1e9"}, "more devices are none"),
        ({"more": "2", "kind": "fast --without n1"}, "is no kind of device"),
        ({"preemption": "sometimes"}, "expected never, any, or nothing"),
        ({"since": "--config=/etc/passwd x"}, "is no moment"),
        ({"policy": "fifo,srtf"}, "is no policy"),
        ({"policy": "$(id)"}, "is no policy"),
    ],
)
def test_a_field_of_another_form_is_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(PageRefused, match=said) as refused:
        ReplayQuestion.of(fields)
    assert refused.value.status == 400


def test_a_replay_that_runs_says_how_long_it_may_take_yet() -> None:
    one = computations.Computation(id="c1", by="alice", kind="replay", title="fifo", words=(), begun_s=0.0)
    one.steps.append(computations.ComputationStep("fifo", 17, 354))
    assert "more" not in pieces("pieces/computation.html", [(one.id, what_if_page._row(one, ""))])["c1"]
    one.left_s = 396.5
    shown = pieces("pieces/computation.html", [(one.id, what_if_page._row(one, ""))])["c1"]
    assert "17 of 354 jobs" in shown
    assert ", about 7 min more</span>" in shown


async def test_shadows_are_read_once_for_all_who_look(memory_bus: MemoryBus) -> None:
    now, reads = [0.0], []

    class Counted:
        async def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
            reads.append(subject)
            await asyncio.sleep(0)
            async for one in memory_bus.read_shadow(subject):
                yield one

    table = what_if_page.ShadowTable(Counted(), lambda: now[0])
    plan = what_if_page.ShadowPlanRow(name="las", policy="las", from_s=0.0)
    status = what_if_page.ShadowRow(plan=plan, seq=1, at_s=0.0)
    await memory_bus.write_shadow(subjects.shadow("las"), msgspec.json.encode(status))
    found = await asyncio.gather(*(table.last() for _ in range(20)))
    assert found == [[status]] * 20
    assert len(reads) == 1
    now[0] += what_if_page.SHADOWS_S
    await table.last()
    assert len(reads) == 2
