"""
Facts about the logins of nodes, and their fold.

The issuer beside the server writes them on ``evt.login.TOKEN``: a token was issued (:class:`NodeTokenIssued`), a
machine got a login with it (:class:`NodeLoginIssued`), such logins count no more (:class:`NodeLoginRevoked`). What a
token has admitted stands on the token's own subject, so two machines cannot both be the last that it admits.
"""

from __future__ import annotations

import msgspec

from penstock_log.facts import Event


class NodeTokenIssued(Event, frozen=True, kw_only=True, tag="login.token_issued.v1"):
    """
    So many machines may join with this token, for a while.

    Attributes
    ----------
    token : str
        Its id, which is no secret.
    expires_s : float
        Seconds since the epoch.
    login_s : float
        So many seconds after a machine has joined, its logins end; 0: they stay until they are revoked.
    """

    token: str
    uses: int
    expires_s: float
    by: str = ""
    login_s: float = 0.0


class NodeLoginIssued(Event, frozen=True, kw_only=True, tag="login.issued.v1"):
    """
    A machine has a login of its own.

    Attributes
    ----------
    node_id : str
        The name under which the machine joined.
    key : str
        Public key of the login; the machine made it, and keeps its secret half.
    machine : str
        What the machine calls itself, for people.
    memory_key, aggregator_key : str
        Public keys of its memory agent's login and its aggregation agent's, which count as long as ``key`` does; empty
        where it got none.
    """

    token: str
    node_id: str
    key: str
    machine: str = ""
    memory_key: str = ""
    aggregator_key: str = ""


class NodeLoginRevoked(Event, frozen=True, kw_only=True, tag="login.revoked.v1"):
    """A login counts no more, and its token admits nobody more; without a key it is only the token that ends."""

    token: str
    key: str = ""
    node_id: str = ""
    by: str = ""
    reason: str = ""


class NodeLogin(msgspec.Struct, frozen=True, kw_only=True):
    """
    The login of a node.

    Attributes
    ----------
    memory_key, aggregator_key : str
        Public keys of the logins of its memory agent and its aggregation agent; empty where it has none.
    revoked_s : float
        Since when all count no more, seconds since the epoch; 0 while they do.
    """

    node_id: str
    key: str
    machine: str
    issued_s: float
    memory_key: str = ""
    aggregator_key: str = ""
    revoked_s: float = 0.0

    @property
    def keys(self) -> list[str]:
        """Its public keys: the executor's, and those of its agents."""
        return [self.key, *filter(None, [self.memory_key, self.aggregator_key])]


class NodeToken(msgspec.Struct, kw_only=True):
    """
    A token, and the logins that machines got with it.

    Attributes
    ----------
    logins : dict of str to NodeLogin
        By public key, in the order in which they were issued.
    login_s : float
        As :class:`NodeTokenIssued` has it.
    revoked_s : float
        Since when it admits nobody, seconds since the epoch; 0 while it does.
    """

    token: str
    uses: int
    expires_s: float
    by: str
    login_s: float = 0.0
    logins: dict[str, NodeLogin] = msgspec.field(default_factory=dict)
    revoked_s: float = 0.0

    def end(self, key: str, at_s: float) -> None:
        """Admit nobody from now on, and have one of the logins count no more."""
        self.revoked_s = self.revoked_s or at_s
        login = self.logins.get(key)
        if login is not None and not login.revoked_s:
            self.logins[key] = msgspec.structs.replace(login, revoked_s=at_s)


class NodeLogins(msgspec.Struct):
    """All tokens by id, with the logins of nodes."""

    tokens: dict[str, NodeToken] = msgspec.field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take in one fact; what is about a token that is not known is passed over."""
        if isinstance(event, NodeTokenIssued):
            made = NodeToken(
                token=event.token, uses=event.uses, expires_s=event.expires_s, by=event.by, login_s=event.login_s
            )
            self.tokens.setdefault(event.token, made)
        elif isinstance(event, NodeLoginIssued) and event.token in self.tokens:
            login = NodeLogin(
                node_id=event.node_id,
                key=event.key,
                machine=event.machine,
                issued_s=event.at_s,
                memory_key=event.memory_key,
                aggregator_key=event.aggregator_key,
            )
            self.tokens[event.token].logins.setdefault(event.key, login)
        elif isinstance(event, NodeLoginRevoked) and event.token in self.tokens:
            self.tokens[event.token].end(event.key, event.at_s)

    def revoked(self) -> dict[str, int]:
        """Return the public keys of revoked logins, each with the second since the epoch of its last revocation."""
        found: dict[str, int] = {}
        for login in (one for token in self.tokens.values() for one in token.logins.values() if one.revoked_s):
            for key in login.keys:
                found[key] = max(found.get(key, 0), int(login.revoked_s) + 1)
        return found
