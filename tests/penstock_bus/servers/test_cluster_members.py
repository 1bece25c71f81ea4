"""Which of several servers one is, and how they come to the same keys."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import msgspec
import pytest

from penstock_bus.servers.cluster_folder import KEYS, ClusterFolder
from penstock_bus.servers.cluster_member import cluster_block, members, members_on_loopback
from penstock_bus.servers.server import CREDENTIALS, ServerError, ServerSettings
from penstock_bus.standalone import MemberPlaces, member_here

PLACES = ("a:6222", "b:6222", "c:6222")


def at(number: int) -> MemberPlaces:
    return MemberPlaces(number=number, places=PLACES, listen="0.0.0.0:6222")


def settings(folder: Path, number: int) -> ServerSettings:
    return ServerSettings(data_dir=folder / f"data-{number}")


async def test_the_first_server_is_alone_where_no_other_has_said_that_it_is_there(tmp_path: Path) -> None:
    assert await member_here(settings(tmp_path, 1), at(1), ClusterFolder(tmp_path / "s"), asyncio.Event()) is None
    assert not (tmp_path / "s" / "member-1").exists()


async def test_servers_that_have_said_so_get_the_keys_and_the_secret_of_the_first(tmp_path: Path) -> None:
    shared, never = ClusterFolder(tmp_path / "s"), asyncio.Event()
    waiting = [asyncio.ensure_future(member_here(settings(tmp_path, n), at(n), shared, never)) for n in (2, 3)]
    await asyncio.sleep(0)  # each says that it is there before it waits
    found = [await member_here(settings(tmp_path, 1), at(1), shared, never), *await asyncio.gather(*waiting)]
    assert [(one.name, one.others) for one in found if one] == [
        ("penstock-1", ("b:6222", "c:6222")),
        ("penstock-2", ("a:6222", "c:6222")),
        ("penstock-3", ("a:6222", "b:6222")),
    ]
    assert len({one.secret for one in found if one}) == 1
    for name in KEYS:
        assert len({(tmp_path / f"data-{n}" / CREDENTIALS / name).read_bytes() for n in (1, 2, 3)}) == 1
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in tmp_path.rglob("*") if path.is_file())
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


async def test_a_server_that_waits_for_keys_can_be_stopped(tmp_path: Path) -> None:
    stopping = asyncio.Event()
    waiting = asyncio.ensure_future(member_here(settings(tmp_path, 2), at(2), ClusterFolder(tmp_path / "s"), stopping))
    await asyncio.sleep(0)
    assert not waiting.done()
    stopping.set()
    assert await waiting is None


async def test_keys_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    shared = ClusterFolder(tmp_path / "s")
    shared.announce(2)
    keys = tmp_path / "data-1" / CREDENTIALS
    keys.mkdir(parents=True)
    (keys / KEYS[0]).write_bytes(b"torn")
    with pytest.raises(ServerError, match=f"the server's keys cannot be read: .*{KEYS[0]}"):
        await member_here(settings(tmp_path, 1), at(1), shared, asyncio.Event())


def test_a_server_alone_has_no_cluster_and_each_member_names_the_others_with_the_secret() -> None:
    assert cluster_block(None) == {"server_name": "penstock"}
    block = cluster_block(members(list(PLACES), "s3cret")[1])
    assert block["server_name"] == "penstock-2"
    assert block["cluster"]["routes"] == ["nats://route:s3cret@a:6222", "nats://route:s3cret@c:6222"]
    assert block["cluster"]["authorization"]["password"] == "s3cret"
    assert "advertise" not in block["cluster"]
    elsewhere = msgspec.structs.replace(members(list(PLACES), "s3cret")[1], advertise="b.example:6222")
    assert cluster_block(elsewhere)["cluster"]["advertise"] == "b.example:6222"


def test_members_on_this_machine_have_ports_and_a_secret_of_their_own() -> None:
    one, other = members_on_loopback(3), members_on_loopback(3)
    assert len({member.listen for member in one}) == 3
    assert {member.secret for member in one} != {member.secret for member in other}
