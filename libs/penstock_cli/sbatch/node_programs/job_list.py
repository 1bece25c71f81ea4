"""
``squeue``, ``sacct`` and ``scontrol show job`` within a job: Penstock's jobs in the forms that scripts of Slurm's read.

The jobs come from ``penstock ps``, as the job's user sees them. Columns that Penstock has nothing for are refused by
name, and so are options that would change which jobs are listed and are not among these.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from .allocation import BatchError
from .hostlist import compress

JobRow = Mapping[str, Any]
"""A job, as ``penstock ps -o json`` has it."""
Column = Callable[[JobRow], str]

_STATES = {
    "PD": "PENDING",
    "R": "RUNNING",
    "PR": "COMPLETING",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "F": "FAILED",
    "CA": "CANCELLED",
}
_COMPACT = {**{name: code for code, name in _STATES.items() if code != "PR"}, "TIMEOUT": "TO", "COMPLETING": "CG"}
_OPEN = ("PENDING", "RUNNING", "COMPLETING")
_UNKNOWN_HERE = {
    "BF": "BOOT_FAIL",
    "CF": "CONFIGURING",
    "DL": "DEADLINE",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PR": "PREEMPTED",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
}
"""States of Slurm's jobs that no job of Penstock's is in: scripts may ask for them, and find none."""
_MOST_JOBS = "100000"
_DAY_S = 86_400.0
_REASONS = {"dependency": "Dependency", "held": "JobHeldUser", "begin": "BeginTime"}


def state_of(row: JobRow) -> str:
    """Return a job's state in Slurm's words."""
    if row["state"] == "F" and str(row.get("reason", "")).startswith("its time limit of "):
        return "TIMEOUT"
    return _STATES[row["state"]]


def slurm_id(row: JobRow) -> str:
    """Return what Slurm calls a job: of an array ``ARRAY_INDEX``."""
    return re.sub(r"^(\d+)-(\d+)", r"\1_\2", str(row["id"]))


def _array_id(row: JobRow) -> str:
    return slurm_id(row).partition("_")[0]


def _raw_id(row: JobRow) -> str:
    array, _, index = slurm_id(row).partition("_")
    return str(int(array) + int(index)) if index.isdigit() else array


def _names(row: JobRow) -> list[str]:
    found: list[str] = []
    for at in row.get("devices") or []:
        name = str(at).partition("/")[0]
        if name not in found:
            found.append(name)
    return found


def _reason(row: JobRow) -> str:
    if row["state"] != "PD":
        return "None"
    if row.get("held"):
        return "JobHeldUser"
    return _REASONS.get(str(row.get("cause", "")), "Resources")


def _where(row: JobRow) -> str:
    return compress(_names(row)) if row["state"] != "PD" else f"({_reason(row)})"


def duration(seconds: float, *, short: bool = False) -> str:
    """
    Return a time as ``sacct`` writes it, or as ``squeue`` does.

    Examples
    --------
    >>> duration(90061), duration(61, short=True), duration(3661, short=True)
    ('1-01:01:01', '1:01', '1:01:01')
    """
    whole = int(seconds)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if short and not days:
        return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
    return (f"{days}-" if days else "") + f"{hours:02d}:{minutes:02d}:{rest:02d}"


def _moment(at_s: Optional[float], unknown: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s)) if at_s else unknown


def _exit_code(row: JobRow) -> str:
    code = row.get("exit_code")
    if code is None:
        return "0:0" if row["state"] != "F" else "1:0"
    return f"0:{-code}" if code < 0 else f"{code}:0"


_COLUMNS: Mapping[str, Column] = {
    "jobid": slurm_id,
    "jobarrayid": slurm_id,
    "jobidraw": _raw_id,
    "arrayjobid": _array_id,
    "arraytaskid": lambda row: slurm_id(row).partition("_")[2] or "N/A",
    "name": lambda row: str(row["name"]),
    "jobname": lambda row: str(row["name"]),
    "username": lambda row: str(row["user"]),
    "user": lambda row: str(row["user"]),
    "account": lambda row: str(row.get("team", "")),
    "partition": lambda row: str(row["pool"]),
    "qos": lambda row: str(row.get("priority_class", "")),
    "state": state_of,
    "statecompact": lambda row: _COMPACT[state_of(row)],
    "timeused": lambda row: duration(row.get("run_s") or 0.0, short=True),
    "elapsed": lambda row: duration(row.get("run_s") or 0.0),
    "elapsedraw": lambda row: str(int(row.get("run_s") or 0)),
    "numnodes": lambda row: str(max(1, len(_names(row)))),
    "nnodes": lambda row: str(max(1, len(_names(row)))),
    "nodelist": lambda row: compress(_names(row)),
    "reasonlist": _where,
    "reason": _reason,
    "tres-per-node": lambda row: "gres/gpu:{}".format(row["gpus"]),
    "starttime": lambda row: _moment(row.get("started_s"), "N/A"),
    "endtime": lambda row: _moment(row.get("finished_s"), "N/A"),
    "submittime": lambda row: _moment(row.get("submitted_s"), "N/A"),
    "start": lambda row: _moment(row.get("started_s"), "Unknown"),
    "end": lambda row: _moment(row.get("finished_s"), "Unknown"),
    "submit": lambda row: _moment(row.get("submitted_s"), "Unknown"),
    "exitcode": _exit_code,
}
_LETTERS = {
    "i": ("jobid", "JOBID"),
    "A": ("jobidraw", "JOBID"),
    "F": ("arrayjobid", "ARRAY_JOB_ID"),
    "K": ("arraytaskid", "ARRAY_TASK_ID"),
    "j": ("name", "NAME"),
    "u": ("username", "USER"),
    "a": ("account", "ACCOUNT"),
    "P": ("partition", "PARTITION"),
    "q": ("qos", "QOS"),
    "t": ("statecompact", "ST"),
    "T": ("state", "STATE"),
    "M": ("timeused", "TIME"),
    "D": ("numnodes", "NODES"),
    "N": ("nodelist", "NODELIST"),
    "R": ("reasonlist", "NODELIST(REASON)"),
    "r": ("reason", "REASON"),
    "b": ("tres-per-node", "TRES_PER_NODE"),
    "S": ("starttime", "START_TIME"),
    "e": ("endtime", "END_TIME"),
    "V": ("submittime", "SUBMIT_TIME"),
}
_SQUEUE = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_SACCT = "JobID,JobName,Partition,Account,State,ExitCode"


class ListOptions(NamedTuple):
    """What was typed of a list: the values of options by their long names, flags among them with ``"1"``."""

    given: Mapping[str, str]

    def words(self, name: str) -> list[str]:
        """Return the words of an option with commas between them."""
        return [word for word in self.given.get(name, "").split(",") if word]

    def has(self, name: str) -> bool:
        """Say whether an option was given."""
        return name in self.given


def read_options(words: Sequence[str], values: str, flags: str) -> ListOptions:
    """
    Return the options of a program that takes nothing else.

    Parameters
    ----------
    values, flags : str
        The names of options with and without values, each with its letter behind a colon.

    Raises
    ------
    BatchError
        If a word is none of them.

    Examples
    --------
    >>> read_options(["-hu", "ada", "--name=fit"], "user:u name:n", "noheader:h").given
    {'noheader': '1', 'user': 'ada', 'name': 'fit'}
    """
    options, rest = split_options(words, values, flags)
    if rest:
        raise BatchError(f"{rest[0]!r} is no option; expected such as {' '.join('--' + name for name in _of(values))}")
    return options


def split_options(words: Sequence[str], values: str, flags: str) -> tuple[ListOptions, list[str]]:
    """Return the options among some words, as :func:`read_options` reads them, and the other words."""
    with_value, without = _by_word(values), _by_word(flags)
    given: dict[str, str] = {}
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            others.append(word)
            continue
        if word.startswith("--"):
            typed, equals, value = word[2:].partition("=")
        else:
            typed, equals, value = word[1], "=" if len(word) > 2 else "", word[2:]
            if equals and typed in without:  # letters without values in one word
                rest.insert(0, "-" + value)
                equals = ""
        if typed in without:
            given[without[typed]] = "1"
        elif typed in with_value:
            if not equals and not rest:
                raise BatchError(f"{word} lacks its value")
            given[with_value[typed]] = value if equals else rest.pop(0)
        else:
            raise BatchError(
                f"{word.partition('=')[0]} is not among the options of this program, which is Penstock's: "
                f"{', '.join('--' + name for name in (*_of(values), *_of(flags)))}"
            )
    return ListOptions(given), others


def _of(text: str) -> list[str]:
    return [word.partition(":")[0] for word in text.split()]


def _by_word(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in text.split():
        name, _, letter = word.partition(":")
        found[name] = name
        if letter:
            found[letter] = name
    return found


def squeue(words: Sequence[str], environment: Mapping[str, str], own: Callable[[str], str]) -> int:
    """
    List jobs that are not over, or those in the states that were asked for.

    ``environment`` is that in which ``penstock`` is asked; ``own`` returns Penstock's id of a job.
    """
    options = read_options(
        words,
        "jobs:j user:u users name:n states:t state partition:p format:o Format:O",
        "me noheader:h all:a array:r noconvert",
    )
    states = _states(options) or _OPEN
    rows = ask(options, environment, own, states) if set(states) & set(_COMPACT) else []
    some = [row for row in rows if state_of(row) in states]
    if options.has("Format"):
        columns = _long_columns(options.given["Format"])
    else:
        columns = _letter_columns(options.given.get("format", _SQUEUE))
    _print(columns, some, header=not options.has("noheader"))
    return 0


def sacct(words: Sequence[str], environment: Mapping[str, str], own: Callable[[str], str]) -> int:
    """List jobs, those that are over too: of today, or the ones that were asked for."""
    options = read_options(
        words,
        "jobs:j user:u users name:n state:s states partition:r format:o delimiter starttime:S",
        "me noheader:n allocations:X parsable:p parsable2:P brief:b allusers:a",
    )
    if not any(options.has(name) for name in ("allusers", "user", "users", "jobs")):
        options = ListOptions({**options.given, "me": "1"})
    states = _states(options)
    since_s = 0.0 if options.has("jobs") else _midnight_s()
    if options.has("starttime"):
        since_s = _since_s(options.given["starttime"])
    can_be = not states or bool(set(states) & set(_COMPACT))
    rows = ask(options, environment, own, states, since_s) if can_be else []
    some = [
        row
        for row in rows
        if (not states or state_of(row) in states) and (row.get("finished_s") or float("inf")) >= since_s
    ]
    named = "JobID,State,ExitCode" if options.has("brief") else options.given.get("format", _SACCT)
    columns = [(found[0], found[1], found[2]) for found in map(_sacct_column, filter(None, named.split(",")))]
    if options.has("parsable") or options.has("parsable2"):
        between = options.given.get("delimiter", "|")
        lines = [[title for title, _, _ in columns]] if not options.has("noheader") else []
        lines += [[column(row) for _, column, _ in columns] for row in some]
        for line in lines:
            sys.stdout.write(between.join(line) + (between if options.has("parsable") else "") + "\n")
        return 0
    if not options.has("noheader"):
        sys.stdout.write(" ".join(_cut(title, width) for title, _, width in columns) + " \n")
        sys.stdout.write(" ".join("-" * abs(width) for _, _, width in columns) + " \n")
    for row in some:
        sys.stdout.write(" ".join(_cut(column(row), width) for _, column, width in columns) + " \n")
    return 0


def job_text(row: JobRow) -> str:
    """Return a job in the form of ``scontrol show job``, as far as Penstock lists it."""
    fields = (
        (("JobId", _raw_id(row)), ("JobName", str(row["name"]))),
        (("UserId", str(row["user"])), ("Account", str(row.get("team", ""))), ("QOS", _COLUMNS["qos"](row))),
        (("JobState", state_of(row)), ("Reason", _reason(row)), ("ExitCode", _exit_code(row))),
        (("RunTime", duration(row.get("run_s") or 0.0)),),
        (
            ("SubmitTime", _COLUMNS["submit"](row)),
            ("StartTime", _COLUMNS["start"](row)),
            ("EndTime", _COLUMNS["end"](row)),
        ),
        (("Partition", str(row["pool"])), ("NodeList", compress(_names(row))), ("NumNodes", _COLUMNS["nnodes"](row))),
    )
    lines = [" ".join(f"{name}={value}" for name, value in line) for line in fields]
    return "\n   ".join(lines) + "\n"


def ask(
    options: ListOptions,
    environment: Mapping[str, str],
    own: Callable[[str], str],
    states: Sequence[str] = (),
    since_s: float = 0.0,
) -> list[JobRow]:
    """
    Return the jobs of ``penstock ps`` that some options ask for, the oldest first.

    Parameters
    ----------
    states : sequence of str
        The states that are asked for, in Slurm's words; none: all. Those that timed out come with all that failed.
    since_s : float
        Those that ended before are left out.

    Raises
    ------
    BatchError
        If Penstock does not answer; it has said why.
    """
    wanted = {"FAILED" if state == "TIMEOUT" else state for state in states}
    codes = [code for code, name in _STATES.items() if name in wanted]
    filters = ["-s", ",".join(codes)] if codes else ["-a"]
    if since_s:
        filters += ["--since", repr(since_s)]
    users = [*options.words("user"), *options.words("users")]
    here = environment.get("USER", "")
    if options.has("me") or users == [here]:
        filters += ["-u", "me"]
    elif len(users) == 1:
        filters += ["-u", users[0]]
    names, pools = options.words("name"), options.words("partition")
    asked = [own(word) for word in options.words("jobs")]
    for job_id in asked:
        filters += ["--id", job_id]
    found = [
        row
        for row in _listed(filters, environment)
        if (not asked or row["id"] in asked or _array_id(row) in asked)
        and (not names or row["name"] in names)
        and (not pools or row["pool"] in pools)
        and (len(users) < 2 or row["user"] in users)
    ]
    return sorted(found, key=lambda row: (row["submitted_s"], len(row["id"]), row["id"]))


def _listed(filters: Sequence[str], environment: Mapping[str, str]) -> list[JobRow]:
    words = [*program(environment), "ps", "-o", "json", "--limit", _MOST_JOBS, *filters]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, env=dict(environment), check=False)
    except OSError as error:
        raise BatchError(missing_program(error)) from error
    if done.returncode:
        raise BatchError("\n".join(["Penstock was not to be asked, as said above", login_hint(environment)]).strip())
    rows: list[JobRow] = json.loads(done.stdout)["jobs"]
    return rows


def program(environment: Mapping[str, str]) -> list[str]:
    """Return the words that start Penstock's command line: that of the job's ``PATH``, else that of the node."""
    for folder in environment.get("PATH", "").split(":"):
        if folder and os.access(os.path.join(folder, "penstock"), os.X_OK):
            return ["penstock"]
    python = os.environ.get("PENSTOCK_PYTHON", "")
    return [python, "-m", "penstock"] if python and os.access(python, os.X_OK) else ["penstock"]


def login_hint(environment: Mapping[str, str]) -> str:
    """Return what to do where a job has no login of its user's; empty where it has one that it may read."""
    named = environment.get("PENSTOCK_CREDENTIALS", "")
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config")
    folder = os.path.join(home, "penstock")
    kept = any(os.access(os.path.join(folder, name), os.R_OK) for name in ("clients", "contexts"))
    if os.access(named, os.R_OK) if named else kept:
        return ""
    return (
        "the job has no login of its user's that it may read: keep one as a secret of the node, such as "
        "~/.config/penstock/secrets/penstock-login (mode 600), and submit with SBATCH_PENSTOCK_LOGIN=penstock-login"
    )


