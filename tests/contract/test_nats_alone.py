"""What only the adapter for NATS can do wrong: addresses, users, streams, stalled consumers, services by name."""

from __future__ import annotations

import asyncio
import inspect
import os
import random  # noqa: TID251 - seeded; arrays would only be in the way
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import pytest
import uvloop
from bus_harness import NatsHarness, append, take
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from penstock_bus import BatchRefused, Endpoint, Gathering, Reply, Request, Unauthorized, Unavailable
from penstock_bus.identity.logins import Login
from penstock_bus.nats import NatsBus, connect, consumer, direct_get
from penstock_bus.nats.link import TRY_S, ApiError, ConnectionLost, LateAnswerClient, NotSettled, fault
from penstock_bus.nats.log import headers_of
from penstock_bus.nats.streams import KEY, StreamLimits, configs
from penstock_bus.port import BusError, StorageFull, TooLarge
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import encode, subjects
from penstock_testing import eventually

INPUTS = int(os.environ.get("PENSTOCK_TEST_INPUTS", "600"))
RESUMED_S = 20.0  # it takes about one, and a request for messages ends after 30; the machines of tests are slow


@pytest.mark.parametrize(
    "url", ["nats://127.0.0.1:1", "nats://no-such-host.invalid:4222", "127.0.0.1:1", "nats://127.0.0.1:1,127.0.0.1:2"]
)
async def test_an_absent_server_is_told_with_the_address_what_was_tried_and_what_to_do(url: str) -> None:
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(60), connect(url, connect_timeout_s=0.7):
            pass
    message = str(caught.value)
    assert url.removeprefix("nats://").partition(",")[0] in message
    assert "tried" in message
    assert "penstock up" in message
    assert "PENSTOCK_URL" in message


async def test_a_server_is_looked_for_as_long_as_is_said_which_is_four_seconds_where_nothing_is() -> None:
    clock = asyncio.get_running_loop().time
    start_s = clock()
    with pytest.raises(Unavailable, match=r"in 0\.5 s"):
        async with connect("nats://127.0.0.1:1", connect_timeout_s=0.5):
            pass
    assert clock() - start_s >= 0.49
    assert inspect.signature(connect).parameters["connect_timeout_s"].default == 4.0


@pytest.mark.parametrize("url", ["nats://127.0.0.1:notaport", "http://127.0.0.1:1", "nats://", ""])
async def test_a_wrong_address_says_what_an_address_looks_like(url: str) -> None:
    with pytest.raises(Unavailable, match="expected nats://HOST:PORT"):
        async with connect(url, connect_timeout_s=0.5):
            pass


async def test_what_is_no_server_is_given_up_whatever_it_says_and_whenever() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def give_up(url: str, after_s: float) -> None:
        with pytest.raises(Unavailable, match="no NATS server at"):
            async with connect(url, connect_timeout_s=after_s):
                pass

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(60):
        await asyncio.gather(*(give_up(url, 0.2 + i / 250) for i in range(200)))


async def test_a_password_in_the_address_does_not_show_in_messages() -> None:
    with pytest.raises(Unavailable) as caught:
        async with connect("nats://me:secret@127.0.0.1:1", connect_timeout_s=0.3):
            pass
    assert "secret" not in str(caught.value)


async def test_wrong_credentials_are_told_at_once_with_what_to_check(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path)) as server:
        with pytest.raises(Unauthorized, match=r"refused user 'ranker'; check PENSTOCK_USER"):
            async with connect(
                server.url, login=Login(url="", user="ranker", password="wrong"), connect_timeout_s=30.0
            ):
                pass


