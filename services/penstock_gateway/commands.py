"""
Commands, by request and by inbox.

:class:`Commands` decodes a request, decides on the read model by the rules of :mod:`penstock_gateway.acceptance`,
appends the fact, and answers once the read model has it. :func:`take_submissions` does the same for submissions that
were published to an inbox and wait for no answer; errors of these go to REJECTED.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import structlog

from penstock_bus import Append, Conflict, Endpoint, LogPort, Timeout, TooLarge, Unavailable, Work, WorkPort
from penstock_bus.follower import FoldFollower
from penstock_gateway import acceptance
from penstock_gateway.endpoints import Answering, RequestRefused, endpoint, job_asked, sweep_asked
from penstock_gateway.log_reader import catch_up
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_log import AnyEvent, Commit, SweepSpec, request_bodies, subjects, validation
from penstock_log.validation import BadInput
from penstock_log.views import ActAnswer, SubmitAnswer

A = TypeVar("A", bound=request_bodies.GatewayRequest)
D = TypeVar("D", acceptance.Acceptable, acceptance.JobAction)
_TRIES: Final = 5
_ENVELOPE_BYTES: Final = 1024
_log = structlog.get_logger("penstock.gateway")


class Commands:
    """
    The commands of users and operators.

    Parameters
    ----------
    bus, live
        The log, and the read model that follows it.
    actor : str
        The name under which the gateway commits.
    now_s : callable
        Seconds since the epoch.
    new_id : callable
        Returns a fresh short id for a job or a sweep.
    new_commit_id : callable
        Returns a fresh unique id for a commit.
    """

    def __init__(
        self,
        bus: LogPort,
        live: FoldFollower[GatewayState],
        settings: GatewaySettings,
        *,
        actor: str,
        now_s: Callable[[], float],
        new_id: Callable[[], str],
        new_commit_id: Callable[[], str],
    ) -> None:
        self._bus, self._live, self._settings = bus, live, settings
        self._actor, self._now_s = actor, now_s
        self._new_id, self._new_commit_id = new_id, new_commit_id

    def endpoints(self) -> list[Endpoint]:
        """Return the commands as endpoints."""
        handlers: dict[str, Answering] = {
            "submit": self.submit_job,
            "tune": self.submit_sweep,
            "cancel": self._acting(acceptance.cancel, request_bodies.ActRequest),
            "hold": self._acting(acceptance.hold, request_bodies.ActRequest),
            "release": self._acting(acceptance.release, request_bodies.ActRequest),
            "drain": self._acting(acceptance.drain, request_bodies.DrainRequest),
            "resume": self._acting(acceptance.resume, request_bodies.ActRequest),
            "remove": self._acting(acceptance.remove, request_bodies.ActRequest),
            "policy": self._acting(acceptance.set_policy, request_bodies.PolicyRequest),
            "cancel_sweep": self._acting(acceptance.cancel_sweep, request_bodies.ActRequest),
        }
        most_bytes = self._bus.max_body_bytes
        return [endpoint(name, subjects.command(name), handler, most_bytes) for name, handler in handlers.items()]

    @property
    def most_bytes(self) -> int:
        """Size of the largest specification that is accepted: its commit must fit the server's limit too."""
        return min(self._settings.max_spec_bytes, self._bus.max_body_bytes - _ENVELOPE_BYTES)

    async def submit_job(self, body: bytes, new_id: str = "") -> SubmitAnswer:
        """
        Store the job that a body holds unless it is stored already; ``new_id`` is its id if it names none.

        Raises
        ------
        BadInput, RequestRefused
            See :func:`penstock_gateway.acceptance.job`.
        BusError
            If it could not be stored.
        """
        asked = job_asked(body, self.most_bytes)
        spec = msgspec.structs.replace(asked.spec, id=asked.spec.id or new_id or self._unused_id())
        return await self._submit(
            lambda: acceptance.job(self._live.state, spec, strict=asked.strict, now_s=self._now_s())
        )

    async def submit_sweep(self, body: bytes, new_id: str = "") -> SubmitAnswer:
        """Store a sweep as :meth:`submit_job` stores a job, unless its trials would be refused."""
        asked = sweep_asked(body, self.most_bytes)
        spec = msgspec.structs.replace(asked.spec, id=asked.spec.id or new_id or self._unused_id())

        def decide() -> acceptance.Acceptable:
            decided = acceptance.sweep(self._live.state, spec, strict=asked.strict, now_s=self._now_s())
            self._check_trial(spec)
            return decided

        return await self._submit(decide)

    def _check_trial(self, spec: SweepSpec) -> None:
        try:
            asked = job_asked(msgspec.json.encode(acceptance.largest_trial(spec)), self.most_bytes)
            acceptance.check(asked.spec)
        except (BadInput, RequestRefused) as error:
            raise BadInput(f"$.job: with a point of the space, it would be refused as a trial: {error}") from error

    async def _submit(self, decide: Callable[[], acceptance.Acceptable]) -> SubmitAnswer:
        decided, seq = await self._commit(decide)
        if seq:
            _log.info("accepted", id=decided.id, seq=seq, subject=decided.subject)
        return SubmitAnswer.of(decided, seq=seq or decided.seq, created=decided.fact is not None)

    def _acting(self, act: Callable[[GatewayState, A, float], acceptance.JobAction], type_: type[A]) -> Answering:
        async def answer(body: bytes) -> ActAnswer:
            asked = validation.decode(body, type_)
            await catch_up(self._bus, self._live)
            done, seq = await self._commit(lambda: act(self._live.state, asked, self._now_s()))
            if seq:
                _log.info("acted", message=done.message, seq=seq)
            return ActAnswer.of(done, changed=done.fact is not None, seq=seq)

        return answer

    async def _commit(self, decide: Callable[[], D]) -> tuple[D, int]:
        """Return a decision and the sequence of its fact; 0 if there is nothing to append."""
        for _ in range(_TRIES):
            decided = decide()
            if decided.fact is None:
                return decided, 0
            if seq := await self._store(decided.subject, decided.fact):
                return decided, seq
        raise Conflict(decided.subject, 0)

    async def _store(self, subject: str, fact: AnyEvent) -> int:
        """Append a fact and wait until the read model has it; return 0 if somebody else was first: decide again."""
        commit = Commit(id=self._new_commit_id(), actor=self._actor, facts=(fact,))
        item = Append(subject=subject, commit=commit, expected=self._live.heads.get(subject, 0))
        try:
            async with asyncio.timeout(self._settings.append_timeout_s):
                seq = await self._bus.append(item)
        except TimeoutError as error:
            waited = f"nothing was confirmed within {self._settings.append_timeout_s:g} s"
            raise Timeout(f"{waited}; is its disk full? See `penstock doctor`") from error
        except Conflict:
            await self._live.caught_up()
            return 0
        try:
            await self._live.reached(seq, self._settings.append_timeout_s)
        except Timeout:
            _log.warning("read_model_behind", seq=seq, at=self._live.last_seq)  # it is stored all the same
        return seq

    def _unused_id(self) -> str:
        taken = self._live.state
        return next(i for i in iter(self._new_id, "") if i not in taken.jobs.by_id and i not in taken.sweeps)


