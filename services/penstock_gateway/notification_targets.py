"""
Addresses of notifications, and the commands about rules: ``notify``, ``remove_notification``, ``test_notification``.

An address has tokens in it, so the log must not have it. :class:`TargetFolder` keeps each in a file that the gateway
alone may read, in ``notify_dir``, which replicas on several machines have to share. :class:`NotificationCommands`
writes the file before the rule is in the log, under a fresh name that the rule's fact has, and removes it after the
rule, or where another one was there first; :func:`send` sends by a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import structlog

from penstock_bus import Endpoint
from penstock_bus.child_processes import module_command
from penstock_gateway import endpoints
from penstock_gateway.acceptance import JobAction, job_named
from penstock_gateway.authority import FORBIDDEN, Admit, Caller
from penstock_gateway.commands import Commands
from penstock_gateway.endpoints import BAD, CONFLICT, UNAVAILABLE, RequestRefused, endpoint
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.notification_sender import Errand, SendOutcome, problem
from penstock_gateway.notifications import MOST_RULES, NotificationRule
from penstock_gateway.user_queues import RepeatedRequests, UserQueues, asker
from penstock_log import NotificationRuleRemoved, NotificationRuleSet, request_bodies, subjects, validation
from penstock_log.text import duration, listed
from penstock_log.views import ActAnswer

Answering = Callable[[bytes, Caller], Awaitable[ActAnswer]]
Send = Callable[[Errand], Awaitable[str]]
"""Sends, or checks an address; returns why that was impossible, or nothing."""
_OWNER_ONLY: Final = 0o600
_AT_ONCE: Final = 16
_AT_ONCE_OF_ONE: Final = 4
"""Messages under way, or waiting to be, by requests of one person."""
_SURELY_KNOWN_S: Final = 3600.0
_FOLDER_MODE: Final = 0o700
_PASSED: Final = ("PATH", "LANG", "LC_ALL", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "TZ")
_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_SENDER: Final = tuple(module_command("penstock_gateway.notification_sender"))
_log = structlog.get_logger("penstock.notify")


class TargetFolder:
    """The addresses of rules, by the names that their facts have for them."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def write(self, name: str, url: str) -> None:
        """
        Keep the address of a rule.

        Raises
        ------
        RequestRefused
            503 where this gateway keeps none, or its disk takes none.
        """
        if self._folder is None:
            raise RequestRefused(
                UNAVAILABLE, "this gateway sends no notifications; an operator has to set notify_dir under [gateway]"
            )
        fresh = self._folder / f"{name}.new"
        try:
            self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _OWNER_ONLY)
            with os.fdopen(handle, "w") as file:
                file.write(url)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._folder / name)
        except OSError as error:
            raise RequestRefused(
                UNAVAILABLE, f"the address could not be kept: {error.strerror}; ask an operator"
            ) from error

    def read(self, name: str) -> str:
        """Return the address of a rule; empty where it is not here."""
        try:
            return (self._folder / name).read_text() if self._folder is not None else ""
        except OSError:
            return ""

    def remove(self, name: str) -> None:
        """Forget the address of a rule."""
        if self._folder is not None:
            with suppress(FileNotFoundError):
                (self._folder / name).unlink()

    def tidy(self, known: Container[str], now_s: float) -> None:
        """
        Forget the addresses of rules that are gone with their people, but for new ones, which may not be known.

        Others write and remove beside it; a folder that cannot be read is told in the log.

        Parameters
        ----------
        now_s : float
            Seconds since the epoch.
        """
        if self._folder is None:
            return
        try:
            for path in list(self._folder.iterdir()):
                with suppress(FileNotFoundError):
                    if path.name not in known and path.stat().st_mtime < now_s - _SURELY_KNOWN_S:
                        path.unlink()
        except FileNotFoundError:  # nobody has had a rule yet
            return
        except OSError as error:
            _log.warning("addresses_not_tidied", folder=str(self._folder), reason=error.strerror)


def send(settings: GatewaySettings, command: Sequence[str] = _SENDER) -> Send:
    """
    Return what sends by a process of its own, to where it may, and ends it where it takes too long.

    The process reads what is to be sent from a file and not from a pipe: one that ends before it has read it leaves a
    pipe to which nobody can write.
    """
    timeout_s = settings.notify_timeout_s

    async def sending(errand: Errand) -> str:
        errand = msgspec.structs.replace(errand, schemes=settings.notify_schemes, refused=settings.notify_refused)
        with _in_memory(msgspec.json.encode(errand)) as given:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
        try:
            async with asyncio.timeout(timeout_s):
                out, _ = await process.communicate()
            return msgspec.json.decode(out, type=SendOutcome).error
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except msgspec.MsgspecError:
            return f"the sending program ended with exit code {process.returncode}"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return sending


