"""People with tokens of an identity provider, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import pytest
from local_issuer import AUDIENCE, LocalIssuer, serving
from nats.aio.client import Client
from test_access_attackers import bus_of

from penstock_bus import Append, Endpoint, Reply, Request, Unauthorized
from penstock_bus.identity.login_tokens import keep_tokens
from penstock_bus.identity.logins import Login, Provider, Tokens
from penstock_bus.identity.token_verifier import OidcSettings
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import ServerSettings
from penstock_bus.servers.server_group import ServerGroup, running
from penstock_log import Commit, UserRemoved, UserSet, subjects, views
from penstock_log.request_bodies import UserRequest
from penstock_testing import eventually

pytestmark = pytest.mark.slow
WHO = subjects.query("whoami")


@asynccontextmanager
async def letting_in(data: Path, issuer: LocalIssuer, **more: Any) -> AsyncIterator[ServerGroup]:
    """A server that lets people with tokens in, with what stands in for the gateway, and nobody but its owner olga."""
    oidc = OidcSettings(**{"issuer": issuer.url, "audience": AUDIENCE, "leeway_s": 0.0, **more})
    settings = ServerSettings(data_dir=data, owner="olga", extensions=("billing",), oidc=oidc)
    async with running(settings) as server, bus_of(server.servers[0], "gateway") as gateway:

        async def who(request: Request) -> Reply:
            return Reply(body=request.user.encode())

        async def set_user(request: Request) -> Reply:
            ask = msgspec.json.decode(request.body, type=UserRequest)
            fact = UserSet(user=ask.user, role=ask.role or "user", teams=ask.teams or (), by=ask.by, at_s=1.0)
            seq = await told(server, fact)
            return Reply(body=msgspec.json.encode(views.ActAnswer(id="x", changed=True, state="", message="", seq=seq)))

        endpoints = [
            Endpoint(name="whoami", subject=WHO, handler=who),
            Endpoint(name="set_user", subject=subjects.command("set_user"), handler=set_user),
        ]
        async with gateway.serve("gateway", "1.0.0", endpoints), server.issuing():
            yield server


async def told(server: ServerGroup, fact: UserSet | UserRemoved) -> int:
    """Say something about a person, as the gateway does."""
    async with bus_of(server.servers[0], "gateway") as gateway:
        commit = Commit(id=f"{fact.user} {await gateway.last_seq()}", actor="gateway/1", facts=(fact,))
        return await gateway.append(Append(subject=subjects.user(fact.user), commit=commit, expected=None))


def bus_by(server: ServerGroup, token: str = "", **more: Any) -> NatsBus:
    login = Login(url=server.url, user="", token=token, **more)
    return connect(server.url, login=login, timeout_s=3.0, as_client=True)  # type: ignore[return-value]


@asynccontextmanager
async def token_client(server: ServerGroup, token: str) -> AsyncIterator[Client]:
    """A connection without any adapter."""
    client = await nats.connect(server.url, token=token, allow_reconnect=False, error_cb=unheard)
    try:
        yield client
    finally:
        await client.close()


async def unheard(_: Exception) -> None:
    """What came of a connection is looked up."""


async def refused(server: ServerGroup, token: str | None) -> str:
    """Return what the server writes of a connection that it refuses."""
    log = server.servers[0].log_file
    before = log.stat().st_size
    with pytest.raises(nats.errors.Error):
        await nats.connect(server.url, token=token, allow_reconnect=False, error_cb=unheard)
    await eventually(lambda: b"Auth callout service returned an error" in log.read_bytes()[before:])
    return log.read_bytes()[before:].decode()


async def test_who_is_known_is_let_in_by_a_token_and_nobody_else(tmp_path: Path) -> None:
    with serving(LocalIssuer()) as issuer:
        async with letting_in(tmp_path, issuer) as server:
            seq = await told(server, UserSet(user="jane", at_s=1.0))
            long = issuer.token(groups=["a-team-of-many"] * 700)
            async with bus_by(server, long) as bus:
                assert await bus.request(WHO, b"") == b"jane"
                with pytest.raises(Unauthorized):
                    await bus.request(f"penstock.p.olga.{WHO.removeprefix('penstock.')}", b"")
            for name, said in (
                ("bob", "bob is no user; an admin adds people with `penstock user add bob`"),
                ("olga", "olga is the name of the owner or of a service"),
                ("OLGA", "OLGA is the name of the owner or of a service"),
                ("gateway", "gateway is the name of the owner or of a service"),
                ("admin", "admin is the name of the owner or of a service"),
                ("billing", "billing is the name of the owner or of a service"),
            ):
                assert said in await refused(server, issuer.token(preferred_username=name))
            assert "there is no token" in await refused(server, None)
            assert "its issuer is" in await refused(server, issuer.token(iss="https://evil.example"))
            with pytest.raises(Unauthorized, match=rf"refused the token of bob from {issuer.url} for penstock"):
                async with bus_by(server, issuer.token(preferred_username="bob")):
                    pass
            async with bus_of(server.servers[0], "gateway") as gateway:
                assert await gateway.last_seq() == seq  # nobody was added


async def test_whoever_is_rotated_or_removed_is_out_although_their_token_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_bus.nats.bus._REFUSED_S", 0.0)
    with serving(LocalIssuer()) as issuer:
        async with letting_in(tmp_path, issuer, add_users=True, leeway_s=30.0) as server:
            await told(server, UserSet(user="jane", at_s=1.0))
            old, newer = issuer.token(), issuer.token(iat=int(issuer.now_s()) + 10)
            async with token_client(server, old) as client:
                await told(server, UserSet(user="jane", valid_from_s=issuer.now_s(), at_s=1.0))
                await eventually(lambda: client.is_closed)
            assert "the logins of jane were revoked after this token was made" in await refused(server, old)
            async with bus_by(server, newer) as bus:
                assert await bus.request(WHO, b"") == b"jane"
                await told(server, UserRemoved(user="jane", at_s=1.0))
                await eventually(lambda: bus.link.client.is_closed)
                with pytest.raises(Unauthorized, match="refused the token of jane"):
                    await bus.request(WHO, b"")
            assert "jane was removed; an admin adds people" in await refused(server, newer)


async def test_a_first_login_adds_a_user_and_each_login_sets_the_teams_of_the_token(tmp_path: Path) -> None:
    with serving(LocalIssuer()) as issuer:
        async with letting_in(tmp_path, issuer, add_users=True, teams_claim="groups") as server:
            for groups in (["vision"], ["vision"], None, ["speech", "vision"]):
                async with bus_by(server, issuer.token(groups=groups)) as bus:
                    assert await bus.request(WHO, b"") == b"jane"
            async with bus_of(server.servers[0], "gateway") as gateway:
                said = [fact for one in await gateway.read(subjects.user("jane")) for fact in one.commit.known]
    assert [(fact.teams, fact.role, fact.by) for fact in said if isinstance(fact, UserSet)] == [
        (("vision",), "user", "oidc"),
        (("speech", "vision"), "user", "oidc"),
    ]


async def test_a_long_connection_goes_on_with_a_new_token_when_the_first_one_ends(tmp_path: Path) -> None:
    with serving(LocalIssuer()) as issuer:
        async with letting_in(tmp_path, issuer) as server:
            await told(server, UserSet(user="jane", at_s=1.0))
            issuer.lifetime_s, issuer.refresh_tokens = 3.0, {"r0"}
            kept, provider = tmp_path / "tokens.json", Provider(issuer=issuer.url, client_id=AUDIENCE)
            keep_tokens(kept, Tokens(issuer.token(), "r0"))
            async with bus_by(server, token_file=str(kept), provider=provider) as bus:
                assert await bus.request(WHO, b"") == b"jane"
                ended = asyncio.Event()
                bus.link.on_lost.add(ended.set)
                await ended.wait()
                assert await bus.request(WHO, b"", timeout_s=10.0) == b"jane"
            assert json.loads(kept.read_bytes())["refresh_token"] not in {"r0", ""}
            assert kept.stat().st_mode & 0o777 == 0o600
