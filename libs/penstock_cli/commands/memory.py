"""
Commands about memory of other nodes: ``memory serve`` and ``memory bench``.

``serve`` gives any program that memory as a block device. ``bench`` measures what it is worth on this machine.
"""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer

from penstock_cli import render, value_formats
from penstock_cli.invocation import Failure, bad_input

memory_app = typer.Typer(help="Memory of other nodes.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    memory_app.command()(serve)
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