def _in_memory(content: bytes) -> BinaryIO:
    """Return a file with some content, from its beginning, which is in memory alone: an address has tokens in it."""
    file = os.fdopen(os.memfd_create("errand", os.MFD_CLOEXEC), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _environment() -> dict[str, str]:
    """Return what the sending program gets of the gateway's environment, which may hold logins."""
    known = {name: os.environ[name] for name in (*_PASSED, *_PROXIES) if name in os.environ}
    return known | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class NotificationCommands:
    """
    The commands about a person's rules.

    Parameters
    ----------
    commands : Commands
        By which facts are appended.
    new_id : callable
        Returns a fresh short id for a rule.
    """

    def __init__(
        self,
        commands: Commands,
        admit: Admit,
        targets: TargetFolder,
        settings: GatewaySettings,
        *,
        new_id: Callable[[], str],
        sending: Send,
        most_bytes: int,
    ) -> None:
        self._commands, self._admit, self._targets = commands, admit, targets
        self._settings, self._new_id, self._sending, self._most_bytes = settings, new_id, sending, most_bytes
        self._sends = UserQueues(
            "tests of addresses",
            slots=_AT_ONCE,
            most=_AT_ONCE_OF_ONE,
            most_bytes=settings.waiting_bytes,
            rate=None,
            now_s=lambda: 0.0,
        )

    def close(self) -> None:
        """Refuse the requests that wait for their turn to send."""
        self._sends.close()

    def endpoints(self) -> list[Endpoint]:
        """Return the commands as endpoints."""
        handlers = {
            "notify": self._once(self._set),
            "remove_notification": self._remove,
            "test_notification": self._once(self._test),
        }
        return [
            endpoint(name, subjects.command(name), self._admit, handler, self._most_bytes, concurrent=True)
            for name, handler in handlers.items()
        ]

    def _once(self, answering: Answering) -> Answering:
        """Return what answers a request that is asked again, as it takes long, with the answer to its first copy."""
        repeated: RepeatedRequests[ActAnswer] = RepeatedRequests(self._commands.acts)

        async def answer(body: bytes, caller: Caller) -> ActAnswer:
            found, _ = await repeated.answer(caller.name, body, lambda: answering(body, caller))
            return found

        return answer

    async def _tried(self, body: bytes, caller: Caller, errand: Errand) -> str:
        """Send a message or check an address, in no slot of commands: a server that is silent takes a while."""
        user = asker(body, caller.name)
        async with self._sends.queued(user, len(body), 1), self._sends.turn(user):
            return await self._sending(errand)

    async def _set(self, body: bytes, caller: Caller) -> ActAnswer:
        asked = validation.decode(body, request_bodies.NotifyRequest)
        user = caller.name or asked.by
        async with self._commands.acts.slot(asker(body, caller.name), len(body)):
            if why := problem(asked.url, self._settings.notify_schemes):
                raise RequestRefused(BAD, f"$.url: {why}")
            await self._commands.catch_up()
            rule = asked.rule or f"n{self._new_id()}"
            self._decide(self._commands.state, asked, user, rule, caller)  # which refuses what cannot be
        if error := await self._tried(body, caller, Errand(url=asked.url)):
            raise RequestRefused(BAD, f"$.url: {error}")
        async with self._commands.acts.turn(asker(body, caller.name)):
            name = uuid.uuid4().hex
            await asyncio.to_thread(self._targets.write, name, asked.url)

            def act(state: GatewayState, ask: request_bodies.NotifyRequest, now_s: float, who: Caller) -> JobAction:
                action = self._decide(state, ask, user, rule, who)
                if action.fact is None:
                    return action
                fact = msgspec.structs.replace(action.fact, at_s=now_s, kept_as=name)
                return msgspec.structs.replace(action, fact=fact)

            try:
                answer = await self._commands.act(act, asked, caller)
                known = self._commands.state.notifications.rules.get(rule)
                if answer.changed and known is not None and known.kept_as != name:  # somebody's fact came first
                    answer = await self._commands.act(act, asked, caller)
            except RequestRefused:
                await asyncio.to_thread(self._targets.remove, name)
                raise
            if not answer.changed:
                await asyncio.to_thread(self._targets.remove, name)
            return answer

    @staticmethod
    def _decide(
        state: GatewayState, asked: request_bodies.NotifyRequest, user: str, rule: str, caller: Caller
    ) -> JobAction:
        """Return the fact of a new rule, at no time and without an address, and what to answer."""
        if not user:
            raise RequestRefused(BAD, "$.by: expected the person who is to be told")
        if (known := state.notifications.rules.get(rule)) is not None:
            if known.user != user:
                raise RequestRefused(CONFLICT, "$.rule: this id is taken; choose another one, or leave it out")
            return JobAction(id=rule, state="set", message=f"{rule} is there already")
        if len(state.notifications.of_user.get(user, ())) >= MOST_RULES:
            raise RequestRefused(BAD, f"{user} has {MOST_RULES} rules already; remove some (penstock notify list)")
        about = _about(state, asked.id, caller)
        target = asked.name or asked.url.partition("://")[0].lower()
        fact = NotificationRuleSet(
            at_s=0.0,
            user=user,
            rule=rule,
            target=target,
            on=tuple(dict.fromkeys(asked.on)),
            waiting_s=asked.waiting_s,
            about=about,
            by=caller.name or asked.by,
        )
        what = [*fact.on, *([f"waiting for more than {duration(fact.waiting_s)}"] if fact.waiting_s else [])]
        of = f"of {about}" if about else f"of the jobs of {user}"
        said = listed(what) if what else "what each job's `notify` says"
        message = f"{rule}: {target} is told {of}: {said}"
        return JobAction(id=rule, state="set", message=message, subject=subjects.notify(user), fact=fact)

    async def _remove(self, body: bytes, caller: Caller) -> ActAnswer:
        asked = validation.decode(body, request_bodies.ActRequest)
        kept_as = ""

        def act(state: GatewayState, ask: request_bodies.ActRequest, now_s: float, who: Caller) -> JobAction:
            nonlocal kept_as
            rule = rule_named(state, ask.id, who)
            kept_as = rule.kept_as
            fact = NotificationRuleRemoved(at_s=now_s, user=rule.user, rule=rule.id, by=who.name or ask.by)
            message = f"{rule.id}: {rule.target} is told nothing any more"
            subject = subjects.notify(rule.user)
            return JobAction(id=rule.id, state="removed", message=message, subject=subject, fact=fact)

        async with self._commands.acts.slot(asker(body, caller.name), len(body)):
            await self._commands.catch_up()
            answer = await self._commands.act(act, asked, caller)
            await asyncio.to_thread(self._targets.remove, kept_as)
            return answer

    async def _test(self, body: bytes, caller: Caller) -> ActAnswer:
        asked = validation.decode(body, request_bodies.ActRequest)
        async with self._commands.acts.slot(asker(body, caller.name), len(body)):
            await self._commands.catch_up()
            rule = rule_named(self._commands.state, asked.id, caller)
            url = await asyncio.to_thread(self._targets.read, rule.kept_as)
        text = f"This is a test of rule {rule.id}. Not any more: penstock notify remove {rule.id}."
        errand = Errand(url=url, title="Penstock: a test", body=text)
        error = await self._tried(body, caller, errand) if url else NOT_HERE
        if error:
            raise RequestRefused(UNAVAILABLE, f"{rule.id} ({rule.target}): {error}")
        message = f"{rule.id}: {rule.target} has got a test message"
        return ActAnswer(id=rule.id, changed=False, state="sent", message=message)


NOT_HERE: Final = (
    "its address is not on this gateway's machine: replicas on several machines have to share notify_dir; "
    "an operator can see to it, or remove the rule and add it again"
)


def _about(state: GatewayState, wanted: str, caller: Caller) -> str:
    """Return the whole id of a job or a sweep that the caller sees; empty where none is named."""
    if not wanted:
        return ""
    if wanted in state.sweeps:
        caller.require_sight(state.sweeps[wanted].spec.job, f"sweep {wanted}")
        return wanted
    job = job_named(state, wanted, caller)
    caller.require_sight(job.spec, f"job {job.id}")
    return job.id


def rule_named(state: GatewayState, wanted: str, caller: Caller) -> NotificationRule:
    """
    Return a rule that is the caller's own, or anybody's for an operator.

    Raises
    ------
    RequestRefused
        404 where there is none of this id, and 403 where it is somebody else's.
    """
    rules = state.notifications.rules
    if (rule := rules.get(wanted)) is None:
        own = [one for one in rules if caller.sees_all or rules[one].user == caller.name]
        try:
            return rules[endpoints.one({one: one for one in own}, wanted, "rule")]
        except RequestRefused as refused:
            raise RequestRefused(refused.code, f"{refused}; `penstock notify list` shows yours") from None
    if not caller.sees_all and rule.user != caller.name:
        raise RequestRefused(FORBIDDEN, f"rule {wanted} is somebody else's; `penstock notify list` shows yours")
    return rule
