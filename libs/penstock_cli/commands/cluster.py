"""
Commands about nodes and the whole: ``nodes``, ``drain``, ``resume``, ``remove``, ``status``, ``rejected``, ``doctor``.

``penstock doctor`` checks whether everything is there that a job needs, and says what to do if not.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from msgspec import structs

from penstock_cli import job_text, render
from penstock_cli.invocation import AnswerOut, At, Exit, Failure, Out, Output, act, bad_input
from penstock_cli.invocation import ask as ask_once
from penstock_cli.parameters import Argument, Context, Option, PlainCommand
from penstock_cli.render import Table
from penstock_cli.value_formats import clock, moment, now_s, span

if TYPE_CHECKING:
    import typer

    from penstock.client import Client
    from penstock.gateway_client import GatewayClient
    from penstock_log import Device, views


DeviceNames = Annotated[
    list[str] | None,
    Option("--device", metavar="N|NAME", help="Only this device: its number, or its name; may be given again."),
]
Target = tuple[str, str]
"""A node, and one of its devices by number or name; empty: all of it."""
NodeIds = Annotated[list[str], Argument(metavar="NODE...", help="Node ids, or unique beginnings of them.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    import typer

    from penstock_cli import node_join

    about = "Add nodes, drain and resume them, or take them off the list."
    node_app = typer.Typer(help=about, no_args_is_help=True)
    app.command()(nodes)
    node_app.command()(drain)
    node_app.command()(resume)
    node_app.command()(remove)
    node_join.register(node_app)
    app.add_typer(node_app, name="node")
    app.command()(status)
    app.command()(rejected)
    app.command()(doctor)


def nodes(
    ctx: Context,
    everything: Annotated[bool, Option("-a", "--all", help="Also those that left in good order.")] = False,
    output: Out = "table",
    at: At = None,
) -> None:
    """List nodes; with -o wide what runs on their devices."""
    found = ask_once(ctx, lambda client: client.nodes(moment(at)))
    if not everything:
        found = structs.replace(found, nodes=tuple(node for node in found.nodes if _is_of_interest(node)))
    if not render.as_json(found, output):
        table = node_table(found.nodes, now_s(), wide=output == "wide", memory=found.memory)
        render.show_table(*table, wide=output == "wide")


def _is_of_interest(node: views.NodeView) -> bool:
    """Say whether a node is listed by itself: not one that left in good order, unless a job is still on it."""
    return node.state != "left" or any(device.job_id for device in node.devices)


def node_table(
    nodes: Iterable[views.NodeView], now_s: float, *, wide: bool = False, memory: Iterable[views.NodeMemoryView] = ()
) -> Table:
    """Return the list of nodes; ``wide`` has a row for each of their devices, and what they lend and run images by."""
    if wide:
        nodes = list(nodes)
        headers: tuple[str, ...] = (
            "NODE",
            "POOL",
            "ST",
            "DEVICE",
            "KIND",
            "MEMORY",
            "BACKEND",
            "SPEED",
            "JOB",
            "HOST",
            "HEARD",
        )
        rows = [row for node in nodes for row in _device_rows(node, now_s)]
        images = {
            node.id: ",".join((*node.containers, *filter(None, [node.image])))
            for node in nodes
            if node.containers or node.image
        }
        lends = {one.id: job_text.lent_memory(one) for one in memory}
        return _beside(headers, rows, *_of_pilots(nodes), ("IMAGES", images), ("LENDS", lends))
    nodes = list(nodes)
    headers = ("NODE", "POOL", "ST", "BUSY", "IDLE", "KINDS", "HEARD")
    return _beside(headers, [_node_row(node, now_s) for node in nodes], *_of_pilots(nodes))


def _of_pilots(nodes: Iterable[views.NodeView]) -> list[tuple[str, dict[str, str]]]:
    """Return of which pilot nodes are, and until when they stay."""
    found = [node for node in nodes if node.pilot]
    until = {node.id: clock(node.until_s or None) for node in found}
    return [("PILOT", {node.id: node.pilot for node in found}), ("UNTIL", until)]


def _beside(headers: tuple[str, ...], rows: list[tuple[str, ...]], *columns: tuple[str, Mapping[str, str]]) -> Table:
    """Return a table of nodes with further columns, of those that say something of any node."""
    for name, known in columns:
        if known:
            headers, rows = (*headers, name), [(*row, known.get(row[0], "-")) for row in rows]
    return headers, rows


def _node_row(node: views.NodeView, now_s: float) -> tuple[str, ...]:
    busy = sum(1 for device in node.devices if device.job_id)
    out = Counter(device.state for device in node.devices if device.state and not device.job_id)
    there = len(node.devices) - busy - out.total() if node.state not in {"lost", "left"} else 0
    idle = " ".join([str(there), *(f"+{out[one]} {one}" for one in sorted(out))])
    real = _kinds(view.device for view in node.devices if not _is_emulated(view.device))
    emulated = _kinds(view.device for view in node.devices if _is_emulated(view.device))
    kinds = " ".join(filter(None, [real, emulated and f"{emulated} (emulated)"]))
    return (node.id, node.pool, node.state, str(busy), idle, kinds, _heard(node, now_s))


def _is_emulated(device: Device) -> bool:
    from penstock_cluster.device_backend import CAPABILITIES

    return CAPABILITIES[device.backend].declared_speed


def _kinds(devices: Iterable[Device]) -> str:
    return ",".join(f"{kind}:{count}" for kind, count in Counter(device.kind for device in devices).items())


def _device_rows(node: views.NodeView, now_s: float) -> list[tuple[str, ...]]:
    head, heard = (node.id, node.pool, node.state), _heard(node, now_s)
    held = f" by {node.held_by}" if node.held_by else ""
    host = f"{found}{held}" if (found := job_text.of_host(node.cpus, node.host_memory_bytes)) else "-"
    rows: list[tuple[str, ...]] = []
    for view in node.devices:
        device = view.device
        speed = f"{device.speed:g}x" if _is_emulated(device) else "-"
        about = (
            _device_name(view),
            device.kind,
            render.size(device.memory_bytes),
            device.backend,
            speed,
            _holders(view),
        )
        rows.append((*head, *about, host, heard))
    return rows or [(*head, "-", "-", "-", "-", "-", "-", host, heard)]


def _device_name(view: views.DeviceView) -> str:
    """Return a device's name, and why it takes no jobs where it does not."""
    reason = f": {view.reason}" if view.reason else ""
    return f"{view.name} ({view.state}{reason})" if view.state else view.name


