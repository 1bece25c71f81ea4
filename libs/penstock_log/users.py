"""
Who may use the cluster: the fold of what the log says about people.

:class:`Users` is the same for all who ask it: the gateway, which checks each request, and the issuer, which tells the
server. What each role may do stands in the gateway (:mod:`penstock_gateway.authority`); here is only who has it.
"""

from __future__ import annotations

from typing import Final, Optional, get_args

import msgspec

from penstock_log.facts import Event, UserRemoved, UserSet
from penstock_log.spec import Role

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""From the least to the most rights."""


class UserRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    A person who may use the cluster.

    Attributes
    ----------
    teams : tuple of str
        The first is the team of jobs that name none.
    valid_from_s : float
        The last revocation: logins that were issued before it count no more, seconds since the epoch; 0 for none.
    open_jobs, commands_per_s
        The most jobs that the person may have open, and commands that they may go on sending in each second; None is as
        the gateway's settings say.
    """

    name: str
    role: Role
    teams: tuple[str, ...] = ()
    valid_from_s: float = 0.0
    open_jobs: Optional[int] = None
    commands_per_s: Optional[float] = None


class Users(msgspec.Struct):
    """
    All people, by name.

    Attributes
    ----------
    removed : dict of str to float
        Name of a person who may not use the cluster any more → since when, seconds since the epoch, and not before
        the last revocation of their logins.
    """

    by_name: dict[str, UserRecord] = msgspec.field(default_factory=dict)
    removed: dict[str, float] = msgspec.field(default_factory=dict)

    def apply(self, event: Event) -> Optional[str]:
        """Take in one fact; return the name of the person that it is about, None where it is about none."""
        if isinstance(event, UserSet):
            self.by_name[event.user] = UserRecord(
                name=event.user,
                role=event.role,
                teams=event.teams,
                valid_from_s=event.valid_from_s,
                open_jobs=event.open_jobs,
                commands_per_s=event.commands_per_s,
            )
            self.removed.pop(event.user, None)
            return event.user
        if isinstance(event, UserRemoved):
            before = self.valid_from_s(event.user)
            self.by_name.pop(event.user, None)
            self.removed[event.user] = max(event.at_s, before)
            return event.user
        return None

    def valid_from_s(self, name: str) -> float:
        """Return the last revocation of a person's logins, which being removed is too; 0 for none."""
        record = self.by_name.get(name)
        return record.valid_from_s if record is not None else self.removed.get(name, 0.0)


def has_rights_of(role: Role, least: Role) -> bool:
    """
    Say whether a role has at least the rights of another one.

    Examples
    --------
    >>> has_rights_of("admin", "operator"), has_rights_of("viewer", "user")
    (True, False)
    """
    return ROLES.index(role) >= ROLES.index(least)
