"""The archive: old jobs go to files and out of the log and of every fold, whatever dies in between."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, ended, gateway, joined, placed, ranked, refusal, spec, started, submitted, sweep_spec
from log_state import read_wire

from penstock_autoscaler.machine import decider as autoscaler
from penstock_bus import Append, BusError, Conflict, Delivery
from penstock_bus.decider import Fold
from penstock_bus.follower import FoldFollower
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_executor.machine import decider as executor
from penstock_gateway import machine, usage_answers
from penstock_gateway.answers import ReadModel
from penstock_gateway.archiver import Archiver
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.retention import key_of, still_due
from penstock_log import (
    ARCHIVE,
    AnyEvent,
    Commit,
    JobFinished,
    JobsArchived,
    LogTrimmed,
    NodeJoined,
    ProfileSample,
    RoundDecided,
    SamplesRequested,
    SweepFinished,
    SweepSubmitted,
    encode,
    subjects,
)
from penstock_log.request_bodies import JobsRequest, UsageBy, UsageRequest
from penstock_log.views import UsageView
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import decider as ranker
from penstock_simulator import archive_query
from penstock_simulator.replay import history
from penstock_testing import eventually, subject_of
from penstock_tuner.machine import decider as tuner

ALL = subjects.STREAM_SUBJECTS[subjects.EVT]
REAL = Path(__file__).parents[1] / "data" / "logs" / "35a4014.log.gz"
EVERY_S = 10.0
LONG_S = 1_000_000.0
DECIDERS = {
    "gateway": lambda: machine.decider(GatewaySettings()),
    "matcher": matcher,
    "ranker": ranker,
    "autoscaler": autoscaler,
    "profiler": profiler,
    "tuner": tuner,
}


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.s = NOW_S

    def __call__(self) -> float:
        return self.s


@dataclass
class Cluster:
    """A log, a gateway's fold of it, and an archiver."""

    server: MemoryServer
    bus: MemoryBus
    clock: Clock
    live: FoldFollower[GatewayState]
    archiver: Archiver
    folder: Path

    def tell(self, *facts: AnyEvent, at_s: float | None = None) -> None:
        for fact in facts:
            self.clock.s = at_s if at_s is not None else fact.at_s
            commit = Commit(id=f"c{len(self.server.streams[subjects.EVT].messages)}", actor="test", facts=(fact,))
            self.server.put(subjects.EVT, subject_of(fact), encode(commit), commit.id, None)

    def replay(self, log: Iterable[Delivery]) -> None:
        for one in log:
            self.clock.s = one.stored_s
            self.server.put(subjects.EVT, one.subject, encode(one.commit), one.commit.id, None)

    async def archive(self, after_s: float = LONG_S) -> None:
        """Let time pass, and archive what is old then."""
        self.clock.s += after_s
        await self.live.caught_up()
        await self.archiver.archive(self.clock.s)

    async def subjects(self) -> list[str]:
        return [one.subject.removeprefix("penstock.evt.") for one in await self.bus.read(ALL)]

    def archived(self) -> list[dict[str, Any]]:
        lines = [gzip.decompress(path.read_bytes()).splitlines() for path in sorted(self.folder.glob("*.gz"))]
        return [json.loads(line) for file in lines for line in file]


@asynccontextmanager
async def cluster(
    tmp_path: Path,
    server: MemoryServer | None = None,
    clock: Clock | None = None,
    bus_type: type[MemoryBus] = MemoryBus,
) -> AsyncIterator[Cluster]:
    clock = clock or Clock()
    server = server or MemoryServer(now=clock, lease_now=asyncio.get_running_loop().time)
    settings = GatewaySettings(archive_dir=str(tmp_path / "archive"), keep_days=1.0, archive_every_s=EVERY_S)
    async with bus_type(server) as bus, FoldFollower(bus, machine.decider(settings), name="none") as live:
        await live.caught_up()
        archiver = Archiver(Shell(bus, "gateway", replica_id="r1", clock=clock), bus, live, settings)
        async with archiver.election.kept():
            await eventually(lambda: archiver.election.held)
            yield Cluster(server, bus, clock, live, archiver, tmp_path / "archive")