Accept = Callable[[bytes, str], Awaitable[SubmitAnswer]]
"""Accepts a submission's body under an id, if it names none."""


async def take_submissions(bus: WorkPort, queue: str, subject: str, accept: Accept, retry_s: float) -> None:
    """Accept the submissions of an inbox, for ever."""
    async for work in bus.work(queue, [subject]):
        await _take(work, accept, retry_s)


def given_id(work: Work) -> str:
    """Return the id of a submission that names none: every delivery of the same message has the same id."""
    return f"q{work.seq}-{hashlib.sha256(work.body).hexdigest()[:6]}"


async def _take(work: Work, accept: Accept, retry_s: float) -> None:
    """
    Accept or reject one submission, however long the log is away or full.

    Meanwhile the gateway holds the submission and does not put it back: the bus counts deliveries, and the gateway must
    not give up a stored submission for want of room. Later ones wait too; the log would not take them either.
    """
    while True:
        try:
            await _decide(work, accept)
            return
        except (Unavailable, Conflict) as error:
            _log.warning("submission_waits", subject=work.subject, error=str(error), retry_s=retry_s)
        await asyncio.sleep(retry_s)
        await work.hold()


async def _decide(work: Work, accept: Accept) -> None:
    try:
        answer = await accept(work.body, given_id(work))
    except (BadInput, RequestRefused, TooLarge) as error:
        _log.info("submission_rejected", subject=work.subject, reason=str(error))
        await work.reject(str(error))
    else:
        _log.debug("submission_taken", id=answer.id, created=answer.created)
        await work.ack()
