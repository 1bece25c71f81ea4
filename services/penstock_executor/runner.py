"""The executor at work: follow the log, watch the processes, and make the one match the other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import re
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from penstock_bus import Append, BusError, Conflict
from penstock_bus.live import LiveFold
from penstock_bus.retry import until_available
from penstock_bus.shell import Shell
from penstock_bus.tasks import background
from penstock_devices import inventory
from penstock_events import AnyEvent, Commit, NodeJoined, NodeLeft, RunEnded, RunStarted, subjects
from penstock_executor import ears, launch, machine, processes, reporter
from penstock_executor.host import Host, Place
from penstock_executor.local import Key, Observed, Run
from penstock_executor.output import Limit, Tail
from penstock_executor.settings import ExecutorSettings

OUTPUT_S: Final = 0.05
PROGRESS_S: Final = 0.5
GREETING_S: Final = 0.005
"""A process may have ended before its greeting was read from the socket."""
LAST_WORDS_S: Final = 1.0
"""How long an ended process's connection may take to close: what it said last is still in there."""
PIECE_BYTES: Final = 64 * 1024
SNAPSHOT_EVERY: Final = 5_000
FOLLOWED: Final = tuple(
    f"{subjects.ROOT}.evt.{kind}.*" for kind in ("job", "profile", "request", "round", "run", "node")
)


async def run(shell: Shell, settings: ExecutorSettings) -> None:
    """Be a node's executor until the shell stops."""
    data = Path(os.path.abspath(settings.data_dir))
    async with AsyncExitStack() as stack:
        stack.enter_context(_alone_in(data))
        await Executor(shell, settings, data).work(stack)


class ExecutorError(Exception):
    """The executor cannot work here; says what to do."""