def life(job_id: str, at_s: float = NOW_S, **spec: Any) -> list[AnyEvent]:
    """A job that runs for three seconds, from its submission to the announcement of its end."""
    return [
        submitted(job_id, at_s=at_s, **spec),
        ranked(job_id, at_s=at_s),
        placed(job_id, at_s=at_s + 1),
        started(job_id, at_s=at_s + 2),
        ended(job_id, at_s=at_s + 5),
        JobFinished(
            at_s=at_s + 5, job_id=job_id, name="job", state="completed", submitted_s=at_s, run_s=3.0, gpu_s=3.0
        ),
    ]


async def test_an_old_job_is_in_a_file_and_neither_in_the_log_nor_in_the_gateway(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("old"), submitted("open", at_s=NOW_S + 6))
        await one.archive()
        assert [job.id for job in one.live.state.jobs] == ["open"]
        assert await one.subjects() == ["node.n1", "rank.default", "round.default", "job.open", *3 * ["archive.log"]]
        assert [line["seq"] for line in one.archived()] == [*range(1, 9)]
        assert one.live.state.archive.untrimmed == []
        assert "old" not in one.live.state.histories
        assert subjects.job("old") not in one.live.heads


async def test_the_story_from_the_archive_is_the_one_that_the_gateway_told(tmp_path: Path) -> None:
    facts = [joined(), *life("old"), *life("old2", at_s=NOW_S + 10)]
    async with MemoryBus() as bus, gateway(bus, *facts) as live:
        told = await live.query("story", {"id": "old"})
    async with cluster(tmp_path) as one:
        one.tell(*facts)
        await one.archive()
        found = archive_query.story(one.folder, "old")
        assert [line.text for line in found.lines] == [line["text"] for line in told["lines"]]
        assert len(found.lines) > 4
        listed = archive_query.jobs(one.folder, JobsRequest(limit=10))
        assert [(job.id, job.state) for job in listed.jobs] == [("old", "CD"), ("old2", "CD")]
        assert [job.id for job in archive_query.jobs(one.folder, JobsRequest(limit=1)).jobs] == ["old2"]


async def test_days_on_which_only_the_archive_wrote_do_not_hold_up_those_after_them(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("first"))
        await one.archive()
        one.clock.s += 10 * EVERY_S
        one.tell(*life("second", at_s=one.clock.s))
        await one.archive()
        assert not len(one.live.state.jobs)
        assert [job.id for job in archive_query.jobs(one.folder, JobsRequest(limit=10)).jobs] == ["first", "second"]


async def test_a_stretch_of_more_commits_than_a_file_takes_is_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_gateway.archiver.MOST_COMMITS", 4)
    monkeypatch.setattr("penstock_gateway.archiver._AT_ONCE", 2)
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("a"), *life("b"))
        await one.archive()
        assert len(list(one.folder.glob("*.gz"))) == 4
        assert [line["seq"] for line in one.archived()][:13] == [*range(1, 14)]
        assert not len(one.live.state.jobs)


async def test_the_files_one_after_the_other_tell_a_replay_of_the_log_as_it_was(tmp_path: Path) -> None:
    log = read_wire(REAL)
    async with cluster(tmp_path) as one:
        one.replay(log)
        await one.archive()
        await one.archive()
        assert one.live.state.archive.jobs > 100
        text = b"".join(gzip.decompress(path.read_bytes()) for path in archive_query.files(one.folder))
    then, now = history.of_deliveries(log), history.read_log(text.splitlines())
    assert (now.jobs, now.runs) == (then.jobs, then.runs)


async def test_young_jobs_and_those_that_somebody_needs_stay(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        trial = life("s1-t1", parent="s1")
        one.tell(
            SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep_spec(id="s1")),
            *trial,
            *life("origin"),
            submitted("heir", begins_from="origin"),
            *life("gone"),
        )
        one.tell(*life("young", at_s=NOW_S + LONG_S))
        await one.archive(after_s=100.0)
        assert sorted(job.id for job in one.live.state.jobs) == ["heir", "origin", "s1-t1", "young"]
        one.tell(SweepFinished(at_s=one.clock.s, sweep_id="s1", state="completed"))
        await one.archive()
        assert sorted(job.id for job in one.live.state.jobs) == ["heir", "origin"]
        assert not one.live.state.sweeps
        assert not one.live.state.children


async def test_a_job_whose_end_is_not_announced_or_not_in_a_file_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(*life("silent")[:-1])
        await one.archive()
        assert [job.id for job in one.live.state.jobs] == ["silent"]
        one.tell(*life("silent")[-1:], at_s=one.clock.s)
        await one.archive(after_s=1.0)  # the announcement is young, and in no file
        assert [job.id for job in one.live.state.jobs] == ["silent"]
        await one.archive()
        assert not len(one.live.state.jobs)