def _holders(view: views.DeviceView) -> str:
    """Return who has a device, and what those who share it hold of it."""
    if not view.shared_by:
        return view.job_id
    return ",".join(view.shared_by) + (f" ({view.taken})" if view.taken else "")


def _heard(node: views.NodeView, now_s: float) -> str:
    last_s = node.heard_s if node.gone_s is None else node.gone_s
    return "-" if last_s is None else f"{span(now_s - last_s)} ago"


def drain(  # noqa: PLR0917 - what people may say of it
    ctx: Context,
    nodes: NodeIds,
    preempt: Annotated[bool, Option("--preempt", help="Checkpoint its running jobs and move them.")] = False,
    reason: Annotated[str, Option("--reason", help="Kept in the log.")] = "",
    device: DeviceNames = None,
    output: AnswerOut = "text",
) -> None:
    """Give nodes, or some of their devices, no new jobs."""

    async def command(client: GatewayClient, target: Target) -> views.ActAnswer:
        number = await _device_number(client, *target)
        return await client.drain(target[0], reason, preempt=preempt, device=number)

    act(ctx, _targets(nodes, device), command, output)


def resume(ctx: Context, nodes: NodeIds, device: DeviceNames = None, output: AnswerOut = "text") -> None:
    """Give drained nodes jobs again, or some of their devices that were drained or have failed."""

    async def command(client: GatewayClient, target: Target) -> views.ActAnswer:
        return await client.resume(target[0], device=await _device_number(client, *target))

    act(ctx, _targets(nodes, device), command, output)


def _targets(nodes: Sequence[str], devices: Sequence[str] | None) -> list[Target]:
    """Return each node with each device; a device that is named with its node goes with that one alone."""
    pairs = [(node, device) for node in nodes for device in devices or ("",) if _goes_with(device, node, nodes)]
    for device in devices or ():
        if device not in {of_node for _, of_node in pairs}:
            bad_input(f"--device {device} is none of {', '.join(nodes)}; name its node too")
    return pairs


