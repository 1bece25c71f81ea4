"""
Commands about memory of other nodes: ``memory serve`` and ``memory bench``.

``serve`` gives any program that memory as a block device. ``bench`` measures what it is worth on this machine.
"""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli import render, value_formats
from penstock_cli.invocation import AnswerOut, Failure, bad_input

if TYPE_CHECKING:
    from penstock_cli.local.memory_bench import MemoryCosts

memory_app = typer.Typer(help="Memory of other nodes.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    memory_app.command()(serve)
    memory_app.command()(bench)
    app.add_typer(memory_app, name="memory")


@memory_app.callback()
def memory() -> None:
    """Memory of other nodes."""


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
        from penstock_cli.local.memory_bench import BenchError, measure
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
    ratios = [
        (f"{what} of 1 MiB over NBD, to nbdkit memory", "-" if ratio is None else f"{ratio:.2f}", aim)
        for what, ratio, aim in (("reads", costs.nbd_1m_ratio, "0.70"), ("writes", costs.nbd_1m_write_ratio, "-"))
    ]
    return [
        ("a read of 64 KiB, borrowed", f"{costs.read_64k_us:.1f} us", "-"),
        ("a read of 1 MiB, borrowed", f"{costs.read_1m_us:.1f} us", "-"),
        ("a read of 64 KiB, cold disk", f"{costs.disk_read_64k_us:.1f} us", "-"),
        ("cold disk to borrowed, 64 KiB", f"{cold:.1f}", "3.0"),
        *ratios,
        ("donor killed: bytes checked", str(killed.bytes_checked), "-"),
        ("donor killed: bytes wrong", str(killed.bytes_wrong), "0"),
        ("slabs lost by that", str(killed.slabs_lost), "-"),
        ("slabs taken back in good order", str(costs.evicted_slabs), "-"),
    ]
