"""Logins of nodes on a real server: a token for each machine, and a login that is revoked without any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import nats.errors
import pytest
from test_access_attackers import bus_of
from test_access_people import added, bus_as, login_of, raw

from penstock.client import Client
from penstock_bus import Append, NoResponders, ServiceError, Unauthorized
from penstock_bus.identity import claims, node_issuer
from penstock_bus.identity.access import ADMIN
from penstock_bus.identity.claims import SigningKey
from penstock_bus.identity.issuer import issuing
from penstock_bus.identity.logins import JoinAnswer, Login
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_cli.commands import backup
from penstock_cli.local import backup_file
from penstock_log import Commit, NodeJoined, NodeLeft, NodeLoginIssued, subjects
from penstock_log.request_bodies import JoinRequest
from penstock_testing import eventually

pytestmark = pytest.mark.slow
NOW_S = 1_700_000_000.0


def issuer_of(server: Server, now_s: Callable[[], float] = lambda: NOW_S):  # type: ignore[no-untyped-def]
    assert server.keyring is not None
    return issuing(
        server.url,
        server.keyring,
        server.logins[ADMIN],
        owner="olga",
        advertised=server.url,
        now_s=now_s,
        services_account=server.services_account,
        revoked=server.refused,
        hosts=("10.0.0.7",),
    )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(ServerSettings(data_dir=tmp_path, owner="olga")) as started:
        async with bus_of(started, ADMIN):
            pass  # the first connection of an admin makes the streams
        yield started


@pytest.fixture
async def olga(server: Server) -> AsyncIterator[Client]:
    async with bus_of(server, "client") as bus, Client(bus=bus) as client:
        yield client


def key(number: int) -> SigningKey:
    return SigningKey.derived("user", bytes(32), f"machine {number}")


async def joined(token: Login, node_id: str, number: int, *, agent: int = 0, role: str = "memory") -> Login:
    """
    Join as ``penstock node join`` does; the test's tokens are of 2023, so one that has ended is let in again.

    Returns the login of the executor, or of an agent where its key is given.
    """
    own, agents = key(number), key(agent)
    wanted = {f"{role}_key": agents.public} if agent else {}
    asked = JoinRequest(node_id=node_id, key=own.public, machine="vm uid 0", **wanted)
    body = msgspec.json.encode(asked)
    subject = f"{subjects.command('join', 'issuer')}.{claims.decoded(token.user_jwt)['name']}"
    async with bus_as(token) as bus:
        found = msgspec.json.decode(await bus.request(subject, body, timeout_s=10.0), type=JoinAnswer)
    given = {name: getattr(found, f"{name}_jwt") for name in ("memory", "aggregator")}
    assert {name for name, claim in given.items() if claim} == ({role} if agent else set())
    if agent:
        return Login(url=found.url, user=role, user_jwt=given[role], user_seed=agents.seed)
    return Login(url=found.url, user=found.user, user_jwt=found.user_jwt, user_seed=own.seed)


async def admitted(server: Server, olga: Client, node_id: str, number: int) -> Login:
    """Join by a token of its own."""
    assert server.keyring is not None
    name = claims.decoded((await olga.node_token(60.0)).user_jwt)["name"]
    return await joined(server.keyring.join_login(server.url, name, NOW_S, 4e9), node_id, number)


async def writes(login: Login, node_id: str) -> None:
    async with connect(login.url, login=login, timeout_s=5.0) as bus:
        commit = Commit(id=f"{node_id} {await bus.last_seq()}", actor="x", facts=())
        await bus.append(Append(subject=subjects.node(node_id), commit=commit, expected=None))


async def test_a_machine_joins_once_by_a_token_and_asks_for_nothing_else(server: Server, olga: Client) -> None:
    async with issuer_of(server):
        alice = await added(server, "alice")
        token = await olga.node_token(60.0)
        assert claims.decoded(token.user_jwt)["exp"] == NOW_S + 60
        assert token.hosts == ("10.0.0.7",)
        with pytest.raises(Unauthorized, match="expired on"):
            await joined(token, "n2", 2)  # it ended years ago
        assert server.keyring is not None
        name = claims.decoded(token.user_jwt)["name"]
        good = server.keyring.join_login(server.url, name, NOW_S, 4e9)
        first = await joined(good, "n2", 2)
        assert (await joined(good, "n2", 2)).user_seed == first.user_seed  # whoever asks again is no second machine
        await writes(first, "n2")
        with pytest.raises(ServiceError, match=r"used up: n2 \(vm uid 0\) joined with it at 2023-11-14 22:13:20 UTC"):
            await joined(good, "n3", 3)
        unknown = server.keyring.join_login(server.url, "another", NOW_S, 4e9)
        with pytest.raises(ServiceError, match="the log knows no token another"):
            await joined(unknown, "n3", 3)
        join, ask = (
            subjects.command("join", "issuer"),
            msgspec.json.encode(JoinRequest(node_id="n9", key=key(9).public)),
        )
        async with bus_as(unknown) as newcomer:
            for subject in (f"{join}.{name}", join, subjects.command("token", "issuer"), subjects.node("n9")):
                with pytest.raises(Unauthorized):
                    await newcomer.request(subject, ask, timeout_s=10.0)
        async with bus_as(alice) as bus:
            for command in ("token", "revoke"):
                with pytest.raises(ServiceError, match="by admins, and alice is none"):
                    await bus.request(subjects.command(command, "issuer"), b'{"id": "n2"}', timeout_s=10.0)
            with pytest.raises(ServiceError, match="nodes join with a token, and alice is a person"):
                await bus.request(f"{join}.{name}", ask, timeout_s=10.0)
            with pytest.raises((NoResponders, Unauthorized)):
                await bus.request(join, ask, timeout_s=10.0)
        async with connect(first.url, login=first, timeout_s=5.0) as bus:  # a stolen login
            for subject in (f"{join}.{name}", subjects.command("token", "issuer")):
                with pytest.raises(Unauthorized):
                    await bus.request(subject, ask, timeout_s=10.0)
        many = await olga.node_token(30 * 24 * 3600.0, uses=2)
        good = server.keyring.join_login(server.url, claims.decoded(many.user_jwt)["name"], NOW_S, 4e9)
        came = await asyncio.gather(*(joined(good, f"m{i}", 10 + i) for i in range(4)), return_exceptions=True)
        assert sorted(type(one).__name__ for one in came) == ["Login", "Login", "ServiceError", "ServiceError"]


async def test_one_login_is_revoked_at_once_and_after_every_restart(server: Server, olga: Client) -> None:
    async with issuer_of(server):
        made = [await olga.node_token(60.0, uses=5) for _ in range(2)]
        assert server.keyring is not None
        names = [claims.decoded(token.user_jwt)["name"] for token in made]
        tokens = [server.keyring.join_login(server.url, name, NOW_S, 4e9) for name in names]
        stolen, other = [
            await joined(token, node, 20 + i) for i, (token, node) in enumerate(zip(tokens, ("n2", "n3"), strict=True))
        ]
        async with raw(stolen) as thief, raw(other) as honest, raw(server.logins["matcher"]) as service:
            answer = await olga.revoke_node("n2", "sold")
            await eventually(lambda: thief.is_closed)
            assert (answer.changed, answer.message) == (
                True,
                "the server refuses the login of n2, and admits nobody by the same token",
            )
            assert honest.is_connected
            assert service.is_connected
        with pytest.raises(ServiceError, match="this token was ended at"):
            await joined(tokens[0], "n2", 30)
        with pytest.raises(ServiceError, match="this login was revoked at"):
            await joined(tokens[0], "n2", 20)
        assert not (await olga.revoke_node("n2")).changed
        with pytest.raises(
            ServiceError, match="no node 'n9' has joined, and no token has this id; expected one of: n2"
        ):
            await olga.revoke_node("n9")
        await olga.revoke_node(names[1], "its token leaked")
        listed = await olga.node_logins()
        assert [(one.node_id, one.revoked_s) for one in listed.logins] == [("n2", NOW_S), ("n3", NOW_S)]
        third = await olga.node_token(60.0)
        good = server.keyring.join_login(server.url, claims.decoded(third.user_jwt)["name"], NOW_S, 4e9)
        kept = await joined(good, "n4", 40)
    for revoked_file in ("there", "gone"):
        if revoked_file == "gone":
            server.revoked_file.unlink()
        await server.stop()
        await server.start()
        if revoked_file == "there":  # before anybody has read the log
            with pytest.raises(nats.errors.Error):
                async with raw(stolen):
                    pass
        async with issuer_of(server):
            await eventually(server.revoked_file.exists)
            await writes(kept, "n4")
            for login in (stolen, other):
                with pytest.raises(Unauthorized, match=r"it was revoked since|user authentication revoked"):
                    await writes(login, "n2")  # which the server may let in, and out at once as it hears of it


async def test_the_name_of_a_running_node_is_no_other_machines_until_it_is_silent(
    server: Server, olga: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with issuer_of(server), bus_of(server, ADMIN) as admin:
        login = await admitted(server, olga, "n2", 2)
        fact = NodeJoined(
            node_id="n2", incarnation="b-1", devices=(), pool="default", labels={"address": "10.0.0.7"}, at_s=NOW_S
        )
        async with connect(login.url, login=login, timeout_s=5.0) as node:
            commit = Commit(id="joined", actor="executor", facts=(fact,))
            await node.append(Append(subject=subjects.node("n2"), commit=commit, expected=None))

            async def beat() -> None:
                while True:
                    await node.publish(subjects.heartbeat("n2"), b"{}")
                    await asyncio.sleep(0.05)

            beating = asyncio.create_task(beat())
            name = claims.decoded((await olga.node_token(60.0)).user_jwt)["name"]
            assert server.keyring is not None
            token = server.keyring.join_login(server.url, name, NOW_S, 4e9)
            with pytest.raises(
                ServiceError, match=r"node n2 is running, on 10\.0\.0\.7: each node has a name of its own"
            ):
                await joined(token, "n2", 3)
            assert [one.key for one in (await olga.node_logins()).logins] == [key(2).public]
            beating.cancel()
        monkeypatch.setattr(node_issuer, "LISTEN_S", 0.2)
        await joined(token, "n2", 3)  # the token is not spent
        left = Commit(id="left", actor="executor", facts=(NodeLeft(node_id="n2", at_s=NOW_S),))
        await admin.append(Append(subject=subjects.node("n2"), commit=left, expected=None))
        await admitted(server, olga, "n2", 4)


@pytest.mark.parametrize(("role", "subject"), [("memory", subjects.memory), ("aggregator", subjects.aggregator)])
async def test_an_agent_has_a_login_of_its_own_that_is_revoked_with_the_nodes(
    server: Server, olga: Client, role: str, subject: Callable[[str], str]
) -> None:
    async with issuer_of(server):
        names = [claims.decoded((await olga.node_token(60.0, uses=2)).user_jwt)["name"] for _ in range(2)]
        assert server.keyring is not None
        good, later = [server.keyring.join_login(server.url, name, NOW_S, 4e9) for name in names]
        executor = await joined(good, "n2", 70)
        with pytest.raises(ServiceError, match="has joined with other keys; join with another token"):
            await joined(good, "n2", 70, agent=71, role=role)  # of a machine that joined without one
        agent = await joined(good, "n3", 72, agent=73, role=role)
        assert (await joined(good, "n3", 72, agent=73, role=role)) == agent
        with pytest.raises(ServiceError, match="used up: n3"):  # two machines, whatever logins they got
            await joined(good, "n4", 74, agent=75, role=role)
        with pytest.raises(ServiceError, match="have a key each"):
            await joined(later, "n4", 76, agent=76, role=role)
        async with connect(agent.url, login=agent, timeout_s=5.0) as bus:
            await bus.append(Append(subject=subject("n3"), commit=Commit(id="m", actor="x", facts=()), expected=None))
            with pytest.raises(Unauthorized):
                await bus.append(
                    Append(subject=subjects.node("n3"), commit=Commit(id="n", actor="x", facts=()), expected=None)
                )
        async with raw(executor) as honest, raw(agent) as thief:
            assert (await olga.revoke_node("n3")).message.startswith("the server refuses the login of n3")
            await eventually(lambda: thief.is_closed)
            assert honest.is_connected
        with pytest.raises(ServiceError, match="this login was revoked at"):
            await joined(later, "n5", 77, agent=73, role=role)
        assert [one.node_id for one in (await olga.node_logins()).logins] == ["n2", "n3"]


async def test_nobody_comes_in_by_a_login_from_before_a_restore(tmp_path: Path) -> None:
    """Revoked or rotated after the backup, or joined after it: the log that is restored knows of none of these."""
    folder, file, port = tmp_path / "lost", tmp_path / "backup.tar.gz", -1
    settings = ServerSettings(data_dir=folder, owner="olga")
    async with running(settings) as lost, bus_of(lost, ADMIN) as admin, issuer_of(lost):
        port = int(lost.url.rpartition(":")[2])
        old = [await added(lost, "alice")]
        async with bus_of(lost, "client") as bus, Client(bus=bus) as olga:
            old.append(await admitted(lost, olga, "n5", 70))
            await backup_file.write(file, admin.link, folder, NOW_S)
            await olga.revoke_node("n5")
            old.append(await admitted(lost, olga, "n6", 71))
    await backup_file.restore(file, tmp_path / "new", backup._server)
    settings = msgspec.structs.replace(settings, data_dir=tmp_path / "new", port=port)
    async with running(settings) as server, issuer_of(server), bus_of(server, "client") as bus, Client(bus=bus) as olga:
        for login in [*old, lost.logins["client"], lost.logins[ADMIN], lost.logins["executor"]]:
            with pytest.raises(Unauthorized):
                async with connect(server.url, login=login, timeout_s=5.0, as_client=True):
                    pass
        listed = await olga.node_logins()
        assert [(one.node_id, bool(one.revoked_s)) for one in listed.logins] == [("n5", True)]
        async with bus_as(await login_of(server, "alice", 0)):
            pass  # who was a user at the backup is one, by a new login
        again = await admitted(server, olga, "n6", 71)
        await writes(again, "n6")
        async with raw(again) as node:
            await olga.revoke_node("n6")
            await eventually(lambda: node.is_closed)


async def test_a_fact_about_an_unknown_token_admits_nobody(server: Server) -> None:
    """Whoever could write one alone, without the token's own fact before it, has no login by that."""
    async with issuer_of(server), bus_of(server, ADMIN) as admin:
        fact = NodeLoginIssued(token="forged", node_id="n9", key=key(9).public, at_s=NOW_S)
        commit = Commit(id="forged", actor="x", facts=(fact,))
        await admin.append(Append(subject=subjects.login("forged"), commit=commit, expected=0))
        assert server.keyring is not None
        with pytest.raises(ServiceError, match="the log knows no token forged"):
            await joined(server.keyring.join_login(server.url, "forged", NOW_S, 4e9), "n9", 9)


