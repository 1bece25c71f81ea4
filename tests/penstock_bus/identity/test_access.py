import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from penstock_bus import Append, Endpoint, Handler, Rejection, Reply, Request, Snapshot, Unauthorized
from penstock_bus.identity import access
from penstock_bus.identity.access import ADMIN, CLIENT
from penstock_bus.identity.logins import Login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_bus.shell import Shell
from penstock_log import Commit, subjects
from penstock_log.services import LOGINS, WRITERS
from penstock_testing import eventually

pytestmark = pytest.mark.slow

OWN = {writer: subjects.entity(kind, "x1") for kind, writer in WRITERS.items() if writer in LOGINS}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Penstock's own configuration, with the streams made."""
    async with running(ServerSettings(data_dir=tmp_path)) as started, as_user(started, ADMIN):
        yield started


def as_user(server: Server, user: str) -> AbstractAsyncContextManager[NatsBus]:
    return connect(server.url, login=server.logins[user], name=user, timeout_s=5.0)


def client_of(server: Server) -> AbstractAsyncContextManager[NatsBus]:
    return connect(server.url, login=server.logins[CLIENT], timeout_s=5.0, as_client=True)


def commit_to(subject: str) -> Append:
    """Return a commit without facts: who may write where is no matter of what is written."""
    return Append(subject=subject, commit=Commit(id=f"to {subject}", actor="test", facts=()), expected=None)


async def test_the_matcher_cannot_write_a_job_fact(server: Server) -> None:
    async with as_user(server, "matcher") as bus:
        with pytest.raises(Unauthorized, match=r"does not let this user publish to penstock\.evt\.job\.x1"):
            await bus.append(commit_to(subjects.job("x1")))
        assert await bus.append(commit_to(subjects.round_("x1"))) == 1


@pytest.mark.parametrize("service", OWN)
async def test_a_service_writes_its_own_entities_and_no_others(server: Server, service: str) -> None:
    async with as_user(server, service) as bus:
        for kind, writer in WRITERS.items():
            item = commit_to(subjects.entity(kind, "x1"))
            if writer == service:
                await bus.append(item)
            else:
                with pytest.raises(Unauthorized):
                    await bus.append(item)
        assert {d.subject for d in await bus.read("penstock.evt.>")} == {
            subjects.entity(kind, "x1") for kind, writer in WRITERS.items() if writer == service
        }


@pytest.mark.parametrize("kind", sorted(WRITERS))
async def test_a_client_cannot_write_a_fact(server: Server, kind: str) -> None:
    async with client_of(server) as bus:
        with pytest.raises(Unauthorized):
            await bus.append(commit_to(subjects.entity(kind, "x1")))
        assert await bus.last_seq() == 0


async def test_who_is_refused_by_the_password_in_the_address_is_told_so(server: Server) -> None:
    url = server.url.replace("://", f"://{CLIENT}:wrong@")
    with pytest.raises(Unauthorized, match=f"refused user '{CLIENT}'; check the password in the address"):
        async with connect(url, as_client=True):
            pass


async def test_a_client_reads_the_log_and_the_output_and_submits(server: Server) -> None:
    async with as_user(server, "gateway") as gateway, as_user(server, "executor") as executor, client_of(server) as bus:
        await gateway.append(commit_to(subjects.job("x1")))
        await executor.write_output("x1", 0, b"hello")
        assert (await anext(bus.follow())).subject == subjects.job("x1")
        assert [line.data async for line in bus.read_output("x1")] == [b"hello"]
        await bus.submit(subjects.INBOX_JOBS, b"{}")
        work = await anext(gateway.work("gateway", [subjects.INBOX_JOBS]))
        assert work.body == b"{}"
        await work.ack()


