"""
Authority: who asks, and what each role may do and see.

The server says who asks (:class:`penstock_bus.Request`); the log says which role and teams they have. A service of
Penstock's own, and an administrator of the server, is trusted: what it says of a user is believed.

:data:`LEAST` has the least role for each request. Beyond that, people act on their own jobs and see those of their
teams, and operators act on all and see all. docs/access.md shows it as a table, and a test tries each cell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from penstock_gateway.endpoints import RequestRefused
from penstock_log import JobSpec, SweepSpec
from penstock_log.services import ANONYMOUS
from penstock_log.spec import Role
from penstock_log.users import Users, has_rights_of

FORBIDDEN: Final = 403

LEAST: Final[dict[str, Role]] = {
    "submit": "user",
    "submit_all": "user",
    "upload": "user",
    "upload_parts": "user",
    "tune": "user",
    "cancel": "user",
    "hold": "user",
    "release": "user",
    "extend": "user",
    "enter": "user",
    "bulk": "user",
    "notify": "user",
    "remove_notification": "user",
    "test_notification": "user",
    "cancel_sweep": "user",
    "drain": "operator",
    "resume": "operator",
    "remove": "operator",
    "policy": "operator",
    "reserve": "operator",
    "unreserve": "operator",
    "add_allocation": "admin",
    "remove_allocation": "operator",
    "pause_allocation": "operator",
    "resume_allocation": "operator",
    "try_pilot": "admin",
    "set_user": "admin",
    "remove_user": "admin",
    "dryrun": "user",
    "rejected": "operator",
    "users": "admin",
}
"""Request → the least role that may make it; a viewer may make all others."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """
    Somebody who asks.

    Attributes
    ----------
    name : str
        Empty for a service.
    """

    name: str = ""
    role: Role = "admin"
    teams: tuple[str, ...] = ()

    @property
    def is_service(self) -> bool:
        """Whether a service of Penstock's asks, which speaks for others."""
        return not self.name

    @property
    def sees_all(self) -> bool:
        """Whether everybody's jobs are to be seen."""
        return has_rights_of(self.role, "operator")

    def sees(self, spec: JobSpec) -> bool:
        """Whether the command, the parameters and the output of a job are to be seen."""
        return self.sees_jobs_of(spec.user, spec.team)

    def sees_jobs_of(self, user: str, team: str) -> bool:
        """Whether jobs of a user in a team are to be seen."""
        return self.sees_all or user == self.name or (bool(team) and team in self.teams)

    def require(self, request: str) -> None:
        """
        Check that a request may be made.

        Raises
        ------
        RequestRefused
            403, with the role that is needed.
        """
        least = LEAST.get(request, "viewer")
        if not has_rights_of(self.role, least):
            raise RequestRefused(
                FORBIDDEN, f"{request} is for {_plural(least)}, and {self.name} is {_a(self.role)}; ask an admin"
            )

    def require_own(self, spec: JobSpec, what: str) -> None:
        """Check that a job may be acted on: one's own, or everybody's for an operator."""
        if not self.sees_all and spec.user != self.name:
            raise RequestRefused(
                FORBIDDEN, f"{what} is {spec.user or 'nobody'}'s, and {self.name} is no operator; ask its owner"
            )

    def require_sight(self, spec: JobSpec, what: str) -> None:
        """Check that what a job is may be shown."""
        if not self.sees(spec):
            whose = spec.user or "nobody"
            raise RequestRefused(
                FORBIDDEN, f"{what} is {whose}'s, and {self.name} shares no team with it; ask its owner or an operator"
            )

    def stamp(self, spec: JobSpec) -> JobSpec:
        """
        Return a job as its submitter's: with the name that the server knows, and with a team.

        An operator may submit for others.

        Raises
        ------
        RequestRefused
            403 where it names another user, or a team that its user is not in.
        """
        if self.is_service:
            return spec
        if spec.user and spec.user != self.name and not self.sees_all:
            raise RequestRefused(
                FORBIDDEN, f"$.user: {self.name} cannot submit as {spec.user}; leave it out, or ask an operator to"
            )
        if spec.team and spec.team not in self.teams and not self.sees_all:
            known = ", ".join(self.teams) or "none"
            raise RequestRefused(
                FORBIDDEN, f"$.team: {self.name} is not in team {spec.team}, but in {known}; ask an admin to add it"
            )
        user = spec.user or self.name
        first = self.teams[0] if self.teams and user == self.name else ""
        return msgspec.structs.replace(spec, user=user, team=spec.team or first)

    def stamp_sweep(self, spec: SweepSpec) -> SweepSpec:
        """Return a sweep whose trials are its submitter's; errors as for :meth:`stamp`."""
        return msgspec.structs.replace(spec, job=self.stamp(spec.job))


SERVICE: Final = Caller()
Admit = Callable[[str, str], Awaitable[Caller]]
"""From a request's name and the person's, empty for a service: who asks; RequestRefused where that is not allowed."""


def caller(users: Users, owner: str, name: str) -> Caller:
    """
    Return who asks.

    Parameters
    ----------
    owner : str
        The person who is an admin whatever the log says.
    name : str
        As the server knows it; empty for a service.

    Raises
    ------
    RequestRefused
        403 for somebody whom neither the log nor the settings know.
    """
    if not name:
        return SERVICE
    if name == ANONYMOUS:
        return Caller(name=name, role="viewer")
    record = users.by_name.get(name)
    teams = record.teams if record is not None else ()
    if name == owner:
        return Caller(name=name, role="admin", teams=teams)
    if record is None:
        raise RequestRefused(
            FORBIDDEN, f"{name} is no user of this cluster; have an admin run `penstock user add {name}`"
        )
    return Caller(name=name, role=record.role, teams=teams)


def _plural(role: Role) -> str:
    return "admins" if role == "admin" else f"{role}s and above"


def _a(role: Role) -> str:
    return f"an {role}" if role[0] in "ao" else f"a {role}"
