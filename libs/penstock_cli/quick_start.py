"""
The quick start of a command: without Typer where what was typed is plain, and only with the modules that it needs.

:data:`MODULE_OF` has each command and the module that registers it. Where that module declares its command in ``PLAIN``
and :func:`penstock_cli.parameters.read_plainly` understands the command line, :func:`run_quickly` runs it; all else is
Typer's (:mod:`penstock_cli.app`).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

MODULE_OF: Final = {
    name: module
    for module, names in (
        ("commands.submit", "submit run"),
        ("commands.sbatch", "sbatch"),
        ("commands.jobs", "ps show why story events"),
        ("commands.acts", "cancel hold release retry extend"),
        ("commands.jobs", "logs"),
        ("commands.metrics", "metrics"),
        ("commands.interactive", "exec shell attach"),
        ("commands.transfers", "port-forward cp"),
        ("commands.top", "top"),
        ("commands.policies", "profile"),
        ("commands.sweeps", "tune sweep"),
        ("commands.cluster", "nodes status rejected node"),
        ("commands.lanes", "lanes"),
        ("commands.memory", "memory"),
        ("commands.aggregation", "aggregation"),
        ("commands.accounts", "usage report"),
        ("commands.policies", "policy quota class"),
        ("commands.reservations", "reserve reservations unreserve"),
        ("commands.alloc", "alloc"),
        ("commands.replay", "replay"),
        ("commands.simulate", "sim"),
        ("commands.shadow", "shadow"),
        ("commands.notify", "notify"),
        ("commands.dashboard", "dashboard"),
        ("commands.trace", "trace"),
        ("commands.users", "login whoami user context"),
        ("commands.up", "up down service purge"),
        ("commands.backup", "backup restore"),
        ("commands.cluster", "doctor"),
        ("app", "schema completion new"),
    )
    for name in names.split()
}
"""Each command, in the order of the help, and the module of this package that registers it."""
_PLAIN: Final = frozenset({"commands.acts", "commands.jobs", "commands.metrics", "commands.submit", "commands.cluster"})
"""Modules that declare commands as plain ones."""
_COMPLETES: Final = "_PENSTOCK_COMPLETE"


def run_quickly(words: Sequence[str]) -> int | None:
    """
    Run a plain command and return its exit code; None where Typer has to read what was typed.

    Parameters
    ----------
    words : sequence of str
        What was typed, with ``--url`` first.
    """
    url, rest = "", list(words)
    while rest and rest[0].startswith("--url"):
        name, equals, url = rest.pop(0).partition("=")
        if name != "--url" or not (equals or rest):
            return None
        url = url if equals else rest.pop(0)
    module = MODULE_OF.get(rest[0]) if rest else None
    if module not in _PLAIN or _COMPLETES in os.environ:
        return None
    gc.disable()  # who ends at once leaves nothing to be collected; what goes on enables it again
    _load_msgspec()
    from penstock_cli.parameters import NotPlain, PlainContext, read_plainly

    command = import_module(f"penstock_cli.{module}").PLAIN.get(rest[0])
    context = PlainContext({"url": url})
    try:
        given = read_plainly(command, rest[1:], context) if command is not None else None
    except NotPlain:
        given = None
    if given is None:
        gc.enable()
        return None
    from penstock_cli.invocation import ended_badly, server_url

    try:
        context.obj["url"] = server_url(url)
        command.function(context, **given)
    except (Exception, KeyboardInterrupt) as error:
        code = ended_badly(error, context.obj["url"])
        if code is None:
            raise
        return code
    return 0


def _load_msgspec() -> None:
    """
    Load msgspec without ``typing_extensions``, where that is installed.

    msgspec asks it for what the standard library of this Python has too, and it loads ``inspect``: a sixth of the time
    that a short command takes. Whoever imports it afterwards gets it.
    """
    name = "typing_extensions"
    if "msgspec" in sys.modules or name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment] # how a module is said not to be there
    try:
        import_module("msgspec")
    finally:
        del sys.modules[name]


def start(words: Sequence[str]) -> NoReturn:
    """Run ``penstock`` with what was typed, and exit."""
    code = run_quickly(words)
    if code is None:
        from penstock_cli.app import app

        app(args=list(words), prog_name="penstock")
        sys.exit()
    end_process(code)


def end_process(code: int) -> NoReturn:
    """
    Exit; at once, where nobody has asked for anything to be done at the exit.

    Python takes all modules apart when it ends, which takes longer than a short command asks. What has threads, or
    something to do at the exit, has loaded ``threading`` or ``atexit``.
    """
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None
    if not is_watched and sys.modules.keys().isdisjoint(("threading", "atexit", "cProfile")):
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # a shell may have closed it: >&-
                    stream.flush()
        except (OSError, ValueError):
            sys.exit(code)  # which says what is wrong with the stream, as always
        os._exit(code)
    sys.exit(code)
