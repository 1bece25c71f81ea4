"""RequestPort on both adapters: requests, and services that answer them."""

from __future__ import annotations

import asyncio

import pytest
from bus_harness import Harness

from penstock_bus import Bus, Endpoint, Handler, NoResponders, Reply, Request, ServiceError, Timeout, TooLarge
from penstock_log import subjects
from penstock_testing import eventually

ECHO = subjects.query("echo", "test")


def endpoint(handler: Handler, name: str = "echo") -> Endpoint:
    return Endpoint(name=name, subject=subjects.query(name, "test"), handler=handler)


async def echo(request: Request) -> Reply:
    return Reply(body=request.body)


async def test_a_request_is_answered_as_soon_as_the_service_is_open(bus: Bus) -> None:
    for i in range(20):
        async with bus.serve("test", "1.0.0", [endpoint(echo)]):
            assert await bus.request(ECHO, b"%d" % i) == b"%d" % i


async def test_an_error_of_the_service_comes_with_code_message_and_body(bus: Bus) -> None:
    async def refuse(request: Request) -> Reply:
        return Reply(code=409, error="job j1 is there with other content", body=b"more")

    async with bus.serve("test", "1.0.0", [endpoint(refuse)]):
        with pytest.raises(ServiceError, match="j1 is there with other content") as caught:
            await bus.request(ECHO, b"")
    assert (caught.value.code, caught.value.body) == (409, b"more")


async def test_an_exception_in_a_handler_is_error_500_and_the_service_goes_on(bus: Bus) -> None:
    async def fail(request: Request) -> Reply:
        if request.body == b"bad":
            raise KeyError("j1")
        return Reply(body=b"fine")

    async with bus.serve("test", "1.0.0", [endpoint(fail)]):
        with pytest.raises(ServiceError, match="KeyError") as caught:
            await bus.request(ECHO, b"bad")
        assert caught.value.code == 500
        assert await bus.request(ECHO, b"good") == b"fine"


async def test_a_subject_that_nobody_serves_has_no_responders(bus: Bus) -> None:
    with pytest.raises(NoResponders, match=r"penstock\.qry\.test\.echo"):
        await bus.request(ECHO, b"")


async def test_a_service_that_was_closed_serves_no_more(bus: Bus) -> None:
    async with bus.serve("test", "1.0.0", [endpoint(echo)]):
        pass
    with pytest.raises(NoResponders):
        await bus.request(ECHO, b"")


async def test_an_answer_that_does_not_come_in_time_is_a_timeout(bus: Bus) -> None:
    asked = asyncio.Event()

    async def sleep(request: Request) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        return Reply()

    async with bus.serve("test", "1.0.0", [endpoint(sleep)]):
        with pytest.raises(Timeout, match=r"within 0\.2 s"):
            await bus.request(ECHO, b"", timeout_s=0.2)
        async with asyncio.timeout(60):
            await asked.wait()


async def test_replicas_of_a_service_share_the_requests(harness: Harness) -> None:
    def who(name: bytes) -> Endpoint:
        async def answer(request: Request) -> Reply:
            return Reply(body=name)

        return endpoint(answer)

    async with harness.connect() as one, harness.connect() as other:
        async with one.serve("test", "1.0.0", [who(b"one")]), other.serve("test", "1.0.0", [who(b"other")]):
            answers = {await one.request(ECHO, b"") for _ in range(100)}
        assert answers == {b"one", b"other"}


async def test_endpoints_of_a_service_do_not_wait_for_each_other(bus: Bus) -> None:
    release = asyncio.Event()

    async def wait(request: Request) -> Reply:
        await release.wait()
        return Reply(body=b"waited")

    async with bus.serve("test", "1.0.0", [endpoint(wait, "wait"), endpoint(echo)]):
        waiting = asyncio.create_task(bus.request(subjects.query("wait", "test"), b""))
        assert await bus.request(ECHO, b"x") == b"x"
        release.set()
        assert await waiting == b"waited"


async def test_a_concurrent_endpoint_gets_each_request_as_it_comes_and_any_other_one_at_a_time(bus: Bus) -> None:
    come: list[str] = []
    release = asyncio.Event()

    def waiting(name: str, *, concurrent: bool) -> Endpoint:
        async def handle(request: Request) -> Reply:
            come.append(name)
            await release.wait()
            return Reply(body=request.body)

        subject = subjects.query(name, "test")
        return Endpoint(name=name, subject=subject, handler=handle, concurrent=concurrent)

    endpoints = [waiting("one", concurrent=False), waiting("many", concurrent=True)]
    async with bus.serve("test", "1.0.0", endpoints):
        asked = [
            asyncio.create_task(bus.request(one.subject, b"%d" % i, timeout_s=60))
            for i in range(5)
            for one in endpoints
        ]
        await eventually(lambda: come.count("many") == 5)
        assert come.count("one") == 1
        release.set()
        assert [int(await one) for one in asked] == [i for i in range(5) for _ in endpoints]


async def test_a_request_that_is_too_large_says_the_limit(bus: Bus) -> None:
    async with bus.serve("test", "1.0.0", [endpoint(echo)]):
        with pytest.raises(TooLarge, match=str(bus.max_body_bytes)):
            await bus.request(ECHO, b"x" * (bus.max_body_bytes + 1))


async def test_a_service_goes_on_over_a_crash_of_the_server(harness: Harness) -> None:
    async with (
        harness.connect() as server,
        harness.connect() as client,
        server.serve("test", "1.0.0", [endpoint(echo)]),
    ):
        await harness.crash()
        await harness.restart()

        async def answered() -> bool:
            try:
                return await client.request(ECHO, b"again") == b"again"
            except NoResponders:
                return False

        await eventually(answered)
