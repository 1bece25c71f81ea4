"""
Pilots at their providers: submitted, looked after, cancelled.

:class:`PilotKeeper` makes what the providers have match what the log says. A pilot is planned in the log before it is
submitted, and it is known to its provider by a name that follows from the log: after a crash in between, the next
keeper finds it there and takes it on, or submits it. A provider that does not answer says nothing of its pilots: they
stay as they are until it does.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock_allocator.machine import AllocatorSettings, AllocatorState, demand_of, room
from penstock_allocator.pilot_script import PilotFolder, batch_script, node_script, write_pilot
from penstock_allocator.providers import PilotProvider, ProviderJob, ProviderSilent, SubmissionRefused
from penstock_allocator.providers.pod_manifest import pod_text
from penstock_allocator.providers.slurm import command
from penstock_bus import Append, BusError, Conflict
from penstock_bus.identity.claims import decoded
from penstock_bus.identity.logins import Login, node_token_login, node_token_text
from penstock_bus.port import NoResponders, Reply, Request, ServiceError
from penstock_bus.replica import Replica
from penstock_bus.shell import Shell
from penstock_cluster.allocations import Allocation, Pilot
from penstock_log import Commit, PilotEnded, PilotStarted, PilotSubmitted, PilotWaits, subjects
from penstock_log.allocation_facts import PilotEnd
from penstock_log.codec import AnyEvent
from penstock_log.request_bodies import AllocationRequest, RevokeRequest, TokenRequest
from penstock_log.text import escaped
from penstock_log.views import PilotTrialView
from penstock_scheduler.pool.pool_settings import MatcherSettings

_BAD: Final = 400
_FORBIDDEN: Final = 403
_QUEUE_S: Final = 30 * 86_400.0
"""How long a pilot's token admits its machines: a pilot may wait for its start for days."""
_LOGIN_MARGIN_S: Final = 600.0
"""How much longer than its walltime a pilot's logins count."""

_TICK_S: Final = 0.25
_SOON_S: Final = 0.25
"""How soon after a submission it is looked whether the pilot has started, as its provider may have room; or after a
submission to a provider that did not answer, whether it does."""

_AGAIN_S: Final = 0.2
"""The least time between two looks because of what a provider says: Pods change many at a time."""
_NOTE_S: Final = 30.0
"""The least time between two notes of why a pilot waits, which Slurm may change at each of its rounds."""
_SPARE: Final = "no job would run on it any more"
_MOST_REASON: Final = 1_000


class NoToken(Exception):
    """The issuer gave no token; the message says why."""


