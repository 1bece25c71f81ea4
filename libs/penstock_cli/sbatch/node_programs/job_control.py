"""
``scontrol``, ``scancel``, ``squeue`` and ``sbatch`` within a job that was submitted as a script of sbatch.

``scontrol show hostnames`` and ``show hostlist`` need nothing but the allocation. The others ask Penstock, as the job's
user, by the command line that is on the job's ``PATH``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import NoReturn, Optional, Sequence

from .allocation import BatchError
from .batch import REQUEUED
from .hostlist import compress, expand


def main() -> NoReturn:
    """Run the program of this name."""
    name, words = sys.argv[1], sys.argv[2:]
    try:
        sys.exit(_PROGRAMS[name](words))
    except BatchError as error:
        sys.stderr.write(f"{name}: error: {error}\n")
        sys.exit(1)


def scontrol(words: Sequence[str]) -> int:
    """Show hosts or this job, or requeue it."""
    verbs = [word for word in words if not word.startswith("-")]
    shows = verbs[:1] == ["show"] and len(verbs) > 1
    code = _show(verbs[1].lower(), verbs[2:]) if shows else None
    if code is not None:
        return code
    if verbs[:1] in (["hold"], ["release"]) and len(verbs) == 2:
        return _penstock(verbs[0], _id(verbs[1]))
    if verbs[:1] == ["requeue"] and len(verbs) == 2:
        return _requeue(verbs[1])
    raise BatchError(
        "{} is not among what Penstock's scontrol does: show hostnames, hostlist, job and nodes, hold, release and "
        "requeue; `penstock extend` and others change a job".format(" ".join(words) or "nothing")
    )


def _show(what: str, rest: Sequence[str]) -> Optional[int]:
    """Show hosts, jobs or nodes; return None for anything else."""
    if what.startswith("hostlist"):
        _say(compress(sorted(_hosts(rest)) if what == "hostlistsorted" else _hosts(rest)))
    elif "hostnames".startswith(what) and len(what) > 4:
        _say("\n".join(_hosts(rest)))
    elif what in ("job", "jobs") and (not rest or _is_own(rest[0])):
        _say(_job_text())
    elif what in ("job", "jobs"):
        return _penstock("show", _id(rest[0]))
    elif what in ("node", "nodes"):
        return _penstock("nodes")
    else:
        return None
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _hosts(rest: Sequence[str]) -> list[str]:
    try:
        return expand(rest[0] if rest else os.environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError as error:
        raise BatchError(str(error)) from error


def _is_own(word: str) -> bool:
    own = {os.environ.get("SLURM_JOB_ID"), os.environ.get("PENSTOCK_JOB_ID")}
    if os.environ.get("SLURM_ARRAY_JOB_ID"):
        own.add("{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format(**os.environ))
    return word in own


def _id(word: str) -> str:
    """Return Penstock's id of a job that was typed in Slurm's way."""
    return os.environ["PENSTOCK_JOB_ID"] if _is_own(word) else word.replace("_", "-").lower()


def _job_text() -> str:
    """Return this job in the form of Slurm's, as far as the job itself knows it."""
    env = os.environ
    fields = {
        "JobId": env.get("SLURM_JOB_ID", ""),
        "JobName": env.get("SLURM_JOB_NAME", ""),
        "UserId": "{}({})".format(env.get("SLURM_JOB_USER", ""), os.getuid()),
        "JobState": "RUNNING",
        "Restarts": env.get("SLURM_RESTART_COUNT", "0"),
        "Partition": env.get("SLURM_JOB_PARTITION", ""),
        "NodeList": env.get("SLURM_JOB_NODELIST", ""),
        "BatchHost": env.get("SLURMD_NODENAME", ""),
        "NumNodes": env.get("SLURM_JOB_NUM_NODES", ""),
        "NumTasks": env.get("SLURM_NTASKS", "1"),
        "CPUs/Task": env.get("SLURM_CPUS_PER_TASK", "1"),
        "WorkDir": env.get("SLURM_SUBMIT_DIR", ""),
    }
    first = {"JobId", "UserId", "JobState", "Partition", "NodeList", "NumNodes", "WorkDir"}
    text = ""
    for name, value in fields.items():
        text += ("\n   " if name in first and text else " " if text else "") + f"{name}={value}"
    return text + "\n"


def _requeue(word: str) -> int:
    """Submit this job anew, behind itself, and end it."""
    if not _is_own(word):
        raise BatchError("requeue: of another job, `penstock retry` runs it again once it has failed")
    with open(os.path.join(os.environ["PENSTOCK_CODE_DIR"], "plan.json")) as file:
        if not json.load(file).get("requeue", True):
            raise BatchError("requeue: the job was submitted with --no-requeue, and is not begun again; it goes on")
    own = os.environ["PENSTOCK_JOB_ID"]
    done = subprocess.run(
        ["penstock", "sbatch", "--requeue-of", own], stdout=subprocess.PIPE, env=_outside(), text=True, check=False
    )
    if done.returncode:
        raise BatchError("requeue: the job could not be submitted anew, as said above; it goes on")
    sys.stderr.write(f"penstock: {own} was submitted anew as {done.stdout.strip()}\n")
    with open(os.path.join(os.environ["PENSTOCK_BATCH_DIR"], REQUEUED), "w") as file:
        file.write(done.stdout)
    os.kill(int(os.environ["PENSTOCK_BATCH_PID"]), signal.SIGTERM)
    return 0


def scancel(words: Sequence[str]) -> int:
    """Cancel jobs, or send this job's script a signal."""
    ids = [word for word in words if not word.startswith("-")]
    options = [word for word in words if word.startswith("-") and word not in ("-Q", "--quiet")]
    if options or not ids:
        raise BatchError(
            "{}: expected the ids of jobs; `penstock cancel` takes filters".format(options[0] if options else "no job")
        )
    return _penstock("cancel", *[_id(word) for word in ids])


def squeue(words: Sequence[str]) -> int:
    """List jobs, where no form of the list is asked for."""
    formed = [word for word in words if word.startswith(("-o", "-O", "--format", "--Format", "-h", "--noheader"))]
    if formed:
        raise BatchError(f"{formed[0]}: the form of the list is Penstock's own; `penstock ps -o json` is for programs")
    return _penstock("ps", "-a")


def sbatch(words: Sequence[str]) -> int:
    """Submit a script from within a job."""
    return _penstock("sbatch", *words)


def missing(words: Sequence[str]) -> int:
    """Say that there is no such program."""
    raise BatchError(
        f"{' '.join(words)}: there is no such program; `penstock usage` and `penstock show` tell what jobs have used"
    )


def _penstock(*words: str) -> int:
    try:
        return subprocess.run(["penstock", *words], env=_outside(), check=False).returncode
    except OSError as error:
        raise BatchError(
            f"penstock is not on the job's PATH ({error.strerror}); install it where the job runs"
        ) from error


def _outside() -> dict[str, str]:
    """Return the environment of a person who asks Penstock: without what is the job's own."""
    kept = ("PENSTOCK_URL", "PENSTOCK_CREDENTIALS", "PENSTOCK_CONTEXT", "PENSTOCK_CONFIG")
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") or name in kept}


_PROGRAMS = {"scontrol": scontrol, "scancel": scancel, "squeue": squeue, "sbatch": sbatch}
for _name in ("sacct", "sstat", "salloc"):
    _PROGRAMS[_name] = missing
