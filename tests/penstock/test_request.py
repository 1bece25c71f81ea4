"""Requests whose answers are late, lost, or a refusal for now: asked again under the same id until they are there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway

from penstock.client import Client
from penstock.request import RetryPolicy, answered
from penstock_bus import BusError, Endpoint, NoResponders, Reply, Request, ServiceError, Timeout, Unanswered
from penstock_bus.memory import MemoryBus
from penstock_log import JobSpec, SweepSpec, Uniform, request_bodies, subjects, views

JOB = {"name": "train", "command": ("true",)}
NEVER = Reply(code=-1)
CREATED = "created"


class Answers:
    """A gateway that does with each request in turn what it was told; the last holds for all that follow."""

    def __init__(self, *what: Reply | str) -> None:
        self.what = list(what)
        self.ids: list[str] = []
        self.stored: set[str] = set()

    def serve(self, bus: MemoryBus) -> Any:
        names = ("submit", "tune", "cancel", "hold", "release")
        served = [Endpoint(name=name, subject=subjects.command(name), handler=self._handle) for name in names]
        query = Endpoint(name="status", subject=subjects.query("status"), handler=self._handle)
        return bus.serve("gateway", "0", [*served, query])

    async def _handle(self, request: Request) -> Reply:
        asked = msgspec.json.decode(request.body)
        entity_id = asked.get("spec", asked).get("id", "")
        created = entity_id not in self.stored
        self.ids.append(entity_id)
        self.stored.add(entity_id)
        what = self.what.pop(0) if len(self.what) > 1 else self.what[0]
        if what is NEVER:
            await asyncio.Event().wait()
        if isinstance(what, Reply):
            return what
        if "spec" not in asked:
            return Reply(body=msgspec.json.encode(views.ActAnswer(id=entity_id, changed=True, state="", message="")))
        return Reply(body=msgspec.json.encode(views.SubmitAnswer(id=entity_id, seq=1, created=created)))


@asynccontextmanager
async def client(*gateways: Answers, timeout_s: float = 60.0, again_s: float = 0.01, **more: Any) -> Any:
    async with MemoryBus() as bus:
        serving = [gateway.serve(bus) for gateway in gateways]
        for one in serving:
            await one.__aenter__()
        async with Client(bus=bus, timeout_s=timeout_s, again_s=again_s, nobody_s=0.0, **more) as made:
            yield made
        for one in serving:
            await one.__aexit__(None, None, None)


async def test_a_request_to_a_gateway_that_died_with_it_is_asked_again_elsewhere_under_the_same_id() -> None:
    dead, alive = Answers(NEVER), Answers(CREATED)
    async with client(dead, alive) as asked:
        answer = await asked.submit(**JOB)
    assert dead.ids[:1] == alive.ids[:1] == [answer.id]
    assert len(answer.id) == 8


async def test_a_submission_that_was_stored_before_its_answer_was_lost_is_told_as_created() -> None:
    lost, other = Answers(NEVER), Answers(CREATED)
    other.stored = lost.stored
    async with client(lost, other) as asked:
        assert (await asked.submit(**JOB)).created


async def test_a_copy_that_is_one_too_many_does_not_answer_for_the_first() -> None:
    refused = asyncio.Event()
    heard: list[bytes] = []

    async def handle(request: Request) -> Reply:
        heard.append(request.body)
        if len(heard) > 1:
            refused.set()
            return Reply(code=429, error="you have too many submissions waiting already")
        await refused.wait()
        await asyncio.sleep(0)
        return Reply(body=msgspec.json.encode(views.SubmitAnswer(id="j1", seq=1, created=True)))

    submit = Endpoint(name="submit", subject=subjects.command("submit"), handler=handle, concurrent=True)
    async with MemoryBus() as bus, bus.serve("gateway", "0", [submit]), Client(bus=bus, again_s=0.01) as asked:
        assert (await asked.submit(**JOB, id="j1")).created
    assert len(set(heard)) == 1
    assert len(heard) == 2, "it waits for the first, and does not ask on and on"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["submit", "tune"])
async def test_a_refusal_for_now_is_asked_again_however_late_it_comes(name: str) -> None:
    not_now = Reply(code=503, error="the log did not answer in time")
    gateway = Answers(not_now, not_now, CREATED)
    sweep = SweepSpec(name="s", metric="x", job=JobSpec(**JOB), space={"lr": Uniform(low=0.1, high=1.0)})
    async with client(gateway, timeout_s=0.0, again_s=60.0) as asked:
        answer = await (asked.submit(**JOB) if name == "submit" else asked.tune(sweep))
    assert gateway.ids == [answer.id] * 3


async def test_where_two_tries_fail_at_once_one_is_told_and_the_other_not_printed() -> None:
    loop, printed, refused = asyncio.get_running_loop(), list[dict[str, Any]](), asyncio.Event()
    loop.set_exception_handler(lambda _, context: printed.append(context))

    class RefusingBus(MemoryBus):
        tries = 0

        async def request(self, *_: Any, **__: Any) -> bytes:
            self.tries += 1
            if self.tries == 2:
                refused.set()
            await refused.wait()
            raise ServiceError(409, "no")

    with pytest.raises(ServiceError, match="no"):
        await answered(RefusingBus(), "subject", b"", RetryPolicy(timeout_s=60.0, again_s=0.01))
    gc.collect()
    assert printed == []


@pytest.mark.slow
async def test_a_last_try_that_nobody_answers_does_not_hide_what_the_gateway_said_before() -> None:
    class FullBus(MemoryBus):
        tries = 0

        async def request(self, *_: Any, **__: Any) -> bytes:
            self.tries += 1
            if self.tries == 1:
                raise ServiceError(503, "the log did not answer within 1 s; is its disk full?")
            raise Timeout("no answer within 1.0 s")

    with pytest.raises(ServiceError, match="is its disk full"):
        await answered(FullBus(), "subject", b"", RetryPolicy(timeout_s=0.2, again_s=0.05))


async def test_what_was_surely_not_accepted_is_said_at_once() -> None:
    gateway = Answers(Reply(code=503, error="the log has no room left", body=b'{"accepted":false}'))
    async with client(gateway, again_s=60.0) as asked:
        with pytest.raises(ServiceError, match=r"^the log has no room left$"):
            await asked.submit(**JOB)
    assert len(gateway.ids) == 1


@pytest.mark.slow
async def test_after_the_last_try_it_is_said_that_nobody_knows_and_how_to_find_out() -> None:
    async with client(Answers(NEVER), timeout_s=0.05) as asked:
        with pytest.raises(Unanswered, match="whether it was carried out is unknown: ask with `penstock show mine`"):
            await asked.submit(**JOB, id="mine")
        with pytest.raises(Unanswered, match="ask with `penstock show j1`; giving the command about j1 again"):
            await asked.cancel("j1")
    async with client(Answers(Reply(code=503, error="not now")), timeout_s=0.0, again_s=60.0) as asked:
        with pytest.raises(ServiceError, match=r"^not now\. Whether it was carried out is unknown: ask with `penstock"):
            await asked.hold("j1")


async def test_where_no_gateway_ever_was_nothing_is_unknown() -> None:
    async with client() as asked:
        with pytest.raises(NoResponders):
            await asked.submit(**JOB)


async def test_a_gateway_that_restarts_is_waited_for() -> None:
    gateway = Answers(CREATED)
    async with MemoryBus() as bus, Client(bus=bus, timeout_s=60.0, again_s=0.01, nobody_s=60.0) as asked:
        asking = asyncio.ensure_future(asked.submit(**JOB))
        await asyncio.sleep(0)
        async with gateway.serve(bus):
            assert (await asking).created


async def test_an_id_that_was_chosen_and_is_anothers_is_chosen_anew() -> None:
    ids = iter(["taken", "known", "free"])
    gateway = Answers(Reply(code=409, error="is there already with other content"), CREATED)
    gateway.stored = {"known"}
    async with client(gateway, again_s=60.0, new_id=lambda: next(ids)) as asked:
        assert (await asked.submit(**JOB)).id == "free"
    assert gateway.ids == ["taken", "known", "free"]


async def test_an_id_that_is_wished_is_never_changed() -> None:
    async with client(Answers(Reply(code=409, error="other content"))) as asked:
        with pytest.raises(ServiceError, match=r"^other content$"):
            await asked.submit(**JOB, id="mine")


async def test_a_refusal_is_not_asked_again() -> None:
    gateway = Answers(Reply(code=400, error="wrong"))
    async with client(gateway, again_s=60.0) as asked:
        for asking in (lambda: asked.cancel("j1"), asked.status):
            with pytest.raises(ServiceError, match="wrong"):
                await asking()
    assert len(gateway.ids) == 2


@pytest.mark.slow
def test_the_shell_is_told_how_to_find_out_and_what_to_type(
    penstock: Callable[..., tuple[int, str, str]], gateway: FakeGateway
) -> None:
    gateway.refusal, gateway.timeout_s = Reply(code=503, error="the log did not answer in time"), 0.0
    code, out, err = penstock("submit", "--id", "mine", "--", "true")
    assert (code, out) == (3, "")
    assert "is unknown: ask with `penstock show mine`; under the id mine it is the same one" in err
    assert [ask.spec.id for ask in gateway.asked if isinstance(ask, request_bodies.SubmitRequest)] == ["mine"] * len(
        gateway.asked
    )


async def test_ids_that_are_always_taken_end_in_an_error_that_says_so() -> None:
    async with client(Answers(CREATED), again_s=60.0, new_id=lambda: "same") as asked:
        await asked.submit(**JOB)
        with pytest.raises(BusError, match="3 ids that were chosen belong to others already"):
            await asked.submit(**JOB)
