"""What a person can do with nats-py alone: nothing to others, and nothing in another name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import nats
import nats.errors
import pytest
from click.testing import Result
from gateway_cases import gateway
from nats.aio.client import Client as RawClient
from test_access_attackers import FORGED, bus_of, by_reply, of_the_api, picture, writing
from typer.testing import CliRunner

from penstock.client import Client
from penstock_bus import Append, Endpoint, Reply, Request, ServiceError, Snapshot, Unauthorized
from penstock_bus.identity.access import ADMIN
from penstock_bus.identity.claims import SigningKey
from penstock_bus.identity.issuer import issuing
from penstock_bus.identity.logins import Login, read_login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.nats.relay import AT_ONCE_OF_ONE, MOST_WAITING
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_cli.app import app
from penstock_gateway.machine import GatewaySettings
from penstock_log import Commit, JobCancelled, UserRemoved, UserSet, subjects
from penstock_log.request_bodies import LoginRequest
from penstock_log.services import WRITERS
from penstock_testing import eventually

pytestmark = pytest.mark.slow

NOW_S = 1_700_000_000.0
SECRET = b"what bob computes"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server with an issuer, something in every stream, and alice and bob."""
    async with running(ServerSettings(data_dir=tmp_path, owner="olga")) as started, bus_of(started, ADMIN) as admin:
        cancelled = Commit(id="c1", actor="gateway/1", facts=(JobCancelled(job_id="j1", at_s=1.0),))
        await admin.append(Append(subject=subjects.job("j1"), commit=cancelled, expected=0))
        await admin.write_output("j1", 0, SECRET)
        await admin.save_snapshot("matcher", Snapshot(schema="s", last_seq=1, state=b"true"))
        await admin.write_shadow("penstock.shadow.las.round.default", FORGED)
        assert await admin.acquire("matcher", "true", 3600.0)
        assert started.keyring is not None
        async with issuing(
            started.url,
            started.keyring,
            started.logins[ADMIN],
            owner="olga",
            advertised=started.url,
            now_s=lambda: NOW_S,
            services_account=started.services_account,
        ):
            yield started


async def told(server: Server, *facts: UserSet | UserRemoved) -> int:
    """Say something about people, as the gateway does."""
    seq = 0
    async with bus_of(server, "gateway") as gateway:
        for fact in facts:
            commit = Commit(id=f"{fact.user} {await gateway.last_seq()}", actor="gateway/1", facts=(fact,))
            seq = await gateway.append(Append(subject=subjects.user(fact.user), commit=commit, expected=None))
    return seq


async def login_of(server: Server, user: str, after_seq: int, by: str = "client") -> Login:
    """Return a login, as the owner, or another one, asks the issuer for it."""
    async with bus_of(server, by) as owner:
        ask = msgspec.json.encode(LoginRequest(user=user, after_seq=after_seq))
        body = await owner.request(subjects.command("login", "issuer"), ask, timeout_s=30.0)
        return msgspec.json.decode(body, type=Login)


async def added(server: Server, user: str, role: str = "user") -> Login:
    seq = await told(server, UserSet(user=user, role=role, at_s=NOW_S))  # type: ignore[arg-type]
    return await login_of(server, user, seq)


@asynccontextmanager
async def raw(login: Login) -> AsyncIterator[RawClient]:
    """A connection without any adapter."""

    async def unheard(_: Exception) -> None:
        """Violations are what is looked for; what came of them is looked up."""

    client = await nats.connect(
        login.url,
        user_jwt_cb=login.user_jwt.encode,
        signature_cb=SigningKey(login.user_seed).answer,
        error_cb=unheard,
        allow_reconnect=False,
    )
    try:
        yield client
    finally:
        await client.close()


def bus_as(login: Login) -> NatsBus:
    return connect(login.url, login=login, timeout_s=3.0, as_client=True)  # type: ignore[return-value]


async def settled(client: RawClient) -> None:
    await client.flush()
    await asyncio.sleep(0)
    await client.flush()