async def test_a_login_that_came_too_late_over_a_slow_network_is_not_a_refused_one() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"s","version":"2.12.0","max_payload":1048576,"auth_required":true}\r\n')
        writer.write(b"-ERR 'Authentication Timeout'\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="Authentication Timeout"):
            async with connect(url, connect_timeout_s=0.5):
                pass


async def test_an_answer_that_comes_after_its_time_leaves_the_connection_able_to_hear(tmp_path: Path) -> None:
    async with (
        running(ServerSettings(data_dir=tmp_path)) as server,
        connect(server.url, login=server.logins["admin"]) as bus,
    ):
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(nats.errors.FlushTimeoutError):
            await flush_until_it_fails(bus)
        server.process.send_signal(signal.SIGCONT)
        await bus.last_seq()
        assert bus.link.client.stats["reconnects"] == 0, "it heard nothing until the connection was made anew"


async def flush_until_it_fails(bus: NatsBus) -> None:
    while True:
        await bus.link.client.flush(timeout=1)


async def test_a_service_writes_its_own_entities_and_no_others(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path)) as server:
        async with connect(server.url, login=server.logins["admin"]):
            pass
        async with connect(server.url, login=server.logins["gateway"]) as gateway:
            assert await gateway.append(append("j1")) == 1
        async with connect(server.url, login=server.logins["ranker"]) as ranker:
            with pytest.raises(Unauthorized, match=r"penstock\.evt\.job\.j1"):
                await ranker.append(append("j1", 1))
            with pytest.raises(Unauthorized):
                await ranker.append_many([append("j1", 1)])
            assert await ranker.last_seq() == 1


async def test_a_user_who_may_not_make_streams_can_connect_before_they_are_there(tmp_path: Path) -> None:
    async with (
        running(ServerSettings(data_dir=tmp_path)) as server,
        connect(server.url, login=server.logins["gateway"], timeout_s=0.5) as gateway,
    ):
        with pytest.raises(Unavailable, match="'penstock up' makes the streams"):
            await gateway.append(append("j1"))


async def test_the_streams_are_made_as_they_should_be_and_kept_as_they_are(nats_alone: NatsHarness) -> None:
    async with nats_alone.connect(), nats_alone.bare() as client:
        js = client.jetstream()
        for name, wanted in configs(StreamLimits()).items():
            config = (await js.stream_info(name)).config
            assert config.subjects == wanted["subjects"]
            assert str(config.storage) == "file"
            assert config.retention == wanted["retention"]
        evt = (await js.stream_info(subjects.EVT)).config
        assert (evt.compression, evt.allow_direct, evt.max_bytes) == ("s2", True, -1)
        await js.update_stream((await js.stream_info(subjects.LOG)).config, max_age=3600)
        async with nats_alone.connect():
            assert (await js.stream_info(subjects.LOG)).config.max_age == 3600


async def _delete_consumers(nats_alone: NatsHarness, stream: str) -> None:
    async with nats_alone.bare() as client:
        js = client.jetstream()
        for info in await js.consumers_info(stream):
            await js.delete_consumer(stream, info.name)


async def _pause_consumers(nats_alone: NatsHarness, stream: str) -> None:
    async with nats_alone.bare() as client:
        js = client.jetstream()
        for info in await js.consumers_info(stream):
            await js.pause_consumer(stream, info.name, "2126-01-01T00:00:00Z")


GATHERING = pytest.mark.parametrize("gather_s", [None, 0.01])


def _gathering(gather_s: float | None) -> Gathering | None:
    return None if gather_s is None else Gathering(lambda: gather_s)


Breaking = Callable[[NatsHarness, str], Awaitable[None]]


@GATHERING
@pytest.mark.parametrize("breaking", [_delete_consumers, _pause_consumers], ids=["deleted", "paused"])
async def test_a_consumer_that_stalls_while_the_stream_advances_is_made_again(
    nats_alone: NatsHarness, breaking: Breaking, gather_s: float | None
) -> None:
    async with nats_alone.connect() as bus, aclosing(bus.follow(gathering=_gathering(gather_s))) as deliveries:
        await bus.append(append("j1"))
        await take(deliveries, 1)
        for i in range(2):
            waiting = asyncio.create_task(take(deliveries, 1, within_s=RESUMED_S))
            await asyncio.sleep(0)
            await breaking(nats_alone, subjects.EVT)
            seq = await bus.append(append(f"k{i}"))
            assert [one.seq for one in await waiting] == [seq]