class PilotKeeper:
    """
    Pilots at their providers.

    Parameters
    ----------
    shell, replica
        The allocator's; nothing is done while the replica does not lead.
    providers : mapping of str to Provider
    """

    def __init__(
        self,
        shell: Shell,
        replica: Replica[AllocatorState],
        settings: AllocatorSettings,
        providers: Mapping[str, PilotProvider],
        matcher: MatcherSettings,
    ) -> None:
        self._matcher = matcher
        self._shell, self._replica, self._settings, self._providers = shell, replica, settings, providers
        self._folder = Path(settings.data_dir).absolute()
        self._looked_s: dict[str, float] = {}
        self._looking: set[str] = set()
        self._again: set[str] = set()
        self._cleaned: dict[str, int] = {}
        self._silent: dict[str, str] = {}
        self._tokens: dict[str, tuple[str, str]] = {}
        self.moved = asyncio.Event()
        """Set where there may be something to do before the next look."""

    def look_again(self, provider: str) -> None:
        """Look at a provider's pilots soon: it has said that something became of one, and maybe says so of others."""
        for allocation in self._replica.live.state.allocations.by_name.values():
            if allocation.spec.provider == provider:
                self._again.add(allocation.name)
        self.moved.set()

    def place(self, pilot_id: str) -> PilotFolder:
        """Return the files of a pilot."""
        checkpoints = Path(self._settings.checkpoint_dir or self._folder / "checkpoints").absolute()
        return PilotFolder(self._folder / "pilots" / pilot_id, checkpoints)

    async def keep(self) -> None:
        """Look after the pilots for ever."""
        async with asyncio.TaskGroup() as looks:
            while True:
                try:
                    async with asyncio.timeout(min(_TICK_S, self._settings.poll_s)):
                        await self.moved.wait()
                except TimeoutError:
                    pass
                self.moved.clear()
                if self._replica.settled and self._shell.vitals.ready:
                    self._begin_looks(looks)

    async def answer_trial(self, request: Request) -> Reply:
        """Answer what a pilot of an allocation would be: the gateway asks, in the name of an admin."""
        if request.user:
            return Reply(code=_FORBIDDEN, error="people ask the gateway, which knows who may")
        try:
            asked = msgspec.json.decode(request.body, type=AllocationRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Reply(code=_BAD, error=f"not a request for a pilot: {error}")
        state, now_s = self._replica.live.state, self._shell.now_s()
        allocation = Allocation(name=asked.name, spec=asked.spec, added_s=now_s)
        demand = demand_of(state, allocation, now_s, self._matcher, room(allocation), join_s=self._settings.join_s)
        place = self.place(f"{asked.name}.trial")
        try:
            write_pilot(place, allocation, f"{asked.name}-1", "no token: nothing is submitted")
            said, accepted = await self._providers[asked.spec.provider].try_out(asked.spec, place), True
        except (SubmissionRefused, ProviderSilent, OSError) as error:
            said, accepted = str(error), False
        view = PilotTrialView(
            accepted=accepted,
            said=said,
            pilots=demand.pilots,
            reason=demand.reason,
            script=self._script(allocation, place),
            node_script=node_script(place, allocation, f"{asked.name}-1"),
            command=tuple(command(asked.spec, allocation.pilot_name(f"{asked.name}-1"), place)),
        )
        shutil.rmtree(place.folder, ignore_errors=True)
        return Reply(body=msgspec.json.encode(view))

    @staticmethod
    def _script(allocation: Allocation, place: PilotFolder) -> str:
        """Return what would be submitted; nothing where its files could not be written."""
        if allocation.spec.provider != "kubernetes":
            return batch_script(place, allocation)
        name = allocation.pilot_name(f"{allocation.name}-1")
        return pod_text(allocation.spec, name, place) if place.node.exists() and place.token.exists() else ""

    def _begin_looks(self, looks: asyncio.TaskGroup) -> None:
        """Look at the allocations that are due, side by side: a provider that takes its time delays no other's."""
        if self._silent:
            self._tell_silence()  # of an allocation that has no pilots any more nothing is asked
        for allocation in list(self._replica.live.state.allocations.by_name.values()):
            pilots = list(allocation.pilots.values())
            if pilots and allocation.name not in self._looking and self._is_due(allocation):
                self._looked_s[allocation.name] = self._shell.monotonic()
                self._looking.add(allocation.name)
                self._again.discard(allocation.name)
                looks.create_task(self._look(allocation, pilots))

    def _is_due(self, allocation: Allocation) -> bool:
        """Say whether it is time for a look: at once where there is something to do, soon after it, then ever later."""
        since_s = self._shell.monotonic() - self._looked_s.get(allocation.name, -math.inf)
        if allocation.name in self._again and since_s >= _AGAIN_S:
            return True
        last_s = self._shell.now_s() - since_s
        pilots = allocation.pilots.values()
        asked_s = [allocation.removed_s, *(one.planned_s for one in pilots if not one.submitted_s)]
        asked_s += (one.withdrawn_s for one in pilots)
        submitted_s = (one.submitted_s for one in pilots if not one.started_s)
        changed_s = max([*asked_s, *submitted_s])
        return max(asked_s) > last_s or since_s >= min(self._settings.poll_s, max(_SOON_S, last_s - changed_s))

    async def _look(self, allocation: Allocation, pilots: Sequence[Pilot]) -> None:
        try:
            self._note_silence(allocation, await self._look_at(allocation, pilots))
            await self._clean_up(allocation)
        except ProviderSilent as error:
            self._note_silence(allocation, str(error))
            self._shell.log.warning("provider_unavailable", allocation=allocation.name, error=str(error))
        except Conflict:  # the decider was faster; the next look sees what it did
            self._looked_s.pop(allocation.name, None)
            self.moved.set()
        except BusError as error:
            self._shell.log.warning("pilots_not_looked_at", allocation=allocation.name, error=str(error))
        except Exception as error:  # what nobody foresaw of one provider ends no look at the others
            self._note_silence(allocation, f"{type(error).__name__}: {error}")
            self._shell.log.exception("look_failed", allocation=allocation.name)
        finally:
            self._looking.discard(allocation.name)

    def _note_silence(self, allocation: Allocation, reason: str) -> None:
        """Tell people for which allocations nothing is heard of their providers; without a reason, it is."""
        self._silent[allocation.name] = escaped(reason)
        self._tell_silence()

    def _tell_silence(self) -> None:
        with_pilots = {one.name for one in self._replica.live.state.allocations.by_name.values() if one.pilots}
        self._silent = {name: text for name, text in self._silent.items() if text and name in with_pilots}
        said = "; ".join(f"{name}: {text}" for name, text in self._silent.items())
        self._shell.vitals.note = f"gets no answer about pilots of {said}" if said else ""

    async def _clean_up(self, allocation: Allocation) -> None:
        """Remove what pilots have left behind that have long ended, if another one has ended since the last time."""
        ended = sum(allocation.ends.values())
        if ended != self._cleaned.get(allocation.name):
            self._cleaned[allocation.name] = ended
            kept = {*allocation.pilots, *(pilot.id for pilot in allocation.ended)}
            await asyncio.to_thread(self._remove_folders, allocation.name, allocation.made, kept)

    def _remove_folders(self, name: str, made: int, kept: Collection[str]) -> None:
        """Remove the folders of an allocation's pilots but for some; a later allocator's, of a longer log, stay too."""
        try:
            for folder in (self._folder / "pilots").iterdir():
                of, _, number = folder.name.rpartition("-")
                is_made = number.isdecimal() and number == str(int(number)) and 1 <= int(number) <= made
                if of == name and is_made and folder.name not in kept:
                    shutil.rmtree(folder)
        except OSError as error:
            self._shell.log.warning("folders_not_removed", allocation=name, error=str(error))

    async def _look_at(self, allocation: Allocation, pilots: Sequence[Pilot]) -> str:
        """Do what is next for each pilot; return what is said where the place of one does not answer, or nothing."""
        silence = ""
        provider = self._providers[allocation.spec.provider]
        names = {allocation.pilot_name(pilot.id): self.place(pilot.id) for pilot in pilots}
        found = await provider.list_jobs(allocation.spec, names)
        await self._note_waits(allocation, pilots, found)
        for pilot in pilots:
            try:
                await self._move_on(provider, allocation, pilot, found.get(allocation.pilot_name(pilot.id)))
            except ProviderSilent as error:
                silence = str(error)
                self._shell.log.warning(
                    "provider_unavailable", allocation=allocation.name, pilot=pilot.id, error=str(error)
                )
        return silence

    async def _note_waits(
        self, allocation: Allocation, pilots: Sequence[Pilot], found: Mapping[str, ProviderJob]
    ) -> None:
        """Note why pilots wait for their start, where the provider says something else than before."""
        facts, now_s = [], self._shell.now_s()
        for pilot in pilots:
            job = found.get(allocation.pilot_name(pilot.id))
            if job is None or job.state != "waiting" or not pilot.submitted_s or pilot.started_s or not job.reason:
                continue
            reason = job.reason[:_MOST_REASON]
            if reason != pilot.waits and now_s >= pilot.waits_s + _NOTE_S:
                facts.append(PilotWaits(name=allocation.name, pilot_id=pilot.id, reason=reason, at_s=now_s))
        if facts:
            await self._append(allocation, *facts)

    async def _move_on(
        self, provider: PilotProvider, allocation: Allocation, pilot: Pilot, job: ProviderJob | None
    ) -> None:
        """Do what is next for a pilot, by what its provider says of it."""
        if job is not None and job.state == "silent":
            raise ProviderSilent(job.reason)
        if not pilot.submitted_s:
            await self._begin(provider, allocation, pilot, job)
        elif job is None or job.state in {"ended", "cancelled"}:
            await self._conclude(provider, allocation, pilot, job)
        elif allocation.removed_s:
            await provider.cancel(job, self.place(pilot.id))
        elif pilot.is_withdrawn and job.state == "waiting":
            await provider.cancel(job, self.place(pilot.id), only_waiting=True)
        elif job.state == "stuck":
            await provider.cancel(job, self.place(pilot.id))
            await self._end(allocation, pilot, "failed", f"no node joined; {job.reason}")
        elif job.state == "running" and not pilot.started_s:
            fact = PilotStarted(name=allocation.name, pilot_id=pilot.id, hosts=job.hosts, at_s=self._shell.now_s())
            await self._append(allocation, fact)
        elif pilot.started_s and not pilot.joined_s:
            await self._give_up_late(provider, allocation, pilot, job)

    async def _begin(
        self, provider: PilotProvider, allocation: Allocation, pilot: Pilot, job: ProviderJob | None
    ) -> None:
        """Submit a pilot that is planned, unless its provider has it already: an earlier allocator ended in between."""
        now_s, token = self._shell.now_s(), ""
        if job is None and (allocation.removed_s or pilot.is_withdrawn):
            why = "its allocation was removed" if allocation.removed_s else _SPARE
            await self._clear(provider, allocation, pilot)
            await self._end(allocation, pilot, "cancelled", why)
            return
        if job is None:
            others = [one.provider_id for one in allocation.pilots.values() if one.provider_id]
            try:
                text, token = await self._token(allocation, pilot)
                write_pilot(self.place(pilot.id), allocation, pilot.id, text)
                name = allocation.pilot_name(pilot.id)
                number = await provider.submit(allocation.spec, name, self.place(pilot.id), others)
            except SubmissionRefused as error:
                await self._end(allocation, pilot, "refused", str(error))
                return
            except NoToken as error:
                await self._clear(provider, allocation, pilot)
                await self._end(allocation, pilot, "refused", str(error))
                return
            except OSError as error:
                await self._clear(provider, allocation, pilot)
                await self._end(allocation, pilot, "refused", f"its files cannot be written: {error}")
                return
        else:
            number, token = job.id, self._token_id(pilot)
            self._shell.log.info("pilot_adopted", allocation=allocation.name, pilot=pilot.id, provider_id=number)
        fact = PilotSubmitted(name=allocation.name, pilot_id=pilot.id, provider_id=number, token=token, at_s=now_s)
        await self._append(allocation, fact)
        self._tokens.pop(pilot.id, None)
        self._shell.log.info("pilot_submitted", allocation=allocation.name, pilot=pilot.id, provider_id=number)

    async def _conclude(
        self, provider: PilotProvider, allocation: Allocation, pilot: Pilot, job: ProviderJob | None
    ) -> None:
        """
        Say how a pilot ended that its provider has no more, or says has ended.

        One that somebody else takes away before a node joins has failed, too: what takes each of them away would
        otherwise have them submitted without end. What it has left is removed first: after its end nobody looks for it.
        """
        await self._clear(provider, allocation, pilot)
        said = job.reason if job is not None else "the provider has it no more"
        if pilot.joined_s:
            is_cancelled = allocation.removed_s or (job is not None and job.state == "cancelled")
            await self._end(allocation, pilot, "cancelled" if is_cancelled else "finished", said)
        elif pilot.is_withdrawn:
            await self._end(allocation, pilot, "cancelled", _SPARE)
        elif allocation.removed_s:
            await self._end(allocation, pilot, "cancelled", said)
        else:
            words = self.place(pilot.id).last_words()
            await self._end(allocation, pilot, "failed", f"no node joined; {said}" + (f": {words}" if words else ""))

    async def _clear(self, provider: PilotProvider, allocation: Allocation, pilot: Pilot) -> None:
        """Remove what a pilot may have at its provider, one too whose submission was not answered."""
        await provider.clear(allocation.spec, allocation.pilot_name(pilot.id), self.place(pilot.id))

    async def _give_up_late(
        self, provider: PilotProvider, allocation: Allocation, pilot: Pilot, job: ProviderJob
    ) -> None:
        if self._shell.now_s() - pilot.started_s < self._settings.join_s:
            return
        await provider.cancel(job, self.place(pilot.id))
        words = self.place(pilot.id).last_words()
        said = f"no node joined within {self._settings.join_s:g} s" + (f": {words}" if words else "")
        await self._end(allocation, pilot, "failed", said)

    async def _end(self, allocation: Allocation, pilot: Pilot, state: PilotEnd, reason: str) -> None:
        """Note that a pilot has ended; its token admits nobody more."""
        place, token = self.place(pilot.id), self._token_id(pilot)
        self._tokens.pop(pilot.id, None)
        try:
            place.token.unlink(missing_ok=True)
        except OSError as error:
            self._shell.log.warning("token_not_removed", file=str(place.token), error=str(error))
        if token and len(pilot.nodes) < allocation.spec.nodes:
            ask = RevokeRequest(id=token, reason=f"pilot {pilot.id} has ended")
            try:
                await self._ask_issuer("revoke", ask)
            except BusError as error:  # it ends by itself
                self._shell.log.warning("token_not_revoked", token=token, error=str(error))
        at_s = self._shell.now_s()
        fact = PilotEnded(name=allocation.name, pilot_id=pilot.id, state=state, reason=reason[:_MOST_REASON], at_s=at_s)
        await self._append(allocation, fact)
        self._shell.log.info("pilot_ended", allocation=allocation.name, pilot=pilot.id, state=state, reason=reason)

    def _token_id(self, pilot: Pilot) -> str:
        """Return the id of a pilot's token; where an earlier allocator has not noted it, that of the token's file."""
        known = pilot.token or self._tokens.get(pilot.id, ("", ""))[1]
        if known:
            return known
        try:
            return _id_of(node_token_login(self.place(pilot.id).token.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:  # MsgspecError is of the latter
            self._shell.log.warning("token_not_read", pilot=pilot.id, error=str(error))
            return ""

    async def _token(self, allocation: Allocation, pilot: Pilot) -> tuple[str, str]:
        """
        Return a token for a pilot's machines, as one word, and its id; the same one while it is not submitted.

        Raises
        ------
        NoToken
            If the issuer refuses it.
        ProviderSilent
            If no issuer answers now.
        """
        if pilot.id not in self._tokens:
            spec = allocation.spec
            ask = TokenRequest(valid_s=_QUEUE_S, uses=spec.nodes, login_s=spec.walltime_s + _LOGIN_MARGIN_S)
            try:
                login = msgspec.json.decode(await self._ask_issuer("token", ask), type=Login)
            except NoResponders as error:
                raise ProviderSilent(f"no issuer of logins answers, such as `penstock up` has: {error}") from error
            except ServiceError as error:
                raise NoToken(f"the issuer gave no token: {error}") from error
            self._tokens[pilot.id] = node_token_text(login), _id_of(login)
        return self._tokens[pilot.id]

    async def _ask_issuer(self, what: str, ask: msgspec.Struct) -> bytes:
        return await self._shell.bus.request(subjects.command(what, "issuer"), msgspec.json.encode(ask), timeout_s=10.0)

    async def _append(self, allocation: Allocation, *facts: AnyEvent) -> None:
        subject = subjects.pilots(allocation.name)
        commit = Commit(id=uuid.uuid4().hex, actor=f"{self._shell.service}/{self._shell.replica_id}", facts=facts)
        expected = self._replica.live.heads.get(subject, 0)
        seq = await self._shell.bus.append(Append(subject=subject, commit=commit, expected=expected))
        await self._replica.live.reached(seq)


def _id_of(login: Login) -> str:
    return str(decoded(login.user_jwt).get("name", ""))
