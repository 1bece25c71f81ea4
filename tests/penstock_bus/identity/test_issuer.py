"""The issuer's accounts and logins, beside a server that is as exact about keys as NATS, and as slow as one likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest

from penstock_bus import Append, BusError, ServiceError
from penstock_bus.identity import claims
from penstock_bus.identity.issuer import Issuer
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import Login
from penstock_bus.memory import MemoryBus
from penstock_gateway import people
from penstock_gateway.machine import GatewayState
from penstock_log import Commit, UserRemoved, UserSet, subjects
from penstock_log.request_bodies import LoginRequest, UserRequest
from penstock_testing import eventually

RING = Keyring(b"k" * 32)
NOW_S = 1_700_000_000.0


class FakeAccounts:
    """Accounts as a server keeps them; of some it takes nothing, or never answers."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, object]] = {}
        self.refused: set[str] = set()
        self.unanswered: set[str] = set()
        self.told: list[str] = []

    async def update(self, token: str) -> None:
        content = claims.decoded(token)
        self.told.append(content["name"])
        if content["name"] in self.refused:
            raise BusError("the server refused an account: no room")
        if content["name"] in self.unanswered:
            await asyncio.Event().wait()
        self.kept[content["sub"]] = content["nats"]

    async def delete(self, token: str) -> None:
        for public in claims.decoded(token)["nats"]["accounts"]:
            self.kept.pop(public, None)

    async def listed(self) -> list[str]:
        return list(self.kept)

    def lets_in(self, login: Login) -> bool:
        """Say whether a login was signed by a key that its account names."""
        said = claims.decoded(login.user_jwt)
        account = self.kept.get(said["nats"]["issuer_account"], {})
        return said["iss"] in [one["key"] for one in account.get("signing_keys", ())]  # type: ignore[attr-defined]


class Issued:
    """A running issuer with a log, of which the gateway is this test."""

    def __init__(self, bus: MemoryBus, server: FakeAccounts) -> None:
        self.bus, self.server, self.state, self.ids = bus, server, GatewayState(), count(1)

    async def set(self, user: str, gateway_s: float = NOW_S, **asked: object) -> int:
        """Set a user as the gateway does whose clock shows that time."""
        done = people.set_user(self.state, UserRequest(user=user, **asked), gateway_s)  # type: ignore[arg-type]
        assert isinstance(done.fact, UserSet)
        return await self.store(done.fact)

    async def remove(self, user: str, gateway_s: float = NOW_S) -> int:
        return await self.store(UserRemoved(user=user, at_s=gateway_s))

    async def store(self, fact: UserSet | UserRemoved) -> int:
        self.state.users.apply(fact)
        commit = Commit(id=f"c{next(self.ids)}", actor="gateway/1", facts=(fact,))
        return await self.bus.append(Append(subject=subjects.user(fact.user), commit=commit, expected=None))

    async def login(self, user: str, after_seq: int = 0, revocation_s: float | None = None) -> Login:
        ask = msgspec.json.encode(LoginRequest(user=user, after_seq=after_seq, revocation_s=revocation_s))
        body = await self.bus.request(subjects.command("login", "issuer"), ask, timeout_s=60.0)
        return msgspec.json.decode(body, type=Login)


@asynccontextmanager
async def issuing(server: FakeAccounts, bus: MemoryBus, reach_s: float = 60.0) -> AsyncIterator[Issued]:
    issuer = Issuer(bus, server, RING, owner="olga", url="nats://h:1", now_s=lambda: NOW_S, reach_s=reach_s)
    async with issuer.serving():
        yield Issued(bus, server)


@pytest.fixture
def server() -> FakeAccounts:
    return FakeAccounts()


async def test_a_former_owners_account_is_forgotten_though_the_log_knows_nobody(
    server: FakeAccounts, memory_bus: MemoryBus
) -> None:
    await server.update(RING.person_account("oleg", NOW_S, reads_all=True))
    async with issuing(server, memory_bus):
        await eventually(lambda: set(server.kept) == {RING.person("olga")})


async def test_people_who_are_in_the_log_are_no_strangers_at_the_start(
    server: FakeAccounts, memory_bus: MemoryBus
) -> None:
    for name in ("alice", "oleg"):
        await server.update(RING.person_account(name, NOW_S, reads_all=False))
    await Issued(memory_bus, server).set("alice")
    async with issuing(server, memory_bus):
        await eventually(lambda: RING.person("oleg") not in server.kept)
        assert set(server.kept) == {RING.person("alice"), RING.person("olga")}