async def test_a_deleted_consumer_of_the_work_queue_is_made_again(nats_alone: NatsHarness) -> None:
    async with nats_alone.connect() as bus, aclosing(bus.work("q", [subjects.INBOX_JOBS])) as work:
        await bus.submit(subjects.INBOX_JOBS, b"1")
        await (await anext(work)).ack()
        waiting = asyncio.ensure_future(anext(work))
        await asyncio.sleep(0)
        await _delete_consumers(nats_alone, subjects.INBOX)
        await bus.submit(subjects.INBOX_JOBS, b"2")
        async with asyncio.timeout(RESUMED_S):
            assert (await waiting).body == b"2"


@GATHERING
async def test_a_follower_resumes_about_a_second_after_the_server_is_back(
    nats_alone: NatsHarness, gather_s: float | None
) -> None:
    async with nats_alone.connect() as bus, aclosing(bus.follow(gathering=_gathering(gather_s))) as deliveries:
        await bus.append(append("j1"))
        await take(deliveries, 1)
        waiting = asyncio.create_task(take(deliveries, 1))
        await nats_alone.crash()
        await nats_alone.restart()
        async with asyncio.timeout(RESUMED_S):
            await bus.append(append("j2"))
            assert [one.seq for one in await waiting] == [2]


@GATHERING
async def test_what_a_dying_connection_swallowed_comes_again_before_what_is_behind_it(
    nats_alone: NatsHarness, gather_s: float | None
) -> None:
    async with (
        nats_alone.connect() as bus,
        nats_alone.bare() as client,
        aclosing(bus.follow(gathering=_gathering(gather_s))) as deliveries,
    ):
        await bus.append(append("j1"))
        await take(deliveries, 1)  # from here on the reader is busy, and its consumer is still asked for more
        nats_alone.gate.swallows = True
        for i in range(5):
            await client.jetstream().publish(subjects.job(f"lost{i}"), encode(append(f"lost{i}").commit))
        nats_alone.cut()
        nats_alone.gate.swallows = False
        nats_alone.mend()
        for i in range(5):
            await bus.append(append(f"behind{i}"))
        assert [one.seq for one in await take(deliveries, 10)] == list(range(2, 12))


async def test_a_follower_whose_bus_is_closed_while_the_server_is_away_ends(nats_alone: NatsHarness) -> None:
    async with nats_alone.connect() as bus, aclosing(bus.follow()) as deliveries:
        await bus.append(append("j1"))
        await take(deliveries, 1)
        with capture_logs() as logs:
            waiting = asyncio.create_task(take(deliveries, 1, within_s=RESUMED_S))
            await nats_alone.crash()
            await eventually(lambda: {"server_lost", "consumer_made_again"} <= {one["event"] for one in logs})
        await bus.close()
        with pytest.raises(Unavailable, match="closed"):
            await waiting


async def test_many_appends_to_a_server_that_does_not_answer_end_with_their_time(nats_alone: NatsHarness) -> None:
    items = [append(f"j{i}") for i in range(20)]
    async with nats_alone.connect(timeout_s=0.5) as bus, asyncio.timeout(60):
        nats_alone.gate.swallows = True
        start_s = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match="try again with the same ids"):
            await bus.append_many(items)
        assert asyncio.get_running_loop().time() - start_s < 10 * TRY_S  # one overdue answer, not twenty
        nats_alone.gate.swallows = False
        async with nats_alone.connect() as patient:
            assert await patient.append_many(items) == list(range(1, 21))


async def test_a_reader_of_much_goes_on_where_it_stopped_when_the_connection_broke(
    nats_alone: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_get, "_BATCH_BYTES", 1 << 20)
    async with nats_alone.connect() as bus, aclosing(bus.read_output("j1")) as lines:
        for i in range(20):
            await bus.write_output("j1", 0, b"%03d" % i + b"x" * 300_000)
        found = [(await anext(lines)).data[:3]]
        nats_alone.cut()
        nats_alone.mend()
        found += [line.data[:3] async for line in lines]
    assert found == [b"%03d" % i for i in range(20)]


