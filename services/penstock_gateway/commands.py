"""The gateway's commands: decode, decide on the read model, append, and answer once the read model has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import structlog

from penstock_bus import Append, Bus, Conflict, Endpoint, Timeout
from penstock_bus.live import LiveFold
from penstock_events import AnyEvent, Commit, JobSpec, SweepSpec, asks, strict, subjects
from penstock_events.strict import BadInput
from penstock_events.views import ActAnswer, SubmitAnswer
from penstock_gateway import accept, acts
from penstock_gateway.bodies import Answering, endpoint, job_asked, sweep_asked
from penstock_gateway.find import Refused
from penstock_gateway.machine import State
from penstock_gateway.moments import catch_up
from penstock_gateway.settings import Settings

A = TypeVar("A", bound=asks.Ask)
_TRIES: Final = 5
_ENVELOPE_BYTES: Final = 1024
_log = structlog.get_logger("penstock.gateway")


class Commands:
    """
    What people command.

    Parameters
    ----------
    bus, live
        The log, and the read model that follows it.
    actor : str
        Who writes, in commits.
    now_s : callable
        Seconds since the epoch.
    new_id : callable
        Gives a fresh short id for a job or a sweep.
    new_commit_id : callable
        Gives a fresh unique id for a commit.
    """

    def __init__(
        self,
        bus: Bus,
        live: LiveFold[State],
        settings: Settings,
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
            "submit": self._submit,
            "tune": self._tune,
            "cancel": self._acting(acts.cancel, asks.ActAsk),
            "hold": self._acting(acts.hold, asks.ActAsk),
            "release": self._acting(acts.release, asks.ActAsk),
            "drain": self._acting(acts.drain, asks.DrainAsk),
            "resume": self._acting(acts.resume, asks.ActAsk),
            "remove": self._acting(acts.remove, asks.ActAsk),
            "policy": self._acting(acts.set_policy, asks.PolicyAsk),
            "cancel_sweep": self._acting(acts.cancel_sweep, asks.ActAsk),
        }
        most_bytes = self._bus.max_body_bytes
        return [endpoint(name, subjects.command(name), handler, most_bytes) for name, handler in handlers.items()]

    @property
    def most_bytes(self) -> int:
        """The largest specification that is accepted: its commit has to fit the server's limit too."""
        return min(self._settings.max_spec_bytes, self._bus.max_body_bytes - _ENVELOPE_BYTES)

    async def submit_job(self, spec: JobSpec, *, strict: bool = False, new_id: str = "") -> SubmitAnswer:
        """
        Store a job unless it is there already; ``new_id`` is its id where it names none.

        Raises
        ------
        BadInput, Refused
            See :func:`penstock_gateway.accept.job`.
        BusError
            If it could not be stored.
        """
        spec = spec if spec.id else msgspec.structs.replace(spec, id=new_id or self._unused_id())
        return await self._accept(lambda: accept.job(self._live.state, spec, strict=strict, now_s=self._now_s()))

    async def submit_sweep(self, spec: SweepSpec, *, strict: bool = False, new_id: str = "") -> SubmitAnswer:
        """Store a sweep, as :meth:`submit_job` does a job; not if its trials would be refused."""
        spec = spec if spec.id else msgspec.structs.replace(spec, id=new_id or self._unused_id())

        def decide() -> accept.Known | accept.Fresh:
            decided = accept.sweep(self._live.state, spec, strict=strict, now_s=self._now_s())
            self._check_trial(spec)
            return decided

        return await self._accept(decide)

    def _check_trial(self, spec: SweepSpec) -> None:
        try:
            asked = job_asked(msgspec.json.encode(accept.largest_trial(spec)), self.most_bytes)
            accept.check(asked.spec)
        except (BadInput, Refused) as error:
            raise BadInput(f"$.job: with a point of the space, it would be refused as a trial: {error}") from error

    async def _submit(self, body: bytes) -> SubmitAnswer:
        asked = job_asked(body, self.most_bytes)
        return await self.submit_job(asked.spec, strict=asked.strict)

    async def _tune(self, body: bytes) -> SubmitAnswer:
        asked = sweep_asked(body, self.most_bytes)
        return await self.submit_sweep(asked.spec, strict=asked.strict)

    async def _accept(self, decide: Callable[[], accept.Known | accept.Fresh]) -> SubmitAnswer:
        for _ in range(_TRIES):
            match decided := decide():
                case accept.Known():
                    return SubmitAnswer(id=decided.id, seq=decided.seq, created=False, warnings=decided.warnings)
                case accept.Fresh():
                    if seq := await self._store(decided.subject, decided.fact):
                        _log.info("accepted", id=decided.id, seq=seq, subject=decided.subject)
                        return SubmitAnswer(id=decided.id, seq=seq, created=True, warnings=decided.warnings)
        raise Conflict(f"the subject of {decided.id}", 0)

    def _acting(self, act: Callable[[State, A, float], acts.Act], type_: type[A]) -> Answering:
        async def answer(body: bytes) -> ActAnswer:
            asked = strict.decode(body, type_)
            await catch_up(self._bus, self._live)
            return await self._act(lambda: act(self._live.state, asked, self._now_s()))

        return answer

    async def _act(self, decide: Callable[[], acts.Act]) -> ActAnswer:
        for _ in range(_TRIES):
            done = decide()
            answer = ActAnswer(id=done.id, changed=done.fact is not None, state=done.state, message=done.message)
            if done.fact is None:
                return answer
            if seq := await self._store(done.subject, done.fact):
                _log.info("acted", message=done.message, seq=seq)
                return msgspec.structs.replace(answer, seq=seq)
        raise Conflict(done.subject, 0)

    async def _store(self, subject: str, fact: AnyEvent) -> int:
        """Append a fact and wait until the read model has it; 0 if somebody else was first: decide again."""
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
