"""
Commands that add machines, and take their logins away: ``node token``, ``join``, ``start``, ``logins``, ``revoke``.

A token is the server's address, the authority to trust and a login that ends soon, in one word. With it a machine asks
the issuer for logins of its own, keeps these in its data folder, and runs an executor and its agents.
:func:`reached` finds out by which of its addresses a server is reached from here.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import socket
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer

from penstock_cli import render
from penstock_cli.invocation import (
    AnswerOut,
    Exit,
    Failure,
    Out,
    act_patiently,
    bad_input,
    become,
    call,
    check_devices,
    tell,
)
from penstock_cli.value_formats import duration_s, now_s, span
from penstock_cluster.host_limits import host_name
from penstock_log.spec import Name

if TYPE_CHECKING:
    from penstock_bus.identity.claims import SigningKey
    from penstock_bus.identity.logins import JoinAnswer, Login
    from penstock_log import views

VARIABLE: Final = "PENSTOCK_NODE_TOKEN"
_MARK: Final = "penstock-node-"
_FOLDER: Final = Path("penstock-node")
_LOGIN: Final = "executor.json"
_KEY: Final = "joining.key"
_AGENTS: Final = {"memory": "memory agent", "aggregator": "aggregation agent"}
"""The services beside an executor that have logins of their own, in words."""
_NODE: Final = "node.json"
_ARGUMENTS_BEGIN: Final = 45  # field 48 of /proc/self/stat, counted after the command's closing parenthesis
Memory = Annotated[bool, typer.Option("--memory/--no-memory", help="Run a memory agent beside the executor.")]
Data = Annotated[Path, typer.Option("--data", help="Folder for the login and what jobs print.")]


def register(app: typer.Typer) -> None:
    """Add the commands to those about nodes."""
    for command in (token, join, start, logins, revoke):
        app.command()(command)


class NodeFile(msgspec.Struct, frozen=True, kw_only=True):
    """``node.json`` in the data folder of a node: its name, devices, and which agents it has, as they were given."""

    node_id: str
    devices: str = ""
    memory: bool = True
    agents: bool = True

    def wants(self, service: str) -> bool:
        """Say whether an agent is to run beside the executor."""
        return self.agents and (service != "memory" or self.memory)


def token(
    ctx: typer.Context,
    valid: Annotated[str, typer.Option("--valid", help="How long machines can join with it: 30m, 12h, 7d.")] = "1h",
    uses: Annotated[int, typer.Option("--uses", min=1, help="How many machines can join with it.")] = 1,
) -> None:
    """
    Print a token with which machines join as nodes.

    It is a secret, counts for a while, and only admins get one.
    """
    valid_s = duration_s(valid, "--valid")
    made = call(ctx, lambda client: client.node_token(valid_s, uses))
    if "127.0.0.1" in made.url:
        tell("this server listens to its own machine only; others reach one that was started with `penstock up --host`")
    render.say(written(made))


def join(
    *,
    text: Annotated[
        str, typer.Argument(metavar="[TOKEN]", help=f"Of `penstock node token`; - or a file; {VARIABLE} without it.")
    ] = "",
    data: Data = _FOLDER,
    devices: Annotated[str, typer.Option("--devices", help="As for `penstock up`; auto unless told otherwise.")] = "",
    node_id: Annotated[str, typer.Option("--name", help="Of the node; the machine's name unless told otherwise.")] = "",
    server: Annotated[str, typer.Option("--server", help="HOST[:PORT] of the server, if not as the token says.")] = "",
    memory: Memory = True,
    executor_only: Annotated[bool, typer.Option("--executor-only", help="Run the executor, and no agents.")] = False,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Run the node now, until Ctrl-C.")] = True,
) -> None:
    """
    Make this machine a node of a cluster, and run its executor and its agents.

    The logins stay in the data folder: afterwards it is `penstock node start`.
    """
    given = parsed(_read_token(text))
    node = NodeFile(node_id=_name(node_id), devices=devices, memory=memory, agents=not executor_only)
    check_devices(devices)
    folder = data.absolute()
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with _stopped(folder):
            own, agents = asyncio.run(_asked(given, node, folder, server))
            _keep(folder, node, own, agents)
    except OSError as error:
        raise Failure(
            f"the login cannot be kept in {folder}: {error.strerror}; name another folder with --data"
        ) from error
    again = f"penstock node start --data {folder}"
    tell(f"this machine is node {node.node_id} of {own.url}; its logins are in {folder}. After a reboot: {again}")
    if start:
        _run(folder, node, own)


def start(data: Data = _FOLDER, memory: Memory = True) -> None:
    """Run the executor of a machine that has joined, and its agents, until Ctrl-C."""
    from penstock_bus.identity import logins

    folder = data.absolute()
    try:
        own = logins.read_login(folder / _LOGIN)
        node = msgspec.json.decode((folder / _NODE).read_bytes(), type=NodeFile)
    except FileNotFoundError as error:
        raise Failure(
            f"there is no {error.filename}: this machine has not joined with this folder; join with what `penstock "
            "node token` prints on the first machine, or name another folder with --data",
            Exit.NOT_FOUND,
        ) from error
    except (OSError, ValueError) as error:  # MsgspecError is the second
        raise Failure(f"what {folder} says of this node cannot be read: {error}; join with a new token") from error
    check_devices(node.devices)
    with _stopped(folder):
        pass  # or its executor would end with an error, and its agents would be started again and again
    _run(folder, msgspec.structs.replace(node, memory=node.memory and memory), own)


def logins(ctx: typer.Context, output: Out = "table") -> None:
    """
    List the logins of nodes, and open tokens.

    With -o wide all tokens. For admins.
    """
    found = call(ctx, lambda client: client.node_logins())
    if render.as_json(found, output):
        return
    now = now_s()
    rows = [
        (one.node_id, one.machine, _ago(one.issued_s, now), "revoked" if one.revoked_s else "good", one.token, one.key)
        for one in found.logins
    ]
    render.show_table(("NODE", "MACHINE", "JOINED", "LOGIN", "TOKEN", "KEY"), rows, wide=output == "wide")
    open_tokens = [one for one in found.tokens if not _ended(one, now)]
    shown = found.tokens if output == "wide" else open_tokens
    if shown:
        tokens = [
            (one.token, f"{one.used} of {one.uses}", _ended(one, now) or span(one.expires_s - now), one.by)
            for one in shown
        ]
        render.say("")
        render.show_table(("TOKEN", "USED", "ENDS IN", "BY"), tokens, wide=output == "wide")


def revoke(
    ctx: typer.Context,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Nodes as `penstock node logins` lists them.")],
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """
    Have the server refuse nodes' logins.

    At once and for ever; their tokens admit nobody more, and the node has to be removed besides. For admins.

    A token's id in place of a node's name ends the token and all logins that came of it.
    """
    act_patiently(ctx, nodes, lambda client, node: client.revoke_node(node, reason), output)


def written(login: Login) -> str:
    """Return a login as one word."""
    from penstock_bus.identity.logins import node_token_text

    return node_token_text(login)


def parsed(text: str) -> Login:
    """Return the login that a token holds; refuse what is none."""
    from penstock_bus.identity.logins import Login

    try:
        if not text.startswith(_MARK):
            raise ValueError("it begins otherwise")
        packed = text.removeprefix(_MARK)
        whole = zlib.decompressobj().decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), 1 << 16)
        return msgspec.json.decode(whole, type=Login)
    except (ValueError, zlib.error, RecursionError) as error:
        bad_input(f"this is no token: {error}; expected the word that `penstock node token` printed, whole")


async def reached(login: Login, name: str) -> Login:
    """
    Return a login with that of its addresses at which the server is reached from here.

    Raises
    ------
    Unauthorized
        If the server that is reached refuses it.
    Unavailable
        If none is reached.
    """
    from penstock_bus.identity.logins import alternatives
    from penstock_bus.nats import connect
    from penstock_bus.port import Unavailable

    failed: list[str] = []
    for url in alternatives(login):
        try:
            async with connect(url, login=login, name=name, as_client=True):
                return msgspec.structs.replace(login, url=url, hosts=())
        except Unavailable as error:
            failed.append(str(error).partition(". Start one")[0])
    advice = "is its port open from here, and does `--name` of `penstock up` name it as others reach it?"
    raise Unavailable(f"{'; '.join(failed)}; {advice}")


def hide_argument(word: str) -> None:
    """Overwrite a word of this process's command line, which every user of the machine can read, with ``x``."""
    try:
        line = Path("/proc/self/cmdline").read_bytes()
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no Linux: there is no such list, or not here
        return
    at = line.find(word.encode())
    if at >= 0:
        ctypes.memset(int(fields[_ARGUMENTS_BEGIN]) + at, ord("x"), len(word.encode()))