async def test_a_workload_and_its_samples_go_with_its_last_job(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("j1", model="m", profile="on"))
        await one.live.caught_up()
        key = key_of(one.live.state, one.live.state.jobs["j1"])
        sample = ProfileSample(sample_id="p1", kind="fast", iterations=5)
        spec = one.live.state.jobs["j1"].spec
        one.tell(SamplesRequested(at_s=NOW_S + 6, key=key, spec=spec, samples=(sample,)))
        one.tell(placed("p1", at_s=NOW_S + 7), started("p1", at_s=NOW_S + 8), ended("p1", at_s=NOW_S + 9))
        one.tell(submitted("j2", at_s=NOW_S + 10, model="m", profile="on"))
        await one.archive()
        assert sorted(job.id for job in one.live.state.jobs) == ["j2", "p1"], "j2 is open, and p1 measures it"
        one.tell(*life("j2", at_s=one.clock.s)[1:])
        await one.archive()
        assert not len(one.live.state.jobs)
        assert not one.live.state.samples
        assert not one.live.state.profiles
        assert f"profile.{key}" not in await one.subjects()


async def test_an_id_that_is_used_again_is_another_job_and_is_not_removed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(*life("again"))
        await one.archive()
        fact = submitted("again", at_s=one.clock.s)
        commit = Commit(id="again", actor="test", facts=(fact,))
        await one.bus.append(Append(subject=subject_of(fact), commit=commit, expected=0))
        await one.archive()
        assert [job.state for job in one.live.state.jobs] == ["PD"]
        assert (await one.subjects()).count("job.again") == 1


async def test_an_archived_id_is_nobody_elses_since_output_and_checkpoints_are_kept_under_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        sweep = sweep_spec(id="s1", job=spec(user="alice"))
        one.tell(
            joined(),
            *life("old", user="alice"),
            SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep),
            *life("s1-t1", parent="s1", user="alice"),
            SweepFinished(at_s=NOW_S + 9, sweep_id="s1", state="completed"),
        )
        await one.archive()
        assert not one.live.state.jobs.by_id
        assert not one.live.state.sweeps
        settings = GatewaySettings(archive_dir=str(one.folder))
        async with MemoryBus(one.server) as bus, gateway(bus, settings=settings) as running:
            for name, body in (
                ("submit", spec(id="old", user="bob")),
                ("tune", sweep_spec(id="s1", job=spec(user="b"))),
            ):
                code, said = await refusal(running.command(name, body))
                assert (code, said) == (409, f"the id {body.id} is taken; choose another id, or leave the id out")
            for name, body in (("submit", spec(id="old", user="alice")), ("submit", spec(id="new", user="bob"))):
                assert (await running.command(name, body))["created"]
            (one.folder / "ids.sqlite").write_bytes(b"torn" * 1000)
            code, said = await refusal(running.command("submit", spec(id="newer", user="bob")))
            assert (code, "ids.sqlite cannot be used: file is not a database; make it readable" in said) == (503, True)


async def test_lost_and_forgotten_nodes_are_what_they_were_for_a_fold_from_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined("n1"), joined("lost"), joined("forgotten"), joined("back"))
        for number, nodes in enumerate([("lost",), ("forgotten",), ("back",)]):
            one.tell(RoundDecided(at_s=NOW_S + number, pool="default", lost_nodes=nodes))
        one.tell(RoundDecided(at_s=NOW_S + 5, pool="default", forgotten_nodes=("forgotten",)), joined("back"))
        for number in range(5):
            one.tell(*life(f"j{number}", at_s=NOW_S + 10 * number))
        await one.archive()
        fresh = await folded("matcher", one.bus)
        assert {node.id: node.gone for node in fresh.state.cluster.nodes.values()} == {
            node.id: node.gone for node in one.live.state.cluster.nodes.values()
        }
        assert sorted(fresh.state.cluster.nodes) == ["back", "lost", "n1"]
        rejoined: NodeJoined = joined("forgotten")
        one.tell(rejoined)
        await one.archive()
        assert "forgotten" in (await folded("matcher", one.bus)).state.cluster.nodes


