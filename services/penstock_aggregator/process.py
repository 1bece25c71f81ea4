"""
The process of an aggregator: ``python -m penstock_aggregator.process``.

Its agent gives it orders over a socket pair, one JSON object a line, and hears what was measured and moved; ranks and
other aggregators come to its data port. It knows nothing of the bus. It ends when its agent's end of the pair closes.
"""

from __future__ import annotations

import argparse
import os
import queue
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, assert_never

import msgspec
import structlog

from penstock.aggregation.frames import MAGIC, PartFrame, PartRequest, PartStatus, encoded
from penstock.leased_connection import LEASE_BYTES, NONCE_BYTES, PROOF_BYTES, proof_of
from penstock_aggregator.hosted_run import HostedPart, HostedRun, RunKey
from penstock_aggregator.part_copy import PartCopier
from penstock_aggregator.parts import PartAnswer, PartPhase
from penstock_aggregator.rank_connection import RankConnection, deliver
from penstock_aggregator.turns import DeferredSteps, RunTurns
from penstock_bus import logs
from penstock_bus.data_port import DataPort, LeaseHello, RefusalCounts, answer_and_end
from penstock_bus.settings import load
from penstock_log.aggregation_messages import (
    COPY_RANK,
    AggregatorPong,
    AggregatorReady,
    CloseRun,
    DropPart,
    FromAggregator,
    GrantLease,
    OpenPart,
    PartCopied,
    PingAggregator,
    RunSlots,
    SendPart,
    ToAggregator,
)

MOST_OF_RANK: Final = 32
"""Connections of one rank of a run; the aggregators that send copies bound theirs themselves."""
HELLO: Final = LeaseHello(MAGIC, LEASE_BYTES, NONCE_BYTES, PROOF_BYTES, proof_of)
_log = structlog.get_logger("penstock.aggregator")
_decoder: Final = msgspec.json.Decoder(ToAggregator)


