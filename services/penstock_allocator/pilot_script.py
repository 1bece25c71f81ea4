"""
The shell scripts that a provider runs as a pilot.

:func:`write_pilot` writes a folder for each pilot: ``node.sh`` makes a machine a node, ``pilot.sh`` runs it on each of
the pilot's machines, and ``token`` holds the token by which they join, readable by its owner alone. The folder is on a
file system that the machines share with the allocator. :func:`node_script` and :func:`batch_script` are its text.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock_cluster.allocations import Allocation, margin_s
from penstock_log.allocation_spec import LABEL_ALLOCATION, LABEL_PILOT, AllocationSpec

TOKEN: Final = "token"  # noqa: S105 - the name of a file
OUTPUT: Final = "output.txt"
POD_LOGIN: Final = "/var/run/penstock/pilot"
POD_CHECKPOINTS: Final = "/var/lib/penstock/checkpoints"
"""Where a Pod has the folder with its token, and that of the checkpoints."""


class PilotFolder(NamedTuple):
    """
    The files of one pilot.

    Attributes
    ----------
    folder : Path
        Of this pilot alone.
    checkpoints : Path
        Of all jobs, which go on from there in other pilots.
    """

    folder: Path
    checkpoints: Path

    @property
    def batch(self) -> Path:
        """The script that is submitted."""
        return self.folder / "pilot.sh"

    @property
    def node(self) -> Path:
        """The script that runs on each machine."""
        return self.folder / "node.sh"

    @property
    def output(self) -> Path:
        """What the pilot prints."""
        return self.folder / OUTPUT

    @property
    def token(self) -> Path:
        """The token by which its machines join."""
        return self.folder / TOKEN

    def last_words(self, most: int = 300) -> str:
        """Return the last lines that the pilot has printed, for the reason of its end; empty where it has not."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * most))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " / ".join(lines[-3:])[-most:]


def write_pilot(place: PilotFolder, allocation: Allocation, pilot_id: str, token: str) -> None:
    """
    Write the files of a pilot; what an earlier try has left is replaced.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.checkpoints.mkdir(mode=0o711, parents=True, exist_ok=True)
    for path, text, mode in (
        (place.token, token, 0o600),
        (place.node, node_script(place, allocation, pilot_id), 0o700),
        (place.batch, batch_script(place, allocation), 0o700),
    ):
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)


def node_script(place: PilotFolder, allocation: Allocation, pilot_id: str) -> str:
    """Return the script that makes a machine a node of the cluster until the pilot ends."""
    spec, site = allocation.spec, _site_of(place, allocation.spec)
    labels = {LABEL_ALLOCATION: allocation.name, LABEL_PILOT: pilot_id}
    end = f"${{SLURM_JOB_END_TIME:-$(( $(date +%s) + {int(spec.walltime_s)} ))}}"
    lines = [
        "#!/bin/bash",
        f"# One node of pilot {pilot_id}, of Penstock's allocation {allocation.name}.",
        "rank=${SLURM_PROCID:-${PENSTOCK_PILOT_RANK:-0}}",
        f"node={shlex.quote(pilot_id)}" + ('-"$rank"' if spec.nodes > 1 else ""),
        # A new one: nobody else can have made it, nor another cluster's pilot of the same name.
        'data=$(mktemp -d "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/penstock-$node-XXXXXXXX") || exit 1',
        "trap 'rm -rf \"$data\"' EXIT",
        'chmod 711 "$data" || exit 1',
        f"end={end}",
        f"export PENSTOCK_EXECUTOR_LEAVE_AT_S=$(( end - {int(margin_s(spec))} ))",
        f"export PENSTOCK_EXECUTOR_LEAVE_IDLE_S={0 if allocation.keeps(pilot_id) else spec.idle_s:g}",
        f"export PENSTOCK_EXECUTOR_LEAVE_AFTER_RUNS={spec.runs}",
        *([f"export PENSTOCK_EXECUTOR_CHECKPOINT_DIR={shlex.quote(site.checkpoints)}"] if site.checkpoints else []),
        f"export PENSTOCK_EXECUTOR_POOL={shlex.quote(spec.pool)}",
        f"export PENSTOCK_EXECUTOR_LABELS={shlex.quote(json.dumps(labels))}",
        'if [ -n "${SLURM_MEM_PER_NODE:-}" ]; then export PENSTOCK_EXECUTOR_HOST_MEMORY="${SLURM_MEM_PER_NODE}MiB"; fi',
        'if [ -n "${SLURM_CPUS_ON_NODE:-}" ]; then export PENSTOCK_EXECUTOR_CPUS="$SLURM_CPUS_ON_NODE"; fi',
        *_exports({**site.environment, **spec.environment}),
        *_lines("setup", spec.setup),
        f"{site.penstock} node join {shlex.quote(site.token)} "
        f'--name "$node" --data "$data"'
        + ("" if spec.agents else " --executor-only")
        + (f" --devices {shlex.quote(spec.devices)}" if spec.devices else "")
        + " &",
        "executor=$!",
        site.on_signal,
        'while kill -0 "$executor" 2> /dev/null; do wait "$executor"; code=$?; done',
        *_lines("teardown", spec.teardown),
        'exit "${code:-1}"',
    ]
    return "\n".join(lines) + "\n"


class _PilotSite(NamedTuple):
    """What differs between a pilot on a machine and one in a Pod: programs, paths, and who gets signals."""

    penstock: str
    token: str
    checkpoints: str
    environment: Mapping[str, str]
    on_signal: str


def _site_of(place: PilotFolder, spec: AllocationSpec) -> _PilotSite:
    if spec.provider != "kubernetes":
        # Slurm's scancel and its time limit send TERM to this shell and to the executor alike.
        program = f"{shlex.quote(sys.executable)} -m penstock"
        return _PilotSite(program, str(place.token), str(place.checkpoints), {}, "trap : TERM INT")
    return _PilotSite(
        penstock="penstock",
        token=f"{POD_LOGIN}/{TOKEN}",
        checkpoints=POD_CHECKPOINTS if spec.pod is not None and spec.pod.claim else "",
        environment={
            "PENSTOCK_EXECUTOR_RUN_AS": "executor",  # a Pod has one account, and is the wall itself
            **({"PENSTOCK_EXECUTOR_IMAGE": spec.pod.image} if spec.pod is not None else {}),
        },
        on_signal="trap 'kill -TERM \"$executor\" 2> /dev/null' TERM INT",  # the kubelet signals this shell alone
    )


def batch_script(place: PilotFolder, allocation: Allocation) -> str:
    """Return the script that is submitted: it runs the node's script on each machine of the pilot."""
    node = shlex.quote(str(place.node))
    run = f"bash {node}"
    if allocation.spec.nodes > 1:
        # One task of each node has all of its processors, and not the first one alone.
        each = f"--ntasks-per-node=1 --nodes={allocation.spec.nodes} --cpu-bind=none"
        run = f"srun {each} --kill-on-bad-exit=0 bash {node}"
    return (
        f"#!/bin/bash\ntrap : TERM INT\n{run} &\nwhile kill -0 $! 2> /dev/null; do wait $!; code=$?; done\nexit $code\n"
    )


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _lines(what: str, text: str) -> list[str]:
    return [f"# {what}", text] if text else []