def _read_token(text: str) -> str:
    """Return the token: as given, of standard input, of a file or of the environment."""
    if text == "-":
        return sys.stdin.readline().strip()
    if not text:
        if VARIABLE not in os.environ:
            bad_input(
                f"there is no token; expected one in {VARIABLE}, or - for standard input, or a file that holds it"
            )
        return os.environ[VARIABLE].strip()
    if text.startswith(_MARK):
        hide_argument(text)
        return text
    try:
        return Path(text).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no text"
        bad_input(f"{text!r} is neither a token, which begins with {_MARK}, nor a file with one ({reason})")


def _name(given: str) -> str:
    """Return the name of this node, which is the machine's where none is given."""
    try:
        return msgspec.convert(given or host_name(), type=Name)
    except msgspec.ValidationError:
        bad_input(
            f"--name {given!r} is no name of a node; expected at most 63 letters, digits, - and _, the first of them a "
            "letter or a digit"
        )


@contextmanager
def _stopped(folder: Path) -> Iterator[None]:
    """Keep the executor of a node's folder from running while the context is open; refuse where one does."""
    from penstock_bus.service_folder import alone_in

    class FolderInUse(Exception):
        """An executor runs, or the folder cannot be written."""

    with ExitStack() as held:
        try:
            held.enter_context(alone_in(str(_executors_folder(folder)), "executor", FolderInUse))
        except FolderInUse as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise Failure(str(error)) from error
            raise Failure(
                f"{_whose(folder)} runs in {folder}: stop it first, or name another folder with --data", Exit.CONFLICT
            ) from error
        yield