async def test_a_person_changes_nothing_of_the_streams(server: Server) -> None:
    alice, before = await added(server, "alice"), await picture(server)
    attempts = [
        *writing(
            *(subjects.entity(kind, "evil") for kind in WRITERS),
            subjects.state("matcher"),
            f"$KV.{subjects.LEASES}.matcher",
            subjects.log("j1", 0),
            subjects.rejected("jobs"),
            "penstock.shadow.las.round.default",
            "penstock.inbox.trash",
            "penstock.sign.evt.job.evil",
            "$JS.ACK.INBOX.gateway-jobs.1.1.1.1.0",
        ),
        *of_the_api(),
        *by_reply(),
        ("$SYS.REQ.CLAIMS.UPDATE", alice.user_jwt.encode(), {}, ""),
        ("$SYS.REQ.CLAIMS.DELETE", b"", {}, ""),
    ]
    async with raw(alice) as client:
        for subject, body, headers, reply in attempts:
            await client.publish(subject, body, reply=reply, headers=headers)
        await settled(client)
    assert await picture(server) == before


async def test_the_server_writes_who_asks_and_no_subject_of_theirs_says_another(server: Server) -> None:
    heard: list[tuple[str, bytes]] = []

    async def hear(request: Request) -> Reply:
        heard.append((request.user, request.body))
        return Reply(body=request.user.encode())

    endpoint = Endpoint(name="submit", subject=subjects.command("submit"), handler=hear)
    alice = await added(server, "alice")
    async with (
        bus_of(server, "gateway") as gateway,
        gateway.serve("gateway", "1.0.0", [endpoint]),
        raw(alice) as client,
    ):
        answer = await client.request(subjects.command("submit"), b"honest", timeout=10)
        assert answer.data == b"alice"
        for forged in (
            "penstock.p.bob.cmd.gateway.submit",
            "penstock.p.alice.cmd.gateway.submit",
            "penstock.p.bob.inbox.jobs",
            "penstock.cmd.gateway.submit.",
            "penstock.cmd.*.submit",
            "penstock.cmd.>",
        ):
            await client.publish(forged, b"forged")
        await settled(client)
        assert (await client.request(subjects.command("submit"), b"again", timeout=10)).data == b"alice"
    assert heard == [("alice", b"honest"), ("alice", b"again")]


async def test_a_submission_lies_in_the_inbox_under_the_name_of_who_sent_it(server: Server) -> None:
    alice = await added(server, "alice")
    async with bus_as(alice) as bus, bus_of(server, "gateway") as gateway:
        await bus.submit(subjects.INBOX_JOBS, b'{"user": "bob"}')
        work = await anext(gateway.work("gateway", [subjects.INBOX_JOBS]))
        assert (work.user, work.subject) == ("alice", subjects.INBOX_JOBS)
        await work.ack()


async def test_people_hear_nobody_elses_answers_and_nothing_of_what_is_stored(server: Server) -> None:
    alice, bob = await added(server, "alice"), await added(server, "bob")
    heard: list[tuple[str, bytes]] = []

    async def hear(msg: nats.aio.msg.Msg) -> None:
        heard.append((msg.subject, msg.data))

    async def answer(_: Request) -> Reply:
        return Reply(body=SECRET)

    endpoint = Endpoint(name="status", subject=subjects.query("status"), handler=answer)
    async with raw(alice) as thief, bus_of(server, "gateway") as gateway, bus_as(bob) as client:
        for pattern in ("_INBOX.>", "_R_.>", ">", "penstock.>", "penstock.evt.>", "penstock.log.>", "penstock.tel.>"):
            await thief.subscribe(pattern, cb=hear)
        await settled(thief)
        async with gateway.serve("gateway", "1.0.0", [endpoint]):
            assert await client.request(subjects.query("status"), b"", timeout_s=10.0) == SECRET
        await told(server, UserSet(user="carol", at_s=NOW_S))
        async with bus_of(server, "executor") as executor:
            await executor.write_output("j1", 0, SECRET)
            await executor.publish(subjects.progress("j1"), SECRET)
        await eventually(lambda: len([one for one in heard if one[0].startswith("penstock.log.")]) > 0)
        await settled(thief)
    assert {subject for subject, _ in heard} <= {subjects.user("carol"), subjects.log("j1", 0)}
    assert {body for _, body in heard} == {b""}