class Aggregator:
    """
    Parts and leases, the data port, and the agent's orders.

    Parameters
    ----------
    orders : socket
        The aggregator's end of the pair.
    host, port, path : str, int, Path or None
        Of the data port, as for :class:`~penstock_bus.data_port.DataPort`.
    ticking : callable
        Seconds that never jump.

    Raises
    ------
    OSError
        If it cannot listen there.
    """

    def __init__(
        self,
        orders: socket.socket,
        host: str,
        port: int,
        path: Path | None,
        *,
        ticking: Callable[[], float] = time.monotonic,  # noqa: TID251 - threads have no loop whose clock they could ask
    ) -> None:
        self._orders, self._path, self._ticking = orders, path, ticking
        self.refusals = RefusalCounts("aggregation_request", ticking)
        self._lock = threading.Lock()
        self._runs: dict[RunKey, HostedRun] = {}
        self._leases: dict[bytes, tuple[bytes, HostedRun, int]] = {}
        self._connected: Counter[tuple[RunKey, int]] = Counter()
        self._received_bytes = self._sent_bytes = 0
        self._words: queue.SimpleQueue[FromAggregator] = queue.SimpleQueue()
        self._copier = PartCopier(self._words.put, ticking)
        self._sending: dict[HostedPart, SendPart] = {}
        self._turns = RunTurns()
        self._deferred = DeferredSteps(self._complete_deferred, ticking)
        self._port = DataPort(
            self, HELLO, self.refusals, name="aggregator", host=host, port=port, path=path, ticking=ticking
        )

    def run(self) -> None:
        """Follow orders until the agent hangs up."""
        threading.Thread(target=self._tell_agent, name="aggregator-words", daemon=True).start()
        self._port.open()
        self._words.put(AggregatorReady(port=self._port.port))
        with self._orders.makefile("rb") as lines, suppress(ConnectionResetError):
            for line in lines:
                try:
                    order = _decoder.decode(line)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    _log.warning("aggregator_order_not_understood", line=line[:200], error=str(error))
                    continue
                self.follow(order)
        self._port.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _tell_agent(self) -> None:
        with suppress(OSError):  # the agent has gone, and its orders end
            while True:
                self._orders.sendall(msgspec.json.encode(self._words.get()) + b"\n")

    # --- orders
    def follow(self, order: ToAggregator) -> None:
        """Do what the agent says."""
        match order:
            case OpenPart():
                before = self._run_of(order.job_id, order.epoch).put_part(order)
                if before is not None:
                    self._close_part(before, PartStatus.STALE, f"the part is here since generation {order.generation}")
            case GrantLease():
                run = self._run_of(order.job_id, order.epoch)
                with self._lock:
                    self._leases[bytes.fromhex(order.lease)] = (bytes.fromhex(order.token), run, order.rank)
            case SendPart():
                self._send_part(order)
            case DropPart():
                run = self._run_of(order.job_id, order.epoch)
                dropped = run.remove_part(order.part, order.generation)
                if dropped is not None:
                    self._close_part(dropped, PartStatus.UNKNOWN_PART, f"part {order.part} is not here any more")
            case CloseRun():
                self._close_run(order)
            case RunSlots():
                self._change_turns(order)
            case PingAggregator():
                self._words.put(
                    AggregatorPong(
                        number=order.number,
                        busy_s=time.process_time(),
                        refused=self.refusals.counts(),
                        received_bytes=self._received_bytes,
                        sent_bytes=self._sent_bytes,
                    )
                )
            case _:
                assert_never(order)

    def _change_turns(self, order: RunSlots) -> None:
        try:
            self._turns.change(order)
        except ValueError as error:
            _log.warning("aggregator_slots_not_understood", error=str(error))
        self._deferred.ask_again()

    def _run_of(self, job_id: str, epoch: int) -> HostedRun:
        with self._lock:
            return self._runs.setdefault((job_id, epoch), HostedRun((job_id, epoch)))

    def _close_part(self, hosted: HostedPart, status: PartStatus, reason: str) -> None:
        with hosted.lock:
            answers = hosted.part.close(status, reason)
            hosted.close()
            sending = self._sending.pop(hosted, None)
        deliver(answers)
        if sending is not None:
            self._copier.fail(sending, reason)

    def _close_run(self, order: CloseRun) -> None:
        with self._lock:
            run = self._runs.pop((order.job_id, order.epoch), None)
            self._leases = {lease: told for lease, told in self._leases.items() if told[1] is not run}
        if run is None:
            return
        run.over = order.reason or "the run is over"
        parts, run.parts = run.parts, {}
        for hosted in parts.values():
            self._close_part(hosted, PartStatus.RUN_OVER, run.over)

    def _send_part(self, order: SendPart) -> None:
        run = self._run_of(order.job_id, order.epoch)
        hosted = run.parts.get(order.part)
        if hosted is None:
            self._copier.fail(order, "the part is not here")
            return
        with hosted.lock:
            answers = hosted.part.begin_move()
            if answers is not None:
                self._sending[hosted] = order
                self._send_if_moved(run, hosted)
        if answers is None:
            self._copier.fail(order, f"the part is {hosted.part.phase.value}, and has nothing to send")
        else:
            deliver(answers)

    def _send_if_moved(self, run: HostedRun, hosted: HostedPart) -> None:
        """Send a part once no step of it is in progress; its lock is held."""
        if hosted.part.phase is PartPhase.MOVED and (order := self._sending.pop(hosted, None)) is not None:
            hosted.moved_s = self._ticking()
            run.part_left()
            self._copier.send_part(hosted, order)

    # --- what connections ask of it
    def token_of(self, lease: bytes) -> bytes | None:
        """See :class:`~penstock_bus.data_port.DataService`."""
        with self._lock:
            told = self._leases.get(lease)
        return told[0] if told is not None else None

    def serve_proved(self, connection: socket.socket, lease: bytes, who: str) -> None:
        """See :class:`~penstock_bus.data_port.DataService`."""
        with self._lock:
            told = self._leases.get(lease)
            if told is None:
                return
            _, run, rank = told
            self._connected[run.key, rank] += 1
            is_one_too_many = rank != COPY_RANK and self._connected[run.key, rank] > MOST_OF_RANK
        try:
            if is_one_too_many:
                reason = f"there are {MOST_OF_RANK} connections of rank {rank} of run {run.name} already"
                self.refuse_unproved(connection, PartStatus.BAD_FRAME.name, reason, who)
            else:
                RankConnection(self, connection, run, rank, who=who, ticking=self._ticking).serve()
        finally:
            with self._lock:
                self._connected[run.key, rank] -= 1
                if not self._connected[run.key, rank]:
                    del self._connected[run.key, rank]

    def refuse_unproved(self, connection: socket.socket, status: str, reason: str, who: str) -> None:
        """See :class:`~penstock_bus.data_port.DataService`."""
        self.refusals.note(status, reason, peer=who)
        text = reason.encode()
        answer = encoded(PartFrame(PartRequest.HELLO, status=PartStatus[status], length=len(text))) + text
        answer_and_end(connection, answer, ticking=self._ticking)

    def complete_whole(self, run: HostedRun, hosted: HostedPart) -> list[PartAnswer]:
        """See :class:`~penstock_aggregator.rank_connection.ConnectionOwner`."""
        now_s = self._ticking()
        wait_s = self._turns.wait_s(run.name, hosted.part.completed + 1, now_s)
        if wait_s > 0:
            self._deferred.defer(wait_s, run, hosted)
            return []
        answers = hosted.part.complete()
        measured = run.completed(hosted, hosted.part.completed, self._ticking())
        if measured is not None:
            self._words.put(measured)
        self._send_if_moved(run, hosted)
        return answers

    def _complete_deferred(self, run: HostedRun, hosted: HostedPart) -> None:
        begun_s = time.thread_time()
        with hosted.lock:
            answers = self.complete_whole(run, hosted) if hosted.part.is_whole else []
        deliver(answers)
        hosted.add_cost(time.thread_time() - begun_s)

    def copy_is_whole(self, run: HostedRun, hosted: HostedPart, copied_bytes: int, pause_s: float) -> None:
        """See :class:`~penstock_aggregator.rank_connection.ConnectionOwner`."""
        self._words.put(
            PartCopied(
                job_id=run.key[0],
                epoch=run.key[1],
                part=hosted.number,
                generation=hosted.generation,
                step=hosted.part.completed,
                copied_bytes=copied_bytes,
                pause_s=pause_s,
            )
        )

    def count_traffic(self, received: int, sent: int) -> None:
        """See :class:`~penstock_aggregator.rank_connection.ConnectionOwner`."""
        with self._lock:
            self._received_bytes += received
            self._sent_bytes += sent


