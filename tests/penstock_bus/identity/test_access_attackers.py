"""What somebody can do with nats-py alone: without credentials, with a client's, and with one service's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import nats
import nats.errors
import pytest
from nats.aio.client import Client

from penstock_bus import Append, LogLine, Snapshot
from penstock_bus.identity.access import ADMIN, CLIENT, EXTENSION
from penstock_bus.identity.claims import SigningKey
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_log import Commit, JobCancelled, JobSpec, JobSubmitted, NodeLeft, encode, subjects
from penstock_log.services import WRITERS

pytestmark = pytest.mark.slow

EVIL = JobSpec(name="evil", command=("id",))
FORGED = encode(Commit(id="f1", actor="gateway/x", facts=(JobSubmitted(job_id="evil", spec=EVIL, at_s=1.0),)))
STREAMS = (*subjects.STREAM_SUBJECTS, f"KV_{subjects.LEASES}")
LEASE = f"$KV.{subjects.LEASES}."
ROLLUPS = ({}, {"Nats-Rollup": "sub"}, {"Nats-Rollup": "all"})

Attempt = tuple[str, bytes, dict[str, str], str]
"""Subject, body, headers and reply subject."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Penstock's own configuration with something in every stream."""
    async with running(ServerSettings(data_dir=tmp_path)) as started:
        async with bus_of(started, ADMIN) as admin:
            cancelled = Commit(id="c1", actor="gateway/1", facts=(JobCancelled(job_id="j1", at_s=1.0),))
            await admin.append(Append(subject=subjects.job("j1"), commit=cancelled, expected=0))
            await admin.write_output("j1", 0, FORGED)
            await admin.save_snapshot("matcher", Snapshot(schema="s", last_seq=1, state=b"true"))
            await admin.write_shadow("penstock.shadow.las.round.default", FORGED)
            assert await admin.acquire("matcher", "true", 3600.0)
        yield started


def bus_of(server: Server, user: str) -> NatsBus:
    return connect(server.url, login=server.logins[user], timeout_s=5.0, as_client=user == CLIENT)  # type: ignore[return-value]


@asynccontextmanager
async def raw(server: Server, user: str) -> AsyncIterator[Client]:
    """A connection without any adapter."""

    async def unheard(_: Exception) -> None:
        """Violations are what is looked for; what came of them is looked up."""

    login = server.logins[user]
    client = await nats.connect(
        server.url,
        user_jwt_cb=login.user_jwt.encode,
        signature_cb=SigningKey(login.user_seed).answer,
        inbox_prefix="_INBOX" if user == CLIENT else subjects.inbox(user),
        error_cb=unheard,
    )
    try:
        yield client
    finally:
        await client.close()


async def picture(server: Server) -> dict[str, object]:
    """Return what the streams hold and how they are configured, but for what only readers leave behind."""
    found: dict[str, object] = {}
    async with raw(server, ADMIN) as admin:
        for name in STREAMS:
            info = msgspec.json.decode((await admin.request(f"$JS.API.STREAM.INFO.{name}", timeout=10)).data)
            consumers = msgspec.json.decode((await admin.request(f"$JS.API.CONSUMER.NAMES.{name}", timeout=10)).data)
            found[name] = (info["state"]["messages"], info["state"]["last_seq"], info["config"], consumers["consumers"])
        streams = msgspec.json.decode((await admin.request("$JS.API.STREAM.NAMES", timeout=10)).data)
        found["streams"] = sorted(streams["streams"])
    return found


async def attack(server: Server, user: str, attempts: Iterator[Attempt]) -> None:
    async with raw(server, user) as client:
        for subject, body, headers, reply in attempts:
            await client.publish(subject, body, reply=reply, headers=headers)
        await client.flush()
        await asyncio.sleep(0)
        await client.flush()


def writing(*targets: str) -> Iterator[Attempt]:
    for subject in targets:
        for headers in ROLLUPS:
            yield subject, FORGED, headers, ""


