"""
As whom a run's processes run on this node.

:class:`IdentityRule` is the node's rule, from the settings; ``docs/isolation.md`` has it as a table. It takes accounts
from the name service of the host (``pwd``, ``grp``), so from sssd or LDAP where the host has them. That may take
seconds: :class:`penstock_executor.run_credentials.CredentialLookups` asks in a thread.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

RunAs = Literal["user", "executor"]
OWN: Final = -1
"""In place of a uid to change to: the process stays what the executor is."""


class IdentityRefused(Exception):
    """A user's jobs do not run on this node; the message says why, and what to do."""


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """
    The account that a run's processes have.

    Attributes
    ----------
    switches : bool
        Whether that is another account than the executor's, to which its processes have to change.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"
    shell: str = "/bin/sh"
    switches: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables that a login of this account would have, in place of the executor's."""
        if not self.switches:
            return {}
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell or "/bin/sh"}


class IdentityRule(msgspec.Struct, frozen=True, kw_only=True):
    """
    The rule by which a node finds the account of a job's user.

    Attributes
    ----------
    node_id : str
        For messages.
    run_as : {"user", "executor"}
        ``user``: jobs run as who submitted them. ``executor``: all as the executor's own user.
    users : mapping of str to str
        User of Penstock → account, where they differ, and for accounts of the system.
    allow_root : bool
        Whether a job may run as uid 0.
    least_uid : int
        Accounts below are the system's: no user has one by its name alone.
    executor_uid : int
        The executor's own.
    """

    node_id: str = ""
    run_as: RunAs = "user"
    users: Mapping[str, str] = {}
    allow_root: bool = False
    least_uid: int = 1000
    executor_uid: int = msgspec.field(default_factory=os.geteuid)

    @property
    def asks(self) -> bool:
        """Whether accounts are looked up at all."""
        return self.run_as == "user"

    @property
    def switches(self) -> bool:
        """Whether processes may have another user than the executor."""
        return self.asks and self.executor_uid == 0

    def identity(self, user: str) -> RunIdentity:
        """
        Return the account of a user's jobs here.

        Raises
        ------
        IdentityRefused
            If they do not run here.
        """
        if not self.asks:
            return RunIdentity(name=user, uid=self.executor_uid, gid=os.getegid())
        account = self._account(user)
        if account.pw_uid == 0 and not self.allow_root:
            raise IdentityRefused(
                f"{self._whose(user)} is root on node {self.node_id}, and no job runs as root there; submit it as "
                "another user, or set allow_root = true under [executor] on a node whose users are all trusted with it"
            )
        if account.pw_uid == self.executor_uid:
            return _identity(account, switches=False)
        if self.executor_uid != 0:
            raise IdentityRefused(
                f"the executor of node {self.node_id} runs as {_name_of(self.executor_uid)} and is not root, so it "
                f"runs only that user's jobs, not those of {user!r}; run it as root, or choose another node or pool"
            )
        if account.pw_uid < self.least_uid and user not in self.users and account.pw_uid != 0:
            raise IdentityRefused(
                f"{self._whose(user)} has uid {account.pw_uid} on node {self.node_id}, an account of the system (below "
                f"least_uid = {self.least_uid}); name it under [executor.users] there, if it is meant to run jobs"
            )
        if not _is_mapped(account.pw_uid):
            raise IdentityRefused(
                f"node {self.node_id} cannot become uid {account.pw_uid} of {self._whose(user)}: its executor is root "
                "only within a user namespace that lacks this uid; map it (subuid), or run the executor on the host"
            )
        return _identity(account, switches=True)

    def _account(self, user: str) -> pwd.struct_passwd:
        name = self.users.get(user, user)
        if not name:
            raise IdentityRefused(
                f"the job names no user, and node {self.node_id} runs jobs as their users; submit it as one"
            )
        try:
            account = pwd.getpwnam(name)
        except (KeyError, ValueError):
            mapped = f" (for user {user!r}, by [executor.users])" if user in self.users else ""
            raise IdentityRefused(
                f"there is no account {name!r}{mapped} on node {self.node_id}; make one there, or name the account of "
                f"{user!r} under [executor.users] in that node's settings"
            ) from None
        if account.pw_name != name:  # a name service that takes ALICE, or alice@example.org, for alice
            raise IdentityRefused(
                f"node {self.node_id} knows {name!r} as {account.pw_name!r}; two users must not share an account by "
                f"chance: name it under [executor.users] there, if {user!r} is meant to have it"
            )
        return account

    def _whose(self, user: str) -> str:
        return f"{self.users[user]!r}, the account of user {user!r}," if user in self.users else f"user {user!r}"


def _identity(account: pwd.struct_passwd, *, switches: bool) -> RunIdentity:
    return RunIdentity(
        name=account.pw_name,
        uid=account.pw_uid,
        gid=account.pw_gid,
        groups=tuple(os.getgrouplist(account.pw_name, account.pw_gid)),
        home=account.pw_dir,
        shell=account.pw_shell,
        switches=switches,
    )


def _name_of(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name!r}"
    except KeyError:
        return f"uid {uid}"


def _is_mapped(uid: int, uid_map: str = "/proc/self/uid_map") -> bool:
    """Return whether a uid exists in this process's user namespace."""
    try:
        rows = [[int(word) for word in line.split()] for line in Path(uid_map).read_text().splitlines()]
    except (OSError, ValueError):
        return True
    return any(first <= uid < first + count for first, _, count in rows)