def _whose(folder: Path) -> str:
    try:
        return f"node {msgspec.json.decode((folder / _NODE).read_bytes(), type=NodeFile).node_id}"
    except (OSError, ValueError):  # MsgspecError is the second
        return "an executor"


def _executors_folder(folder: Path) -> Path:
    return folder / "executor"


def _key(file: Path) -> SigningKey:
    """Return the key of a login of this machine: made before the token is used, and the same where that is repeated."""
    import nkeys

    from penstock_bus.identity.claims import SigningKey
    from penstock_bus.identity.logins import write_private

    try:
        return SigningKey(file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):  # or what an interrupted write has left
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode()
        write_private(file, seed.encode())
        return SigningKey(seed)


def _agents_key(folder: Path, service: str) -> Path:
    return folder / f"joining-{service}.key"


def _agents_login(folder: Path, service: str) -> Path:
    return folder / f"{service}.json"


def _keep(folder: Path, node: NodeFile, own: Login, agents: dict[str, Login]) -> None:
    from penstock_bus.identity import logins

    logins.write_login(folder / _LOGIN, own)
    for service in _AGENTS:
        if service in agents:
            logins.write_login(_agents_login(folder, service), agents[service])
        else:
            _agents_login(folder, service).unlink(missing_ok=True)
    logins.write_private(folder / _NODE, msgspec.json.format(msgspec.json.encode(node)) + b"\n")
    for file in (folder / _KEY, *(_agents_key(folder, service) for service in _AGENTS)):
        file.unlink(missing_ok=True)


def _run(folder: Path, node: NodeFile, own: Login) -> NoReturn:
    """Be the node: the executor, and those of its agents that have logins and are wanted."""
    from penstock_bus.identity.logins import VARIABLE as CREDENTIALS
    from penstock_bus.settings import SettingsError
    from penstock_cli.local.node_processes import run_node

    os.environ.pop(VARIABLE, None)
    env = {
        "PENSTOCK_URL": own.url,
        CREDENTIALS: str(folder / _LOGIN),
        "PENSTOCK_EXECUTOR_DATA_DIR": str(_executors_folder(folder)),
        "PENSTOCK_EXECUTOR_NODE_ID": node.node_id,
        **({"PENSTOCK_EXECUTOR_DEVICES": node.devices} if node.devices else {}),
    }
    agents: dict[str, dict[str, str]] = {}
    for service, words in _AGENTS.items():
        if not node.wants(service):
            continue
        if not _agents_login(folder, service).exists():
            tell(
                f"this node runs without {'an' if words[0] in 'aeiou' else 'a'} {words}: it joined before there were "
                f"any. For one, stop it and join again with a new token of `penstock node token`, and --data {folder}"
            )
            continue
        data_dir, agents[service] = _of_agent(folder, service, node, own)
        env[f"PENSTOCK_EXECUTOR_{service.upper()}_DIR"] = data_dir
    if agents:
        try:
            raise SystemExit(asyncio.run(run_node(env, agents)))
        except SettingsError as error:
            raise Failure(str(error)) from error
    become("executor", env)


