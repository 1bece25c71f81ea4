"""The command line: ``penstock``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main() -> None:
    """Run ``penstock``."""
    try:
        from penstock.cli.app import app

        app(args=hoisted(sys.argv[1:]), prog_name="penstock")
    except KeyboardInterrupt:  # before there was a command that could end in good order
        sys.exit(130)


def hoisted(args: Sequence[str]) -> list[str]:
    """
    Return the arguments with ``--url`` before the command, where the root takes it, wherever it was typed.

    Examples
    --------
    >>> hoisted(["ps", "--url", "nats://a", "-a"]), hoisted(["run", "--", "x", "--url", "y"])
    (['--url', 'nats://a', 'ps', '-a'], ['run', '--', 'x', '--url', 'y'])
    """
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    rest: list[str] = []
    i = 0
    while i < end:
        width = 2 if args[i] == "--url" and i + 1 < end else 1
        is_url = args[i] == "--url" or args[i].startswith("--url=")
        (first if is_url else rest).extend(args[i : i + width])
        i += width
    return [*first, *rest, *args[end:]]