async def test_a_log_of_an_earlier_version_takes_commits_as_one_once_it_is_brought_up_to_date(
    nats_alone: NatsHarness,
) -> None:
    items = [append(f"j{i}") for i in range(10)]
    async with nats_alone.connect() as bus:
        config = (await bus.link.api(f"STREAM.INFO.{subjects.EVT}"))["config"]
        await bus.link.api(f"STREAM.UPDATE.{subjects.EVT}", config | {"allow_atomic": False})
        with pytest.raises(BatchRefused, match=r"atomic publish is disabled.*one by one"):
            await bus.append_all(items)
        assert await bus.last_seq() == 0
    async with nats_alone.connect() as bus:
        assert await bus.append_all(items) == list(range(1, 11))


@pytest.mark.parametrize("lost", ["opening", "commit"])
async def test_a_batch_whose_answer_is_lost_is_sent_again_and_stored_once(
    nats_alone: NatsHarness, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    items = [append(f"j{i}") for i in range(10)]
    async with nats_alone.connect() as bus:
        asked, asks = bus.link.ask, 0

        async def loses_answers(*args: Any, **more: Any) -> Msg:
            nonlocal asks
            asks += 1
            answer = await asked(*args, **more)
            if asks == (1 if lost == "opening" else 2):
                raise ConnectionLost("the answer was lost")
            return answer

        monkeypatch.setattr(bus.link, "ask", loses_answers)
        assert await bus.append_all(items) == list(range(1, 11))
        assert await bus.last_seq() == 10


async def test_of_a_batch_of_which_a_beginning_was_stored_all_are_stored_one_by_one(nats_alone: NatsHarness) -> None:
    items = [append(f"j{i}") for i in range(10)]
    async with nats_alone.connect() as bus:
        await bus.append_many(items[:4])  # as a server leaves it that lost its power in the middle
        with pytest.raises(BatchRefused):
            await bus.append_all(items)
        assert [await bus.append(item) for item in items] == list(range(1, 11))


async def test_a_writer_that_dies_before_the_end_of_a_batch_leaves_nothing_behind(nats_alone: NatsHarness) -> None:
    items = [append(f"j{i}") for i in range(3)]
    async with nats_alone.connect() as dying:
        for number, item in enumerate(items[:2], 1):
            numbers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(number)}
            await dying.link.publish(item.subject, encode(item.commit), headers_of(item) | numbers)
        await dying.link.flush()
    async with nats_alone.connect() as bus:
        assert await bus.last_seq() == 0
        assert await bus.append_all(items) == [1, 2, 3]


@pytest.mark.parametrize(
    "raw",
    [
        b"Nats-Msg-Id: 7f\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n",
        b"a:b\r\nc:\t d \r\n e : f:g\r\n",
        b"no colon\r\nin side: x\r\n: nameless\r\n\r\n",
        "naïve: x\r\nword: naïve\r\n".encode(),
        b"bytes: \xff\xfe\r\n\xff: x\r\nlast: ",
        b"",
    ],
)
def test_headers_are_read_as_by_the_client_library(raw: bytes) -> None:
    theirs = {name: value for name, value in Client._parse_header_lines(raw).items() if name}
    assert LateAnswerClient._parse_header_lines(raw) == theirs