def of_the_api() -> Iterator[Attempt]:
    """Everything by which a stream is changed, or the server made to publish."""
    for name in STREAMS:
        config = msgspec.json.encode(
            {"name": name, "subjects": ["anything.>"], "republish": {"dest": "penstock.evt.>"}}
        )
        for verb in ("PURGE", "DELETE", "UPDATE", "CREATE", "SNAPSHOT", "RESTORE", "MSG.DELETE", "LEADER.STEPDOWN"):
            yield f"$JS.API.STREAM.{verb}.{name}", b'{"seq": 1}' if verb == "MSG.DELETE" else config, {}, ""
        for target in ("penstock.evt.job.evil", "penstock.inbox.jobs", f"{LEASE}matcher", "penstock.state.matcher"):
            push = {
                "stream_name": name,
                "config": {"deliver_subject": target, "deliver_policy": "all", "durable_name": "evil"},
            }
            body = msgspec.json.encode(push)
            for verb in (f"CREATE.{name}", f"CREATE.{name}.evil", f"DURABLE.CREATE.{name}.evil"):
                yield f"$JS.API.CONSUMER.{verb}", body, {}, ""
    yield "$JS.API.STREAM.CREATE.EVIL", b'{"name": "EVIL", "sources": [{"name": "EVT"}]}', {}, ""


def by_reply() -> Iterator[Attempt]:
    """Requests whose answers would be published where the asker may not."""
    own = msgspec.json.encode({"seq": 1, "batch": 10, "next_by_subj": subjects.log("j1", 0)})
    for target in ("penstock.evt.job.evil", "penstock.inbox.trash", f"{LEASE}matcher", "penstock.state.matcher"):
        yield f"$JS.API.DIRECT.GET.LOG.{subjects.log('j1', 0)}", b"", {}, target
        yield "$JS.API.DIRECT.GET.LOG", own, {}, target
        yield "$JS.API.DIRECT.GET.SHADOW", b'{"last_by_subj": "penstock.shadow.>"}', {}, target
        yield "$JS.API.STREAM.MSG.GET.LOG", b'{"seq": 1}', {}, target
        yield subjects.query("echo"), FORGED, {}, target
        yield "$SRV.PING", b"", {}, target


async def test_nobody_gets_in_without_a_password(server: Server) -> None:
    for given in ({}, {"user": CLIENT}, {"user": CLIENT, "password": "guess"}, {"user": ADMIN, "password": ""}):
        with pytest.raises(nats.errors.Error, match=r"Authorization Violation|no servers"):
            await nats.connect(server.url, allow_reconnect=False, **given)


async def test_a_client_can_change_nothing_but_by_asking(server: Server) -> None:
    before = await picture(server)
    attempts = [
        *writing(
            *(subjects.entity(kind, "evil") for kind in WRITERS),
            subjects.state("matcher"),
            subjects.state("anything"),
            f"{LEASE}matcher",
            f"{LEASE}anything",
            subjects.log("j1", 0),
            subjects.rejected("jobs"),
            "penstock.shadow.las.round.default",
            "penstock.inbox.trash",
            "$JS.ACK.INBOX.gateway-jobs.1.1.1.1.0",
        ),
        *of_the_api(),
        *by_reply(),
    ]
    await attack(server, CLIENT, iter(attempts))
    assert await picture(server) == before


async def test_an_extension_can_write_no_facts_and_nothing_of_penstocks_own_services(server: Server) -> None:
    before = await picture(server)
    attempts = [
        *writing(
            *(subjects.entity(kind, "evil") for kind in WRITERS),
            subjects.state("matcher"),
            subjects.state("executor.n1"),
            f"{LEASE}matcher",
            subjects.log("j1", 0),
            "penstock.inbox.trash",
        ),
        *(one for one in of_the_api() if one[0] != "$JS.API.CONSUMER.CREATE.EVT"),
    ]
    await attack(server, EXTENSION, iter(attempts))
    assert await picture(server) == before


async def test_a_services_password_writes_nothing_of_another_service(server: Server) -> None:
    before = await picture(server)
    theirs = [subjects.entity(kind, "evil") for kind, writer in WRITERS.items() if writer != "ranker"]
    states = [subjects.state("matcher"), subjects.state("executor.n1"), subjects.state("an-extension")]
    attempts = [
        *writing(*theirs, *states, f"{LEASE}matcher", subjects.log("j1", 0), "penstock.inbox.jobs"),
        *(one for one in of_the_api() if one[0] != "$JS.API.CONSUMER.CREATE.EVT"),
    ]
    await attack(server, "ranker", iter(attempts))
    assert await picture(server) == before


