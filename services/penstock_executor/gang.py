"""
Rendezvous and stop barrier of a gang's processes.

:class:`Rendezvous` gives the processes the variables by which ``torch.distributed`` and its like find each other. The
stop barrier is the step after which all processes stop: :func:`note_message` takes their answers, :func:`stop_step`
computes the step, and :func:`settle_stop` says when it is settled. The barrier is pure; its rules are those of
:mod:`penstock_log.agent_protocol`.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from penstock_cluster.nodes import Cluster
from penstock_executor.launchers.environment import GangMember
from penstock_executor.run_state import Key, LocalRun, RunProcess
from penstock_log.agent_protocol import (
    STOP_MARGIN,
    AgentEnv,
    CheckpointSaved,
    FromJob,
    Hello,
    LoopReport,
    ReadyToPark,
    SaveFailed,
    SessionDone,
    StepProgress,
    StepReached,
    StopAtStep,
    kept_metrics,
)

_FIRST_PORT: Final = 20_000
_PORTS: Final = 12_000  # below the ports that kernels hand out by themselves, which start at 32,768


class Rendezvous:
    """The addresses at which this node's gangs meet: no two of its runs have the same."""

    def __init__(self) -> None:
        self._ports: dict[Key, int] = {}

    def arrange(self, key: Key, gang: list[GangMember], cluster: Cluster) -> dict[str, str]:
        """
        Return where a gang meets, the same for all of its processes.

        On one node the port is free: neither another run of this node nor a listener has it, and the kernel does not
        give it to connections. Over several nodes each node derives the same number from job and epoch. The port is
        likely to be free on rank 0's node, but this is not certain: a gang that meets a taken port fails, and a retry
        has another epoch, hence another number.
        """
        first = cluster.nodes.get(gang[0].node_id)
        alone = len({member.node_id for member in gang}) == 1
        address = "127.0.0.1" if alone or first is None else first.labels.get("address", "127.0.0.1")
        port = self._own_port(key) if alone and len(gang) > 1 else derived_port(*key)
        return {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(len(gang)),
            AgentEnv.WORLD_SIZE: str(len(gang)),
        }

    def release(self, key: Key) -> None:
        """Note that a run has ended: other runs may have its port."""
        self._ports.pop(key, None)

    def _own_port(self, key: Key) -> int:
        """Return the first free port after the derived one, so that executors of one host seldom look at the same."""
        begin, taken = derived_port(*key) - _FIRST_PORT, set(self._ports.values())
        ports = (_FIRST_PORT + (begin + i) % _PORTS for i in range(_PORTS))
        port = next((port for port in ports if port not in taken and _is_free(port)), derived_port(*key))
        self._ports[key] = port
        return port


def derived_port(job_id: str, epoch: int) -> int:
    """Return the port that every node of a gang derives by itself."""
    return _FIRST_PORT + zlib.crc32(f"{job_id}/{epoch}".encode()) % _PORTS


def _is_free(port: int) -> bool:
    """Return whether the port is free at this moment, at all of the host's addresses."""
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def stop_step(
    world_size: int, answers: Mapping[int, int], absent: Collection[int] = (), held: Collection[int] = ()
) -> int | None:
    """
    Return the step that all processes of a gang can stop after; None while an answer is missing.

    ``absent`` processes have ended and give no answer; ``held`` ones begin no further step before they receive the stop
    step.

    Examples
    --------
    >>> stop_step(2, {0: 10}), stop_step(2, {0: 10, 1: 11}), stop_step(2, {0: 10}, absent={1})
    (None, 13, 12)
    >>> stop_step(2, {0: 10, 1: 10}, held={0, 1}), stop_step(2, {0: 11, 1: 10}, held={0})
    (10, 12)
    """
    if not answers or any(rank not in answers and rank not in absent for rank in range(world_size)):
        return None
    return max(step + (0 if rank in held else STOP_MARGIN) for rank, step in answers.items())


def note_message(run: LocalRun, index: int, message: FromJob) -> None:
    """Note a message of one process."""
    rank = run.ranks[index]
    match message:
        case Hello():
            rank.greeted = True
            _note_step(rank, message.step)
            run.answers.pop(index, None)  # a question over an older connection is void
            run.held.discard(index)
        case StepProgress():
            _note_report(rank, message)
        case SessionDone():
            _note_report(rank, message)
            rank.done = True
            run.answers[index] = message.step
        case StepReached():
            run.answers[index] = message.step
            if message.held:
                run.held.add(index)
        case CheckpointSaved():
            rank.saved_step = max(rank.saved_step, message.step)
            rank.saved_samples = max(rank.saved_samples, message.samples)
            _note_step(rank, message.step)
            rank.leaving = rank.leaving or message.leaving
        case SaveFailed() | ReadyToPark():
            _note_step(rank, message.step)


def _note_report(rank: RunProcess, report: LoopReport) -> None:
    """Note a process's report of its loop; metrics that it does not name, and its skew, stay as they were."""
    if report.memory is not None:
        rank.peak_bytes = max(rank.peak_bytes, report.memory.peak_bytes, report.memory.allocated_bytes)
    metrics = {**rank.report.metrics, **report.metrics}
    kept, diverged = kept_metrics(metrics), tuple(kept_metrics(report.diverged))
    rank.crowded = rank.crowded or len(kept) < len(metrics) or len(diverged) < len(report.diverged)
    rank.report = msgspec.structs.replace(
        report,
        metrics={name: metrics[name] for name in kept if name not in report.diverged},
        diverged=diverged,
        skew=report.skew or rank.report.skew,
    )


def _note_step(rank: RunProcess, step: int) -> None:
    rank.report = msgspec.structs.replace(rank.report, step=max(rank.report.step, step))


def settle_stop(run: LocalRun, agreed: int | None = None) -> StopAtStep | None:
    """
    Settle the step once all answers are in; return the message for the processes, the first time only.

    ``agreed`` is the step that another node of the gang has computed from the same answers.
    """
    if not run.asked_s or run.stop_step is not None:
        return None
    absent = run.absent | {index for index, rank in run.ranks.items() if not rank.alive}
    run.stop_step = stop_step(run.world_size, run.answers, absent, run.held) if agreed is None else agreed
    return None if run.stop_step is None else StopAtStep(step=run.stop_step, park=run.may_park)
