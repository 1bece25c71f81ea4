"""
Commands about memory of other nodes: ``memory ls``, ``show``, ``top``, ``serve`` and ``bench``.

``ls``, ``show`` and ``top`` say what nodes lend, by what the gateway hears of their agents within the last seconds.
``serve`` gives any program that memory as a block device. ``bench`` measures what it is worth on this machine.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli import job_text, render, value_formats
from penstock_cli.invocation import AnswerOut, Failure, Out, bad_input, call

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_cli.local.memory_bench import MemoryCosts
    from penstock_log import views

memory_app = typer.Typer(help="Memory of other nodes.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    memory_app.command("ls")(ls)
    memory_app.command("show")(show)
    memory_app.command("top")(top)
    memory_app.command()(serve)
    memory_app.command()(bench)
    app.add_typer(memory_app, name="memory")


@memory_app.callback()
def memory() -> None:
    """Memory of other nodes."""


# --- ls, show, top


def ls(ctx: typer.Context, output: Out = "table") -> None:
    """List the nodes that lend memory: how much they offer, and have lent."""
    found = call(ctx, lambda client: client.nodes()).memory
    if not render.as_json(found, output):
        render.show_table(*memory_table(found, value_formats.now_s()), wide=output == "wide")


def memory_table(memory: Iterable[views.NodeMemoryView], now_s: float) -> render.Table:
    """Return the list of nodes that lend memory."""
    headers = ("NODE", "SLAB", "OFFERED", "LENT", "FREE", "KEPT", "EVICTED", "REFUSED", "HEARD")
    rows: list[tuple[str, ...]] = [
        (
            one.id,
            render.size(one.slab_bytes),
            render.size(one.offered * one.slab_bytes),
            render.size(one.lent * one.slab_bytes),
            render.size(one.free_bytes),
            render.size(one.headroom_bytes),
            str(one.evicted),
            str(sum(one.errors.values())),
            f"{value_formats.span(now_s - (one.heard_s or now_s))} ago",
        )
        for one in memory
    ]
    return headers, rows


def show(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Node id, or a unique beginning of it.")],
    output: AnswerOut = "text",
) -> None:
    """Show what a node lends, to which jobs and accounts, and what its data port has refused."""
    known = call(ctx, lambda client: client.nodes()).memory
    found = [one for one in known if one.id == node] or [one for one in known if one.id.startswith(node)]
    if len(found) != 1:
        names = ", ".join(one.id for one in known) or "none"
        raise Failure(f"{node!r} names {len(found)} nodes that lend memory; expected one of {names}")
    (one,) = found
    if render.as_json(one, output):
        return
    to = [f"{who}: {render.size(slabs * one.slab_bytes)}" for who, slabs in sorted(one.lent_to.items())]
    refused = [f"{name}: {times}" for name, times in sorted(one.errors.items())]
    render.say_lines(
        render.labelled(
            (
                ("node", one.id),
                ("lent", f"{job_text.lent_memory(one)}, in slabs of {render.size(one.slab_bytes)}"),
                ("to", ", ".join(to) or ("operators see to whom" if one.lent else "nobody")),
                ("free", f"{render.size(one.free_bytes)}, of which {render.size(one.headroom_bytes)} are kept"),
                ("evicted", render.count(one.evicted, "slab")),
                ("read", render.size(one.sent_bytes)),
                ("written", render.size(one.received_bytes)),
                ("refused", ", ".join(refused) or "nothing"),
            )
        )
    )


def top(
    ctx: typer.Context,
    every: Annotated[float, typer.Option("--every", min=0.5, help="Seconds between two looks.")] = 2.0,
    times: Annotated[int, typer.Option("--times", min=0, help="End after so many looks; 0: Ctrl-C ends it.")] = 0,
) -> None:
    """Watch how fast lent memory is read and written, the busiest node first."""

    async def watch(client: Client) -> None:
        before: dict[str, views.NodeMemoryView] = {}
        for look in count(1):
            memory = (await client.nodes()).memory
            if look > 1:
                render.show_table(*rate_table(before, memory))
            if look > times > 0:
                return
            before = {one.id: one for one in memory}
            await asyncio.sleep(every)

    call(ctx, watch)


def rate_table(before: Mapping[str, views.NodeMemoryView], memory: Iterable[views.NodeMemoryView]) -> render.Table:
    """Return how fast each node's lent memory was read and written since an earlier look."""
    rows = []
    for one in memory:
        was = before.get(one.id, one)
        seconds = (one.heard_s or 0.0) - (was.heard_s or 0.0)
        read, written = one.sent_bytes - was.sent_bytes, one.received_bytes - was.received_bytes
        known = seconds > 0 and read >= 0 and written >= 0  # or the agent has begun anew
        rates = [f"{render.size(int(bytes_ / seconds))}/s" if known and bytes_ else "-" for bytes_ in (read, written)]
        rows.append((read + written, (one.id, job_text.lent_memory(one), *rates, str(one.evicted - was.evicted))))
    rows.sort(key=lambda row: (-row[0], row[1]))
    return ("NODE", "LENDS", "READ", "WRITTEN", "EVICTED"), [row for _, row in rows]