async def folded(service: str, bus: MemoryBus) -> Fold[Any]:
    fold: Fold[Any] = Fold(DECIDERS[service]())  # type: ignore[operator]
    for delivery in await bus.read(ALL):
        fold.apply(delivery)
    return fold


LEARNT_OF_RUNS = {"history", "needs"}
"""What runs have shown of a workload beside its speed: a fold from nothing learns it again."""


async def test_a_fold_from_nothing_knows_what_a_fold_knows_that_saw_it_all(tmp_path: Path) -> None:
    log = read_wire(REAL)
    two_thirds = len(log) * 2 // 3
    async with cluster(tmp_path) as one:
        one.replay(log[:two_thirds])
        seen = {service: Fold(decider()) for service, decider in DECIDERS.items()}  # type: ignore[operator]
        for fold in seen.values():
            apply_all(fold, await one.bus.read(ALL))
        await one.archive(after_s=90_000.0)
        one.replay(log[two_thirds:])
        for fold in seen.values():
            apply_all(fold, await one.bus.read(ALL, after_seq=two_thirds))
        await one.live.caught_up()
        assert one.live.state.archive.jobs > 10
        assert len(await one.bus.read(ALL)) < len(log) * 2 / 3
        fresh = {service: await folded(service, one.bus) for service in DECIDERS}
        for service, fold in fresh.items():
            assert fold.heads == seen[service].heads, service
            jobs = list(seen[service].state.jobs)
            assert list(fold.state.jobs) == jobs, service
        for name in set(GatewayState.__struct_fields__) - LEARNT_OF_RUNS:
            assert getattr(fresh["gateway"].state, name) == getattr(one.live.state, name), name
        assert fresh["ranker"].state.lengths == seen["ranker"].state.lengths == one.live.state.lengths
        assert fresh["ranker"].state == seen["ranker"].state
        for name in ("cluster", "ranks", "keys", "live", "finished_s", "policies", "modes", "speeds"):
            assert getattr(fresh["matcher"].state, name) == getattr(seen["matcher"].state, name), name


def accounts(state: GatewayState, by: UsageBy, now_s: float, **window: Any) -> UsageView:
    asked = UsageRequest(by=by, order="name", **window)
    return usage_answers.usage(ReadModel(state=state, now_s=now_s, seq=1), asked)


def sums(view: UsageView) -> dict[str, Any]:
    return {row.name: pytest.approx(msgspec.structs.asdict(row.usage)) for row in (*view.rows, view.total)}


async def test_accounts_know_archived_jobs_also_in_a_fold_from_nothing(tmp_path: Path) -> None:
    log = read_wire(REAL)
    now_s = log[-1].stored_s + 10 * 86_400.0
    async with cluster(tmp_path) as one:
        one.replay(log)
        await one.live.caught_up()
        groups: tuple[UsageBy, ...] = ("user", "team", "pool", "model", "kind")
        before = {by: sums(accounts(one.live.state, by, now_s)) for by in groups}
        await one.archive()
        assert one.live.state.archive.jobs > 100
        fresh = await folded("gateway", one.bus)
        for state in (one.live.state, fresh.state):
            for by in groups:
                after = accounts(state, by, now_s)
                found = {row.name: msgspec.structs.asdict(row.usage) for row in (*after.rows, after.total)}
                assert found == before[by]


async def test_a_window_that_cuts_a_day_of_archived_jobs_counts_it_whole_and_says_so(tmp_path: Path) -> None:
    day_s = NOW_S // 86_400.0 * 86_400.0
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("a", at_s=day_s + 86_399.0, user="ada"), *life("b", at_s=day_s + 90_000.0, user="bob"))
        await one.archive(after_s=2 * LONG_S)
        state, now_s = one.live.state, one.clock.s
        whole = accounts(state, "user", now_s)
        assert {row.name: row.usage.held_gpu_s for row in whole.rows} == {"ada": 4.0, "bob": 4.0}
        assert (whole.total.usage.jobs, whole.whole_days, whole.since_s) == (2, (), day_s)
        second = accounts(state, "user", now_s, since=day_s + 89_000.0)
        assert {row.name: row.usage.held_gpu_s for row in second.rows} == {"ada": 4.0, "bob": 4.0}
        assert second.whole_days == ("2023-11-15",)
        first = accounts(state, "user", now_s, until=day_s + 86_400.0)
        assert {row.name: (row.usage.waited_gpu_s, row.usage.jobs) for row in first.rows} == {"ada": (1.0, 1)}
        assert first.whole_days == ()
        job = accounts(state, "job", now_s)
        assert [(row.others, row.usage.held_gpu_s) for row in job.rows] == [(True, 8.0)]


