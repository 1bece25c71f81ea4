"""A server's place in a cluster of NATS servers, and the part of its configuration that says so."""

from __future__ import annotations

import secrets
import socket
from typing import Any, Final

import msgspec

CLUSTER: Final = "penstock"
USER: Final = "route"
_ANY_PORT: Final = 0


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """
    One server among those that keep one log together.

    Attributes
    ----------
    number : int
        From 1; the first has the store of a log that was kept by one server before.
    listen : str
        ``HOST:PORT`` where it takes the connections of the others.
    others : tuple of str
        ``HOST:PORT`` of the others.
    secret : str
        Which the servers show each other: who has it may speak for every account.
    advertise : str
        ``HOST:PORT`` by which the others are told of it, where they do not reach it at ``listen``. They connect there
        besides the addresses that they were given.
    """

    number: int
    listen: str
    others: tuple[str, ...]
    secret: str
    advertise: str = ""

    @property
    def name(self) -> str:
        """The server's name, which must stay the same: the others know it by that."""
        return f"{CLUSTER}-{self.number}"


def cluster_block(member: ClusterMember | None) -> dict[str, Any]:
    """
    Return the part of a server's configuration that makes it a member; of a server alone, its name.

    Clients are not told of the other servers: they have the addresses that they were given, which are right where they
    are, and the servers' own may not be, as in containers.
    """
    if member is None:
        return {"server_name": CLUSTER}
    return {
        "server_name": member.name,
        "server_tags": [member.name],
        "cluster": {
            "name": CLUSTER,
            "listen": member.listen,
            "authorization": {"user": USER, "password": member.secret, "timeout": 5},
            "routes": [f"nats://{USER}:{member.secret}@{other}" for other in member.others],
            "no_advertise": True,
            **({"advertise": member.advertise} if member.advertise else {}),
        },
    }


def members_on_loopback(count: int) -> list[ClusterMember]:
    """Return the members of a cluster on this machine, with ports that are free now and a secret of this run."""
    held = [socket.create_server(("127.0.0.1", _ANY_PORT)) for _ in range(count)]  # all at once, or two are the same
    places = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    return members(places, secrets.token_urlsafe(32))


def members(places: list[str], secret: str) -> list[ClusterMember]:
    """
    Return the members of a cluster, each at its place.

    Examples
    --------
    >>> [(one.name, one.others) for one in members(["a:6222", "b:6222"], "s")]
    [('penstock-1', ('b:6222',)), ('penstock-2', ('a:6222',))]
    """
    return [
        ClusterMember(
            number=number,
            listen=place,
            others=tuple(other for other in places if other != place),
            secret=secret,
        )
        for number, place in enumerate(places, 1)
    ]
