"""
``scontrol``, ``scancel``, ``squeue``, ``sacct`` and ``sbatch`` within a job that was submitted as a script of sbatch.

``scontrol show hostnames`` and ``show hostlist`` need nothing but the allocation. The others ask Penstock, as the job's
user, by the command line that is on the job's ``PATH``, else the node's own. A job has no login but what its user has
there: one in the home, or a secret (``--secret-file PENSTOCK_CREDENTIALS=NAME``).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any, NoReturn, Optional, Sequence

from . import job_list
from .allocation import BatchError
from .batch import REQUEUED, SCRIPT_PID
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
        return _show_others([word for words in rest for word in words.split(",")])
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


def _show_others(words: Sequence[str]) -> int:
    """Show jobs in Slurm's form."""
    asked = job_list.ListOptions({"jobs": ",".join(words)})
    rows = job_list.ask(asked, _outside(), _id)
    if not rows:
        raise BatchError(f"there is no job {' or '.join(words)} that this one's user may see")
    _say("\n".join(map(job_list.job_text, rows)))
    return 0


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
    plan = _plan()
    if not plan.get("requeue", True):
        raise BatchError("requeue: the job was submitted with --no-requeue, and is not begun again; it goes on")
    own, folder = os.environ["PENSTOCK_JOB_ID"], _batch_folder("requeue")
    env = _outside()
    words = [*job_list.program(env), "sbatch", "--requeue-of", own]
    if plan.get("singleton"):
        words.append("--singleton")
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, env=env, text=True, check=False)
    except OSError as error:
        raise BatchError(f"requeue: {job_list.missing_program(error)}") from error
    if done.returncode:
        raise BatchError("requeue: the job could not be submitted anew, as said above; it goes on")
    sys.stderr.write(f"penstock: {own} was submitted anew as {done.stdout.strip()}\n")
    with open(os.path.join(folder, REQUEUED), "w") as file:
        file.write(done.stdout)
    os.kill(int(os.environ["PENSTOCK_BATCH_PID"]), signal.SIGTERM)
    return 0


def scancel(words: Sequence[str]) -> int:
    """Cancel jobs, or send this job's script a signal."""
    options, rest = job_list.split_options(words, _OF_SCANCEL, "quiet:Q verbose:v me batch:b full:f")
    ids = [_id(word) for words in rest for word in words.split(",")]
    if options.has("signal"):
        return _signal(ids, options)
    filters: list[str] = []
    for option, flag in (("name", "-n"), ("jobname", "-n"), ("partition", "--pool")):
        if options.has(option):
            value = options.given[option]
            if "," in value:
                raise BatchError(f"--{option} {value}: expected one; call scancel for each")
            filters += [flag, value]
    for state in options.words("state"):
        filters += ["-s", job_list.penstock_state(state)]
    user = options.given.get("user", "")
    if options.has("me") or user:
        filters += ["-u", "me" if options.has("me") or user == os.environ.get("USER") else user]
    if not ids and not filters:
        raise BatchError("there is no job; expected ids, or --user, --me, --name, --state or --partition")
    if ids and filters:
        raise BatchError(f"{filters[0]}: ids and filters do not go together; give one of them")
    return _penstock("cancel", "-y", *filters, *ids)


_OF_SCANCEL = "user:u name:n jobname state:t partition:p signal:s"


def _signal(ids: Sequence[str], options: job_list.ListOptions) -> int:
    """Send a signal to this job's steps, its script, or both, as ``scancel --signal`` does."""
    if list(ids) != [os.environ["PENSTOCK_JOB_ID"]]:
        raise BatchError(
            "--signal: only of the job in which it is typed; `penstock exec ID -- kill` enters another one"
        )
    signum, folder = _signal_number(options.given["signal"]), _batch_folder("--signal")
    pids: list[int] = []
    if not options.has("batch"):
        pids += [int(name) for name in os.listdir(os.path.join(folder, "steps")) if name.isdigit()]
    if options.has("batch") or options.has("full"):
        with open(os.path.join(folder, SCRIPT_PID)) as file:
            pids.append(int(file.read()))
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue  # it has just ended
    return 0


def _signal_number(typed: str) -> int:
    """Return the number of a signal that was typed by its number, or its name with or without SIG."""
    text = typed.upper()
    name = text if text.startswith("SIG") else "SIG" + text
    if re.match(r"[0-9]{1,3}$", text):
        if 0 < int(text) < signal.NSIG:
            return int(text)
    elif name in signal.Signals.__members__:
        return int(signal.Signals[name])
    raise BatchError(f"--signal {typed}: there is no such signal; expected such as USR1, SIGUSR1 or 10")


def _batch_folder(what: str) -> str:
    """Return the folder of this run's script, which is on the job's first node alone."""
    folder = os.environ.get("PENSTOCK_BATCH_DIR", "")
    if not folder or os.environ.get("PENSTOCK_RANK", "0") != "0":
        raise BatchError(f"{what}: only from the job's script, or from tasks on its first node; this is another node's")
    return folder


def squeue(words: Sequence[str]) -> int:
    """List jobs that are not over."""
    return job_list.squeue(words, _outside(), _id)


def sacct(words: Sequence[str]) -> int:
    """List jobs, those that are over too."""
    return job_list.sacct(words, _outside(), _id)


def sbatch(words: Sequence[str]) -> int:
    """Submit a script from within a job."""
    return _penstock("sbatch", *words)


def missing(words: Sequence[str]) -> int:
    """Say that there is no such program."""
    raise BatchError(
        f"{' '.join(words)}: there is no such program; `penstock usage` and `penstock show` tell what jobs have used, "
        "`penstock nodes` which nodes there are"
    )


def _penstock(*words: str) -> int:
    env = _outside()
    try:
        code = subprocess.run([*job_list.program(env), *words], env=env, check=False).returncode
    except OSError as error:
        raise BatchError(job_list.missing_program(error)) from error
    hint = job_list.login_hint(env) if code else ""
    if hint:
        sys.stderr.write(hint + "\n")
    return code


def _plan() -> dict[str, Any]:
    """Return what the submission says of this job."""
    with open(os.path.join(os.environ["PENSTOCK_CODE_DIR"], "plan.json")) as file:
        plan: dict[str, Any] = json.load(file)
    return plan


def _outside() -> dict[str, str]:
    """Return the environment of a person who asks Penstock: without what is the job's own."""
    kept = ("PENSTOCK_URL", "PENSTOCK_CREDENTIALS", "PENSTOCK_CONTEXT", "PENSTOCK_CONFIG")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") or name in kept}
    login = _plan().get("login", "")
    if login:  # steps may have been begun without the script's environment
        env.setdefault("SBATCH_PENSTOCK_LOGIN", login)
    return env


_PROGRAMS = {"scontrol": scontrol, "scancel": scancel, "squeue": squeue, "sacct": sacct, "sbatch": sbatch}
for _name in ("sstat", "salloc", "sinfo"):
    _PROGRAMS[_name] = missing