@pytest.mark.parametrize("code", [10158, 10163])
async def test_what_a_cluster_cannot_say_yet_is_asked_again(
    nats_alone: NatsHarness, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async with nats_alone.connect() as bus:
        answered = bus.link.patiently

        async def not_yet(*args: object, **more: object) -> Msg:
            monkeypatch.setattr(bus.link, "patiently", answered)
            return Msg(_client=bus.link.client, data=b'{"error": {"code": 409, "err_code": %d}}' % code)

        monkeypatch.setattr(bus.link, "patiently", not_yet)
        assert await bus.append(append("j1")) == 1
        asked = bus.link.ask

        async def not_yet_as_one(*args: object, **more: object) -> Msg:
            monkeypatch.setattr(bus.link, "ask", asked)
            return await not_yet()

        monkeypatch.setattr(bus.link, "ask", not_yet_as_one)
        assert await bus.append_all([append("j2"), append("j3")]) == [2, 3]


async def test_messages_too_large_for_one_request_come_in_several(
    nats_alone: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_MOST_BYTES", 1 << 20)
    async with nats_alone.connect() as bus:
        await bus.append_many([append(f"j{i}", by="x" * 300_000) for i in range(20)])
        async with aclosing(bus.follow()) as deliveries:
            assert [one.seq for one in await take(deliveries, 20)] == list(range(1, 21))


async def test_work_that_waits_for_a_busy_worker_does_not_go_to_another(nats_alone: NatsHarness) -> None:
    async with (
        nats_alone.connect(ack_wait_s=1.2) as busy,
        nats_alone.connect(ack_wait_s=1.2) as idle,
        aclosing(busy.work("q", [subjects.INBOX_JOBS])) as work,
        aclosing(idle.work("q", [subjects.INBOX_JOBS])) as other_work,
    ):
        await busy.submit(subjects.INBOX_JOBS, b"first")
        await (await anext(work)).ack()
        for i in range(30):
            await idle.submit(subjects.INBOX_JOBS, b"%d" % i)  # the busy one had asked for more
        other = asyncio.ensure_future(anext(other_work))
        done, _ = await asyncio.wait([other], timeout=2.0)  # much more than the time that one may keep it
        other.cancel()
        await asyncio.wait([other])
        assert not done


async def test_two_queues_for_the_same_work_are_refused_with_the_reason(nats_alone: NatsHarness) -> None:
    async with nats_alone.connect() as bus:
        first, second = (bus.work(name, [subjects.INBOX_JOBS]) for name in ("one", "two"))
        await bus.submit(subjects.INBOX_JOBS, b"1")
        await anext(first)
        with pytest.raises(BusError, match="queue 'two' cannot take"):
            await anext(second)


async def test_a_service_is_known_by_name_to_every_nats_tool(nats_alone: NatsHarness) -> None:
    async def handler(request: Request) -> Reply:
        return Reply(code=404, error="no") if request.body == b"bad" else Reply(body=request.body)

    endpoint = Endpoint(name="jobs", subject=subjects.query("jobs"), handler=handler)
    async with (
        nats_alone.connect() as bus,
        nats_alone.bare() as client,
        bus.serve("gateway", "1.2.3", [endpoint], {"ready": "true"}),
    ):
        await bus.request(endpoint.subject, b"")
        ping, info, stats = [
            msgspec.json.decode((await client.request(f"$SRV.{verb}.gateway", b"")).data)
            for verb in ("PING", "INFO", "STATS")
        ]
        bad = await client.request(endpoint.subject, b"bad")
    assert (ping["name"], ping["version"], ping["metadata"]) == ("gateway", "1.2.3", {"ready": "true"})
    asked = [endpoint.subject, subjects.by_anybody(endpoint.subject)]
    assert [one["subject"] for one in info["endpoints"]] == asked
    assert stats["endpoints"][0]["num_requests"] == 1
    assert bad.headers == {"Nats-Service-Error": "no", "Nats-Service-Error-Code": "404"}


async def test_a_bus_that_is_closed_without_a_server_looks_for_it_no_longer(nats_alone: NatsHarness) -> None:
    def still_looking() -> int:
        return sum(
            getattr(task.get_coro(), "__qualname__", "").endswith("_attempt_reconnect") for task in asyncio.all_tasks()
        )

    async def lose_and_close(after_s: float) -> None:
        async with nats_alone.connect(connect_timeout_s=60.0):
            opened.release()
            await cut.wait()
            await asyncio.sleep(after_s)

    opened, cut = asyncio.Semaphore(0), asyncio.Event()
    async with asyncio.TaskGroup() as closing:  # one that cannot connect ends the test, which would wait for it
        for i in range(150):
            closing.create_task(lose_and_close(i / 150))
        for _ in range(150):
            await opened.acquire()
        nats_alone.cut()
        cut.set()
    await eventually(lambda: not still_looking())


async def test_closing_without_a_server_is_quick(nats_alone: NatsHarness) -> None:
    async with asyncio.timeout(20):
        async with nats_alone.connect() as bus:
            await nats_alone.crash()
            await bus.publish(subjects.HEARTBEATS, b"")


def test_a_loop_that_refuses_to_write_to_a_connection_just_lost_ends_nothing(tmp_path: Path) -> None:
    async def lose_it(bus: NatsBus) -> None:
        bus.link.client._transport._io_writer.transport.abort()
        await asyncio.sleep(0)  # it is closed now, and the task that reads has not seen it

    async def lose_it_twice() -> None:
        async with running(ServerSettings(data_dir=tmp_path)) as server:
            login = server.logins["admin"]
            async with connect(server.url, login=login) as bus:
                await lose_it(bus)
                with pytest.raises(Unavailable, match="closed"):
                    await bus.link.flush()
            async with connect(server.url, login=login) as bus, bus.serve("gateway", "1.2.3", []):
                await lose_it(bus)

    uvloop.run(lose_it_twice())


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (503, 10023, StorageFull),
        (500, 10077, StorageFull),
        (400, 10054, TooLarge),
        (503, 10008, NotSettled),
        (503, 10076, Unavailable),
    ],
)
def test_refusals_of_the_server_become_the_ports_errors(code: int, err_code: int, kind: type[BusError]) -> None:
    error = fault("append", ApiError(code=code, err_code=err_code, description="the reason"))
    assert type(error) is kind
    assert "the reason" in str(error)