async def test_a_key_that_came_twice_is_refused_after_each_of_its_revocations(server: Server, olga: Client) -> None:
    """Whoever kept a second token for a key is out again once that login is revoked too, and comes back by none."""
    now_s = [NOW_S]
    assert server.keyring is not None
    async with issuer_of(server, lambda: now_s[0]):
        tokens = [
            server.keyring.join_login(
                server.url, claims.decoded((await olga.node_token(60.0)).user_jwt)["name"], 1, 4e9
            )
            for _ in range(3)
        ]
        for token, node in zip(tokens[:2], ("n2", "n3"), strict=True):
            await joined(token, node, 50)
        await olga.revoke_node("n2")
        now_s[0] += 60
        with pytest.raises(ServiceError, match="this login was revoked at"):
            await joined(tokens[1], "n3", 50)
        with pytest.raises(ServiceError, match="this login was revoked at"):
            await joined(tokens[2], "n4", 50)


async def test_a_later_revocation_of_a_key_reaches_the_servers(server: Server, olga: Client) -> None:
    """As where the log has a login that was issued for a key after it was revoked, by an earlier version."""
    now_s = [NOW_S]
    async with issuer_of(server, lambda: now_s[0]), bus_of(server, ADMIN) as admin:
        names = [claims.decoded((await olga.node_token(60.0)).user_jwt)["name"] for _ in range(2)]
        assert server.keyring is not None
        tokens = [server.keyring.join_login(server.url, name, NOW_S, 4e9) for name in names]
        await joined(tokens[0], "n2", 60)
        await olga.revoke_node("n2")
        again = NodeLoginIssued(token=names[1], node_id="n3", key=key(60).public, at_s=NOW_S + 60)
        subject, commit = subjects.login(names[1]), Commit(id="again", actor="issuer", facts=(again,))
        await admin.append(Append(subject=subject, commit=commit, expected=None))
        later = server.keyring.node_login(server.url, key(60).public, NOW_S + 60)
        later = msgspec.structs.replace(later, user_seed=key(60).seed)
        now_s[0] += 120
        async with raw(later) as thief:
            await olga.revoke_node("n3")
            await eventually(lambda: thief.is_closed)
        with pytest.raises(Unauthorized, match="it was revoked since"):
            await writes(later, "n3")