def missing_program(error: OSError) -> str:
    """Return what to do where the command line cannot be started."""
    return (
        f"penstock is not on the job's PATH ({error.strerror}), and the node has none that the job may run; "
        "install it where the job runs: pip install penstock"
    )


def _states(options: ListOptions) -> Sequence[str]:
    """Return the states that are asked for, in Slurm's words; none where none were typed."""
    words = [word.upper() for name in ("states", "state") for word in options.words(name)]
    if "ALL" in words:
        return list(_COMPACT)
    by_code = {**{code: name for name, code in _COMPACT.items()}, **_UNKNOWN_HERE}
    for word in words:
        if word not in by_code and word not in by_code.values():
            raise BatchError(f"--state {word}: it is no state of Slurm's; expected some of {', '.join(_COMPACT)}, ALL")
    return [by_code.get(word, word) for word in words]


def penstock_state(word: str) -> str:
    """Return Penstock's word for a state of Slurm's."""
    code = next((code for code, name in _STATES.items() if name == word.upper()), word.upper())
    if code not in _STATES:
        raise BatchError(f"--state {word}: expected one of {', '.join(dict.fromkeys(_STATES.values()))}")
    return code


def _letter_columns(text: str) -> list[tuple[str, str, Column, int]]:
    """Return, of a form such as ``%.18i %j``, the text before each column, its title, the column and its width."""
    found: list[tuple[str, str, Column, int]] = []
    at = 0
    for match in re.finditer(r"%(\.?)(\d*)([A-Za-z])", text):
        right, width, letter = match.groups()
        _check_between(text[at : match.start()])
        if letter not in _LETTERS:
            raise BatchError(f"--format %{letter}: there is no such column here; there are {''.join(sorted(_LETTERS))}")
        name, title = _LETTERS[letter]
        wide = int(width or 0)
        found.append((text[at : match.start()], title, _COLUMNS[name], wide if right else -wide))
        at = match.end()
    _check_between(text[at:])
    return [*found, (text[at:], "", lambda _row: "", 0)]


