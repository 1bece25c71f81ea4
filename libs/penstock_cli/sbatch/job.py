"""
Jobs from the options of sbatch: the fields of a specification, and the plan by which its script is run.

:func:`translate` takes all options at once, since some say together what one field does. What cannot be honoured is
refused by name, all of it in one message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from penstock_cli.invocation import Failure
from penstock_cli.sbatch.options import OPTIONS, GivenOption, SbatchError
from penstock_cli.value_formats import AFTER, begin_s, time_limit_s
from penstock_log.spec import MOST_GPUS

_SIGNALS: Final = {
    1: "HUP",
    2: "INT",
    3: "QUIT",
    10: "USR1",
    12: "USR2",
    14: "ALRM",
    15: "TERM",
    23: "URG",
    28: "WINCH",
}
_DEFAULT_WARNING_S: Final = 60.0
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MAILS: Final[dict[str, tuple[str, ...]]] = {
    "NONE": (),
    "BEGIN": ("started",),
    "END": ("completed", "failed", "timed_out", "cancelled"),
    "FAIL": ("failed", "timed_out"),
    "TIME_LIMIT": ("timed_out",),
    "REQUEUE": ("preempted",),
    "INVALID_DEPEND": ("cancelled",),
    "ALL": ("started", "completed", "failed", "timed_out", "cancelled", "preempted"),
    "ARRAY_TASKS": (),
}
_CPU: Final = "cpu"


class SbatchJob(msgspec.Struct, kw_only=True):
    """
    A job as the options of sbatch describe it.

    Attributes
    ----------
    fields : dict
        Of its :class:`~penstock_log.JobSpec`, as a job file has them.
    plan : dict
        How its script is run.
    array : str
        The indices of an array, as sbatch has them; empty: none.
    export : str
        What it has of the shell's environment: ``ALL``, ``NONE``, or names and values with commas.
    export_file, chdir, wrap : str
    notes : list of str
        What people should know of options that changed nothing, or are not quite as in Slurm.
    became : list of str
        What became of each option, in the order in which they were given.
    parsable, test_only, wait, quiet, verbose : bool
    singleton : bool
        Whether it waits for all jobs of its name and user that are not over when it is submitted.
    """

    fields: dict[str, Any] = {}
    plan: dict[str, Any] = {}
    array: str = ""
    export: str = "ALL"
    export_file: str = ""
    chdir: str = ""
    notes: list[str] = []
    became: list[str] = []
    parsable: bool = False
    test_only: bool = False
    wait: bool = False
    quiet: bool = False
    singleton: bool = False
    verbose: bool = False


def translate(given: Sequence[GivenOption], without: Sequence[str] = ()) -> SbatchJob:
    """
    Return the job that some options describe; of one that is given twice, the last counts.

    Parameters
    ----------
    without : sequence of str
        Names of options that are left out.

    Raises
    ------
    SbatchError
        If some cannot be honoured: all of them are told, with what to write instead.

    Examples
    --------
    >>> job = translate([GivenOption("nodes", "2", "a:2"), GivenOption("gres", "gpu:A100:4", "a:3")])
    >>> job.fields["gpus"], job.plan["gpus_per_node"], job.fields["kinds"]
    (8, 4, ['a100'])
    """
    left = [one for one in given if one.name not in without]
    problems = [
        f"{one.place}: --{one.name} is not honoured: {OPTIONS[one.name].says}"
        for one in left
        if OPTIONS[one.name].fate == "refused"
    ]
    said = {one.name: one for one in left if OPTIONS[one.name].fate != "refused"}
    translation = _Translation(said)
    translation.run()
    problems += translation.problems
    if problems:
        names = sorted({one.name for one in left if OPTIONS[one.name].fate == "refused"})
        advice = f"\nto submit it as if such options were not there: --without {','.join(names)}" if names else ""
        raise SbatchError("\n".join(problems) + advice)
    return translation.job


class _Translation:
    """One job in the making: each method takes the options that belong together."""

    def __init__(self, said: dict[str, GivenOption]) -> None:
        self.said, self.problems = said, list[str]()
        self.job = SbatchJob(fields={"processes": "node", "profile": "off", "opaque": True}, plan={})
        self._taken: set[str] = set()

    def run(self) -> None:
        """Take all options."""
        steps: tuple[Callable[[], None], ...] = (
            self._take_names,
            self._take_order,
            self._take_size,
            self._take_time,
            self._take_mail,
            self._take_nodes,
            self._take_files,
            self._take_flags,
        )
        for step in steps:
            step()
        job = self.job
        for one in self.said.values():
            option = OPTIONS[one.name]
            shown = f"--{one.name}={one.value}" if one.value else f"--{one.name}"
            job.became.append(f"{one.place}: {shown}: {option.says}")
            if option.fate == "noted":
                job.notes.append(f"{one.place}: {shown} changes nothing here: {option.says}")

    def _value(self, name: str) -> str:
        one = self.said.get(name)
        return one.value if one is not None else ""

    def _refuse(self, name: str, why: str) -> None:
        one = self.said[name]
        self.problems.append(f"{one.place}: --{name}={one.value}: {why}")

    def _number(self, name: str, least: int = 1) -> int:
        """Return the number of an option; 0 where it was not given."""
        text = self._value(name)
        if not text:
            return 0
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            self._refuse(name, f"expected a number, {least} or more")
            return 0
        return int(text)

    # --- what it is, and whose order it goes by
    def _take_names(self) -> None:
        if name := self._value("job-name"):
            self.job.fields["name"] = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:63] or "job"
            self.job.plan["name"] = name
        if pool := self._value("partition").partition(",")[0]:
            self.job.fields["pool"] = self.job.plan["partition"] = pool
        if self._value("qos"):
            self.job.fields["priority_class"] = self.job.plan["qos"] = self._value("qos")
        if self._value("account"):
            self.job.plan["account"] = self._value("account")
        if "nice" in self.said:
            text = self._value("nice") or "100"
            if re.fullmatch(r"[+-]?\d{1,10}", text):
                self.job.fields["priority"] = max(-1000, min(1000, -int(text)))
            else:
                self._refuse("nice", "expected a number")

    def _take_order(self) -> None:
        if "array" in self.said:
            self.job.array = self._value("array")
        after: list[str] = []
        text = self._value("dependency")
        if "?" in text:
            self._refuse("dependency", "`?` (any of them) is not there; submit one job for each, or wait for all (`,`)")
            return
        for word in filter(None, text.split(",")):
            kind, *ids = word.split(":")
            if kind == "singleton":
                self.job.singleton = self.job.plan["singleton"] = True
            elif kind not in AFTER or not ids or not all(ids):
                self._refuse("dependency", f"expected {', '.join(AFTER)}, each with :ID")
            elif any("+" in one for one in ids):
                self._refuse("dependency", "`+MINUTES` behind an id is not there; say --begin, or have the script wait")
            else:
                after += [f"{kind}:{one.replace('_', '-').lower()}" for one in ids]
        if after:
            self.job.fields["after"] = list(dict.fromkeys(after))
        if self._value("kill-on-invalid-dep").lower() not in {"", "yes"}:
            self._refuse("kill-on-invalid-dep", "a job whose dependency can never come is cancelled; leave it out")

    # --- how large it is
    def _take_size(self) -> None:
        nodes, tasks = self._nodes(), self._number("ntasks")
        per_node, per_gpu = self._number("ntasks-per-node"), self._number("ntasks-per-gpu")
        if not nodes and tasks and per_node:
            nodes = math.ceil(tasks / per_node)
        started = tasks or max(1, per_node) * max(1, nodes)
        each, total = self._devices(nodes, started)
        if not total and per_gpu and tasks:
            total = max(1, tasks // per_gpu)
        has_gpus = total > 0
        if not has_gpus:
            each, total = 1, max(1, nodes)
            self.job.fields["kinds"] = [_CPU]
        if each:
            nodes = total // each
        elif nodes and total % nodes:
            name = next(one for one in ("gpus", "gpus-per-task", "ntasks-per-gpu", "ntasks") if one in self.said)
            self._refuse(name, f"{total} in all cannot be equally many on each of {nodes} nodes")
        elif nodes:
            each = total // nodes
        if total > MOST_GPUS:
            self.problems.append(f"{total} devices are more than a job may have, {MOST_GPUS}")
            return
        self.job.fields["gpus"] = total
        if nodes and each > 1:
            self.job.fields["gpus_per_node"] = each
        self.job.plan |= {
            "nodes": nodes,
            "gpus_per_node": each if nodes else 0,
            "has_gpus": has_gpus,
            "ntasks": tasks,
            "ntasks_per_node": per_node if not tasks or nodes * per_node == tasks else 0,
            "ntasks_per_gpu": per_gpu,
            "cpus_per_task": self._number("cpus-per-task"),
            "said": {name.replace("-", "_"): self._value(name) for name in _SAID if self._value(name)},
        }
        self._take_host(max(1, nodes), started, total, has_gpus=has_gpus)

    def _nodes(self) -> int:
        text = self._value("nodes")
        least, dash, most = text.partition("-")
        if dash and least != most:
            self._refuse(
                "nodes", f"expected one number: a job has as many nodes as it was begun on; say --nodes={least}"
            )
            return 0
        if text and not (least.isdigit() and int(least)):
            self._refuse("nodes", "expected a number of nodes, 1 or more")
            return 0
        return int(least or 0)

    def _devices(self, nodes: int, tasks: int) -> tuple[int, int]:
        """Return how many devices each node and the whole job has; 0 of what is not said."""
        gres = self._gres()
        per_node, whole, per_task = (self._typed(name) for name in ("gpus-per-node", "gpus", "gpus-per-task"))
        if per_task:
            self.job.plan["gpus_per_task"] = per_task
        each = gres or per_node
        if each:
            return each, each * max(1, nodes)
        if whole:
            return 0, whole
        return 0, per_task * max(1, tasks)

    def _gres(self) -> int:
        text = self._value("gres")
        if text.lower() in {"", "none"}:
            return 0
        found = 0
        for word in text.split(","):
            name, _, rest = word.removeprefix("gres:").partition(":")
            if name != "gpu":
                self._refuse("gres", f"`{name}`: devices are all that is counted; leave it out, or name nodes")
                continue
            if found:
                self._refuse("gres", "a job has devices of one kind; name one, or all that will do: --constraint='a|b'")
            found = self._count("gres", rest or "1")
        return found

    def _typed(self, name: str) -> int:
        return self._count(name, self._value(name)) if self._value(name) else 0

    def _count(self, name: str, text: str) -> int:
        """Return the number of ``[TYPE:]N``, and have the type be the device kind."""
        kind, _, number = text.split("(", maxsplit=1)[0].rpartition(":")
        if not number.isdigit():
            kind, number = number, "1"
        if "," in text:
            self._refuse(name, "a job has devices of one kind; name one, or all that will do: --constraint='a|b'")
        if kind:
            self.job.fields["kinds"] = [kind.lower()]
        if not int(number) and name != "gpus":
            return 0
        return int(number)

    def _take_host(self, nodes: int, tasks: int, devices: int, *, has_gpus: bool) -> None:
        """Take processors and memory: each device of a node has its part of what the node's tasks need."""
        fields, plan = self.job.fields, self.job.plan
        per_task, per_gpu = self._number("cpus-per-task"), self._number("cpus-per-gpu")
        cpus = per_gpu or (per_task * tasks / devices if per_task else 0)
        if not cpus and tasks > 1 and not has_gpus:
            cpus = tasks / devices
        if cpus:
            fields["cpus"] = round(float(cpus), 3)
        each_node = devices / nodes
        parts = {"mem-per-gpu": 1.0, "mem-per-cpu": max(1.0, cpus or tasks / devices), "mem": 1 / each_node}
        for name, part in parts.items():
            if name in self.said and (size := self._size(name)):
                fields["host_memory_bytes"] = int(size * part)
                plan["mem_per_" + ("node" if name == "mem" else name[-3:])] = size >> 20
                break

    def _size(self, name: str) -> int:
        found = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", self._value(name).strip().upper())
        if found is None:
            self._refuse(name, "expected such as 16G, or megabytes")
            return 0
        return int(found[1]) * _UNITS[found[2] or "M"]

    # --- how long it runs, and when
    def _take_time(self) -> None:
        fields, plan = self.job.fields, self.job.plan
        limit_s = self._moment("time", time_limit_s) if "time" in self.said else 0.0
        if limit_s:
            fields["time_limit_s"] = plan["time_limit_s"] = limit_s
        if "begin" in self.said:
            fields["begin_s"] = self._moment("begin", lambda text: begin_s(_with_year(text)))
        if "deadline" in self.said:
            plan["deadline_s"] = self._moment("deadline", lambda text: begin_s(_with_year(text), None, "--deadline"))
        if text := self._value("signal"):
            self._take_signal(text, limit_s)

    def _moment(self, name: str, read: Callable[[str], float]) -> float:
        try:
            return read(self._value(name))
        except Failure as error:
            self._refuse(name, str(error))
            return 0.0

    def _take_signal(self, text: str, limit_s: float) -> None:
        found = re.fullmatch(r"(?:([RB]+):)?(\w+)(?:@(\d{1,5}))?", text)
        if found is None or "R" in (found[1] or ""):
            self._refuse("signal", "expected such as B:USR1@60; there is no R, as reservations are a team's")
            return
        name = _SIGNALS.get(int(found[2])) if found[2].isdecimal() else found[2].upper().removeprefix("SIG")
        if name not in _SIGNALS.values():
            self._refuse("signal", f"expected one of {', '.join(_SIGNALS.values())}")
            return
        if not limit_s:
            self.job.notes.append(
                f"{self.said['signal'].place}: --signal is sent before the time limit, and there is none"
            )
            return
        warn_s = float(found[3]) if found[3] else _DEFAULT_WARNING_S
        if warn_s >= limit_s:
            self._refuse("signal", f"expected fewer seconds than the time limit, {limit_s:g} s")
            return
        self.job.fields.update(warn_signal=name, warn_s=warn_s)
        self.job.plan["signal"] = {"name": name, "batch": bool(found[1])}

    # --- what is told of it
    def _take_mail(self) -> None:
        kinds: dict[str, None] = {}
        for word in filter(None, self._value("mail-type").upper().replace(" ", "").split(",")):
            if word not in _MAILS:
                self._refuse("mail-type", f"{word}: expected some of {', '.join(_MAILS)}")
                continue
            kinds.update(dict.fromkeys(_MAILS[word]))
        if kinds:
            self.job.fields["notify"] = list(kinds)
            address = self._value("mail-user")
            note = "mails go where your own rules say (`penstock notify list`)"
            if address:
                rule = f"penstock notify add 'mailto://SERVER?to={address}' --by-job"
                note = f"{self.said['mail-user'].place}: --mail-user={address}: {note}; for this address: {rule}"
            self.job.notes.append(note)
        elif "mail-user" in self.said and "mail-type" not in self.said:
            self.job.notes.append("--mail-user without --mail-type: as in Slurm, no mail is sent")

    # --- where it runs
    def _take_nodes(self) -> None:
        from penstock_cli.sbatch.node_programs.hostlist import expand

        for name, field in (("nodelist", "nodes"), ("exclude", "exclude")):
            if text := self._value(name):
                try:
                    self.job.fields[field] = expand(text)
                except ValueError as error:
                    self._refuse(name, str(error))
        if text := self._value("constraint"):
            words = [word.strip() for word in text.strip("[]() ").split("|")]
            if not all(re.fullmatch(r"[A-Za-z0-9_.-]+", word) for word in words):
                self._refuse(
                    "constraint", "expected device kinds, such as a100 or a100|h100; a job has devices of one kind"
                )
                return
            self._take_kinds([word.lower() for word in words])

    def _take_kinds(self, kinds: list[str]) -> None:
        """Take the device kinds of a constraint, which may not be others than the devices' own type."""
        typed = self.job.fields.get("kinds", kinds)
        if set(typed) <= set(kinds):
            self.job.fields["kinds"] = typed
        elif self.job.plan.get("has_gpus"):
            self._refuse("constraint", f"the devices are of kind {typed[0]}; leave one of both out")
        else:
            self._refuse(
                "constraint", f"a job without GPUs runs on a device of kind {_CPU}; leave it out, or name nodes"
            )

    def _take_files(self) -> None:
        plan = self.job.plan
        for name in ("output", "error", "input"):
            if name in self.said:
                plan[name] = self._value(name)
        mode = self._value("open-mode")
        if mode and mode not in {"append", "truncate"}:
            self._refuse("open-mode", "expected append or truncate")
        plan["open_mode"] = mode
        self.job.chdir = self._value("chdir")
        self.job.export = self._value("export") or ("NONE" if "export-file" in self.said else "ALL")
        self.job.export_file = self._value("export-file")

    def _take_flags(self) -> None:
        job, said = self.job, self.said
        if "hold" in said:
            job.fields["hold"] = True
        job.plan["requeue"] = "no-requeue" not in said or (
            "requeue" in said and _is_later(said, "requeue", "no-requeue")
        )
        job.parsable, job.test_only, job.wait = "parsable" in said, "test-only" in said, "wait" in said
        job.quiet, job.verbose = "quiet" in said, "verbose" in said


_SAID: Final = ("gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu")


def _is_later(said: dict[str, GivenOption], one: str, other: str) -> bool:
    names = list(said)
    return names.index(one) > names.index(other)


def _with_year(text: str) -> str:
    """
    Return a moment of Slurm's as RFC 3339 has it: ``MMDDYY``, ``MM/DD/YY``, with a time behind it.

    Examples
    --------
    >>> _with_year("12/24/26"), _with_year("122426-18:00"), _with_year("2026-01-31"), _with_year("18:00")
    ('2026-12-24T00:00', '2026-12-24T18:00', '2026-01-31', '18:00')
    """
    found = re.fullmatch(r"(\d\d)[./]?(\d\d)[./]?(\d\d)(?:[-T](\d\d:\d\d(?::\d\d)?))?", text.strip())
    words = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00", "today": "now"}
    if found is None:
        return words.get(text.strip().lower(), text)
    month, day, year, clock = found.groups()
    return f"20{year}-{month}-{day}T{clock or '00:00'}"