@pytest.mark.parametrize(
    ("body", "ttl"),
    [
        (b'{"owner":"nobody"}', ""),
        (b'{"owner":"nobody"}', "never"),
        (b'{"owner":"nobody"}', "9000h"),
        (b"\xff[", "3s"),
        (b'{"owner":"a","token":99999999999999999999999}', "3s"),
    ],
)
async def test_an_entry_that_would_never_end_or_is_no_lease_keeps_nobody_from_leading(
    nats_alone: NatsHarness, body: bytes, ttl: str
) -> None:
    async with nats_alone.connect() as bus, nats_alone.bare() as client:
        await client.jetstream().publish(f"{KEY}matcher", body, headers={"Nats-TTL": ttl} if ttl else None)
        lease = await bus.acquire("matcher", "a", 3.0)
        assert lease is not None
        assert await bus.acquire("matcher", "b", 3.0) is None
        await client.jetstream().publish(f"{KEY}matcher", body, headers={"Nats-TTL": ttl} if ttl else None)
        assert not await bus.renew(lease)
        again = await bus.acquire("matcher", "a", 3.0)
        assert again is not None
        assert again.token > lease.token


async def test_what_anybody_sends_to_a_readers_inbox_changes_nothing(nats_alone: NatsHarness) -> None:
    """The inboxes are no secret to whoever may listen; all of these ended services, or could have."""
    heard: set[str] = set()
    rng = random.Random(19)  # noqa: S311

    async def listen(msg: Msg) -> None:
        heard.update(one for one in (msg.subject, msg.reply) if one.startswith("_INBOX."))

    async with nats_alone.bare() as client, nats_alone.connect() as bus:
        await client.subscribe(">", cb=listen)
        await client.flush()
        async with aclosing(bus.follow()) as following, aclosing(bus.work("q", [subjects.INBOX_JOBS])) as working:
            waiting, worker = asyncio.ensure_future(take(following, 20)), asyncio.ensure_future(anext(working))
            await eventually(lambda: len(heard) >= 3)  # of the log's reader, the queue's worker, and the calls
            for number in range(20):
                for _ in range(INPUTS // 20):
                    name, body, reply, headers = rng.choice(sorted(heard)), *foreign(rng)
                    await client.publish(name, body, reply=reply, headers=headers)
                await bus.append(append(f"j{number}"))
            await bus.submit(subjects.INBOX_JOBS, b"work")
            assert [one.seq for one in await waiting] == list(range(1, 21))
            async with asyncio.timeout(60):
                work = await worker
            assert work.body == b"work"
            await work.ack()
            assert await bus.last_seq() == 20


def foreign(rng: random.Random) -> tuple[bytes, str, dict[str, str] | None]:
    """Return body, reply subject and headers of a message that no server would send."""
    reply = rng.choice(
        ["", "x", "a.b.c.d.e.f.g.h.i", "$JS.ACK.EVT.c.1.2.3.4.5", "$JS.ACK.EVT.c.x.x.x.x.x", "$JS.ACK" + ".9" * 9]
    )
    body = rng.choice(
        [b"", b"{}", b"[]", b"\xff", b"[" * 9000, b'{"error":7}', b'{"seq":"x"}', b'{"stream":"EVT"}', rng.randbytes(9)]
    )
    status = {
        "Status": rng.choice(["100", "408", "204", "", "x"]),
        "Nats-Pending-Messages": rng.choice(["", "-1", "9", "²", "x"]),
    }
    return body, reply, rng.choice([None, status, {"Nats-Num-Pending": "x"}, {"Nats-Service-Error-Code": "²"}])


async def test_a_lease_that_nobody_renews_is_over_although_the_servers_clock_was_set_back(
    nats_alone: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("penstock_bus.nats.snapshots_and_leases.ticks", lambda: now[0])
    async with nats_alone.connect() as one, nats_alone.connect() as other:
        lease = await one.acquire("matcher", "a", 600.0)  # as long as one of 3 s lasts after a jump of ten minutes back
        assert lease is not None
        assert await other.acquire("matcher", "b", 3.0) is None
        now[0] += 500.0
        assert await one.renew(lease)
        now[0] += 500.0
        assert await other.acquire("matcher", "b", 3.0) is None
        now[0] += 602.0
        taken = await other.acquire("matcher", "b", 3.0)
        assert taken is not None
        assert taken.token > lease.token
        assert not await one.renew(lease)


async def test_the_submissions_of_one_person_fill_that_persons_part_of_the_inbox_only(nats_alone: NatsHarness) -> None:
    alice, bob = (subjects.by_person(name, subjects.INBOX_JOBS) for name in ("alice", "bob"))
    async with nats_alone.connect(limits=StreamLimits(inbox_count=3)) as bus:
        for number in range(3):
            await bus.submit(alice, b"%d" % number)
        with pytest.raises(StorageFull, match="as many submissions as one user may have wait in the inbox already"):
            await bus.submit(alice, b"3")
        await bus.submit(bob, b"bob")
        async with aclosing(bus.work("gateway", [alice])) as work:
            (first,) = [await anext(work)]
            await first.ack()
        await bus.submit(alice, b"3")
        async with aclosing(bus.work("rest", [bob])) as work:
            assert (await anext(work)).body == b"bob"


async def test_messages_gather_on_the_server_until_somebody_is_in_a_hurry(nats_alone: NatsHarness) -> None:
    asked = asyncio.Event()

    def most_s() -> float:
        asked.set()
        return 3600.0

    gathering = Gathering(most_s)
    async with nats_alone.connect() as bus, aclosing(bus.follow(gathering=gathering)) as deliveries:
        await bus.append(append("first"))
        gathering.hurry.set()
        await take(deliveries, 1)
        gathering.hurry.clear()
        asked.clear()
        gathered = asyncio.create_task(take(deliveries, 5))
        await asked.wait()
        await bus.append_many([append(f"j{i}") for i in range(5)])
        assert await bus.last_seq() == 6
        assert not gathered.done()
        gathering.hurry.set()
        assert [one.pending for one in await gathered] == [4, 3, 2, 1, 0]