async def test_a_service_can_do_all_that_its_shell_and_replica_need(server: Server) -> None:
    for service, own in OWN.items():
        async with as_user(server, service) as bus, client_of(server) as client:
            await bus.append(commit_to(own))
            assert (await anext(bus.follow())).seq > 0
            snapshot = Snapshot(schema="s", last_seq=1, state=b"x" * 3_000_000)
            name = f"{service}.n1" if service in access.ON_NODES else service
            await bus.save_snapshot(name, snapshot)
            assert await bus.load_snapshot(name) == snapshot
            if service not in access.ON_NODES:
                lease = await bus.acquire(service, "r1", 5.0)
                assert lease is not None
                assert await bus.renew(lease)
                await bus.release(lease)
            await bus.reject("evt", Rejection(reason="no", origin="test", body=b""))
            shell = Shell(bus, service, "r1")
            async with shell.serving():
                assert b'"r1"' in await client.request(subjects.query("live", service), b"")


async def test_heartbeats_of_services_cannot_be_forged_by_clients(server: Server) -> None:
    heard: list[str] = []

    async def listen(bus: NatsBus) -> None:
        async for subject, _ in bus.subscribe("penstock.tel.>"):
            heard.append(subject)

    async with as_user(server, "executor") as executor, as_user(server, "gateway") as gateway, client_of(server) as bus:
        listening = asyncio.create_task(listen(gateway))
        await gateway.last_seq()
        await bus.publish(subjects.heartbeat("n1"), b"forged")
        await bus.publish(subjects.replica("matcher", "r1"), b"forged")
        await bus.last_seq()
        await executor.publish(subjects.heartbeat("n2"), b"true")
        await eventually(lambda: bool(heard))
        listening.cancel()
    assert heard == [subjects.heartbeat("n2")]


async def test_a_client_cannot_answer_in_the_gateways_place(server: Server) -> None:
    async def answer(_: Request) -> Reply:
        return Reply(body=b"the gateway's")

    async def steal(_: Request) -> Reply:
        return Reply(body=b"a thief's")

    def submit(handler: Handler) -> Endpoint:
        return Endpoint(name="submit", subject=subjects.command("submit"), handler=handler)

    async with (
        as_user(server, "gateway") as gateway,
        client_of(server) as thief,
        client_of(server) as client,
        gateway.serve("gateway", "1.0.0", [submit(answer)]),
    ):
        with pytest.raises(Unauthorized, match="does not let this user serve"):
            async with thief.serve("gateway", "1.0.0", [submit(steal)]):
                pass
        answers = {await client.request(subjects.command("submit"), b"") for _ in range(20)}
    assert answers == {b"the gateway's"}


async def test_checkpoints_go_from_executor_to_executor_and_to_nobody_else(server: Server) -> None:
    async def answer(_: Request) -> Reply:
        return Reply(body=b"weights")

    served = [Endpoint(name="read", subject=subjects.checkpoints("n1"), handler=answer)]
    async with (
        as_user(server, "executor") as n1,
        as_user(server, "executor") as n2,
        as_user(server, "client") as client,
        n1.serve("penstock-checkpoints-n1", "1.0.0", served),
    ):
        assert await n2.request(subjects.checkpoints("n1"), b"") == b"weights"
        with pytest.raises(Unauthorized):
            await client.request(subjects.checkpoints("n1"), b"")


@pytest.mark.parametrize(("role", "subject"), [("memory", subjects.slab), ("aggregator", subjects.aggregators)])
async def test_agents_of_a_kind_ask_each_other_and_nobody_else_may_ask_or_answer(
    server: Server, role: str, subject: Callable[[str], str]
) -> None:
    async def answer(request: Request) -> Reply:
        return Reply(body=b"a lease")

    served = [Endpoint(name="lease", subject=subject("n1"), handler=answer)]
    async with as_user(server, role) as n1, as_user(server, role) as n2, as_user(server, "executor") as other:
        async with n1.serve(f"penstock-{role}-n1", "1.0.0", served):
            assert await n2.request(subject("n1"), b"") == b"a lease"
            with pytest.raises(Unauthorized):
                await other.request(subject("n1"), b"")
        with pytest.raises(Unauthorized):
            async with other.serve(f"penstock-{role}-n1", "1.0.0", served):
                pass