async def test_no_message_of_an_executor_removes_one_of_output_of_a_service_or_of_a_lease(server: Server) -> None:
    async with bus_of(server, ADMIN) as admin:
        for number in range(20):
            await admin.write_output("j1", number % 2, b"printed")
        await admin.write_series("j1", 1, b"series")
    before = await picture(server)
    theirs = [
        subjects.state("matcher"),
        subjects.state("executor"),
        *(f"{LEASE}{name}" for name in ("matcher", "executor")),
    ]
    await attack(server, "executor", writing(*theirs))
    assert await picture(server) == before
    async with raw(server, "executor") as executor:
        for rollup in ("sub", "all"):
            refused = await executor.request(
                subjects.log("j1", 0), b"gone?", headers={"Nats-Rollup": rollup}, timeout=10
            )
            assert "rollup not permitted" in msgspec.json.decode(refused.data)["error"]["description"]
    assert await picture(server) == before
    series, nodes = subjects.series("evil", 1), subjects.state("executor.n1")
    await attack(server, "executor", writing(series, nodes))
    after = await picture(server)
    assert {name for name in before if after[name] != before[name]} == {subjects.SERIES, subjects.NODES}
    async with bus_of(server, CLIENT) as client:
        assert len([line async for line in client.read_output("j1")]) == 21


async def test_a_push_consumer_of_the_log_cannot_write_the_log(server: Server) -> None:
    before = await picture(server)
    push = {"stream_name": "EVT", "config": {"deliver_subject": "penstock.evt.job.evil", "deliver_policy": "all"}}
    await attack(server, "ranker", iter([("$JS.API.CONSUMER.CREATE.EVT", msgspec.json.encode(push), {}, "")]))
    assert await picture(server) == before


async def test_facts_under_a_services_own_subject_that_are_not_its_own_are_heard_by_nobody(server: Server) -> None:
    lost = encode(Commit(id="f2", actor="executor/x", facts=(NodeLeft(node_id="n1", at_s=1.0),)))
    cancelled = encode(Commit(id="f3", actor="gateway/x", facts=(JobCancelled(job_id="j1", at_s=1.0),)))
    async with raw(server, "ranker") as ranker:
        for body in (FORGED, lost, cancelled):
            await ranker.jetstream().publish(subjects.rank("evil"), body)
    async with bus_of(server, "matcher") as matcher:
        follow = matcher.follow()
        heard = [await anext(follow) for _ in range(4)]
        assert [len(one.commit.facts) for one in heard] == [1, 0, 0, 0]
        while len(await matcher.rejections()) < 3:  # noqa: ASYNC110 - they are stored behind the reader's back
            await asyncio.sleep(0.01)


async def test_what_the_server_copies_to_another_subject_for_a_service_is_no_fact(server: Server) -> None:
    async with raw(server, "ranker") as ranker:
        await ranker.jetstream().publish(subjects.rank("evil"), FORGED)
        await ranker.publish(f"$JS.API.DIRECT.GET.EVT.{subjects.rank('evil')}", b"", reply=subjects.job("evil"))
        await ranker.flush()
    async with bus_of(server, "matcher") as matcher:
        follow = matcher.follow(after_seq=1)
        heard = [await anext(follow) for _ in range(2)]
    assert [(one.subject, one.commit.facts) for one in heard] == [
        (subjects.rank("evil"), ()),
        (subjects.job("evil"), ()),
    ]


async def test_a_client_hears_no_request_of_others_and_answers_none(server: Server) -> None:
    heard: list[str] = []

    async def hear(msg: nats.aio.msg.Msg) -> None:
        heard.append(msg.subject)
        await msg.respond(b"a thief's")

    async with raw(server, CLIENT) as thief, raw(server, CLIENT) as client, raw(server, "ranker") as ranker:
        for subject in ("penstock.cmd.>", "penstock.qry.>", "penstock.inbox.>", "penstock.checkpoint.>", "$SRV.>", ">"):
            await thief.subscribe(subject, cb=hear)
        await ranker.subscribe("penstock.cmd.gateway.submit", cb=hear)
        await thief.flush()
        await ranker.flush()
        with pytest.raises((nats.errors.NoRespondersError, nats.errors.TimeoutError)):
            await client.request("penstock.cmd.gateway.submit", b"{}", timeout=1)
    assert heard == []


async def test_a_client_still_reads_all_that_is_public(server: Server) -> None:
    async with bus_of(server, CLIENT) as client:
        assert await client.last_seq() == 1
        assert (await anext(client.follow())).subject == subjects.job("j1")
        assert [line.data async for line in client.read_output("j1")] == [FORGED]
        assert (await client.last_shadow("penstock.shadow.>")) is not None
        assert await client.rejections() == []
        lines: AsyncIterator[LogLine] = client.read_output("j1", follow=True)
        await anext(lines)
        async with bus_of(server, "executor") as executor:
            await executor.write_output("j1", 0, b"more")
        assert (await anext(lines)).data == b"more"