def end_on_errors() -> None:
    """
    Have the process end as soon as one of its threads does by an error that nobody expected.

    A part may be updated by half then, and its run would wait for ever; without the process, its ranks join anew.
    """

    def end(error: threading.ExceptHookArgs) -> None:
        problem = error.exc_value or error.exc_type()
        where = error.thread.name if error.thread is not None else ""
        _log.error("aggregator_failed", thread=where, exc_info=problem)
        os._exit(os.EX_SOFTWARE)

    threading.excepthook = end


def main(arguments: Sequence[str] | None = None) -> None:
    """Run an aggregator until its agent hangs up."""
    parser = argparse.ArgumentParser(prog="penstock_aggregator.process", description=__doc__)
    parser.add_argument("--orders", type=int, required=True, help="descriptor of the inherited end of a socket pair")
    parser.add_argument("--host", default="", help="where to listen; everywhere if empty")
    parser.add_argument("--port", type=int, default=0, help="a free one if 0")
    parser.add_argument("--socket", type=Path, default=None, help="path of the Unix socket")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent says when it ends
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each result that is shared has two
    logs.configure(load(logs.Logging, "log"))
    end_on_errors()
    with socket.socket(fileno=chosen.orders) as orders:
        Aggregator(orders, chosen.host, chosen.port, chosen.socket).run()


if __name__ == "__main__":
    main()