def _of_agent(folder: Path, service: str, node: NodeFile, own: Login) -> tuple[str, dict[str, str]]:
    """Return an agent's folder, of which jobs are told, and its environment: settings go before the folder."""
    from penstock_bus.identity.logins import VARIABLE as CREDENTIALS
    from penstock_bus.settings import written as setting

    data_dir = setting("executor", f"{service}_dir") or setting(service, "data_dir") or str(folder / service)
    address = setting(service, "address") or setting("executor", "address")
    pool = setting("executor", "pool") if service == "aggregator" and not setting(service, "pool") else ""
    said = {"DATA_DIR": data_dir, "NODE_ID": node.node_id, "ADDRESS": address, "POOL": pool}
    return data_dir, {
        "PENSTOCK_URL": own.url,
        CREDENTIALS: str(_agents_login(folder, service)),
        **{f"PENSTOCK_{service.upper()}_{name}": value for name, value in said.items() if value},
    }


async def _asked(given: Login, node: NodeFile, folder: Path, server: str) -> tuple[Login, dict[str, Login]]:
    """Return the logins of this machine's executor and, by service, of those agents that get one."""
    from penstock_bus import Unauthorized
    from penstock_bus.identity.claims import decoded
    from penstock_bus.identity.logins import JoinAnswer, at_host
    from penstock_bus.nats import connect
    from penstock_bus.port import BusError, ServiceError
    from penstock_log import subjects
    from penstock_log.request_bodies import JoinRequest

    claims = decoded(given.user_jwt)
    if server:
        given = msgspec.structs.replace(given, url=at_host(given.url, server), hosts=())
    subject = f"{subjects.command('join', 'issuer')}.{claims.get('name', '')}"
    machine = f"{socket.gethostname()} uid {os.getuid()}"
    wanted = [service for service in _AGENTS if node.wants(service)]
    key, agents = _key(folder / _KEY), {service: _key(_agents_key(folder, service)) for service in wanted}
    keys = {f"{service}_key": agents_key.public for service, agents_key in agents.items()}
    body = msgspec.json.encode(JoinRequest(node_id=node.node_id, machine=machine, key=key.public, **keys))
    try:
        found = await reached(given, "node join")
        async with connect(found.url, login=found, name="node join", as_client=True) as bus:
            answer = msgspec.json.decode(await bus.request(subject, body, timeout_s=10.0), type=JoinAnswer)
    except Unauthorized as error:
        raise Failure(_refused(claims.get("exp", 0))) from error
    except ServiceError as error:
        raise Failure(str(error)) from error
    except BusError as error:
        here = "give --server HOST[:PORT] if this machine reaches it otherwise"
        raise Failure(f"{error} {here}", Exit.UNREACHABLE) from error
    own = _login(answer, found.url, "executor", answer.user_jwt, key)
    claims_of = {service: getattr(answer, f"{service}_jwt") for service in agents}
    return own, {
        service: _login(answer, found.url, service, claim, agents[service])
        for service, claim in claims_of.items()
        if claim
    }


def _login(answer: JoinAnswer, url: str, role: str, claim: str, key: SigningKey) -> Login:
    from penstock_bus.identity.logins import Login

    return Login(url=url, user=role, user_jwt=claim, user_seed=key.seed, ca=answer.ca)


def _refused(expires_s: float) -> str:
    """Return why a server refuses a token: it has ended, or is another cluster's."""
    another = "`penstock node token` on the first machine makes another"
    ago_s = now_s() - expires_s
    if ago_s >= 0:
        return f"this token ended {span(ago_s)} ago; {another}"
    why = f"it ends in {span(-ago_s)} by this machine's clock: is that right? Or the server's keys were made anew"
    return f"the server refuses this token, though {why}; {another}"


def _ended(one: views.NodeTokenView, now: float) -> str:
    """Return why a token admits nobody any more; empty while it does."""
    if one.revoked_s:
        return "revoked"
    if one.used >= one.uses:
        return "used up"
    return "ended" if one.expires_s <= now else ""


def _ago(at_s: float, now: float) -> str:
    return f"{span(now - at_s)} ago"