@pytest.mark.parametrize("how", ["refused", "unanswered"])
async def test_an_account_that_the_server_does_not_take_delays_only_its_own_login(
    server: FakeAccounts, memory_bus: MemoryBus, how: str
) -> None:
    getattr(server, how).add("bad")
    async with issuing(server, memory_bus) as issued:
        await issued.set("bad")
        await eventually(lambda: "bad" in server.told)
        late = asyncio.create_task(issued.login("bad"))
        for name in ("alice", "bob"):
            assert server.lets_in(await issued.login(name, await issued.set(name)))
        assert server.lets_in(await issued.login("olga"))
        assert not late.done()
        late.cancel()


async def test_whose_account_is_not_taken_is_told_why(server: FakeAccounts, memory_bus: MemoryBus) -> None:
    server.refused.add("bad")
    async with issuing(server, memory_bus, reach_s=0.0) as issued:
        await issued.set("bad")
        await eventually(lambda: "bad" in server.told)
        with pytest.raises(
            ServiceError, match=r"the server does not take the account of bad: .* no room; .* ask again"
        ):
            await issued.login("bad")


@pytest.mark.parametrize("skew_s", [0.0, -7.5, 7.5], ids=["same-second", "gateway-behind", "gateway-ahead"])
async def test_a_login_counts_from_its_revocation_on_and_until_the_next_whatever_clocks_say(
    server: FakeAccounts, memory_bus: MemoryBus, skew_s: float
) -> None:
    async with issuing(server, memory_bus) as issued:
        made = [await issued.login("alice", await issued.set("alice", NOW_S + skew_s))]
        for _ in range(3):  # all at one moment of the gateway's clock
            seq = await issued.set("alice", NOW_S + skew_s, revoke=True)
            made.append(await issued.login("alice", seq))
            assert [server.lets_in(one) for one in made] == [False] * (len(made) - 1) + [True]
        second = await issued.login("alice")
        await issued.set("alice", NOW_S + skew_s, role="operator")
        await eventually(lambda: server.told.count("alice") == 5)
        assert server.lets_in(second)
        assert server.lets_in(made[-1])


async def test_a_login_for_a_coming_revocation_counts_from_that_on(server: FakeAccounts, memory_bus: MemoryBus) -> None:
    async with issuing(server, memory_bus) as issued:
        old = await issued.login("olga")
        new = await issued.login("olga", revocation_s=NOW_S + 3)
        assert (server.lets_in(old), server.lets_in(new)) == (True, False)
        await issued.login("olga", await issued.set("olga", revoke=True, revocation_s=NOW_S + 3))
        assert (server.lets_in(old), server.lets_in(new)) == (False, True)
        for late_s in (NOW_S, NOW_S + 3):
            with pytest.raises(ServiceError, match="the logins of olga were revoked meanwhile; rotate them again"):
                await issued.login("olga", revocation_s=late_s)


async def test_whoever_is_removed_and_added_again_at_once_needs_a_new_login(
    server: FakeAccounts, memory_bus: MemoryBus
) -> None:
    async with issuing(server, memory_bus) as issued:
        await issued.set("alice", NOW_S + 5, revoke=True)
        before = await issued.login("alice")
        await issued.remove("alice")
        await eventually(lambda: RING.person("alice") not in server.kept)
        after = await issued.login("alice", await issued.set("alice"))
        assert (server.lets_in(before), server.lets_in(after)) == (False, True)


async def test_an_owner_who_is_removed_from_the_log_gets_no_revoked_login_back(
    server: FakeAccounts, memory_bus: MemoryBus
) -> None:
    async with issuing(server, memory_bus) as issued:
        first = await issued.login("olga")
        second = await issued.login("olga", await issued.set("olga", revoke=True))
        third = await issued.login("olga", await issued.remove("olga", NOW_S + 1))
        assert [server.lets_in(one) for one in (first, second, third)] == [False, False, True]


def test_what_a_server_was_told_of_revocations_is_read_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("accounts")
    assert RING.valid_from_s(folder, "olga") is None
    kept = folder / f"{RING.person('olga')}.jwt"
    for revoked_s in (0.0, 1_700_000_000.123456):
        kept.write_text(RING.person_account("olga", NOW_S, reads_all=True, valid_from_s=revoked_s))
        assert RING.valid_from_s(folder, "olga") == revoked_s
    for torn in ("", "a.b", "e30.bm8.x", "a.W10.c", "a.e30.c"):
        kept.write_text(torn)
        with pytest.raises(ValueError, match=r"olga's account|no token"):
            RING.valid_from_s(folder, "olga")
