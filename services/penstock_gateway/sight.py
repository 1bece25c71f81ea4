"""
Sight: finding what people ask about, where they may see it.

:func:`job`, :func:`sweep` and :func:`workload` find one thing and refuse it to those who may not see it.
:func:`kinds_seen` is the same for raw facts, and :func:`check_read` for what people read of the streams themselves.
"""

from __future__ import annotations

from typing import Final

from penstock_bus import LogReader
from penstock_bus.follower import FoldFollower
from penstock_gateway import acceptance, log_reader
from penstock_gateway.authority import FORBIDDEN, Caller
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_gateway.sweep_table import SweepRecord
from penstock_log import Job, services, subjects

_OF_JOBS: Final = ("job", "run")
_OF_SWEEPS: Final = ("sweep", "request")
_OF_NODES: Final = ("node",)


def job(state: GatewayState, wanted: str, caller: Caller) -> Job:
    """Return the job that an id or its unique beginning names; 403 if it is not to be seen."""
    found = acceptance.job_named(state, wanted, caller)
    caller.require_sight(found.spec, f"job {found.id}")
    return found


def sweep(state: GatewayState, wanted: str, caller: Caller) -> SweepRecord:
    """Return the sweep that an id or its unique beginning names; 403 if it is not to be seen."""
    found = acceptance.sweep_named(state, wanted, caller)
    caller.require_sight(found.spec.job, f"sweep {found.id}")
    return found


def workload(state: GatewayState, wanted: str, caller: Caller) -> str:
    """Return the key of a workload that is named; except for operators, of a job or sweep that they see."""
    return acceptance.workload_named(state, wanted, caller)


def kinds_seen(state: GatewayState, caller: Caller, wanted: str) -> tuple[str, ...]:
    """
    Return the kinds of facts that may be seen of what an id names.

    An id may name several things, such as a job and a node that joined later under its name: each is seen by its own
    rule, and facts of further kinds, such as a person's or a pool's of the same name, by operators alone.

    Raises
    ------
    RequestRefused
        403 where nothing is to be seen: of others' jobs and sweeps, of pools, or of everything.
    """
    if caller.sees_all:
        return tuple(services.WRITERS)
    job, record = state.jobs.get(wanted), state.sweeps.get(wanted)
    kinds: tuple[str, ...] = ()
    if job is not None and caller.sees(job.spec):
        kinds += _OF_JOBS
    if record is not None and caller.sees(record.spec.job):
        kinds += _OF_SWEEPS
    if wanted in state.cluster.nodes:
        kinds += _OF_NODES
    if kinds:
        return kinds
    if job is not None:
        caller.require_sight(job.spec, f"job {wanted}")
    if record is not None:
        caller.require_sight(record.spec.job, f"sweep {wanted}")
    what = repr(wanted) if wanted else "everything"
    raise RequestRefused(FORBIDDEN, f"facts about {what} are for operators; name a job or a sweep of yours")


async def check_read(bus: LogReader, live: FoldFollower[GatewayState], caller: Caller, subject: str) -> None:
    """
    Refuse what is not to be read of a stream.

    Parameters
    ----------
    subject : str
        What is read: ``penstock.evt.run.ID``, ``penstock.log.ID.*`` and the like. A pattern of several jobs is refused.
    """
    kind, entity_id = _entity(subject)
    if not caller.sees_all and entity_id not in live.state.jobs.by_id and entity_id not in live.state.sweeps:
        await log_reader.catch_up(bus, live)
    if kind in _OF_JOBS + _OF_SWEEPS and kind in kinds_seen(live.state, caller, entity_id):
        return
    if not caller.sees_all:
        raise RequestRefused(FORBIDDEN, f"{subject} is for operators; read what one job or sweep of yours has")


def _entity(subject: str) -> tuple[str, str]:
    """
    Return kind and id of what a subject is about; of a pattern of many ``("", "")``.

    Examples
    --------
    >>> _entity("penstock.evt.run.j1"), _entity("penstock.log.j1.*"), _entity("penstock.evt.run.*")
    (('run', 'j1'), ('job', 'j1'), ('', ''))
    """
    parts = subject.split(".")
    if len(parts) != 4 or parts[0] != subjects.ROOT:
        return "", ""
    about = {"evt": (parts[2], parts[3]), "log": ("job", parts[2])}.get(parts[1], ("", ""))
    return ("", "") if {"*", ">"} & {*about} else about
