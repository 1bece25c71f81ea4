"""Who may write the facts of an extension: the service of its name, which the configuration names, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from penstock_bus import Append, Snapshot, Unauthorized
from penstock_bus.identity import access
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_bus.settings import SettingsError, load
from penstock_log import decode, fields_of, subjects
from penstock_log.services import CORE, WRITERS

NAMES = ("billing", "audit")


def as_user(server: Server, user: str) -> AbstractAsyncContextManager[NatsBus]:
    is_client = user == access.CLIENT
    return connect(server.url, login=server.logins[user], name=user, timeout_s=5.0, as_client=is_client)


def noted(name: str, entity: str = "j1") -> Append:
    fact = {"type": f"ext.{name}.noted.v1", "note": entity}
    body = msgspec.json.encode({"id": f"{name} {entity}", "actor": name, "facts": [fact]})
    return Append(subject=subjects.extension(name, entity), commit=decode(body), expected=None)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    settings = ServerSettings(data_dir=tmp_path, extensions=NAMES)
    async with running(settings) as started, as_user(started, access.ADMIN):
        yield started


async def test_an_extension_writes_its_own_facts_and_everybody_reads_them(server: Server) -> None:
    async with as_user(server, "billing") as billing, as_user(server, "audit") as audit:
        assert await billing.append(noted("billing")) == 1
        assert await audit.append(noted("audit")) == 2
    for user in ("audit", access.CLIENT, access.EXTENSION, "matcher"):
        async with as_user(server, user) as bus:
            (found,) = await bus.read(subjects.extension("billing", "j1"))
            assert [fields_of(fact) for fact in found.commit.facts] == [{"type": "ext.billing.noted.v1", "note": "j1"}]


@pytest.mark.parametrize("user", ["audit", access.CLIENT, access.EXTENSION, access.SHADOW, *CORE])
async def test_nobody_else_writes_them(server: Server, user: str) -> None:
    async with as_user(server, user) as bus:
        for name in ("billing", "nobody"):
            with pytest.raises(Unauthorized):
                await bus.append(noted(name))
        assert await bus.last_seq() == 0


async def test_an_extension_writes_no_fact_of_a_service_and_leaves_the_state_of_others_alone(server: Server) -> None:
    snapshot = Snapshot(schema="s", last_seq=1, state=b"x")
    async with as_user(server, "billing") as bus:
        for kind in WRITERS:
            with pytest.raises(Unauthorized):
                await bus.append(msgspec.structs.replace(noted("billing"), subject=subjects.entity(kind, "x1")))
        await bus.save_snapshot("billing", snapshot)
        assert await bus.acquire("billing", "r1", 1.0) is not None
        for other in ("audit", "matcher"):
            with pytest.raises(Unauthorized):
                await bus.save_snapshot(other, snapshot)
            with pytest.raises(Unauthorized):
                await bus.acquire(other, "r1", 1.0)


def test_an_extension_acts_on_jobs_and_enters_none() -> None:
    may = access.of_service("billing", NAMES).publish
    assert subjects.command("cancel") in may
    assert not {subjects.command("enter"), subjects.SESSIONS}.intersection(may)


async def test_an_extension_that_is_taken_away_leaves_its_facts_and_may_come_back(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, extensions=("billing",))
    async with running(settings) as server, as_user(server, access.ADMIN), as_user(server, "billing") as bus:
        await bus.append(noted("billing"))
    async with running(ServerSettings(data_dir=tmp_path)) as server:
        assert "billing" not in server.logins
        async with as_user(server, "matcher") as bus:
            assert len(await bus.read(subjects.extension("billing", "j1"))) == 1
    async with running(settings) as server, as_user(server, "billing") as bus:
        assert await bus.append(noted("billing", "j2")) == 2


def test_names_come_from_the_settings_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[extensions]\nnames = ["billing", "audit"]\n')
    assert load(access.Extensions, "extensions", environ={"PENSTOCK_CONFIG": str(file)}).names == NAMES
    assert load(access.Extensions, "extensions", environ={"PENSTOCK_EXTENSIONS_NAMES": "billing,audit"}).names == NAMES


@pytest.mark.parametrize("name", ["matcher", "admin", "client", "a.b", "Billing", "*", ">", "a-b"])
def test_a_name_that_is_taken_or_no_part_of_a_subject_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="names no extension; expected small letters"):
        load(access.Extensions, "extensions", environ={"PENSTOCK_EXTENSIONS_NAMES": f'["{name}"]'})