async def test_what_a_person_reads_is_asked_of_the_gateway(server: Server) -> None:
    alice = await added(server, "alice")
    asked: list[tuple[str, str]] = []

    async def may_read(user: str, subject: str) -> str:
        asked.append((user, subject))
        return "" if subject.endswith(("job.j1", "log.j1.*")) else f"{user} may not"

    async with bus_of(server, "gateway") as gateway, gateway.relaying(may_read), bus_as(alice) as bus:
        assert [one.subject for one in await bus.read(subjects.job("j1"))] == [subjects.job("j1")]
        assert [line.data async for line in bus.read_output("j1")] == [SECRET]
        assert await bus.last_seq() == await gateway.last_seq()
        for forbidden in ("penstock.evt.>", "penstock.evt.run.j1"):
            with pytest.raises(Unauthorized, match="alice may not"):
                await bus.read(forbidden)
        with pytest.raises(Unauthorized, match="alice may not"):
            await anext(bus.follow())
        assert {user for user, _ in asked} == {"alice"}


async def test_a_question_for_output_goes_to_the_node_only_for_a_job_that_may_be_seen(server: Server) -> None:
    async def output(_: Request) -> Reply:
        return Reply(body=SECRET)

    async def may_read(_: str, subject: str) -> str:
        return "" if subject == subjects.logs("mine") else "no"

    endpoint = Endpoint(name="output", subject=subjects.output("n1"), handler=output)
    alice = await added(server, "alice")
    async with (
        bus_of(server, "gateway") as gateway,
        bus_of(server, "executor") as executor,
        executor.serve("output", "1.0.0", [endpoint]),
        gateway.relaying(may_read),
        bus_as(alice) as bus,
    ):
        assert await bus.request(subjects.output("n1"), b'{"job_id": "mine"}', timeout_s=10.0) == SECRET
        for body in (b'{"job_id": "theirs"}', b"{", b'{"job_id": "*"}', b'{"job_id": "a.b"}'):
            with pytest.raises(ServiceError):
                await bus.request(subjects.output("n1"), body, timeout_s=10.0)
        with pytest.raises(ServiceError):
            await bus.request(subjects.output("n2"), b'{"job_id": "mine"}', timeout_s=10.0)


async def test_people_reach_the_sessions_of_nodes_under_their_own_names_alone(server: Server) -> None:
    async def who(request: Request) -> Reply:
        return Reply(body=f"{request.user} {request.subject}".encode())

    endpoint = Endpoint(name="session", subject=subjects.session("n1"), handler=who, concurrent=True)
    alice, bob = await added(server, "alice"), await added(server, "bob")
    forged = subjects.by_person("bob", subjects.session("n1"))
    async with (
        bus_of(server, "executor") as executor,
        bus_of(server, "matcher") as matcher,
        executor.serve("sessions-n1", "1.0.0", [endpoint]),
        bus_as(alice) as hers,
        bus_as(bob) as his,
    ):
        asked = [await bus.request(subjects.session("n1"), b"", timeout_s=10.0) for bus in (hers, his)]
        assert asked == [b"alice penstock.session.n1", b"bob penstock.session.n1"]
        for bus in (hers, matcher):
            with pytest.raises(Unauthorized):
                await bus.request(forged, b"", timeout_s=10.0)
        with pytest.raises(Unauthorized):
            async with matcher.serve("sessions-n1", "1.0.0", [endpoint]):
                pass


