"""CodePort on both adapters: parts of code lie under their subjects until they are removed."""

from __future__ import annotations

import pytest
from bus_harness import Harness, NatsHarness

from penstock_bus import Bus, StorageFull
from penstock_log import subjects
from penstock_log.code_tree import PART_BYTES


def part(number: int, user: str = "alice") -> str:
    return subjects.code_part(user, f"{number:064x}", 10)


async def test_what_is_stored_is_listed_and_read_back_and_what_is_not_there_is_left_out(bus: Bus) -> None:
    await bus.put_code([(part(1), b"one"), (part(2), b"two"), (part(1, "bob"), b"his")])
    assert await bus.get_code([part(1), part(3), part(2)]) == {part(1): b"one", part(2): b"two"}
    assert sorted(await bus.list_code(subjects.code_pattern("alice", "part"))) == [part(1), part(2)]
    assert await bus.get_code([]) == {}
    assert await bus.list_code(subjects.code_pattern("carol", "part")) == []


async def test_a_body_takes_the_place_of_the_one_before_and_may_be_empty(bus: Bus) -> None:
    await bus.put_code([(part(1), b"old")])
    await bus.put_code([(part(1), b"")])
    assert await bus.get_code([part(1)]) == {part(1): b""}
    assert await bus.list_code(part(1)) == [part(1)]


async def test_what_changes_is_read_as_it_is_now(bus: Bus) -> None:
    await bus.put_code([(part(1), b"old"), (part(2), b"")])
    await bus.put_code([(part(1), b"new")])
    assert await bus.newest_code([part(1), part(2), part(3)]) == {part(1): b"new", part(2): b""}
    assert await bus.newest_code([]) == {}


async def test_what_is_removed_is_gone_and_the_rest_stays(bus: Bus) -> None:
    await bus.put_code([(part(number), b"x") for number in range(5)])
    await bus.remove_code([part(1), part(3), part(9)])
    assert sorted(await bus.list_code(subjects.code_pattern("alice", "part"))) == [part(0), part(2), part(4)]
    assert await bus.get_code([part(1), part(2)]) == {part(2): b"x"}


async def test_more_is_read_at_a_time_than_a_server_sends_in_one_batch(bus: Bus) -> None:
    large = {part(number): bytes([number]) * PART_BYTES for number in range(40)}
    small = {part(1000 + number): b"%d" % number for number in range(700)}
    await bus.put_code([*(large | small).items()])
    assert await bus.get_code([*large, *small]) == large | small


async def test_names_of_users_do_not_get_mixed_up(bus: Bus) -> None:
    names = ("jane.doe", "jane%2Edoe", "", "%", "a*", "ü")
    await bus.put_code([(part(1, name), name.encode()) for name in names])
    for name in names:
        (subject,) = await bus.list_code(subjects.code_pattern(name, "part"))
        assert (subjects.code_owner(subject), await bus.get_code([subject])) == (name, {subject: name.encode()})


async def test_code_is_still_there_after_a_restart(harness: Harness) -> None:
    async with harness.connect() as bus:
        await bus.put_code([(part(1), b"one")])
    await harness.crash()
    await harness.restart()
    async with harness.connect() as bus:
        assert await bus.get_code([part(1)]) == {part(1): b"one"}


async def test_the_same_part_twice_at_a_time_is_stored_once(bus: Bus) -> None:
    await bus.put_code([(part(1), b"one"), (part(2), b"two"), (part(1), b"one")])
    assert await bus.get_code([part(1), part(2)]) == {part(1): b"one", part(2): b"two"}


async def test_a_stream_of_an_earlier_version_that_takes_no_batches_stores_parts_one_by_one(
    nats_alone: NatsHarness,
) -> None:
    many = {part(number): b"%d" % number for number in range(40)}
    async with nats_alone.connect() as bus:
        config = (await bus.link.api(f"STREAM.INFO.{subjects.CODE}"))["config"]
        await bus.link.api(f"STREAM.UPDATE.{subjects.CODE}", config | {"allow_atomic": False})
        await bus.put_code([*many.items()])
        assert await bus.get_code([*many]) == many


async def test_a_full_stream_refuses_parts_and_keeps_what_it_has(nats_alone: NatsHarness) -> None:
    async with nats_alone.connect() as bus:
        config = (await bus.link.api(f"STREAM.INFO.{subjects.CODE}"))["config"]
        await bus.link.api(f"STREAM.UPDATE.{subjects.CODE}", config | {"max_bytes": 1 << 20})
        await bus.put_code([(part(1), b"one")])
        with pytest.raises(StorageFull):
            await bus.put_code([(part(2 + number), bytes(PART_BYTES)) for number in range(4)])
        assert (await bus.get_code([part(1)])) == {part(1): b"one"}
