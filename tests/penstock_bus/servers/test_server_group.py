"""Three servers that keep one log: what they have that one has not, and how one becomes three."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from penstock_bus import Append, NoResponders, Unauthorized, Unavailable
from penstock_bus.identity.access import ADMIN, CLIENT
from penstock_bus.nats import NatsBus, connect
from penstock_bus.nats.link import Link
from penstock_bus.nats.replication import StreamEnd, move_streams
from penstock_bus.nats.snapshots_and_leases import FAILOVER_S
from penstock_bus.servers import server_group
from penstock_bus.servers.cluster_member import ClusterMember
from penstock_bus.servers.server import Server, ServerError, ServerSettings
from penstock_bus.servers.server_group import ServerGroup, count_of, running
from penstock_log import Commit, JobHeld, subjects
from penstock_testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ServerGroup]:
    """Three servers with all streams on each."""
    async with running(ServerSettings(data_dir=tmp_path, sync_interval="2m"), 3) as servers:
        async with bus_of(servers) as bus:
            await eventually(lambda: all_current(bus))
        yield servers


def bus_of(servers: ServerGroup, timeout_s: float = 30.0) -> AbstractAsyncContextManager[NatsBus]:
    return connect(servers.url, login=servers.logins[ADMIN], timeout_s=timeout_s, limits=servers.limits)


async def all_current(bus: NatsBus, copies: int = 2) -> bool:
    found = await bus.replication()
    return all(len(one.copies) == copies and one.leader and all(c.current for c in one.copies) for one in found)


def leader_of(servers: ServerGroup, name: str) -> Server:
    (found,) = [server for server in servers.servers if server.name == name]
    return found


async def leader(bus: NatsBus, stream: str) -> str:
    return next(one.leader for one in await bus.replication() if one.name == stream)


def held(job_id: str, number: int = 0) -> Append:
    fact = JobHeld(job_id=job_id, at_s=float(number))
    commit = Commit(id=f"{job_id}-{number}", actor="gateway/1", facts=(fact,))
    return Append(subject=subjects.job(job_id), commit=commit, expected=None)


def new(job_id: str) -> Append:
    return msgspec.structs.replace(held(job_id), expected=0)


async def test_every_stream_bucket_and_queue_is_on_three_servers(three: ServerGroup) -> None:
    async with bus_of(three) as bus:
        await bus.submit(subjects.INBOX_JOBS, b"{}")
        async for work in bus.work("gateway-jobs", [subjects.INBOX_JOBS]):
            await work.ack()
            break
        found = {one.name: one.replicas for one in await bus.replication()}
        assert found == dict.fromkeys((*subjects.STREAM_SUBJECTS, f"KV_{subjects.LEASES}"), 3)
        queue = await bus.link.api(f"CONSUMER.INFO.{subjects.INBOX}.gateway-jobs")
        assert len(queue["cluster"]["replicas"]) == 2


async def test_a_lease_outlives_a_failover_and_says_how_long_it_lasts(three: ServerGroup) -> None:
    async with bus_of(three) as bus:
        lease = await bus.acquire("matcher", "m1", 3.0)
        assert lease is not None
        assert lease.ttl_s == FAILOVER_S
        await leader_of(three, await leader(bus, f"KV_{subjects.LEASES}")).kill()
        assert await bus.renew(lease)
        assert await bus.acquire("matcher", "m2", 3.0) is None


async def test_nothing_that_was_confirmed_is_lost_or_stored_twice_when_the_leader_is_killed(three: ServerGroup) -> None:
    """Clients append, one by one and in batches of many not confirmed yet, and submit; the leader dies then."""
    confirmed: dict[str, int] = {}
    submitted: list[bytes] = []
    enough = asyncio.Event()
    batching: list[NatsBus] = []

    async def append(client: int) -> None:
        async with bus_of(three) as bus:
            number = 0
            while not enough.is_set():
                confirmed[f"c{client}-{number}"] = await bus.append(held(f"c{client}", number))
                number += 1

    async def append_batches() -> None:
        async with bus_of(three) as bus:
            batching.append(bus)
            number = 0
            while not enough.is_set():
                batch = [held(f"b{i % 50}", number + i) for i in range(300)]
                seqs = await bus.append_many(batch)
                confirmed.update({item.commit.id: seq for item, seq in zip(batch, seqs, strict=True)})
                number += len(batch)

    async def submit() -> None:
        async with bus_of(three) as bus:
            while not enough.is_set():
                await bus.submit(subjects.INBOX_JOBS, body := str(len(submitted)).encode())
                submitted.append(body)

    async with bus_of(three) as bus, asyncio.TaskGroup() as clients:
        for client in range(2):
            clients.create_task(append(client))
        clients.create_task(append_batches())
        clients.create_task(submit())
        await eventually(lambda: len(confirmed) > 600 and len(submitted) > 20)
        dead = leader_of(three, await leader(bus, subjects.EVT))
        await dead.kill()
        before, queued = len(confirmed), len(submitted)
        await eventually(lambda: len(confirmed) > before + 600 and len(submitted) > queued + 20)
        await dead.start()  # and it catches up while more comes
        await eventually(lambda: all_current(bus))
        asked = batching[0].link.client.connected_url
        (asked_server,) = [server for server in three.servers if asked and server.url.endswith(f":{asked.port}")]
        before = len(confirmed)
        await asked_server.kill()  # what it passed on is stored, and nobody says so
        await eventually(lambda: len(confirmed) > before + 600)
        enough.set()
    async with bus_of(three) as bus:
        stored = [(one.commit.id, one.seq) for one in await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT])]
        seq_of = dict(stored)
        assert len(stored) == len(seq_of), "an id is stored twice"
        assert {commit_id: seq_of.get(commit_id) for commit_id in confirmed} == confirmed
        messages = (await bus.link.api(f"STREAM.INFO.{subjects.INBOX}"))["state"]["messages"]
        bodies = []
        async for work in bus.work("gateway-jobs", [subjects.INBOX_JOBS]):
            bodies.append(work.body)
            await work.ack()
            if len(bodies) == messages:
                break
        assert len(set(bodies)) == len(bodies), "a submission is queued twice"
        assert set(submitted) <= set(bodies)


async def test_what_is_appended_as_one_is_stored_once_and_in_a_row_when_the_leader_is_killed(
    three: ServerGroup,
) -> None:
    confirmed: dict[str, int] = {}
    enough = asyncio.Event()

    async def append_all(writer: str) -> None:
        async with bus_of(three) as bus:
            number = 0
            while not enough.is_set():
                batch = [new(f"{writer}-{number + i}") for i in range(50)]
                seqs = await bus.append_all(batch)
                assert seqs == list(range(seqs[0], seqs[0] + 50))
                confirmed.update({item.commit.id: seq for item, seq in zip(batch, seqs, strict=True)})
                number += len(batch)

    async with bus_of(three) as bus, asyncio.TaskGroup() as writers:
        for writer in ("a", "b", "c"):
            writers.create_task(append_all(writer))
        for _ in range(2):
            before = len(confirmed)
            await eventually(lambda before=before: len(confirmed) > before + 600)
            dead = leader_of(three, await leader(bus, subjects.EVT))
            await dead.kill()
            before = len(confirmed)
            await eventually(lambda before=before: len(confirmed) > before + 600)
            await dead.start()
            await eventually(lambda: all_current(bus))
        enough.set()
    async with bus_of(three) as bus:
        stored = [(one.commit.id, one.seq) for one in await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT])]
        assert dict(stored) == confirmed
        assert len(stored) == len(confirmed), "an id is stored twice"


async def test_the_log_of_one_server_becomes_that_of_three(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, sync_interval="2m")
    assert count_of(tmp_path) == 0
    async with running(settings) as one, bus_of(one) as bus:
        seqs = [await bus.append(held("j1", number)) for number in range(50)]
        await bus.submit(subjects.INBOX_JOBS, b"waits")
        before = await bus.read(subjects.job("j1"))
    assert count_of(tmp_path) == 1
    async with running(settings, 3) as servers, bus_of(servers) as bus:
        await eventually(lambda: all_current(bus))
        assert await bus.read(subjects.job("j1")) == before
        assert [delivery.seq for delivery in before] == seqs
        assert not (tmp_path / "nats-alone").exists()
        await servers.servers[0].kill()  # the others have it all
        assert await bus.append(held("j1", 50)) == seqs[-1] + 1
        async for work in bus.work("gateway-jobs", [subjects.INBOX_JOBS]):
            assert work.body == b"waits"
            break
    assert count_of(tmp_path) == 3
    async with running(settings, 3) as servers, bus_of(servers) as bus:
        assert await bus.last_seq() == seqs[-1] + 1


async def test_a_move_to_three_servers_that_was_broken_off_goes_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerSettings(data_dir=tmp_path, sync_interval="2m")
    async with running(settings) as one, bus_of(one) as bus:
        seq = await bus.append(held("j1"))
        await bus.write_output("j1", 0, b"said")

    async def broken_off(old: Link, new: Link, replicas: int) -> dict[str, StreamEnd]:
        """Copy the log, and have it end too early, as nothing that is known does; then fail."""
        await move_streams(old, new, replicas)
        await new.api(f"STREAM.DELETE.{subjects.LOG}")
        raise Unavailable("the disk is full")

    for number in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(server_group, "move_streams", broken_off)
            with pytest.raises(
                ServerError, match=r"did not move to 3 servers: the disk is full; its store is still in"
            ):
                await ServerGroup(settings, 3).start()
        assert count_of(tmp_path) == 3, number
        with pytest.raises(ServerError, match="one alone would not see it"):
            await ServerGroup(settings).start()
    async with running(settings, 3) as servers, bus_of(servers) as bus:
        assert [delivery.seq for delivery in await bus.read(subjects.job("j1"))] == [seq]
        assert [line.data async for line in bus.read_output("j1")] == [b"said"]
    assert not (tmp_path / "nats-alone").exists()


async def test_one_server_alone_does_not_start_on_the_log_of_three(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path)
    async with running(settings, 3):
        pass
    with pytest.raises(
        ServerError, match="kept by 3 servers, and one alone would not see it; start it with --servers 3"
    ):
        await ServerGroup(settings).start()


async def test_one_store_of_three_is_not_started_with_two_empty_ones_which_would_outvote_it(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, sync_interval="2m")
    async with running(settings, 3) as servers, bus_of(servers) as bus:
        await bus.append(held("j1"))
        await eventually(lambda: all_current(bus))
    shutil.rmtree(tmp_path / "nats" / "jetstream")
    assert count_of(tmp_path) == 3
    async with running(settings, 3) as servers, bus_of(servers) as bus:  # one may be lost
        await eventually(lambda: all_current(bus))
        assert await bus.last_seq() == 1
    for lost in ("nats-2", "nats-3"):
        shutil.rmtree(tmp_path / lost)
    with pytest.raises(
        ServerError, match=r"only .*/nats/jetstream holds the log: .*/nats-2/jetstream and .* outvote it"
    ):
        await ServerGroup(settings, 3).start()


async def test_after_a_power_cut_that_tore_the_owners_account_the_login_that_is_left_counts(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path, owner="olga")) as servers:
        (server,) = servers.servers
        await server.kill()
        assert server.keyring is not None
        (tmp_path / "nats" / "accounts" / f"{server.keyring.person('olga')}.jwt").write_text("")
        await server.start()
        made_at_start = servers.logins[CLIENT]
        async with servers.issuing(), connect(servers.url, login=servers.logins[CLIENT], as_client=True) as bus:
            with pytest.raises(NoResponders):
                await bus.request("penstock.qry.gateway.status", b"")
            with pytest.raises(Unauthorized):
                async with connect(servers.url, login=made_at_start, as_client=True):
                    pass


@pytest.mark.parametrize("count", [0, 2, 4])
def test_other_numbers_of_servers_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ServerError, match=f"{count} servers cannot keep a log together; expected one of 1, 3"):
        ServerGroup(ServerSettings(data_dir=tmp_path), count)


async def test_who_does_not_have_the_secret_cannot_join_the_servers(three: ServerGroup, tmp_path: Path) -> None:
    """Whoever joins may speak for every account: a port on loopback is open to every user of the machine."""
    member = three.servers[0].settings.member
    assert member is not None
    guess = ClusterMember(number=4, listen="127.0.0.1:-1", others=(member.listen,), secret="guess")
    stranger = Server(ServerSettings(data_dir=tmp_path / "stranger", member=guess))
    await stranger.start()
    await eventually(lambda: "authentication error" in three.servers[0].log_file.read_text())
    assert "Route connection created" in stranger.log_file.read_text()
    await stranger.kill()
    reader, writer = await asyncio.open_connection(*member.listen.split(":"))
    await reader.readline()
    writer.write(b'CONNECT {"echo":true,"name":"x","cluster":"penstock"}\r\nPING\r\n')
    assert b"Authorization" in await reader.read()
    writer.close()


async def test_a_client_finds_the_servers_that_are_left_whatever_address_comes_first(three: ServerGroup) -> None:
    await three.servers[0].kill()
    first_dead = f" {three.url} ,nats://127.0.0.1:1,"  # as people write it, with one that never was
    async with connect(first_dead, login=three.logins[ADMIN], timeout_s=30.0, as_client=True) as bus:
        assert await bus.append(held("j1")) == 1
        with pytest.raises(NoResponders):
            await bus.request("penstock.qry.gateway.status", b"")
