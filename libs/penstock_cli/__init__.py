"""
The command line: ``penstock``.

In reading order:

* ``quick_start``: Plain commands run without Typer; which module has which command.
* ``parameters``: Parameters of commands, declared and read without Typer.
* ``typer_commands``: The same for Typer.
* ``app``: All commands put together, and the small ones: schema, completion, new service.
* ``invocation``: What every command shares: connection, common options, errors, exit codes.
* ``value_formats``: Sizes, times and pairs as people type and read them.
* ``render``: Tables, pairs and JSON on standard output.
* ``job_text``: Jobs in words: the list, one in full, why it waits, its story and its sizes.
* ``size_chart``: An elastic job's devices and pace over time.
* ``metric_chart``: A metric over the steps of a job.
* ``usage_text``: Device time as a table.
* ``usage_report``: Device time of a week as a page.
* ``plain_values``: TOML, YAML and JSON text as plain values, within bounds.
* ``yaml_values``: The YAML of it.
* ``spec_file``: Job and sweep files, read strictly.
* ``sbatch/``: Scripts of Slurm's sbatch, as jobs.
* ``simulation_arguments``: What was typed of a simulation.
* ``simulation_plan``: A simulation that can start: arguments, engine, seeds.
* ``simulation_run``: A simulation or comparison from its plan to what is shown, with its progress.
* ``replay_run``: A replay from its arguments to what is shown.
* ``session_terminal``: The person's side of a session: standard streams, the terminal, signals.
* ``tar_stream``: A path as a stream of tar, and back.
* ``node_join``: Tokens, and machines that join by them.
* ``top/``: What ``penstock top`` shows: devices, queue, jobs and logs on one terminal.
* ``commands/``: The commands of ``penstock``, one file for each group; a command is found by its name.
* ``local/``: What ``penstock up`` is made of: the folder's lock and record, the children, and waiting until all are
  ready.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main() -> None:
    """Run ``penstock``."""
    try:
        from penstock_cli.quick_start import start

        start(hoisted(sys.argv[1:]))
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
    if args and args[0] == "sbatch":  # what stands behind it is the script's
        return list(args)
    first: list[str] = []
    rest: list[str] = []
    i = 0
    while i < end:
        width = 2 if args[i] == "--url" and i + 1 < end else 1
        is_url = args[i] == "--url" or args[i].startswith("--url=")
        (first if is_url else rest).extend(args[i : i + width])
        i += width
    return [*first, *rest, *args[end:]]
