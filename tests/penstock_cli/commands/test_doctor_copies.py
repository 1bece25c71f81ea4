"""What ``penstock doctor`` says of several servers, and of the copies of streams on them."""

from __future__ import annotations

import asyncio

from penstock_cli.commands import cluster
from penstock_log.views import StreamPeerView, StreamView

OTHERS = (StreamPeerView(server="s2", current=True), StreamPeerView(server="s3", current=True))


def stream(name: str, *copies: StreamPeerView, **more: object) -> StreamView:
    given = {"replicas": 1 + len(copies), "leader": "s1", **more}
    return StreamView(name=name, copies=copies, **given)  # type: ignore[arg-type]


def lines(*streams: StreamView, servers: int = 1) -> list[str]:
    return [cluster.line_of(finding) for finding in cluster.replication(streams, servers)]


def test_streams_of_a_server_alone_are_said_to_be_on_one_disk() -> None:
    assert lines(stream("EVT"), stream("LOG")) == [
        "ok    copies  2 streams on one server alone (R1): what is on its disk is all there is"
    ]


def test_streams_on_three_servers_are_told_with_their_leaders() -> None:
    assert lines(stream("EVT", *OTHERS), stream("LOG", *OTHERS, leader="s2")) == [
        "ok    copies  2 streams on 3 servers each (R3), all current; s1 1, s2 1 led"
    ]


def test_a_stream_on_one_of_several_servers_is_named() -> None:
    (line,) = lines(stream("EVT", *OTHERS), stream("KV_penstock-leases"))
    assert line.startswith("warn  copies  penstock-leases on one server alone (R1), of several that there are; start")


def test_with_several_addresses_streams_on_one_server_are_a_warning() -> None:
    (line,) = lines(stream("EVT"), servers=3)
    assert line.startswith("warn  copies  EVT on one server alone (R1)")


def test_a_stream_without_a_leader_fails_with_what_to_do() -> None:
    silent = StreamView(name="EVT", error="it did not answer within 2 s")
    assert lines(silent, stream("LOG", *OTHERS)) == [
        "fail  copies  EVT without a leader: it did not answer within 2 s; it is elected within ten seconds if most of "
        "its servers are there; start those that are not"
    ]


def test_a_server_that_is_gone_or_behind_is_named_with_its_streams() -> None:
    gone = StreamPeerView(server="s2", current=False, offline=True, heard_ago_s=12.0)
    hangs = StreamPeerView(server="s2", current=False, lag=9, heard_ago_s=12.0)
    slow = StreamPeerView(server="s3", current=False, lag=7, heard_ago_s=0.1)
    (away,) = lines(stream("EVT", gone, OTHERS[1]), stream("LOG", hangs, OTHERS[1]))
    assert away.startswith("warn  copies  s2 was last heard of 12.0s ago, with its copies of EVT, LOG; start it again")
    assert lines(stream("EVT", OTHERS[0], slow)) == [
        "warn  copies  s3 is 7 operations behind at most, with its copies of EVT; it catches up"
    ]


async def test_a_server_that_is_not_there_is_a_warning_while_another_one_is() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.15.1", "jetstream": true, "max_payload": 1048576}\r\n')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        found = await cluster.servers(f"nats://127.0.0.1:{port}, nats://127.0.0.1:1,")
        assert [one.level for one in found] == ["ok", "warn"]
        assert found[1].remedy == "the others go on without it; start it again"
    assert [one.level for one in await cluster.servers("nats://127.0.0.1:1,127.0.0.1:2")] == ["fail", "fail"]
