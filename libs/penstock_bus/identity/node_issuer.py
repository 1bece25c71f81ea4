"""
Logins of nodes on other machines: tokens, what machines get for them, and their end.

:class:`NodeIssuer` runs beside the issuer of people's logins (:mod:`penstock_bus.identity.issuer`). An admin asks it
for a token, a machine with the token for a login, and an admin has a node's login count no more. What was given are
facts of the log, one subject for each token (:mod:`penstock_log.login_facts`); the secret half of a login never leaves
its machine.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from penstock_bus.follower import background
from penstock_bus.identity import access
from penstock_bus.identity.issuer_requests import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    Handler,
    RefusedRequest,
    answering,
    check_admin,
    decoded,
)
from penstock_bus.identity.keyring import Keyring
from penstock_bus.identity.logins import JoinAnswer
from penstock_bus.nats import NatsBus
from penstock_bus.nats.accounts import AccountPort
from penstock_bus.port import Append, BusError, Conflict, Endpoint, Reply, Request
from penstock_log import Commit, NodeLoginIssued, NodeLoginRevoked, NodeLogins, NodeTokenIssued, subjects, views
from penstock_log.facts import Event, NodeJoined, NodeLeft
from penstock_log.login_facts import NodeLogin, NodeToken
from penstock_log.request_bodies import JoinRequest, RevokeRequest, TokenRequest
from penstock_log.services import ISSUER
from penstock_log.text import escaped

_VERSION: Final = "1.0.0"
_RETRY_S: Final = 1.0
_ID_BYTES: Final = 6
LISTEN_S: Final = 3.0
"""For so long a node of a wished name is listened for: some heartbeats, and less than who joins waits for an answer."""
_log = structlog.get_logger("penstock.issuer")


class NodeIssuer:
    """
    Tokens and logins for nodes.

    Parameters
    ----------
    bus : NatsBus
        As the admin of the services' account.
    server : AccountPort
        The accounts that the servers know.
    url, ca, hosts
        Where machines find the servers, by which authority, and under which other names, for their logins.
    now_s : callable
        Seconds since the epoch.
    is_admin : callable
        Whether a person is an admin by now.
    services_account : callable
        Returns the claims of the services' account for revoked logins, and keeps these for the server's next start.
    revoked : mapping of str to int
        The revoked logins that the server knew when it was started.
    """

    def __init__(
        self,
        bus: NatsBus,
        server: AccountPort,
        keyring: Keyring,
        *,
        url: str,
        ca: str,
        hosts: Sequence[str],
        now_s: Callable[[], float],
        is_admin: Callable[[str], Awaitable[bool]],
        services_account: Callable[[Mapping[str, int]], str],
        revoked: Mapping[str, int],
    ) -> None:
        self._bus, self._keyring, self._now_s = bus, keyring, now_s
        self._url, self._ca, self._hosts = url, ca, tuple(hosts)
        self._is_admin, self._server, self._services_account = is_admin, server, services_account
        self._logins, self._told_seq = NodeLogins(), 0
        self._refused = dict(revoked)
        """Logins that the servers refuse."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Follow the log and answer while the context is open."""
        async with (
            self._bus.serve(f"penstock-{ISSUER}-nodes", _VERSION, self._endpoints()),
            background(self._follow()),
        ):
            yield

    async def _follow(self) -> None:
        """Follow the log; the servers are told of revoked logins once all is read."""
        async for delivery in self._bus.follow(subjects=[subjects.NODE_LOGINS]):
            for fact in delivery.commit.known:
                self._logins.apply(fact)
            if not delivery.pending:
                await self._tell(self._logins.revoked())
                self._told_seq = delivery.seq

    async def _tell(self, revoked: Mapping[str, int]) -> None:
        """Have the servers refuse logins; a key that came back after a revocation is refused until the newest one."""
        while any(until_s > self._refused.get(key, 0) for key, until_s in revoked.items()):
            refused = {**self._refused, **{key: max(at, self._refused.get(key, 0)) for key, at in revoked.items()}}
            try:
                await self._server.update(self._services_account(refused))
                self._refused = refused
            except (BusError, ValueError, OSError) as error:  # what is no answer; a list that cannot be kept
                _log.warning("revoked_logins_not_told", error=str(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)

    def _endpoints(self) -> list[Endpoint]:
        commands: dict[str, Handler] = {"token": self._token, "revoke": self._revoke}
        joining = f"{subjects.command(access.JOIN, ISSUER)}.*"  # the server writes a token's id there
        return [
            *(
                Endpoint(name=name, subject=subjects.command(name, ISSUER), handler=answering(handler))
                for name, handler in commands.items()
            ),
            Endpoint(name="logins", subject=subjects.query("logins", ISSUER), handler=answering(self._list)),
            Endpoint(name=access.JOIN, subject=joining, handler=answering(self._join)),
        ]

    async def _token(self, request: Request) -> Reply:
        """Answer a :class:`TokenRequest` with the login by which new nodes ask for their own."""
        asked = decoded(request, TokenRequest, "a token")
        await check_admin(request, self._is_admin, "nodes are added")
        now_s, token = self._now_s(), secrets.token_hex(_ID_BYTES)
        expires_s = now_s + asked.valid_s
        issued = NodeTokenIssued(
            token=token, uses=asked.uses, expires_s=expires_s, by=request.user, login_s=asked.login_s, at_s=now_s
        )
        await self._append(token, 0, issued)
        _log.info("node_token_issued", token=token, uses=asked.uses, valid_s=asked.valid_s, by=request.user)
        login = self._keyring.join_login(self._url, token, now_s, expires_s, self._ca)
        return Reply(body=msgspec.json.encode(msgspec.structs.replace(login, hosts=self._hosts)))

    async def _join(self, request: Request) -> Reply:
        """Answer a new node, which only one with a token can ask, with the logins of an executor and its agents."""
        if request.user:
            raise RefusedRequest(FORBIDDEN, f"nodes join with a token, and {request.user} is a person")
        asked, token = decoded(request, JoinRequest, "a node's login"), request.subject.rpartition(".")[2]
        while True:
            await self._check_keys(asked)
            found, seq = await self._history(token)
            if asked.key not in found.logins:
                _check_token(found)
                await self._check_name(asked.node_id)
                about = {"node_id": asked.node_id, "key": asked.key, "machine": asked.machine}
                about |= {name: key for name, key in _agents_keys(asked).items() if key}
                fact = NodeLoginIssued(token=token, **about, at_s=self._now_s())
                try:
                    await self._append(token, seq, fact)
                except Conflict:
                    continue  # another machine was admitted meanwhile
                _log.info("node_login_issued", token=token, **about)
            elif any(
                key not in ("", getattr(found.logins[asked.key], name)) for name, key in _agents_keys(asked).items()
            ):
                raise RefusedRequest(FORBIDDEN, "this machine has joined with other keys; join with another token")
            return Reply(body=msgspec.json.encode(self._node_logins(asked, found.login_s)))

    def _node_logins(self, asked: JoinRequest, login_s: float) -> JoinAnswer:
        now_s, keyring = self._now_s(), self._keyring
        expires_s = now_s + login_s if login_s else 0.0
        executor = keyring.node_login(self._url, asked.key, now_s, self._ca, expires_s=expires_s)

        def claim(role: str, key: str) -> str:
            found = keyring.node_login(self._url, key, now_s, role=role, expires_s=expires_s) if key else None
            return found.user_jwt if found is not None else ""

        return JoinAnswer(
            **msgspec.structs.asdict(executor),
            memory_jwt=claim("memory", asked.memory_key),
            aggregator_jwt=claim("aggregator", asked.aggregator_key),
        )

    async def _revoke(self, request: Request) -> Reply:
        """
        Answer a :class:`RevokeRequest`; the servers are told as soon as this is followed.

        When they are told, they drop answers that are on their way to people. So this answer does not wait for it;
        whoever asked asks for the list until it says that they know.
        """
        asked = decoded(request, RevokeRequest, "the end of a login")
        await check_admin(request, self._is_admin, "logins of nodes are revoked")
        tokens, seq = await self._all()
        chosen = {
            token: [one for one in found.logins.values() if asked.id in (one.node_id, token)]
            for token, found in tokens.items()
        }
        chosen = {token: logins for token, logins in chosen.items() if logins or token == asked.id}
        if not chosen:
            known = sorted({one.node_id for found in tokens.values() for one in found.logins.values()})
            raise RefusedRequest(
                NOT_FOUND,
                f"no node {asked.id!r} has joined, and no token has this id; expected one of: "
                f"{', '.join(known) or 'none has'}. The executor beside the server has no login of its own",
            )
        ended = [one for logins in chosen.values() for one in logins if not one.revoked_s]
        for token, logins in chosen.items():
            if not tokens[token].revoked_s or any(not one.revoked_s for one in logins):
                seq = await self._append(token, None, *self._revocations(token, logins, asked, request.user))
        _log.warning("node_logins_revoked", id=asked.id, logins=len(ended), by=request.user, reason=asked.reason)
        answer = views.ActAnswer(
            id=asked.id, state="revoked", changed=bool(ended), message=_revoked(asked.id, chosen), seq=seq
        )
        return Reply(body=msgspec.json.encode(answer))

    def _revocations(
        self, token: str, logins: Sequence[NodeLogin], asked: RevokeRequest, by: str
    ) -> list[NodeLoginRevoked]:
        """Return the facts that end logins of one token; one without any where the token admitted nobody yet."""
        ended = [(one.key, one.node_id) for one in logins] or [("", "")]
        return [
            NodeLoginRevoked(token=token, key=key, node_id=node_id, by=by, reason=asked.reason, at_s=self._now_s())
            for key, node_id in ended
        ]

    async def _list(self, request: Request) -> Reply:
        """Answer with all logins of nodes, and tokens."""
        await check_admin(request, self._is_admin, "logins of nodes are listed")
        tokens, _ = await self._all()
        logins = [
            views.NodeLoginView(
                node_id=one.node_id,
                machine=one.machine,
                token=token,
                key=one.key,
                issued_s=one.issued_s,
                revoked_s=one.revoked_s,
            )
            for token, found in tokens.items()
            for one in found.logins.values()
        ]
        shown = [
            views.NodeTokenView(
                token=token,
                by=one.by,
                uses=one.uses,
                used=len(one.logins),
                expires_s=one.expires_s,
                revoked_s=one.revoked_s,
            )
            for token, one in tokens.items()
        ]
        answer = views.NodeLoginsView(logins=tuple(logins), tokens=tuple(shown), told_seq=self._told_seq)
        return Reply(body=msgspec.json.encode(answer))

    async def _check_keys(self, asked: JoinRequest) -> None:
        """Refuse a key of which a login was revoked, whatever token it comes with now, and one of two roles."""
        keys = [asked.key, *filter(None, _agents_keys(asked).values())]
        if len(set(keys)) < len(keys):
            raise RefusedRequest(FORBIDDEN, "a node's executor and its agents have a key each")
        tokens, _ = await self._all()
        logins = [one for found in tokens.values() for one in found.logins.values()]
        revoked_s = max((one.revoked_s for one in logins if set(keys) & {*one.keys}), default=0.0)
        if revoked_s:
            another = "delete the data folder, and join with another token"
            raise RefusedRequest(FORBIDDEN, f"this login was revoked {_at(revoked_s)}; {another}")

    async def _check_name(self, node_id: str) -> None:
        """
        Refuse the name of a node whose executor runs: two logins of a name are ended by one revocation.

        A machine that joins again, with its executor stopped, keeps its name.
        """
        deliveries = await self._bus.read(subjects.node(node_id))
        facts = [fact for one in deliveries for fact in one.commit.known if isinstance(fact, NodeJoined | NodeLeft)]
        if not facts or isinstance(last := facts[-1], NodeLeft):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_S):
                async for _ in self._bus.subscribe(subjects.heartbeat(node_id)):
                    break
            where = escaped(last.labels.get("address", "another machine"))
            raise RefusedRequest(
                CONFLICT,
                f"node {node_id} is running, on {where}: each node has a name of its own. Give this one another with "
                f"--name; or, where it is to join again, stop that executor first",
            )

    async def _append(self, token: str, expected: int | None, *facts: Event) -> int:
        commit = Commit(id=secrets.token_hex(16), actor=ISSUER, facts=facts)  # type: ignore[arg-type]
        return await self._bus.append(Append(subject=subjects.login(token), commit=commit, expected=expected))

    async def _history(self, token: str) -> tuple[NodeToken, int]:
        """Return what the log says of a token by now, and the sequence of its last fact."""
        logins, seq = NodeLogins(), 0
        for delivery in await self._bus.read(subjects.login(token)):
            seq = delivery.seq
            for fact in delivery.commit.known:
                logins.apply(fact)
        found = logins.tokens.get(token)
        if found is None:
            raise RefusedRequest(
                NOT_FOUND, f"the log knows no token {token}; get another one with `penstock node token`"
            )
        return found, seq

    async def _all(self) -> tuple[dict[str, NodeToken], int]:
        """Return all tokens by id, and the sequence of the last fact about one."""
        logins, seq = NodeLogins(), 0
        for delivery in await self._bus.read(subjects.NODE_LOGINS):
            seq = delivery.seq
            for fact in delivery.commit.known:
                logins.apply(fact)
        return logins.tokens, seq