def _goes_with(device: str, node: str, nodes: Sequence[str]) -> bool:
    """Say whether a device may be one of the node: it is named without a node, or with this one or its beginning."""
    owner, slash, _ = device.rpartition("/")
    return not slash or (node == owner if owner in nodes else owner.startswith(node))


async def _device_number(client: GatewayClient, node: str, device: str) -> int | None:
    """Return the number of a node's device that is named by it, or as the lists name it; None for no device."""
    if not device or device.isdecimal():
        return int(device) if device else None
    nodes = [one for one in (await client.nodes()).nodes if one.id.startswith(node)]
    devices = [view for one in [one for one in nodes if one.id == node] or nodes for view in one.devices]
    for view in devices:
        if device in {view.name, view.name.rpartition("/")[2]}:
            return view.device.index
    there = ", ".join(view.name for view in devices) or "none"
    raise Failure(f"node {node} has no device {device}; expected a number, or one of: {there}", Exit.USAGE)


def remove(
    ctx: Context,
    nodes: NodeIds,
    reason: Annotated[str, Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """List nodes no more that are gone for good."""
    act(ctx, nodes, lambda client, node: client.remove(node, reason), output)


def status(ctx: Context, output: Out = "table", at: At = None) -> None:
    """Count jobs, devices, nodes and services."""
    found = ask_once(ctx, lambda client: client.status(moment(at)))
    if render.as_json(found, output):
        return
    replicas = Counter(replica.service for replica in found.services)
    pairs = [
        ("jobs", _counts(_in_order(found.jobs)) or "none"),
        ("sweeps", _counts(found.sweeps)),
        ("nodes", _counts(found.nodes) or "none"),
        *((f"{kind} devices", _counts(counts)) for kind, counts in found.devices.items()),
        ("services", _counts(replicas) or "none heard"),
        ("log", f"sequence {found.last_seq}" + (f", {found.backlog} not read yet" if found.backlog else "")),
        ("version", found.version),
    ]
    render.say_lines(render.labelled(pairs))


def rejected(ctx: Context, output: Out = "table") -> None:
    """List what came in and could not be accepted, and why."""
    found = ask_once(ctx, lambda client: client.rejected())
    if not render.as_json(found, output):
        rows = [(clock(one.stored_s), one.origin, one.reason, one.body) for one in found.rejected]
        render.show_table(("TIME", "FROM", "REASON", "BODY"), rows, wide=output == "wide")


def _in_order(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts of jobs in the order of a job's life."""
    return {state: counts[state] for state in job_text.STATES if state in counts}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


PLAIN: Final = {
    "nodes": PlainCommand(nodes),
    "status": PlainCommand(status),
    "rejected": PlainCommand(rejected),
}

Level = Literal["ok", "warn", "fail"]

SKEW_S: Final = 5.0
SILENT_S: Final = 3.0
"""Servers of a cluster hear of each other every second."""
UNDECIDED_S: Final = 5.0
"""A fact that matters to a service is decided on within a second; after this long something is wrong."""
LITTLE_BYTES: Final = 1 << 30
TOO_LITTLE_BYTES: Final = 100 << 20
_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 10.0
_COLOURS: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(NamedTuple):
    """One line of what ``penstock doctor`` reports; ``remedy`` is what to do, where anything is."""

    level: Level
    what: str
    detail: str
    remedy: str = ""


def doctor(
    ctx: Context,
    data: Annotated[Path, Option("--data", help="Data folder of `penstock up`, if it is on this machine.")] = (
        Path("penstock-data")
    ),
    output: Annotated[Output, Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """
    Check server, log, services, nodes, clocks and disk.

    The exit code is 1 if something is broken.
    """
    import asyncio

    findings = asyncio.run(_collect(ctx, data))
    if output == "json":
        render.show_json([finding._asdict() for finding in findings])
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            render.say_painted(line_of(finding, width=width, colour=render.colours()))
    if any(finding.level == "fail" for finding in findings):
        raise SystemExit(1)


def line_of(finding: Finding, *, width: int = 0, colour: bool = False) -> str:
    """
    Return a finding as a line; ``width`` is that of the column of what was checked.

    Examples
    --------
    >>> line_of(Finding("warn", "nodes", "none has joined", "start an executor"), width=7)
    'warn  nodes    none has joined; start an executor'
    """
    level = f"{finding.level:<4}"
    painted = render.painted(level, _COLOURS[finding.level]) if colour else level
    message = render.seen(f"{finding.detail}{'; ' if finding.remedy else ''}{finding.remedy}")
    return f"{painted}  {finding.what:<{width}}  {message}"


async def _collect(ctx: Context, data: Path) -> list[Finding]:

    from penstock.client import Client
    from penstock_bus.port import BusError

    url = ctx.obj["url"]
    findings = [disk(data)]
    if "client" not in ctx.obj:
        found = await servers(url)
        findings += found
        if all(finding.level == "fail" for finding in found):
            return findings
    try:
        asking = partial(Client, nobody_s=0.0, timeout_s=_ANSWER_S)  # what is not there now is what it is to find
        async with ctx.obj.get("client", asking)(url) as client:
            findings += [finding async for finding in ask(client)]
    except BusError as error:
        findings.append(Finding("fail", "connection", str(error)))
    return findings


def disk(data: Path) -> Finding:
    """Check that the data folder can be written to and has space left."""
    if not data.exists():
        remedy = "where `penstock up` runs on this machine, name its folder with --data"
        return Finding("warn", "data folder", f"not checked: there is no {data}", remedy)
    if not os.access(data, os.W_OK | os.X_OK):
        return Finding("fail", "data folder", f"{data} cannot be written to by this user", "check its owner and mode")
    import shutil

    free = shutil.disk_usage(data).free
    detail = f"{render.size(free)} free under {data}"
    if free < TOO_LITTLE_BYTES:
        return Finding("fail", "data folder", detail, "free some: the log refuses facts when the disk is full")
    if free < LITTLE_BYTES:
        return Finding("warn", "data folder", detail, "free some before the disk is full")
    return Finding("ok", "data folder", detail)


async def servers(url: str) -> list[Finding]:
    """Check each server of an address; while another one is there, one that is not is a warning."""
    import asyncio

    found = await asyncio.gather(*(server(one.strip()) for one in url.split(",") if one.strip() or url == one))
    if all(finding.level == "fail" for finding in found):
        return list(found)
    others = "the others go on without it; start it again"
    return [one._replace(level="warn", remedy=others) if one.level == "fail" else one for one in found]


async def server(url: str) -> Finding:
    """Check what one NATS server says of itself when one connects."""
    import asyncio
    from urllib.parse import urlsplit

    import msgspec

    start = "start one with `penstock up`, or name another with --url or PENSTOCK_URL"
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname or url, parts.port or 4222
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
            greeting = await reader.readline()
            writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        return Finding("fail", "server", f"nothing listens at {url} ({str(error) or 'no answer in time'})", start)
    if not greeting.startswith(b"INFO "):
        return Finding("fail", "server", f"what listens at {url} is no NATS server", start)
    info = msgspec.json.decode(greeting[5:])
    about = f"NATS {info.get('version', 'of unknown version')} at {url}"
    if not info.get("jetstream"):
        return Finding("fail", "server", f"{about} without JetStream", "start it with -js, or use `penstock up`")
    return Finding("ok", "server", f"{about}, messages up to {render.size(info.get('max_payload', 0))}")


async def ask(client: Client) -> AsyncIterator[Finding]:
    """Yield findings on log, services, nodes, host memory and clocks, asked of a running server."""
    from penstock_bus.port import BusError

    yield await _log(client)
    async for finding in _streams(client):
        yield finding
    try:
        found, status = await client.nodes(), await client.status()
    except BusError as error:
        async for finding in _services(client, ()):
            yield finding
        yield Finding("fail", "gateway", str(error), "see the line about the gateway above")
        return
    async for finding in _services(client, status.services):
        yield finding
    for finding in _gateway(found, status):
        yield finding


async def _log(client: Client) -> Finding:
    from penstock_bus.port import BusError, Unauthorized
    from penstock_log import subjects

    try:
        seq = await client.bus.last_seq()
        rejected = await client.bus.rejections()
    except Unauthorized:
        return Finding("ok", "log", "is there; what it refused is for operators to see")
    except BusError as error:
        return Finding("fail", "log", str(error), "start a service once: it creates the streams")
    dropped = [one for one in rejected if one.origin.startswith(f"{subjects.EVT} ")]
    if dropped:
        latest = f"{_were(len(dropped), 'commit')} dropped by all readers, the last because {dropped[-1].reason}"
        remedy = "list them with `penstock rejected`; if you know of none, `penstock user rotate` those who could"
        return Finding("warn", "log", f"at sequence {seq}; {latest}", remedy)
    if rejected:
        latest = f"{_were(len(rejected), 'message')} rejected, the last because {rejected[-1].reason}"
        return Finding("warn", "log", f"at sequence {seq}; {latest}", "list them with `penstock rejected`")
    return Finding("ok", "log", f"at sequence {seq}")


async def _streams(client: Client) -> AsyncIterator[Finding]:
    from penstock_bus.port import BusError

    try:
        found = await client.streams()
    except BusError:  # which the line about the gateway says
        return
    for finding in replication(found.streams, servers=client.url.count(",") + 1):
        yield finding


def replication(streams: Iterable[views.StreamView], servers: int = 1) -> Iterator[Finding]:
    """Check that each stream has a leader, and on several servers that each is on several, and none is behind."""
    streams = sorted(streams, key=lambda one: one.name)
    several = servers > 1 or any(one.replicas > 1 for one in streams)
    lost = [one for one in streams if one.error or (several and not one.leader)]
    if lost:
        why = f": {lost[0].error}" if lost[0].error else ""
        remedy = "it is elected within ten seconds if most of its servers are there; start those that are not"
        yield Finding("fail", "copies", f"{_named(lost)} without a leader{why}", remedy)
    alone = [one for one in streams if one.replicas == 1]
    if several and alone:
        remedy = "start `penstock up` again, or `nats stream edit NAME --replicas 3`, as an administrator"
        yield Finding("warn", "copies", f"{_named(alone)} on one server alone (R1), of several that there are", remedy)
    away = _away(streams)
    yield from away
    if lost or (several and alone) or away:
        return
    if not several:
        detail = f"{render.count(len(alone), 'stream')} on one server alone (R1): what is on its disk is all there is"
        yield Finding("ok", "copies", detail)
    else:
        least = min(one.replicas for one in streams)
        led = Counter(one.leader for one in streams)
        leaders = ", ".join(f"{server} {count}" for server, count in sorted(led.items()))
        detail = (
            f"{render.count(len(streams), 'stream')} on {least} servers each (R{least}), all current; {leaders} led"
        )
        yield Finding("ok", "copies", detail)


def _away(streams: Iterable[views.StreamView]) -> list[Finding]:
    """Return a finding for each server whose copies are not current."""
    late: dict[str, list[tuple[views.StreamView, views.StreamPeerView]]] = defaultdict(list)
    for one in streams:
        for copy in one.copies:
            if not copy.current:
                late[copy.server].append((one, copy))
    found = []
    for server, theirs in sorted(late.items()):
        ago_s, lag = (max(getattr(copy, name) for _, copy in theirs) for name in ("heard_ago_s", "lag"))
        of = f"with its copies of {_named(one for one, _ in theirs)}"
        if ago_s > SILENT_S or any(copy.offline for _, copy in theirs):
            remedy = "start it again: while it is away, one more loss stops everything"
            found.append(Finding("warn", "copies", f"{server} was last heard of {span(ago_s)} ago, {of}", remedy))
        else:
            behind = render.count(lag, "operation")
            found.append(Finding("warn", "copies", f"{server} is {behind} behind at most, {of}", "it catches up"))
    return found


def _named(streams: Iterable[views.StreamView]) -> str:
    return ", ".join(one.name.removeprefix("KV_") for one in streams)


def _were(number: int, noun: str) -> str:
    return f"{render.count(number, noun)} {'was' if number == 1 else 'were'}"


async def _services(client: Client, replicas: Iterable[views.ReplicaView]) -> AsyncIterator[Finding]:
    from penstock_bus.health import parse_vitals
    from penstock_bus.port import BusError, NoResponders, ServiceError
    from penstock_log import services, subjects

    for service in sorted(services.CORE):
        mine = [replica for replica in replicas if replica.service == service]
        try:
            vitals = parse_vitals(await client.bus.request(subjects.query("ready", service), b"", 2.0))
            finding = leader(service, mine)
            note = f"; it {vitals.note}" if vitals is not None and vitals.note else ""
            yield finding._replace(detail=finding.detail + note)
        except ServiceError as error:
            yield Finding("warn", service, str(error))
        except NoResponders:
            yield Finding("fail", service, "no replica answers", f"start one: `penstock service {service}`")
        except BusError as error:
            yield Finding("fail", service, str(error))


def leader(service: str, replicas: Iterable[views.ReplicaView]) -> Finding:
    """Check that a ready service decides: that one replica leads if one has to, and that no fact waits for it."""
    replicas = list(replicas)
    deciding = [replica for replica in replicas if replica.leading or not replica.elected]
    if replicas and not deciding:
        remedy = "it is taken within seconds; if it is not, the logs of its replicas say why"
        return Finding(
            "fail", service, f"ready, but none of its {render.count(len(replicas), 'replica')} has the lead", remedy
        )
    for late in sorted(deciding, key=lambda replica: -replica.undecided_s)[:1]:
        if late.undecided_s > UNDECIDED_S:
            waited = f"facts have waited {span(late.undecided_s)} for a decision"
            remedy = f"see the log of {service} {late.id}, and restart it"
            return Finding("fail", service, f"ready, but {waited}: {_of_leader(late)}", remedy)
    led = [_of_leader(replica) for replica in deciding if replica.elected]
    return Finding("ok", service, "; ".join(["ready", *led]))


def _of_leader(replica: views.ReplicaView) -> str:
    if not replica.elected:
        return f"{replica.id} last decided at fact {replica.decided_seq} of {replica.last_seq}"
    lease = "" if replica.lease_s is None else f", its lease {span(replica.lease_s)} old"
    decided = f"last decision at fact {replica.decided_seq} of {replica.last_seq}"
    return f"{replica.id} has led for {span(replica.term_s)}{lease}, {decided}"


def _gateway(found: views.NodesView, status: views.StatusView) -> Iterator[Finding]:
    backlog = status.backlog
    if backlog > 1000:
        yield Finding("warn", "gateway", f"{backlog} facts behind the log", "wait, or start more replicas")
    for finding in (check_nodes(found), host_memory(found), skew(found, now_s())):
        if finding:
            yield finding


def check_nodes(found: views.NodesView) -> Finding:
    """Check that nodes are up, and name those that are lost."""
    up = [node for node in found.nodes if node.state == "up"]
    away = [node.id for node in found.nodes if node.state == "lost"]
    devices = sum(len(node.devices) for node in up)
    if not up:
        return Finding("fail", "nodes", "none is up", "start an executor: `penstock service executor` on each node")
    detail = f"{len(up)} up with {render.count(devices, 'device')}"
    if away:
        remedy = f"restart their executors, or `penstock node remove {' '.join(away)}`"
        return Finding("warn", "nodes", f"{detail}; lost: {', '.join(away)}", remedy)
    return Finding("ok", "nodes", detail)


def host_memory(found: views.NodesView) -> Finding | None:
    """Tell how runs are held to their part of the hosts' memory; nothing where no node says so."""
    held: dict[str, list[str]] = {}
    for node in found.nodes:
        if node.state == "up" and node.held_by:
            held.setdefault(node.held_by, []).append(node.id)
    words = (f"by {how} on {len(ids)} node{'s' if len(ids) > 1 else ''}" for how, ids in sorted(held.items()))
    return Finding("ok", "host memory", f"runs are held to their part {' and '.join(words)}") if held else None


def skew(found: views.NodesView, now: float) -> Finding | None:
    """Compare this machine's clock with the gateway's: heartbeats come every second, so the last was just now."""
    heard = [node.heard_s for node in found.nodes if node.state == "up" and node.heard_s is not None]
    if not heard:
        return None
    off = now - max(heard)
    if abs(off) > SKEW_S:
        words = f"{span(abs(off))} {'ahead of' if off > 0 else 'behind'} the gateway's"
        return Finding("warn", "clock", f"this machine's clock is {words}", "synchronise both (chrony, ntpd)")
    return Finding("ok", "clock", "agrees with the gateway's")
