"""Code of users at the gateway: uploaded once, apart from others', within limits, and removed when no job needs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from gateway_cases import NOW_S, Gateway, gateway, joined, placed, refusal, spec, submitted, sweep_spec

import penstock
from penstock.code_folder import CodeFolderError
from penstock_bus import ServiceError, Unavailable
from penstock_bus.follower import FoldFollower, background
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_gateway import code_collection, code_store, machine
from penstock_gateway.code_collection import GRACE_S, CodeCollector, needed
from penstock_gateway.machine import GatewaySettings
from penstock_log import AnyEvent, JobCancelled, SweepSubmitted, UserSet, code_tree, subjects
from penstock_log.code_tree import PART_BYTES, CodeRecord, CodeTree, TreeEntry
from penstock_log.request_bodies import PartsRequest, UploadRequest
from penstock_testing import eventually

DAY_S = 86_400.0
COMMAND = ("python", "train.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small project."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "train.py").write_text("print(1)\n")
    (made / "data.bin").write_bytes(os.urandom(PART_BYTES + 5))
    return made


@asynccontextmanager
async def client_of(served: Gateway, user: str = "") -> AsyncIterator[penstock.Client]:
    """Connect as a person, as the server knows them."""
    bus = MemoryBus(served.bus.server, user=user)  # type: ignore[attr-defined]
    async with penstock.Client(bus=bus) as client:
        client.user = user
        yield client


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Gateway]:
    """A gateway that knows people."""
    people = [UserSet(user=name, role="user", at_s=NOW_S) for name in ("alice", "bob")]
    operator = UserSet(user="oskar", role="operator", at_s=NOW_S)
    async with gateway(MemoryBus(), joined(), *people, operator) as running:
        yield running


async def test_what_was_uploaded_once_is_not_sent_again_and_what_has_changed_is(served: Gateway, folder: Path) -> None:
    async with client_of(served, "alice") as client:
        first, again = await client.upload(folder), await client.upload(folder)
        size = PART_BYTES + 5 + len("print(1)\n")
        assert (first.files, first.size_bytes, first.sent_bytes) == (2, size, size)
        assert (again.digest, again.sent_bytes) == (first.digest, 0)
        (folder / "train.py").write_text("print(22)\n")
        (folder / "copy.bin").write_bytes((folder / "data.bin").read_bytes())
        third = await client.upload(folder)
        assert third.digest != first.digest
        assert third.sent_bytes == len("print(22)\n")


async def test_a_job_names_the_folder_by_its_digest_and_the_script_too(served: Gateway, folder: Path) -> None:
    async with client_of(served, "alice") as client:
        told: list[int] = []
        client.on_upload = lambda code: told.append(code.sent_bytes)
        one = await client.submit(name="a", command=COMMAND, workdir=str(folder), id="one")
        same = await client.submit(name="a", command=COMMAND, workdir=str(folder), id="one")
        assert (one.created, same.created, told[1]) == (True, False, 0)
        found = (await client.job("one")).spec
        assert (found.workdir, found.cwd, len(found.code)) == ("", "", 64)
        assert found.digest == code_tree.digest_of(b"print(1)\n")
        answers = await client.submit_all(
            [{"name": "b", "command": COMMAND, "workdir": str(folder)} for _ in range(50)]
        )
        assert {answer.code for answer in answers} == {0}
        assert told == [told[0], 0, 0]  # fifty jobs, one upload


async def test_a_sweep_uploads_once_for_all_of_its_trials(served: Gateway, folder: Path) -> None:
    async with client_of(served, "alice") as client:
        sent: list[int] = []
        client.on_upload = lambda code: sent.append(code.sent_bytes)
        job = spec(command=COMMAND, workdir=str(folder))
        answer = await client.tune(sweep_spec(id="", name="s", job=job))
        code = (await client.sweep(answer.id)).spec.job.code
        trial = msgspec.structs.replace(spec(command=COMMAND, user="alice", parent=answer.id), code=code)
        await served.command("submit", msgspec.structs.replace(trial, id=f"{answer.id}-1"))
        assert len(sent) == 1


async def test_nobody_may_name_what_only_somebody_else_has_uploaded(served: Gateway, folder: Path) -> None:
    async with client_of(served, "alice") as alice, client_of(served, "bob") as bob:
        code = (await alice.upload(folder)).digest
        code_of_nobody = "0" * 64
        messages = []
        for digest in (code, code_of_nobody):
            with pytest.raises(ServiceError, match="bob has not uploaded the code") as caught:
                await bob.submit(name="a", command=COMMAND, code=digest)
            messages.append(str(caught.value).replace(digest[:12], "…"))
        assert messages[0] == messages[1], "nor learn whether it is there"
        uploaded = await bob.upload(folder)
        assert uploaded.sent_bytes == uploaded.size_bytes, "nor by what is not asked for"
        await bob.submit(name="a", command=COMMAND, code=code)
        with pytest.raises(ServiceError, match="cannot submit as alice"):
            await bob.upload(folder, user="alice")


async def test_an_operator_uploads_for_somebody_else(served: Gateway, folder: Path) -> None:
    async with client_of(served, "oskar") as operator, client_of(served, "bob") as bob:
        answer = await operator.submit(name="a", command=COMMAND, workdir=str(folder), user="bob")
        assert (await operator.job(answer.id)).job.user == "bob"
        assert (await bob.upload(folder)).sent_bytes == 0


async def test_a_folder_over_the_limit_is_refused_with_its_largest_files_before_it_is_read(tmp_path: Path) -> None:
    for name, size in (("small.py", 10), ("big.ckpt", 3000), ("bigger.ckpt", 4000)):
        (tmp_path / name).write_bytes(b"x" * size)
    limits = GatewaySettings(code_tree_bytes=5000)
    async with gateway(MemoryBus(), settings=limits) as running, client_of(running) as client:
        with pytest.raises(ServiceError) as caught:
            await client.upload(tmp_path)
        assert caught.value.code == 413
        assert "the folder has 6.846 KiB, and 4.883 KiB are the most" in str(caught.value)
        assert "bigger.ckpt (3.906 KiB), big.ckpt (2.93 KiB), small.py (10 B)" in str(caught.value)
        assert running.bus.server.code == {}  # type: ignore[attr-defined]


async def test_too_many_files_and_too_much_of_one_user_are_refused(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_text(f"{number}" * 1000)
    limits = GatewaySettings(code_tree_files=4)
    async with gateway(MemoryBus(), settings=limits) as running, client_of(running) as client:
        with pytest.raises(ServiceError, match="5 files, and 4 are the most"):
            await client.upload(tmp_path)
        (tmp_path / "4").unlink()
        (tmp_path / "empty").mkdir()
        with pytest.raises(ServiceError, match="5 files, links and empty folders, and 4 are the most"):
            await client.upload(tmp_path)
        (tmp_path / "empty").rmdir()
        (tmp_path / "4").write_text("4" * 1000)
    limits = GatewaySettings(code_user_bytes=2 * (code_store.RECORD_BYTES + 1024) + 5 * 1024 + 500)
    async with gateway(MemoryBus(), settings=limits) as running, client_of(running) as client:
        await client.upload(tmp_path)
        (tmp_path / "more").write_text("x" * 1000)
        with pytest.raises(ServiceError, match=r"of code here, this needs 1 KiB more, and 39\.49 KiB are the most"):
            await client.upload(tmp_path)


async def test_many_small_parts_and_records_of_trees_that_do_not_exist_count_too() -> None:
    limits = GatewaySettings(code_user_bytes=2 * code_store.RECORD_BYTES + 10 * 1024)
    async with gateway(MemoryBus(), settings=limits) as running:
        stored = running.bus.server.code  # type: ignore[attr-defined]
        for number in range(3):
            digest = code_tree.digest_of(b"%d" % number)
            ask = UploadRequest(digest=digest, parts=((digest, 1),))
            if number < 2:
                assert (await running.command("upload", ask))["wanted"] == "list"
                assert (await running.command("upload", ask))["wanted"] == "list"  # which is the same record
        assert (await refusal(running.command("upload", ask)))[0] == 413
        assert len(stored) == 2, "nothing was stored for the third"
        small = msgspec.msgpack.encode(PartsRequest(parts=tuple(b"%d" % number for number in range(11))))
        assert (await refusal(running.command("upload_parts", small)))[0] == 413
        assert len(stored) == 2
        small = msgspec.msgpack.encode(PartsRequest(parts=tuple(b"%d" % number for number in range(10))))
        assert (await running.command("upload_parts", small))["stored"] == 10
        for subject in [subject for subject in stored if ".part." in subject]:
            del stored[subject]  # as the collector does: what is here is looked at again before a no
        assert (await running.command("upload_parts", small))["stored"] == 10


async def test_a_server_without_room_says_that_it_is_the_store_for_code(served: Gateway, folder: Path) -> None:
    server = served.bus.server  # type: ignore[attr-defined]
    server.max_store_bytes = 1
    async with client_of(served, "alice") as client:
        with pytest.raises(ServiceError, match="store for code"):
            await client.upload(folder)


async def test_requests_that_make_no_sense_are_refused(served: Gateway) -> None:
    digest = code_tree.digest_of(b"x")
    for body, code, what in (
        (UploadRequest(digest=digest), 400, "expected the parts of a list of files"),
        (UploadRequest(digest=digest, parts=((digest, PART_BYTES + 1),)), 400, "expected the parts"),
        (UploadRequest(digest=digest, parts=(("../x", 1),)), 400, "expected the parts"),
        (UploadRequest(digest=digest, parts=((digest, 1), (digest, 1))), 400, "and the rest as the last one"),
        ({"digest": "x"}, 400, "a SHA-256"),
    ):
        assert (await refusal(served.command("upload", body)))[0] == code
        assert what in (await refusal(served.command("upload", body)))[1]
    for parts in (b"{}", msgspec.msgpack.encode(PartsRequest(parts=(b"",))), b"\xc1"):
        assert (await refusal(served.command("upload_parts", parts)))[0] == 400


async def test_a_list_of_files_that_is_none_or_another_one_is_refused(served: Gateway) -> None:
    evil = code_tree.encode(CodeTree((TreeEntry(b"../x", "folder"),)))
    for manifest, digest, what in (
        (evil, code_tree.digest_of(evil), "does not lie in the folder"),
        (evil, "0" * 64, "is not that of the list"),
        (b"nonsense", code_tree.digest_of(b"nonsense"), "no list of files"),
    ):
        await served.command("upload_parts", msgspec.msgpack.encode(PartsRequest(parts=(manifest,))))
        ask = UploadRequest(digest=digest, parts=((code_tree.digest_of(manifest), len(manifest)),))
        code, message = await refusal(served.command("upload", ask))
        assert (code, what in message) == (400, True), message


async def test_specifications_that_make_no_sense_are_refused(served: Gateway) -> None:
    for fields, what in (
        ({"workdir": "/home/alice"}, "workdir: .* is a folder where you are"),
        ({"code": "0" * 64, "cwd": "../b"}, "cwd: expected a folder of the uploaded code"),
        ({"code": "0" * 64, "cwd": "a/../../b"}, "cwd: expected a folder of the uploaded code"),
        ({"code": "../../etc"}, "code: .* SHA-256"),
    ):
        raw = {"name": "a", "command": ["x"], "user": "alice", **fields}
        with pytest.raises(ServiceError, match=what):
            await served.command("submit", raw)


async def test_a_folder_that_cannot_be_uploaded_submits_nothing(served: Gateway, folder: Path) -> None:
    (folder / "out").symlink_to("/etc/passwd")
    async with client_of(served, "alice") as client:
        with pytest.raises(CodeFolderError, match="out lead out of the folder"):
            await client.submit(name="a", command=COMMAND, workdir=str(folder))
        with pytest.raises(ValueError, match="does not lie in workdir"):
            await client.submit(name="a", command=COMMAND, workdir=str(folder), cwd="..")
        assert (await client.jobs()).total == 0


async def test_why_says_that_the_code_is_fetched_first(served: Gateway, folder: Path) -> None:
    async with client_of(served, "alice") as client:
        answer = await client.submit(name="a", command=COMMAND, workdir=str(folder), id="j1")
        await served.told(placed(answer.id))
        why = await client.why(answer.id)
        code = (await client.job("j1")).spec.code
        assert f"are being started, once its code ({code[:12]}) has been fetched there" in why.evidence


# --- collection


def finished(job_id: str, at_s: float) -> AnyEvent:
    return JobCancelled(job_id=job_id, by="alice", at_s=at_s)


class Collected:
    """A log, its fold, and a collector with a time that a test sets."""

    def __init__(self, bus: MemoryBus, live: FoldFollower[machine.GatewayState]) -> None:
        self.bus, self.live = bus, live
        shell = Shell(bus, "gateway", replica_id="r1")
        self.collector = CodeCollector(shell, bus, live, GatewaySettings())

    async def collect(self, now_s: float) -> int:
        await self.live.caught_up()
        return await self.collector.collect(now_s)

    @property
    def trees(self) -> set[str]:
        return {one.rpartition(".")[2] for one in self.bus.server.code if ".ready." in one}


@asynccontextmanager
async def collecting(served: Gateway) -> AsyncIterator[Collected]:
    async with FoldFollower(served.bus, machine.decider(GatewaySettings())) as live:
        one = Collected(served.bus, live)  # type: ignore[arg-type]
        async with background(one.collector.election.keep()):
            await eventually(lambda: one.collector.election.held)
            yield one


@contextmanager
def without_marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a collection break off once it has read the trees, when it is to mark their user."""
    real = MemoryBus.put_code

    async def put(self: MemoryBus, items: Sequence[tuple[str, bytes]]) -> None:
        if items[0][0].endswith(".collecting"):
            raise Unavailable("the server is away")
        await real(self, items)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryBus, "put_code", put)
        with pytest.raises(Unavailable):
            yield