async def test_whoever_has_a_thousand_reads_open_delays_nobody_else(server: Server) -> None:
    alice, bob = await added(server, "alice"), await added(server, "bob")
    silent, asked = asyncio.Event(), 0
    refused: list[str] = []

    async def never(_: Request) -> Reply:
        nonlocal asked
        asked += 1
        await silent.wait()
        return Reply()

    async def may_read(_: str, __: str) -> str:
        return ""

    async def hear(msg: nats.aio.msg.Msg) -> None:
        refused.append((msg.headers or {})["Nats-Service-Error"])

    endpoint = Endpoint(name="output", subject=subjects.output("n1"), handler=never, concurrent=True)
    async with (
        bus_of(server, "gateway") as gateway,
        bus_of(server, "executor") as executor,
        executor.serve("output", "1.0.0", [endpoint]),
        gateway.relaying(may_read),
        raw(alice) as flood,
        bus_as(bob) as bus,
    ):
        await flood.subscribe("_INBOX.alice", cb=hear)
        for _ in range(AT_ONCE_OF_ONE + MOST_WAITING + 1):
            await flood.publish(subjects.output("n1"), b'{"job_id": "j1"}', reply="_INBOX.alice")
        await eventually(lambda: len(refused) == 1)  # all others wait, or are asked of the node
        assert [one.subject for one in await bus.read(subjects.job("j1"))] == [subjects.job("j1")]
        with pytest.raises(ServiceError, match=r"no answer|nobody serves"):
            await bus.request(subjects.output("n2"), b'{"job_id": "j1"}', timeout_s=10.0)
        assert asked == AT_ONCE_OF_ONE
        silent.set()
    assert refused[0].startswith(
        "alice has 1,000 reads waiting already; 1,000 are the most for one user, and 4 are made"
    )


async def test_whoever_is_rotated_or_removed_is_out_at_once(server: Server) -> None:
    alice = await added(server, "alice")
    async with raw(alice) as client:
        seq = await told(server, UserSet(user="alice", valid_from_s=NOW_S + 10, at_s=NOW_S + 10))
        await eventually(lambda: client.is_closed)
    with pytest.raises(nats.errors.Error):
        async with raw(alice):
            pass
    newer = await login_of(server, "alice", seq)
    async with raw(newer) as client:
        await told(server, UserRemoved(user="alice", at_s=NOW_S + 20))
        await eventually(lambda: client.is_closed)
    with pytest.raises(nats.errors.Error):
        async with raw(newer):
            pass