async def test_days_of_jobs_that_are_archived_at_different_times_are_added(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("a", user="ada"))
        await one.archive()
        one.tell(*life("b", at_s=NOW_S + 20, user="ada"), at_s=one.clock.s)
        await one.archive()
        for state in (one.live.state, (await folded("gateway", one.bus)).state):
            (day,) = state.archived_usage.values()
            (row,) = day.values()
            assert (row.user, row.usage.jobs, row.usage.held_gpu_s) == ("ada", 2, 8.0)


async def test_models_beyond_the_most_of_a_day_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_gateway.machine.MOST_MODELS", 3)
    async with cluster(tmp_path) as one:
        for number in range(8):
            lived = life(f"j{number}", at_s=NOW_S + 10 * number, model=f"m{number}", profile="off")
            one.tell(*([joined()] if not number else []), *lived, at_s=one.clock.s)
            await one.archive()
        for state in (one.live.state, (await folded("gateway", one.bus)).state):
            found = {row.name: row.usage.jobs for row in accounts(state, "model", one.clock.s).rows}
            assert found == {"m0": 1, "m1": 1, "m2": 1, "other": 5}
            assert accounts(state, "user", one.clock.s).total.usage.held_gpu_s == 8 * 4.0
            assert sum(map(len, state.archived_usage.values())) == 4


async def test_jobs_of_many_groups_go_in_several_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_gateway.retention.MOST_ROWS", 3)
    async with cluster(tmp_path) as one:
        for number in range(8):
            one.tell(*life(f"j{number}", at_s=NOW_S + 10 * number, model=f"m{number}", profile="off"))
        await one.archive()
        facts = [fact for each in await one.bus.read(ALL) for fact in each.commit.facts]
        assert [len(fact.usage) for fact in facts if isinstance(fact, JobsArchived)] == [3, 3, 2]
        assert accounts(one.live.state, "model", one.clock.s).total.usage.held_gpu_s == 8 * 4.0


def apply_all(fold: Fold[Any], log: Iterable[Delivery]) -> None:
    for delivery in log:
        fold.apply(delivery)


@pytest.mark.parametrize("service", sorted(DECIDERS))
async def test_a_fold_that_was_away_while_a_job_ended_and_was_archived_ends_it(tmp_path: Path, service: str) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("j1")[:4], submitted("waits"), submitted("waited"))
        behind = await folded(service, one.bus)
        one.tell(*life("j1")[4:], *life("waited")[2:])
        await one.archive()
        for delivery in await one.bus.read(ALL, after_seq=behind.last_seq):
            behind.apply(delivery)
        assert behind.encoded() is not None
        jobs = getattr(behind.state, "jobs", ())
        assert [job.id for job in jobs] == ["waits"]
        if service == "matcher":
            assert list(behind.state.live["default"]) == ["waits"]
            assert not behind.state.pool("default", behind.state.jobs).index.evicting


def test_an_executor_forgets_the_sequences_of_archived_runs() -> None:
    fold: Fold[Any] = Fold(executor())
    for seq, fact in enumerate([started("j1"), JobsArchived(at_s=1.0, archive=ARCHIVE, job_ids=("j1",))], 1):
        commit = Commit(id=str(seq), actor="t", facts=(fact,))
        fold.apply(Delivery(seq=seq, subject=subject_of(fact), stored_s=1.0, pending=0, commit=commit))
        assert list(fold.heads) == ([subjects.run("j1")] if seq == 1 else [])


class Dying(MemoryBus):
    """Fails at one operation that changes the log: before it, or after it was done."""

    left = 1_000_000
    after = False

    async def _count(self) -> bool:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise BusError("killed before")
        return self.left == 0

    async def append(self, item: Append) -> int:
        dies = await self._count()
        seq = await super().append(item)
        if dies:
            raise BusError("killed after")
        return seq

    async def trim(self, subject: str, before_seq: int) -> int:
        dies = await self._count()
        removed = await super().trim(subject, before_seq)
        if dies:
            raise BusError("killed after")
        return removed