async def test_code_is_kept_while_jobs_need_it_and_then_removed_with_all_that_is_no_others(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(served, "alice") as client, collecting(served) as one:
        old = (await client.upload(folder)).digest
        (folder / "train.py").write_text("print(2)\n")
        await client.submit(name="a", command=COMMAND, workdir=str(folder), id="j1")
        new = (await client.job("j1")).spec.code
        now_s = NOW_S + 200
        assert await one.collect(now_s) == 0, "both were just uploaded"
        assert one.trees == {old, new}
        assert await one.collect(now_s + GRACE_S) == 2, (
            "the list of files, and the script; the data are the other's too"
        )
        assert one.trees == {new}
        assert (await client.upload(folder)).sent_bytes == 0
        await served.command("cancel", {"id": "j1"})
        ended_s = (await client.job("j1")).job.finished_s
        assert ended_s is not None
        assert await one.collect(ended_s + 6.9 * DAY_S) == 0, "it may be submitted again"
        assert await one.collect(ended_s + 7.1 * DAY_S) == 4
        assert set(one.bus.server.code) == set()
        monkeypatch.setattr(code_store, "KNOWN_S", 0.0)
        with pytest.raises(ServiceError, match="alice has not uploaded the code"):
            await client.submit(name="a", command=COMMAND, code=new)


async def test_sweeps_and_jobs_from_which_others_begin_need_their_code() -> None:
    code = {name: name * 64 for name in "abcd"}
    facts: Sequence[AnyEvent] = (
        submitted("origin", user="alice", code=code["a"], command=COMMAND),
        finished("origin", NOW_S),
        submitted("next", user="alice", code=code["b"], command=COMMAND, begins_from="origin"),
        SweepSubmitted(sweep_id="s1", spec=sweep_spec(id="s1", job=spec(user="bob", code=code["c"])), at_s=NOW_S),
        submitted("over", user="alice", code=code["d"], command=COMMAND),
        finished("over", NOW_S),
    )
    state = machine.GatewayState()
    for seq, fact in enumerate(facts, 1):
        machine.decider(GatewaySettings()).apply(state, fact, seq)
    found = needed(state, NOW_S + 10 * DAY_S, 7 * DAY_S)
    assert found == {("alice", code["a"]), ("alice", code["b"]), ("bob", code["c"])}
    assert ("alice", code["d"]) in needed(state, NOW_S + DAY_S, 7 * DAY_S)


async def test_an_upload_during_a_collection_ends_with_all_of_its_files(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector is stopped between its look at the records and its removal, while the same folder is uploaded."""
    async with client_of(served, "alice") as client, collecting(served) as one:
        code = (await client.upload(folder)).digest
        real, at_the_records, go_on = MemoryBus.remove_code, asyncio.Event(), asyncio.Event()

        async def slow(self: MemoryBus, wanted: Sequence[str]) -> None:
            if any(".tree." in subject for subject in wanted):
                at_the_records.set()
                await go_on.wait()
            await real(self, wanted)

        looks, looked_for_the_mark = MemoryBus.list_code, asyncio.Event()

        async def noted(self: MemoryBus, pattern: str) -> list[str]:
            if pattern == subjects.code_mark("alice"):
                looked_for_the_mark.set()
            return await looks(self, pattern)

        monkeypatch.setattr(MemoryBus, "remove_code", slow)
        monkeypatch.setattr(MemoryBus, "list_code", noted)
        collection = asyncio.create_task(one.collect(NOW_S + 200 + GRACE_S))
        await at_the_records.wait()
        upload = asyncio.create_task(client.upload(folder))
        looking = asyncio.create_task(looked_for_the_mark.wait())
        await asyncio.wait([upload, looking], return_when=asyncio.FIRST_COMPLETED)
        go_on.set()
        assert await collection > 0
        again = await upload
        assert (again.digest, again.sent_bytes) == (code, again.size_bytes)
        held = [subject for subject in one.bus.server.code if ".part." in subject]
        assert len(held) == 4
        await client.submit(name="a", command=COMMAND, code=code)


async def test_a_collection_that_died_leaves_nothing_behind_for_good(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(served, "alice") as client, collecting(served) as one:
        await client.upload(folder)
        monkeypatch.setattr(code_collection, "_LONGEST_S", 0.0)
        assert await one.collect(NOW_S + 200 + GRACE_S) == 0
        assert subjects.code_mark("alice") not in one.bus.server.code
        monkeypatch.undo()
        assert await one.collect(NOW_S + 200 + GRACE_S) > 0
        assert one.bus.server.code == {}


@pytest.mark.parametrize("mark_stays", [True, False])
async def test_a_collection_that_the_bus_breaks_off_is_done_over_and_its_mark_goes(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch, mark_stays: bool
) -> None:
    """The bus fails once the records are gone, so nobody is left whose record is old."""
    async with client_of(served, "alice") as client, collecting(served) as one:
        await client.upload(folder)
        real, failing = MemoryBus.remove_code, [subjects.code_pattern("alice", "part")[:-1]]
        failing += [subjects.code_mark("alice")] if mark_stays else []

        async def breaks_off(self: MemoryBus, wanted: Sequence[str]) -> None:
            if any(subject.startswith(tuple(failing)) for subject in wanted):
                raise Unavailable("the server is away")
            await real(self, wanted)

        monkeypatch.setattr(MemoryBus, "remove_code", breaks_off)
        later_s = NOW_S + 200 + GRACE_S
        with pytest.raises(Unavailable):
            await one.collect(later_s)
        monkeypatch.undo()
        assert not [subject for subject in one.bus.server.code if ".tree." in subject]
        await one.collect(later_s)
        assert one.bus.server.code == {}
        assert (await client.upload(folder)).sent_bytes > 0


async def test_parts_that_were_sent_for_no_tree_are_removed_and_those_of_trees_stay(
    served: Gateway, folder: Path
) -> None:
    sent = msgspec.msgpack.encode(PartsRequest(parts=(b"one", b"two")))
    async with client_of(served, "alice") as alice, client_of(served, "bob") as bob, collecting(served) as one:
        code = (await alice.upload(folder)).digest
        await alice.submit(name="a", command=COMMAND, code=code)
        for client in (alice, bob):
            await client.bus.request(subjects.command("upload_parts"), sent, 5.0)
        assert await one.collect(NOW_S) == 4
        kept = {*one.bus.server.code}
        assert not [subject for subject in kept if subjects.code_owner(subject) == "bob"]
        assert len([subject for subject in kept if ".part." in subject]) == 4
        for client in (alice, bob):
            await client.bus.request(subjects.command("upload_parts"), sent, 5.0)
        assert await one.collect(NOW_S + GRACE_S - 1) == 0, "all parts are listed now and then only"
        assert await one.collect(NOW_S + GRACE_S) == 4
        assert {*one.bus.server.code} == kept


async def test_a_collection_goes_on_where_it_stopped_and_reads_trees_while_their_user_is_not_marked(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = msgspec.msgpack.encode(PartsRequest(parts=(b"one", b"two")))
    async with client_of(served, "alice") as client, collecting(served) as one:
        for number in range(4):
            (folder / "train.py").write_text(f"print({number})\n")
            await client.submit(name="a", command=COMMAND, workdir=str(folder))
        kept = {*one.bus.server.code}
        await client.bus.request(subjects.command("upload_parts"), sent, 5.0)
        real, read = MemoryBus.get_code, list[str]()

        async def one_tree_at_a_time(self: MemoryBus, wanted: Sequence[str]) -> dict[str, bytes]:
            (of_trees,) = {".part." in subject for subject in wanted}
            if of_trees:
                assert subjects.code_mark("alice") not in self.server.code
                read.extend(wanted)
                if len(read) % 2 == 0:
                    raise TimeoutError
            return await real(self, wanted)

        monkeypatch.setattr(MemoryBus, "get_code", one_tree_at_a_time)
        removed = [await one.collect(NOW_S) for _ in range(4)]
        assert removed == [0, 0, 0, 2]
        assert len(read) == 4 + 3, "each once, and those again at which the time was over"
        assert {*one.bus.server.code} == kept


async def test_trees_that_come_and_go_while_a_collection_rests_are_treated_as_such(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = msgspec.msgpack.encode(PartsRequest(parts=(b"print(2)\n",)))
    async with client_of(served, "alice") as client, collecting(served) as one:
        old = (await client.upload(folder)).digest
        await client.bus.request(subjects.command("upload_parts"), sent, 5.0)
        with without_marks(monkeypatch):
            await one.collect(NOW_S)  # the old tree is used, and the new script is not
        (folder / "train.py").write_text("print(2)\n")
        await client.submit(name="a", command=COMMAND, workdir=str(folder))
        (new,) = one.trees - {old}
        later_s = NOW_S + 200 + GRACE_S
        assert await one.collect(later_s) + await one.collect(later_s) == 2, "the old list of files and the old script"
        assert one.trees == {new}
        assert len([subject for subject in one.bus.server.code if ".part." in subject]) == 4


async def test_what_was_used_when_a_collection_began_goes_with_the_next(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(served, "alice") as client, collecting(served) as one:
        await client.upload(folder)
        with without_marks(monkeypatch):
            await one.collect(NOW_S)
        later_s = NOW_S + 200 + GRACE_S
        assert [await one.collect(later_s), await one.collect(later_s)] == [0, 4]
        assert one.bus.server.code == {}


async def test_a_tree_that_was_just_named_stays_although_a_server_that_lags_answers_with_what_was(
    served: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lags has the old records of two trees, and not the list of files of a third."""
    async with client_of(served, "alice") as client, collecting(served) as one:
        trees = [(await client.upload(folder)).digest]
        (folder / "train.py").write_text("print(2)\n")
        trees.append((await client.upload(folder)).digest)
        lagging = dict(one.bus.server.code)
        (folder / "train.py").write_text("print(3)\n")
        trees.append((await client.upload(folder)).digest)
        later_s = NOW_S + 200 + GRACE_S
        for digest in trees:
            subject = subjects.code_record("alice", digest)
            record = msgspec.json.decode(one.bus.server.code[subject], type=CodeRecord)
            named = msgspec.structs.replace(record, noted_s=later_s - 1)
            await one.bus.put_code([(subject, msgspec.json.encode(named))])
        there = dict(one.bus.server.code)

        async def as_it_was(self: MemoryBus, wanted: Sequence[str]) -> dict[str, bytes]:
            return {subject: lagging[subject] for subject in wanted if subject in lagging}

        monkeypatch.setattr(MemoryBus, "get_code", as_it_was)
        assert await one.collect(later_s) == 0
        assert one.bus.server.code == there
        await client.submit(name="a", command=COMMAND, code=trees[2])


async def test_nothing_is_removed_by_a_gateway_that_has_no_lease(served: Gateway, folder: Path) -> None:
    async with client_of(served, "alice") as client, collecting(served) as one:
        await client.upload(folder)
        await one.collector.election.resign()
        assert await one.collect(NOW_S + 200 + GRACE_S) == 0
        assert len(one.trees) == 1


async def test_a_script_that_is_left_out_is_said_before_anything_is_sent(served: Gateway, folder: Path) -> None:
    (folder / ".penstockignore").write_text("*.py\n!keep.py\n")
    (folder / "keep.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    async with client_of(served, "alice") as client:
        with pytest.raises(CodeFolderError, match=r"train\.py is in .*, and is left out .* a line !train\.py in"):
            await client.submit(name="a", command=COMMAND, workdir=str(folder))
        assert served.bus.server.code == {}  # type: ignore[attr-defined]
        for command in (("python", "keep.py"), ("./run.sh",), ("python", "/somewhere/else.py"), ("ls",)):
            await client.submit(name="a", command=command, workdir=str(folder))
