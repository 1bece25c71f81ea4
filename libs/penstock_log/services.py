"""
The services of Penstock: the one list that everything else reads.

Keys and permissions, the processes of ``penstock up``, ``penstock service``, ``doctor`` and the gateway's status
come from :data:`SERVICES`. A new service needs a package ``penstock_NAME``, a line here, a service and a volume for its
login in ``compose.yaml``, a line in the Helm chart's values, schema and roles (tests compare both), and its name in the
lists of import-linter in ``pyproject.toml``.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Service(msgspec.Struct, frozen=True):
    """
    A service and what it may do; ``penstock_NAME`` is its package, and its user has its name.

    Attributes
    ----------
    writes : tuple of str
        Kinds of entities whose facts it alone writes.
    core : bool
        Whether it belongs to every cluster: ``penstock up`` runs it, and it is missed where it is not heard.
    """

    name: str
    writes: tuple[str, ...] = ()
    core: bool = True


SERVICES: Final = (
    Service("gateway", writes=("job", "request", "policy", "user", "notify", "archive", "alloc")),
    Service("profiler", writes=("profile",)),
    Service("ranker", writes=("rank",)),
    Service("autoscaler", writes=("scale",)),
    Service("matcher", writes=("round",)),
    Service("tuner", writes=("sweep",)),
    Service("executor", writes=("run", "node")),
    Service("memory", writes=("memory",)),
    Service("assigner", writes=("aggregation",)),
    Service("aggregator", writes=("aggregator",)),
    Service("allocator", writes=("pilot",)),
    Service("dashboard"),
    Service("shadow", core=False),
)
"""In the order in which they start."""

LOGINS: Final = tuple(service.name for service in SERVICES)
CORE: Final = tuple(service.name for service in SERVICES if service.core)
ISSUER: Final = "issuer"
"""It runs beside the server and as its admin, and is no service with a login of its own."""
ANONYMOUS: Final = "anonymous"
"""Whom a visitor of the dashboard is taken for who has not signed in: a viewer without teams."""
NO_PERSONS: Final = frozenset({"admin", "client", "extension", "join", "oidc", ANONYMOUS, ISSUER, *LOGINS})
"""Names of logins and of roles of logins, in lower case: nobody who reads one is to think of a person."""
WRITERS: Final = {kind: service.name for service in SERVICES for kind in service.writes} | {"login": ISSUER}
"""Entity kind → the one service, or the issuer, that may write its facts."""
