"""
Credentials of a run: the account that its processes have, and the secrets that its job names.

A specification names a secret, and the log holds that name alone. :class:`NodeSecrets` finds the value on the node when
a run starts: in a file of the job's user, in one that an operator has put there for this user or for the team, or in a
variable of the executor. ``docs/secrets.md`` has the rule. Files of users may be on a file server, and accounts in a
directory: :class:`CredentialLookups` reads both in a thread.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import traceback
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from penstock_executor import job_folders
from penstock_executor.run_identity import IdentityRefused, IdentityRule, RunIdentity
from penstock_log import JobSpec

OWN_FOLDER: Final = ".config/penstock/secrets"
"""Below the home of an account."""
MOST_BYTES: Final = 1 << 20
MOST_VARIABLE_BYTES: Final = 128 * 1024 - 1024
"""The kernel starts no program with a longer variable (``MAX_ARG_STRLEN``, its name included)."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}")
"""What a user, a team or a secret is called by, if it is to be a file's name."""
_OPENED: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NAMED: Final = os.O_PATH | os.O_CLOEXEC
"""To look at a file and not open it, which does something to some devices."""
_FILE_MODE: Final = 0o400
_log: Final = structlog.get_logger("penstock.executor")


class SecretRefused(Exception):
    """A secret of a job is not to be had on this node; the message says why, and what to do, and has no value in it."""


class SharedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """
    A secret that an operator shares from the executor's own environment.

    Attributes
    ----------
    env : str
        The variable of the executor that holds it.
    users, teams : tuple of str
        Whose jobs may have it; both empty: all jobs of the node.
    """

    env: str
    users: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()

    def is_for(self, user: str, team: str) -> bool:
        """Return whether a user's job of a team may have it."""
        return not (self.users or self.teams) or user in self.users or (bool(team) and team in self.teams)


class SecretValues:
    """
    Values of the secrets of one run; its representation has their variables alone.

    Attributes
    ----------
    variables : dict of str to str
        Variable → value.
    files : dict of str to bytes
        Variable → content of the file whose path it is to hold.
    """

    def __init__(self, variables: dict[str, str] | None = None, files: dict[str, bytes] | None = None) -> None:
        self.variables, self.files = variables or {}, files or {}

    def __bool__(self) -> bool:
        return bool(self.variables or self.files)

    def __repr__(self) -> str:
        return f"SecretValues({sorted((*self.variables, *self.files))})"

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables of a process whose files are in a folder."""
        return {**self.variables, **{name: str(folder / name) for name in self.files}}

    def write_files(self, folder: Path, account: RunIdentity) -> None:
        """
        Write the files into a new folder that is the account's alone.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        remove_files(folder)
        if not self.files:
            return
        if account.switches:
            job_folders.make_passable(folder.parent)
        folder.mkdir(mode=job_folders.OWNER_ONLY, parents=True)
        for name, content in self.files.items():
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb") as file:
                file.write(content)
        job_folders.make_owned(folder, account.uid, account.gid)


def remove_files(folder: Path) -> None:
    """Remove the files of a run's secrets."""
    job_folders.remove(folder)