@pytest.mark.parametrize("after", [False, True])
async def test_whoever_dies_at_any_moment_loses_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    def facts() -> Sequence[AnyEvent]:
        return [joined(), *life("a"), *life("b", at_s=NOW_S + 25), submitted("open", at_s=NOW_S + 60)]

    at, died = 0, True
    while died:
        at += 1
        folder = tmp_path / f"{at}"
        async with cluster(folder, bus_type=Dying) as one:
            one.tell(*facts())
            assert isinstance(one.bus, Dying)
            one.bus.left, one.bus.after = at, after
            try:
                await one.archive()
                died = False
            except BusError:
                pass
            server, clock = one.server, one.clock
        async with cluster(folder, server, clock) as other:
            await other.archive(after_s=0.0)
            seqs = [line["seq"] for line in other.archived()]
            assert seqs[: len(facts())] == [*range(1, len(facts()) + 1)], at
            assert len(set(seqs)) == len(seqs), at
            assert [job.id for job in other.live.state.jobs] == ["open"]
            left = {one for one in await other.subjects() if not one.startswith("archive")}
            assert left == {"node.n1", "rank.default", "round.default", "job.open"}
            trims = [f for d in await other.bus.read(subjects.archive(ARCHIVE)) for f in d.commit.known]
            assert sum(isinstance(fact, LogTrimmed) for fact in trims) >= 1
            assert not other.live.state.archive.untrimmed
    assert at > 8


async def test_two_archivers_do_it_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(joined(), *life("a"))
        await one.archive()
        stale = GatewaySettings(archive_dir=str(tmp_path / "other"), keep_days=1.0, archive_every_s=EVERY_S)
        other = Archiver(Shell(one.bus, "gateway", replica_id="r2", clock=one.clock), one.bus, one.live, stale)
        one.tell(*life("b", at_s=one.clock.s))
        one.clock.s += LONG_S
        await one.live.caught_up()
        with pytest.raises(Conflict):
            await other.archive(one.clock.s)  # it has no lease
        await one.archive(after_s=0.0)
        assert [line["subject"] for line in one.archived()].count(subjects.job("b")) == 2


async def test_files_are_cut_by_time_and_have_their_sums(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        for number in range(3):
            one.tell(*life(f"j{number}", at_s=NOW_S + 20 * number))
        await one.archive()
        names = sorted(path.name for path in one.folder.glob("*.gz"))
        assert len(names) == 3
        sums = dict(reversed(line.split("  ")) for line in (one.folder / "SHA256SUMS").read_text().splitlines())
        assert sums == {name: hashlib.sha256((one.folder / name).read_bytes()).hexdigest() for name in names}
        ranges = [tuple(map(int, name.partition("_")[2].removesuffix(".jsonl.gz").split("-"))) for name in names]
        assert ranges[0][0] == 1
        assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
        before = list(one.folder.iterdir())
        for _ in range(3):
            await one.archive(after_s=100.0)
        assert list(one.folder.iterdir()) == before, "what the archive says of itself alone is no file"


async def test_many_jobs_go_in_several_facts_and_each_is_removed_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_gateway.archiver.MOST_IDS", 2)
    async with cluster(tmp_path) as one:
        for number in range(5):
            one.tell(*life(f"j{number}", at_s=NOW_S + number, model=f"m{number}"))
        await one.archive()
        said = [fact for d in await one.bus.read(subjects.archive(ARCHIVE)) for fact in d.commit.known]
        archived = [fact for fact in said if isinstance(fact, JobsArchived)]
        assert [fact.job_ids for fact in archived] == [("j0", "j1"), ("j2", "j3"), ("j4",)]
        assert [bool(fact.learnt) for fact in archived] == [True, False, False]
        assert [len(fact.workloads) for fact in archived] == [0, 0, 5], "no job of any of them is left"
        assert sum(isinstance(fact, LogTrimmed) for fact in said) == 3


async def test_what_is_needed_since_it_was_chosen_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        one.tell(*life("origin"), *life("other"))
        await one.live.caught_up()
        chosen = JobsArchived(at_s=1.0, archive=ARCHIVE, job_ids=("origin", "other"), workloads=("k", "used"))
        one.tell(submitted("heir", begins_from="origin"))
        await one.live.caught_up()
        used = one.live.state.keys["heir"]
        asked = msgspec.structs.replace(chosen, workloads=("k", used))
        left = still_due(one.live.state, asked)
        assert (left.job_ids, left.workloads) == (("other",), ("k",))
        assert [(row.usage.jobs, row.usage.held_gpu_s) for row in left.usage] == [(1, 4.0)]