async def test_clients_ask_nodes_for_output_and_nobody_answers_in_their_place(server: Server) -> None:
    async def answer(_: Request) -> Reply:
        return Reply(body=b"printed")

    async def lie(_: Request) -> Reply:
        return Reply(body=b"a lie")

    def output(handler: Handler) -> Endpoint:
        return Endpoint(name="output", subject=subjects.output("n1"), handler=handler)

    async with (
        as_user(server, "executor") as n1,
        as_user(server, "tuner") as tuner,
        client_of(server) as client,
        n1.serve("penstock-output-n1", "1.0.0", [output(answer)]),
    ):
        for liar in (tuner, client):
            with pytest.raises(Unauthorized, match="does not let this user serve"):
                async with liar.serve("penstock-output-n1", "1.0.0", [output(lie)]):
                    pass
        assert {await client.request(subjects.output("n1"), b"") for _ in range(20)} == {b"printed"}


async def test_each_executor_keeps_a_state_of_its_own_that_no_extension_can_replace(server: Server) -> None:
    snapshot = Snapshot(schema="s", last_seq=1, state=b"x")
    async with as_user(server, "executor") as executor, as_user(server, "extension") as extension:
        await executor.save_snapshot("executor.n1", snapshot)
        await extension.save_snapshot("webhook", snapshot)
        for bus, name in ((extension, "executor.n1"), (extension, "executor"), (executor, "webhook")):
            with pytest.raises(Unauthorized):
                await bus.save_snapshot(name, Snapshot(schema="forged", last_seq=9, state=b""))
        assert await executor.load_snapshot("executor.n1") == snapshot


async def test_only_the_admin_deletes_snapshots(server: Server) -> None:
    async with as_user(server, "matcher") as bus, client_of(server) as client, as_user(server, ADMIN) as admin:
        await bus.save_snapshot("matcher", Snapshot(schema="s", last_seq=1, state=b"x"))
        for unprivileged in (bus, client):
            with pytest.raises(Unauthorized):
                await unprivileged.delete_snapshots()
        await admin.delete_snapshots()
        assert await bus.load_snapshot("matcher") is None


@pytest.mark.filterwarnings("error")  # of a coroutine that is made and never awaited
async def test_a_client_that_would_serve_as_a_service_learns_it_at_once(server: Server) -> None:
    async with as_user(server, "client") as bus:
        shell = Shell(bus, "matcher")
        with pytest.raises(Unauthorized, match=r"does not let this user serve penstock\.qry\.matcher\.ready"):
            async with shell.serving():
                pass


@pytest.mark.parametrize("guess", ["password", "user_jwt", "user_seed"])
async def test_a_forged_login_is_refused(server: Server, guess: str) -> None:
    true = server.logins["matcher"]
    forged = Login(url=true.url, user="matcher", password="guess")
    if guess != "password":
        forged = msgspec.structs.replace(true, **{guess: getattr(server.logins["ranker"], guess)})
    with pytest.raises(Unauthorized, match="refused user 'matcher'"):
        async with connect(server.url, login=forged):
            pass


@pytest.mark.parametrize("user", [CLIENT, "gateway"])
async def test_a_command_line_may_ask_executors_for_output_as_a_client_or_beside_the_gateway(
    server: Server, user: str
) -> None:
    async def answer(_: Request) -> Reply:
        return Reply(body=b"output")

    asked = client_of(server) if user == CLIENT else as_user(server, user)
    subject = subjects.OUTPUTS.replace("*", "n1")
    async with (
        as_user(server, "executor") as executor,
        asked as bus,
        as_user(server, "ranker") as ranker,
        executor.serve("output", "1.0.0", [Endpoint(name="output", subject=subject, handler=answer)]),
    ):
        assert await bus.request(subject, b"") == b"output"
        with pytest.raises(Unauthorized):
            await ranker.request(subject, b"")


def test_samples_of_devices_name_jobs_and_are_heard_by_those_only_who_read_all():
    def heard(*, reads_all: bool) -> list[str]:
        return [one.subject for one in access.imports("A", "ann", reads_all=reads_all) if one.stream]

    kind = ".".join(subjects.devices("n1").split(".")[:3])
    assert not any(
        subject == f"{subjects.ROOT}.tel.>" or subject.startswith(kind) for subject in heard(reads_all=False)
    )
    assert f"{subjects.ROOT}.tel.>" in heard(reads_all=True)