# --- serve


def serve(
    *,
    size: Annotated[str, typer.Option("--size", help="Of the block device, such as 8GiB.")],
    socket: Annotated[Path, typer.Option("--socket", help="Where to serve it: a Unix socket, for you alone.")],
    local: Annotated[str, typer.Option("--local", help="How much of it is kept in this process's memory.")] = "256MiB",
    path: Annotated[
        Path | None,
        typer.Option("--path", help="File that keeps the content; without one it goes when the command ends."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="Socket of this node's memory agent; else PENSTOCK_MEMORY_SOCKET says."),
    ] = None,
) -> None:
    """Serve memory of other nodes, above a file, as a block device over NBD, until Ctrl-C or SIGTERM."""
    try:
        from penstock.memory.block_store import open_store
        from penstock.memory.nbd_server import NbdServer
    except ImportError as error:
        raise Failure(str(error)) from error
    if (wanted := value_formats.size(size)) < 1:
        bad_input(f"--size {size} is no block device; expected such as 8GiB")
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are threads, which would be given them else
    try:
        with (
            open_store(
                wanted, path=path, local_bytes=value_formats.size(local), socket=agent, name=f"nbd:{socket.name}"
            ) as store,
            NbdServer(store, socket.absolute()) as server,
        ):
            render.say_lines(_serving(store.size, socket.absolute(), server.uri))
            signal.sigwait(ends)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)  # who asks again does not wait for the disk
    except OSError as error:
        raise Failure(f"the block device cannot be served on: {error}") from error
    render.say("ended; everything that was written is on disk" if path else "ended")


def _serving(size: int, socket: Path, uri: str) -> list[str]:
    quoted, place = shlex.quote(uri), shlex.quote(str(socket))
    return [
        f"serving {render.size(size)} at {socket}; Ctrl-C ends it",
        *render.labelled(
            (
                ("a disk of the kernel's", f"nbd-client -unix {place} /dev/nbd0    (root, after modprobe nbd)"),
                ("a file", f"nbdfuse FOLDER/FILE {quoted}"),
                ("a disk of a virtual machine", f"qemu-img info {quoted}"),
                ("to copy to and from", f"nbdcopy FILE {quoted}"),
            )
        ),
    ]


# --- bench


def bench(output: AnswerOut = "text") -> None:
    """Measure on this machine, with a server and agents of its own, what borrowed memory is worth. About a minute."""
    if not sys.platform.startswith("linux"):
        raise Failure(f"memory is lent on Linux only; this is {sys.platform}")
    try:
        from penstock_cli.local.bench_services import BenchError
        from penstock_cli.local.memory_bench import measure
    except ImportError as error:
        raise Failure(str(error)) from error
    try:
        costs = measure()
    except BenchError as error:
        raise Failure(str(error)) from error
    if not render.as_json(costs, output):
        render.show_table(("WHAT", "MEASURED", "AIM"), _bench_rows(costs))


def _bench_rows(costs: MemoryCosts) -> list[tuple[str, str, str]]:
    killed, cold = costs.donor_killed, costs.disk_read_64k_us / costs.read_64k_us
    reads = _ratio(costs.nbd_1m_ratio, costs.nbd_1m_range)
    writes = _ratio(costs.nbd_1m_write_ratio, costs.nbd_1m_write_range)
    return [
        ("a read of 64 KiB, borrowed", f"{costs.read_64k_us:.1f} us", "-"),
        ("a read of 1 MiB, borrowed", f"{costs.read_1m_us:.1f} us", "-"),
        ("a read of 64 KiB, cold disk", f"{costs.disk_read_64k_us:.1f} us", "-"),
        ("cold disk to borrowed, 64 KiB", f"{cold:.1f}", "3.0"),
        ("reads of 1 MiB over NBD, to nbdkit memory", reads, "0.70"),
        ("writes of 1 MiB over NBD, to nbdkit memory", writes, "-"),
        ("donor killed: bytes checked", str(killed.bytes_checked), "-"),
        ("donor killed: bytes wrong", str(killed.bytes_wrong), "0"),
        ("slabs lost by that", str(killed.slabs_lost), "-"),
        ("slabs taken back in good order", str(costs.evicted_slabs), "-"),
    ]


def _ratio(middle: float | None, rounds: tuple[float, float] | None) -> str:
    """Return a median with the smallest and the largest of its rounds."""
    return "-" if middle is None or rounds is None else f"{middle:.2f} ({rounds[0]:.2f} to {rounds[1]:.2f})"