def _check_between(text: str) -> None:
    """Refuse what stands between columns where it begins one that is not understood."""
    _, percent, behind = text.partition("%")
    if percent:
        raise BatchError(f"--format: %{behind.split(' ')[0]} is no column; expected such as %i, %18i, or %.18i")


def _long_columns(text: str) -> list[tuple[str, str, Column, int]]:
    """Return the same of a form such as ``JobID:10,State``."""
    found: list[tuple[str, str, Column, int]] = []
    for word in filter(None, text.split(",")):
        name, _, width = word.partition(":")
        if name.lower() not in _COLUMNS:
            raise BatchError(f"--Format {name}: there is no such column here; there are {', '.join(sorted(_COLUMNS))}")
        wide = int(re.sub(r"\D", "", width) or 20)
        found.append(("", name.upper(), _COLUMNS[name.lower()], wide if width.startswith(".") else -wide))
    return found


def _sacct_column(word: str) -> tuple[str, Column, int]:
    name, _, width = word.partition("%")
    if name.lower() not in _COLUMNS:
        raise BatchError(
            f"--format {name}: there is no such column here; there are {', '.join(sorted(_COLUMNS))}; `penstock show` "
            "and `penstock metrics` tell what a job used"
        )
    return name, _COLUMNS[name.lower()], int(width) if re.match(r"-?\d+$", width) else 12


def _print(columns: Sequence[tuple[str, str, Column, int]], rows: Sequence[JobRow], *, header: bool) -> None:
    if header:
        sys.stdout.write("".join(before + _cut(title, width) for before, title, _, width in columns) + "\n")
    for row in rows:
        sys.stdout.write("".join(before + _cut(column(row), width) for before, _, column, width in columns) + "\n")


def _cut(text: str, width: int) -> str:
    """Return a text in a column: to the right of a width, to the left where that is below 0, and as it is at 0."""
    if not width:
        return text
    return text[:width].rjust(width) if width > 0 else text[:-width].ljust(-width)


def _midnight_s() -> float:
    now = time.localtime()
    return time.mktime((now.tm_year, now.tm_mon, now.tm_mday, 0, 0, 0, 0, 0, -1))


def _since_s(text: str) -> float:
    """Return the moment of ``--starttime``."""
    if text == "today":
        return _midnight_s()
    if re.match(r"now-\d+days?$", text):
        return time.time() - _DAY_S * int(re.sub(r"\D", "", text))  # noqa: TID251 - what Slurm's word means
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except ValueError:
            continue
    raise BatchError(f"--starttime {text!r}: expected such as 2026-01-31, 2026-01-31T09:30, today or now-2days")