async def test_people_rotate_their_own_login_and_hold_the_new_one(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("home") / "olga.json"
    old = server.logins["client"]

    def rotate() -> Result:
        client = {"client": lambda _: Client(server.url, login=old)}
        return CliRunner().invoke(app, ["user", "rotate", "olga", "--out", str(file)], obj=client)

    async with bus_of(server, "gateway") as bus, gateway(bus, settings=GatewaySettings(owner="olga")):
        result = await asyncio.to_thread(rotate)
        assert "the logins of olga that were issued until now are refused" in result.output
        assert await is_let_in(server, read_login(file))
        assert not await is_let_in(server, old)


async def test_logins_are_for_admins_to_make(server: Server) -> None:
    alice, ada = await added(server, "alice"), await added(server, "ada", "admin")
    async with bus_as(alice) as bus:
        for body in (b"", b'{"user": "olga"}', b'{"user": "alice"}'):  # or one that ends could make one that does not
            with pytest.raises(ServiceError, match="logins are made by admins, and alice is none"):
                await bus.request(subjects.command("login", "issuer"), body, timeout_s=10.0)
    async with bus_as(ada) as bus:
        made = await bus.request(subjects.command("login", "issuer"), b'{"user": "olga"}', timeout_s=10.0)
        assert msgspec.json.decode(made, type=Login).user == "olga"
        with pytest.raises(ServiceError, match="no user 'nobody'; add them first"):
            await bus.request(subjects.command("login", "issuer"), b'{"user": "nobody"}', timeout_s=10.0)


async def test_an_operator_reads_everything_and_stops_to_when_that_is_over(server: Server) -> None:
    oskar = await added(server, "oskar", "operator")
    async with bus_as(oskar) as bus:
        assert (await bus.read(subjects.job("j1")))[0].subject == subjects.job("j1")
    await told(server, UserSet(user="oskar", role="user", at_s=NOW_S))
    async with raw(oskar) as client:
        with pytest.raises(nats.errors.Error):  # nobody relays here, so nobody answers
            await client.request(f"$JS.API.DIRECT.GET.EVT.{subjects.job('j1')}", b"", timeout=2)


async def test_services_hear_no_answers_to_people_and_no_login_of_a_node(server: Server) -> None:
    heard: list[str] = []

    async def hear(msg: nats.aio.msg.Msg) -> None:
        heard.append(msg.subject)

    assert server.keyring is not None
    joining, other = (server.keyring.join_login(server.url, token, NOW_S, 4e9) for token in ("t1", "t2"))
    thieves = {service: server.logins[service] for service in ("extension", "executor", "matcher")}
    for name, login in {**thieves, "join": other}.items():
        async with raw(login) as thief:
            patterns = ("_R_.>", "_INBOX.join.>", "_INBOX.gateway.>")
            for pattern in (">", "penstock.>", "_INBOX.gateway.>") if name == "join" else patterns:
                await thief.subscribe(pattern, cb=hear)
            await settled(thief)
            assert await added(server, f"new-{name}")
            async with bus_as(joining) as newcomer:
                with pytest.raises(ServiceError):  # an answer, which is a refusal here
                    await newcomer.request(f"{subjects.command('join', 'issuer')}.t1", b"{}", timeout_s=10.0)
            await settled(thief)
    assert heard == []


async def test_an_extension_commands_nothing_about_people_nodes_and_policies(server: Server) -> None:
    async with bus_of(server, "extension") as bus:
        for name in ("set_user", "remove_user", "policy", "drain", "remove"):
            with pytest.raises(Unauthorized):
                await bus.request(subjects.command(name), b"{}", timeout_s=10.0)


@asynccontextmanager
async def issuing_for(server: Server) -> AsyncIterator[None]:
    assert server.keyring is not None
    admin, url = server.logins[ADMIN], server.url
    async with (
        connect(url, login=admin),  # which makes the streams
        issuing(
            url,
            server.keyring,
            admin,
            owner=server.owner,
            advertised=url,
            now_s=lambda: NOW_S,
            services_account=server.services_account,
        ),
    ):
        yield


async def is_let_in(server: Server, login: Login) -> bool:
    try:
        async with raw(msgspec.structs.replace(login, url=server.url)):
            return True
    except nats.errors.Error:
        return False


async def test_a_former_owners_login_ends_when_another_owns_the_server(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path, owner="olga")) as started, issuing_for(started):
        olga = await login_of(started, "olga", 0)
    async with (
        running(ServerSettings(data_dir=tmp_path, owner="oleg")) as started,
        raw(msgspec.structs.replace(olga, url=started.url)) as former,  # before it is known who there is
        issuing_for(started),
    ):
        await eventually(lambda: former.is_closed)
        assert not await is_let_in(started, olga)


async def test_an_owners_revoked_login_stays_out_while_the_server_starts_again(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path, owner="olga")) as started:
        async with issuing_for(started):
            revoked = [started.logins["client"], await login_of(started, "olga", 0)]
            seq = await told(started, UserSet(user="olga", valid_from_s=NOW_S, at_s=NOW_S))
            newer = await login_of(started, "olga", seq, ADMIN)
        await started.kill()
        await started.start()  # no issuer is there yet
        assert [await is_let_in(started, one) for one in revoked] == [False, False]
        assert await is_let_in(started, newer)
        assert await is_let_in(started, started.logins["client"])
        (account,) = (tmp_path / "nats/accounts").glob(f"{started.keyring.person('olga')}.jwt")  # type: ignore[union-attr]
        await started.kill()
        account.write_text("")  # as a power cut may leave it
        await started.start()
        assert [await is_let_in(started, one) for one in (*revoked, newer)] == [False, False, False]
        async with issuing_for(started):
            assert await is_let_in(started, await login_of(started, "olga", seq, ADMIN))
            assert await is_let_in(started, newer)