class Executor:
    """One node's executor, for one life of its process."""

    def __init__(self, shell: Shell, settings: ExecutorSettings, data: Path) -> None:
        self.shell, self.settings = shell, settings
        self.node_id = settings.node_id or host_name()
        self.actor = f"executor/{self.node_id}"
        self.boot = uuid.uuid4().hex[:8]
        self.joins = 0
        self.left = False
        self.site = launch.Site(
            node_id=self.node_id,
            devices=inventory(settings.devices),
            socket=str(ears.path_in(data)),
            checkpoints=Path(settings.checkpoint_dir or data / "checkpoints").absolute(),
            cwd=os.getcwd(),
        )
        self.live = LiveFold(shell.bus, machine.decider(), name=f"executor-{self.node_id}", subjects=FOLLOWED)
        self.wake = self.live.changed.set
        self.host = Host(
            self.site,
            data / "runs",
            clock=shell.now_s,
            watch=self._watch,
            report=self._report,
            wake=self.wake,
        )
        self.outputs: dict[Place, _Output] = {}
        self.watched: dict[Place, int] = {}
        self.progress_told_s: dict[Key, float] = {}
        self.outboxes: dict[str, reporter.Outbox] = {}
        self.heads: dict[str, int] = {}
        self.removed: set[str] = set()
        self.tasks: asyncio.TaskGroup

    async def work(self, stack: AsyncExitStack) -> None:
        """Catch up, take in what still runs, and reconcile until the shell stops."""
        await stack.enter_async_context(self.live)
        await self.live.caught_up()
        self.removed = set(self.live.state.finished)
        async with asyncio.TaskGroup() as self.tasks, self._listening():
            for place in list(self.host.adopt()):
                self._spawn(self._conclude(place))
            self._recall()
            async with background(self._beat(), self._publish_output(), self._hear_peers(), self._until_stopping()):
                await self._reconcile()
            self.shell.vitals.ready = False
        await self.live.save_snapshot()

    # --- the loop
    async def _reconcile(self) -> None:
        while not self._over():
            self.live.changed.clear()
            observed = Observed(incarnation=self.boot, runs=self.host.runs, draining=self.shell.stopping.is_set())
            now_s = self.shell.now_s()
            limit_s = self.settings.sample_limit_s
            plan = machine.decide(self.live.state, self.node_id, observed, now_s, limit_s)
            for action in plan.actions:
                await self._act(action)
            self._remove_checkpoints()
            if plan.actions:
                continue
            wait_s = None if plan.wake_at_s is None else max(0.0, plan.wake_at_s - self.shell.now_s())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.live.changed.wait()

    def _over(self) -> bool:
        return self.left or (self.shell.stopping.is_set() and self.settings.on_shutdown == "leave")

    async def _act(self, action: machine.Action) -> None:
        host = self.host
        match action:
            case machine.Start():
                self._start(action.job_id)
            case machine.Ask():
                host.ask((action.job_id, action.epoch), action.ending)
                await self._tell_peers(host.runs[action.job_id, action.epoch])
            case machine.Term():
                host.term((action.job_id, action.epoch), action.ending)
            case machine.Kill():
                host.kill((action.job_id, action.epoch))
            case machine.Report():
                self._tell_end_or_start(action.fact)
            case machine.Clean():
                host.clean((action.job_id, action.epoch))
            case machine.Join():
                await self._join()
            case machine.Leave():
                await self._append_node(NodeLeft(node_id=self.node_id, reason="shutdown", at_s=self.shell.now_s()))
                self.left = True
            case _:
                assert_never(action)

    def _start(self, job_id: str) -> None:
        job = self.live.state.jobs[job_id]
        started = self.host.start(job, self.live.state.cluster)
        log = self.shell.log.bind(job_id=job_id, epoch=job.epoch)
        if started.refused:
            log.warning("run_refused", reason=started.refused)
        else:
            log.info("run_started", devices=started.devices, ranks=sorted(started.ranks))

    def _tell_end_or_start(self, fact: RunStarted | RunEnded) -> None:
        run = self.host.runs.get((fact.job_id, fact.epoch))
        if run is None:  # a lease that never ran here: remembered, so that its end is told once
            run = Run(job_id=fact.job_id, epoch=fact.epoch, refused="never started", told={"started"})
            self.host.runs[run.key] = run
        run.told.add("ended" if isinstance(fact, RunEnded) else "started")
        self._report(fact)

    def _remove_checkpoints(self) -> None:
        fresh = [job_id for job_id in self.live.state.finished if job_id not in self.removed]
        if fresh:
            self.removed = set(self.live.state.finished)
            for job_id in () if self.settings.keep_checkpoints else fresh:
                self.host.remove_checkpoints(job_id)

    # --- what the log is told
    def _report(self, fact: AnyEvent) -> None:
        if not isinstance(fact, reporter.RunFact):
            raise TypeError(f"{fact!r} is no fact about a run")
        outbox = self.outboxes.get(fact.job_id)
        if outbox is None:
            outbox = self.outboxes[fact.job_id] = reporter.Outbox(self.actor)
            self._spawn(self._deliver(fact.job_id, outbox))
        outbox.put(fact, self.live.state.leased.get(fact.job_id, 0))

    async def _deliver(self, job_id: str, outbox: reporter.Outbox) -> None:
        subject = subjects.run(job_id)
        while (commit := outbox.next()) is not None:
            await self._append(subject, commit)
            outbox.done(commit)
        del self.outboxes[job_id]

    async def _append(self, subject: str, commit: Commit) -> None:
        """Append, whoever else writes the subject; what the log has moved beyond meanwhile, its folds ignore."""
        while True:
            expected = max(self.live.heads.get(subject, 0), self.heads.get(subject, 0))
            item = Append(subject=subject, commit=commit, expected=expected)
            try:
                self.heads[subject] = await until_available(partial(self.shell.bus.append, item), "append")
            except Conflict:
                last = await until_available(partial(self.shell.bus.last, subject), "last")
                if last is not None and last.commit.id != commit.id:
                    await self.live.reached(last.seq)
                    self.heads[subject] = last.seq
                    continue
            return

    async def _join(self) -> None:
        self.joins += 1
        labels = {"address": self.settings.address, **self.settings.labels}
        joined = NodeJoined(
            node_id=self.node_id,
            devices=self.site.devices,
            pool=self.settings.pool,
            labels=labels,
            incarnation=self.incarnation,
            at_s=self.shell.now_s(),
        )
        await self._append_node(joined)
        self.shell.vitals.ready = True
        self.shell.log.info("node_joined", node_id=self.node_id, devices=len(self.site.devices))

    @property
    def incarnation(self) -> str:
        """Changes with every start, and with every return from having been declared lost."""
        return f"{self.boot}-{self.joins}"

    async def _append_node(self, fact: NodeJoined | NodeLeft) -> None:
        subject = subjects.node(self.node_id)
        await self._append(subject, reporter.commit(self.actor, (fact,)))
        await self.live.reached(self.heads[subject])

    # --- what the processes do
    def _watch(self, place: Place, process: processes.Process) -> None:
        self._output(place)
        fd = os.pidfd_open(process.pid)
        self.watched[place] = fd
        asyncio.get_running_loop().add_reader(fd, self._on_exit, place)

    def _on_exit(self, place: Place) -> None:
        self._unwatch(place)
        self._spawn(self._conclude(place))

    def _unwatch(self, place: Place) -> None:
        fd = self.watched.pop(place)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    async def _conclude(self, place: Place) -> None:
        """Take in a process's last words and the rest of its output, then let its end be known."""
        await asyncio.sleep(GREETING_S)
        code = self.host.buried(place)
        if place in self.host.lines:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self.host.lines[place].closed.wait()
        output = self._output(place)
        async with output.lock:
            for tail in output.tails:
                await self._publish(place, tail, final=True)
                tail.close()
            del self.outputs[place]
        self.progress_told_s.pop(place[0], None)
        await self._tell_progress()
        self.host.ended(place, code)

    def _output(self, place: Place) -> _Output:
        if place not in self.outputs:
            limit = Limit(self.settings.log_rate_bytes_per_s, self.settings.log_burst_bytes)
            where = self.host.rank_dir(place)
            self.outputs[place] = _Output([Tail(where / name, limit) for name in ("stdout", "stderr")], asyncio.Lock())
        return self.outputs[place]

    async def _publish_output(self) -> None:
        while True:
            for place, output in list(self.outputs.items()):
                async with output.lock:
                    for tail in output.tails if place in self.outputs else ():
                        await self._publish(place, tail)
            await self._tell_progress()
            await asyncio.sleep(OUTPUT_S)

    async def _publish(self, place: Place, tail: Tail, final: bool = False) -> None:
        (job_id, _), rank = place
        while (piece := tail.look(self.shell.now_s(), final)) is not None:
            for at in range(0, len(piece.data), PIECE_BYTES):
                write = partial(self.shell.bus.write_log, job_id, rank, piece.data[at : at + PIECE_BYTES])
                await until_available(write, "write_log")
            tail.done(piece)
        run = self.host.runs.get(place[0])
        if tail.dropped_bytes and run is not None and "dropped" not in run.told:
            run.told.add("dropped")
            rate = self.settings.log_rate_bytes_per_s
            self.host.warn(run.key, f"rank {rank} prints more than {rate} bytes/s; the excess is dropped")

    # --- telemetry
    async def _beat(self) -> None:
        while True:
            body = {"node_id": self.node_id, "incarnation": self.incarnation, "at_s": self.shell.now_s()}
            await self._tell(subjects.heartbeat(self.node_id), body)
            for run in [run for run in self.host.runs.values() if run.asked_s and run.alive]:
                await self._tell_peers(run)
            if self.live.unsaved >= SNAPSHOT_EVERY:
                await self.live.save_snapshot()
            await asyncio.sleep(self.settings.heartbeat_s)

    async def _tell_progress(self) -> None:
        now_s = self.shell.now_s()
        for key in [key for key in self.host.fresh if now_s - self.progress_told_s.get(key, 0.0) >= PROGRESS_S]:
            rank = self.host.runs[key].ranks[0]
            body = {"job_id": key[0], "step": rank.step, "metrics": rank.metrics, "loop_s": rank.loop_s}
            self.host.fresh.discard(key)
            self.progress_told_s[key] = now_s
            await self._tell(subjects.progress(key[0]), body)
        for key in self.progress_told_s.keys() - self.host.runs.keys():
            del self.progress_told_s[key]

    async def _tell(self, subject: str, body: object) -> None:
        try:
            await self.shell.bus.tell(subject, msgspec.json.encode(body))
        except BusError as error:
            self.shell.log.debug("telemetry_lost", subject=subject, error=str(error))

    # --- gangs over several nodes
    async def _tell_peers(self, run: Run) -> None:
        """Tell the gang's other nodes what our processes answered; repeated with each heartbeat until all have left."""
        if len(run.ranks) < run.world_size:
            answers = {rank: step for rank, step in run.answers.items() if rank in run.ranks}
            word = Word(job_id=run.job_id, epoch=run.epoch, answers=answers, stop_step=run.stop_step)
            await self._tell(subjects.agreement(run.job_id), word)

    async def _hear_peers(self) -> None:
        async for _, body in self.shell.bus.listen(subjects.AGREEMENTS):
            with contextlib.suppress(msgspec.MsgspecError):
                await self._hear_peer(msgspec.json.decode(body, type=Word))

    async def _hear_peer(self, word: Word) -> None:
        run = self.host.runs.get((word.job_id, word.epoch))
        if run is None or not run.alive:
            return
        if not run.asked_s and run.greeted:
            self.host.ask(run.key, "preempted")
        known = len(run.answers)
        run.answers.update({rank: step for rank, step in word.answers.items() if rank not in run.ranks})
        self.host.settle(run, word.stop_step)
        if len(run.answers) > known:
            await self._tell_peers(run)

    # --- the frame
    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Listen on the agents' socket; afterwards let go of all processes, which live on."""
        loop = asyncio.get_running_loop()
        listener = ears.bind(Path(self.site.socket))
        server = await loop.create_unix_server(lambda: ears.Line(self.host), sock=listener)
        try:
            yield
        finally:
            server.close()
            for line in list(self.host.lines.values()):
                line.close()
            for place in list(self.watched):
                self._unwatch(place)

    async def _until_stopping(self) -> None:
        await self.shell.stopping.wait()
        self.wake()

    def _recall(self) -> None:
        """Remember for adopted runs what the log has been told already."""
        for found in self.host.runs.values():
            if self.live.state.started.get(found.job_id, {}).get(self.node_id) == found.epoch:
                found.told.add("started")

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        self.tasks.create_task(task)


@dataclass
class _Output:
    """A process's output files, and who may read them now."""

    tails: list[Tail]
    lock: asyncio.Lock


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of a gang tell each other about a stop."""

    job_id: str
    epoch: int
    answers: dict[int, int]
    stop_step: int | None = None


def host_name() -> str:
    """Return the host's name as an id: lower-case letters, digits, - and _."""
    return re.sub(r"[^a-z0-9_-]+", "-", platform.node().lower()).strip("-")[:63] or "node"


@contextmanager
def _alone_in(data: Path) -> Iterator[None]:
    """
    Hold the data folder.

    Raises
    ------
    ExecutorError
        If another executor holds it, or it cannot be written.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        handle = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ExecutorError(f"data_dir {data} cannot be written: {error.strerror}; set another one") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ExecutorError(f"another executor works in {data}; stop it, or set another data_dir") from error
    finally:
        os.close(handle)