class NodeSecrets:
    """
    The secrets of one node.

    A user's own come first, so that nobody has to use what is shared. A file that is there and must not be used, as
    others may read it, is an error: the next place is not tried.

    Parameters
    ----------
    node_id : str
        For messages.
    folder : str
        What an operator has put there: ``users/USER/NAME`` and ``teams/TEAM/NAME``; empty: nothing.
    shared : mapping of str to SharedSecret
        Secrets of the executor's environment, by name.
    environ : mapping of str to str
        That environment.
    """

    def __init__(
        self,
        node_id: str,
        folder: str = "",
        shared: Mapping[str, SharedSecret] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._node_id, self._shared, self._environ = node_id, shared or {}, environ
        self._folder = Path(folder).absolute() if folder else None

    def values(self, spec: JobSpec, account: RunIdentity, home: str) -> SecretValues:
        """
        Return the values of a job's secrets.

        Parameters
        ----------
        account : RunIdentity
            As whom the job runs.
        home : str
            That account's home.

        Raises
        ------
        SecretRefused
            If one of them is not to be had.
        """
        found = SecretValues()
        for variable, name in spec.secrets.items():
            found.variables[variable] = self._text(name, self._value(name, spec, account, home))
        for variable, name in spec.secret_files.items():
            found.files[variable] = self._value(name, spec, account, home)
        return found

    def _text(self, name: str, value: bytes) -> str:
        """Return a value as a variable has it: without the end of the file's last line."""
        value = value.removesuffix(b"\n").removesuffix(b"\r")
        problem = ""
        if not value:
            problem = "is empty"
        elif b"\0" in value:
            problem = "holds a zero byte, which no variable can; take it as a file (--secret-file)"
        elif len(value) > MOST_VARIABLE_BYTES:
            problem = f"has {len(value)} bytes, more than a variable holds; take it as a file (--secret-file)"
        if problem:
            raise SecretRefused(f"secret {name!r} on node {self._node_id} {problem}")
        return os.fsdecode(value)

    def _value(self, name: str, spec: JobSpec, account: RunIdentity, home: str) -> bytes:
        if not _PLAIN.fullmatch(name):
            raise SecretRefused(f"{name[:128]!r} is no name of a secret; expected letters, digits, - and _")
        for path, owners in self._files(name, spec, account, home):
            if (value := self._read(name, path, owners)) is not None:
                return value
        shared = self._shared.get(name)
        if shared is None or not shared.is_for(spec.user, spec.team):
            raise SecretRefused(self._missing(name, spec, home, is_shared=shared is not None))
        if shared.env not in self._environ:
            raise SecretRefused(
                f"secret {name!r} is to come from the variable {shared.env} of the executor of node {self._node_id}, "
                "which has none; an operator has to set it and start the executor again"
            )
        return os.fsencode(self._environ[shared.env])

    def _files(self, name: str, spec: JobSpec, account: RunIdentity, home: str) -> Iterator[tuple[Path, set[int]]]:
        """Yield where the value may be, in order, each with the users that may own the file."""
        if home:
            yield Path(home, OWN_FOLDER, name), {account.uid}
        operators = {0, os.geteuid()}
        if self._folder is not None and _PLAIN.fullmatch(spec.user):
            yield self._folder / "users" / spec.user / name, {*operators, account.uid}
        if self._folder is not None and _PLAIN.fullmatch(spec.team):
            yield self._folder / "teams" / spec.team / name, operators

    def _read(self, name: str, path: Path, owners: set[int]) -> bytes | None:
        """Return the content of a file that nobody else may read; None where there is no such file."""
        try:
            handle = os.open(path, _NAMED)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(name, path, error) from error
        try:
            self._check(name, path, os.fstat(handle), owners)
            with open(f"/proc/self/fd/{handle}", "rb", opener=_open) as file:
                value = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise self._unreadable(name, path, error) from error
        finally:
            os.close(handle)
        if len(value) > MOST_BYTES:
            raise SecretRefused(f"secret {name!r}: {path} is larger than {MOST_BYTES:,} bytes")
        return value

    def _check(self, name: str, path: Path, status: os.stat_result, owners: set[int]) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise SecretRefused(f"secret {name!r}: {path} on node {self._node_id} is no regular file; write one")
        if status.st_uid not in owners:
            wanted = " or ".join(f"uid {uid}" for uid in sorted(owners))
            raise SecretRefused(
                f"secret {name!r}: {path} on node {self._node_id} belongs to uid {status.st_uid}; expected {wanted}"
            )
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecretRefused(
                f"secret {name!r}: {path} on node {self._node_id} is open to others (mode "
                f"{stat.S_IMODE(status.st_mode):04o}); close it: chmod 600 {path}"
            )

    def _unreadable(self, name: str, path: Path, error: OSError) -> SecretRefused:
        return SecretRefused(
            f"secret {name!r} cannot be read on node {self._node_id}: {path}: {error.strerror}; the node's "
            "executor has to be able to read it: an operator can put it into its secrets_dir"
        )

    def _missing(self, name: str, spec: JobSpec, home: str, *, is_shared: bool) -> str:
        whose = f"user {spec.user!r}" + (f" of team {spec.team!r}" if spec.team else "")
        own = f"write it to ~/{OWN_FOLDER}/{name} there (mode 600)" if home else "ask an operator for it"
        folder = f" or put it into {self._folder}/users or teams" if self._folder is not None else ""
        seen = "is there, and is not shared with" if is_shared else "was not found for"
        return (
            f"secret {name!r} {seen} {whose} on node {self._node_id}; {own}, or have an operator share it "
            f"([executor.secrets.{name}]){folder}; penstock submit again then"
        )


def _open(path: str, _: int) -> int:
    return os.open(path, _OPENED)


class Credentials(NamedTuple):
    """As whom a run's processes run, and with which secrets; or why they do not run."""

    account: RunIdentity | IdentityRefused
    secrets: SecretValues | SecretRefused | None = None


class CredentialLookups:
    """
    Credentials on their way: asked for in a thread, and kept until the run has started.

    Parameters
    ----------
    spawn : callable
        Runs a coroutine beside the caller.
    found : callable
        ``found(key)``: called when the credentials of a run are known.
    secrets : NodeSecrets
        The node's.
    """

    def __init__(
        self,
        rule: IdentityRule,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        found: Callable[[tuple[str, int]], None],
        secrets: NodeSecrets | None = None,
    ) -> None:
        self.rule, self._spawn, self._found = rule, spawn, found
        self._secrets = secrets or NodeSecrets(rule.node_id)
        self._known: dict[tuple[str, int], Credentials | None] = {}

    def take(self, key: tuple[str, int], spec: JobSpec) -> Credentials | None:
        """Return the credentials of a run once they are known, and forget them; None while they are looked for."""
        if not (self.rule.asks or spec.secrets or spec.secret_files):
            return Credentials(self.rule.identity(spec.user))
        if key not in self._known:
            self._known[key] = None
            self._spawn(self._look(key, spec))
        known = self._known[key]
        if known is not None:
            del self._known[key]
        return known

    def tidy(self, wanted: Callable[[tuple[str, int]], bool], has_started: Container[tuple[str, int]]) -> None:
        """Forget what was found for runs that are no longer wanted."""
        for key in [key for key, known in self._known.items() if known is not None]:
            if key in has_started or not wanted(key):
                del self._known[key]

    async def _look(self, key: tuple[str, int], spec: JobSpec) -> None:
        try:
            self._known[key] = await asyncio.to_thread(self._credentials, spec)
        except Exception as error:  # one user's secret or account must not end the node's executor
            at = traceback.extract_tb(error.__traceback__)[-1]  # not what it says, which may have a value in it
            _log.error("credentials_failed", job_id=key[0], error=type(error).__name__, at=f"{at.filename}:{at.lineno}")
            what = f"the account and the secrets of {spec.user or 'nobody'} could not be looked up on this node"
            self._known[key] = Credentials(
                IdentityRefused(f"{what}: {type(error).__name__}; an operator finds more in the executor's log")
            )
        self._found(key)

    def _credentials(self, spec: JobSpec) -> Credentials:
        try:
            account = self.rule.identity(spec.user)
        except IdentityRefused as error:
            return Credentials(error)
        if not (spec.secrets or spec.secret_files):
            return Credentials(account)
        home = account.home if self.rule.asks else os.path.expanduser("~")
        try:
            return Credentials(account, self._secrets.values(spec, account, home))
        except SecretRefused as error:
            return Credentials(account, error)