async def end_all_logins(bus: NatsBus, now_s: float, reason: str) -> None:
    """
    End all tokens and logins of nodes in the log.

    For a server whose keys are others than those that signed them: it refuses them anyway, and this says so.
    """
    logins = NodeLogins()
    for delivery in await bus.read(subjects.NODE_LOGINS):
        for fact in delivery.commit.known:
            logins.apply(fact)
    for token, found in logins.tokens.items():
        good = [one for one in found.logins.values() if not one.revoked_s]
        if good or not found.revoked_s:
            ended = [(one.key, one.node_id) for one in good] or [("", "")]
            facts = [
                NodeLoginRevoked(token=token, key=key, node_id=node_id, reason=reason, at_s=now_s)
                for key, node_id in ended
            ]
            commit = Commit(id=secrets.token_hex(16), actor=ISSUER, facts=facts)  # type: ignore[arg-type]
            await bus.append(Append(subject=subjects.login(token), commit=commit, expected=None))


def _agents_keys(asked: JoinRequest) -> dict[str, str]:
    """Return the keys of a node's agents, by the names of their fields; empty for those that it does not want."""
    return {"memory_key": asked.memory_key, "aggregator_key": asked.aggregator_key}


def _check_token(found: NodeToken) -> None:
    """Refuse a token that admits nobody any more."""
    another = "`penstock node token` makes another"
    if found.revoked_s:
        raise RefusedRequest(FORBIDDEN, f"this token was ended {_at(found.revoked_s)}; {another}")
    if len(found.logins) >= found.uses:
        last = list(found.logins.values())[-1]
        who = f"{escaped(last.node_id)} ({escaped(last.machine)}) joined with it {_at(last.issued_s)}"
        more = f" and {len(found.logins) - 1} more before" if len(found.logins) > 1 else ""
        raise RefusedRequest(FORBIDDEN, f"this token is used up: {who}{more}; {another}")


def _revoked(name: str, chosen: Mapping[str, Sequence[NodeLogin]]) -> str:
    count = sum(map(len, chosen.values()))
    if not count:
        return f"the token {name} admits nobody; nobody had joined with it"
    them = "the login" if count == 1 else f"all {count} logins"
    return f"the server refuses {them} of {name}, and admits nobody by the same token"


def _at(at_s: float) -> str:
    return f"at {datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
