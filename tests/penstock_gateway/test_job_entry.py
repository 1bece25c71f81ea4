"""Who may enter which process of a job, and what the log says of it."""

from __future__ import annotations

import pytest
from gateway_cases import ended, gateway, joined, placed, preempted, refusal, started, submitted

from penstock_bus.memory import MemoryBus

SESSION = "5e" * 8


async def test_a_process_of_a_running_job_is_entered_by_a_fact() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), submitted(gpus=2), placed("j1", 0, 1), started()) as served:
        answer = await served.command("enter", {"id": "j", "session_id": SESSION, "rank": 1, "by": "ada"})
        assert {**answer, "seq": 0} == {
            "id": "j1",
            "session_id": SESSION,
            "node_id": "n1",
            "epoch": 1,
            "rank": 1,
            "seq": 0,
        }
        assert answer["seq"] > 0
        lines = (await served.query("story", {"id": "j1"}))["lines"]
        assert any(line["text"] == "a command is run beside rank 1 on n1 by ada" for line in lines)
        assert await refusal(served.command("enter", {"id": "j1", "session_id": SESSION, "rank": 2})) == (
            404,
            "job j1 has 2 processes; expected --rank 0 to 1, not 2",
        )
        for wrong in ("short", "a/b" * 8, "*" * 16):
            assert (await refusal(served.command("enter", {"id": "j1", "session_id": wrong})))[0] == 400


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ((), "job j1 waits, and only a running job can be entered; `penstock why j1` says for what"),
        ((placed(), started(), preempted()), "job j1 is being preempted, and goes on later"),
        ((placed(), started(), ended()), "job j1 is over; what it printed is in `penstock logs j1`"),
    ],
)
async def test_a_job_that_does_not_run_cannot_be_entered(facts: tuple, said: str) -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), submitted(), *facts) as served:
        code, why = await refusal(served.command("enter", {"id": "j1", "session_id": SESSION}))
        assert (code, why.startswith(said)) == (409, True)


async def test_an_entry_that_is_asked_for_again_is_the_same_one() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), submitted(), placed(), started()) as served:
        asked = {"id": "j1", "session_id": SESSION, "by": "ada"}
        first, again = [await served.command("enter", asked) for _ in range(2)]
        assert again == first
        seqs = {(await served.command("enter", asked | other))["seq"] for other in ({"by": "bob"}, {"purpose": "copy"})}
        assert len(seqs - {first["seq"]}) == 2
        lines = (await served.query("story", {"id": "j1"}))["lines"]
        assert sum("by ada" in line["text"] for line in lines) == 2
