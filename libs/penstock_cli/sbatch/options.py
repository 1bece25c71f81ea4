"""
The options of Slurm's ``sbatch``, and what becomes of each.

:data:`OPTIONS` has every option of sbatch 23.02 to 25.05. One is ``honoured``; or it is ``noted``, where it concerns
nothing but Slurm's accounting: it changes nothing, and people are told so; or it is ``refused``, with what to write
instead. :func:`read_words` reads words as sbatch does, and :func:`read_environment` the variables that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

Fate = Literal["honoured", "noted", "refused"]
Takes = Literal["value", "nothing", "maybe"]
"""Whether an option has a value: always, never, or only behind ``=``."""


class SbatchError(ValueError):
    """A script or a command line of sbatch that cannot be submitted; the message says all that keeps it from it."""


class SbatchOption(msgspec.Struct, frozen=True):
    """
    One option of sbatch.

    Attributes
    ----------
    name, letter : str
        As it is typed, without hyphens; the letter is empty where there is none.
    says : str
        What it becomes; of one that is refused, why, and what to write instead.
    """

    name: str
    letter: str
    takes: Takes
    fate: Fate
    says: str


class GivenOption(msgspec.Struct, frozen=True):
    """
    An option as it was given.

    Attributes
    ----------
    value : str
        Empty where it has none.
    place : str
        Where it was given, such as ``job.sbatch:3``.
    """

    name: str
    value: str
    place: str


def _options(fate: Fate, *rows: tuple[str, str, Takes, str]) -> Iterator[SbatchOption]:
    return (SbatchOption(name, letter, takes, fate, says) for name, letter, takes, says in rows)


_HONOURED: Final = _options(
    "honoured",
    ("array", "a", "value", "an array: lists, ranges, steps and `%n`"),
    ("begin", "b", "value", "`begin_s`"),
    ("chdir", "D", "value", "where the script begins, as every node has it"),
    ("constraint", "C", "value", "device kinds, where it is names with `|` between them; else refused"),
    ("cpus-per-gpu", "", "value", "`cpus` for each device"),
    ("cpus-per-task", "c", "value", "`cpus` for each device: those of a node's tasks, divided among its devices"),
    ("deadline", "", "value", "the script is not begun where its time could not be over by then: the job fails"),
    (
        "dependency",
        "d",
        "value",
        "`after`: `after`, `afterok`, `afterany`, `afternotok`, `aftercorr`, all of them; `singleton`: all of its name",
    ),
    ("error", "e", "value", "a file where the script runs, beside `penstock logs`"),
    ("exclude", "x", "value", "`exclude`: nodes that it does not run on"),
    ("export", "", "value", "the variables of the shell: ALL (as in Slurm, if nothing is said), NONE, or a list"),
    ("export-file", "", "value", "variables from a file, in place of the shell's"),
    ("get-user-env", "", "maybe", "with `--export=NONE`, the environment of a login shell, which it gets in any case"),
    ("gpus", "G", "value", "`gpus` in all, and with a type the device kind"),
    ("gpus-per-node", "", "value", "`gpus` of each node, on as many nodes as `--nodes` says"),
    ("gpus-per-task", "", "value", "`gpus` of each task; `srun` gives each task its own"),
    ("gres", "", "value", "`gpu`, `gpu:N` or `gpu:TYPE:N` of each node; other resources are refused"),
    ("hold", "H", "nothing", "`hold`"),
    ("ignore-pbs", "", "nothing", "`#PBS` lines are never read"),
    ("input", "i", "value", "standard input, from a file where the script runs"),
    ("job-name", "J", "value", "`name`; other characters than letters, digits, `-` and `_` become `-`"),
    ("kill-on-invalid-dep", "", "value", "`yes`, as always here; `no` is refused"),
    ("mail-type", "", "value", "`notify`: BEGIN, END, FAIL, TIME_LIMIT, REQUEUE, ALL and NONE"),
    ("mail-user", "", "value", "told: addresses are those of `penstock notify`"),
    (
        "mem",
        "",
        "value",
        "`host_memory_bytes` for each device: that of a node, divided among its devices; 0: its share",
    ),
    ("mem-per-cpu", "", "value", "the same, for the processors of `--cpus-per-task`"),
    ("mem-per-gpu", "", "value", "`host_memory_bytes` for each device"),
    ("nice", "", "maybe", "`priority`, turned round, where turns on a device go by it; a queue's order: `--qos`"),
    ("no-requeue", "", "nothing", "the script is begun once: a second run of the job fails and says so"),
    ("nodelist", "w", "value", "`nodes`: it runs on these alone"),
    ("nodes", "N", "value", "so many nodes with equally many devices, of which two may be on one machine"),
    ("ntasks", "n", "value", "what `srun` starts"),
    ("ntasks-per-gpu", "", "value", "tasks by devices: what `srun` starts"),
    ("ntasks-per-node", "", "value", "what `srun` starts on each node"),
    ("open-mode", "", "value", "`append` or `truncate`; a later run of the same job appends in any case"),
    ("output", "o", "value", "a file where the script runs, beside `penstock logs`; `%A %a %j %J %N %n %u %x %%`"),
    ("overcommit", "O", "nothing", "`srun` starts any number of tasks on a node"),
    ("oversubscribe", "s", "maybe", "a permission of which no use is made: its devices are its own"),
    ("parsable", "", "nothing", "the id alone is printed"),
    ("partition", "p", "value", "`pool`; of several the first"),
    ("qos", "q", "value", "`priority_class`"),
    ("quiet", "Q", "nothing", "nothing is told but errors"),
    ("requeue", "", "nothing", "as always: a job that was preempted, or whose node was lost, runs again"),
    ("signal", "", "value", "`warn_signal`, `warn_s`; with `B:` to the shell, else to what `srun` has started"),
    ("test-only", "", "nothing", "a dry run"),
    ("time", "t", "value", "`time_limit_s`, in all of Slurm's forms"),
    ("verbose", "v", "nothing", "what became of each option is told"),
    ("wait", "W", "nothing", "until it ends; the exit code is the job's"),
    ("wrap", "", "value", "a script of one command"),
)
_NOTED: Final = _options(
    "noted",
    ("account", "A", "value", "whom it is charged to: usage is counted by user and team"),
    ("acctg-freq", "", "value", "how often Slurm samples for its accounting"),
    ("comment", "", "value", "a comment in Slurm's accounting"),
    ("extra", "", "value", "a text in Slurm's accounting"),
    ("mcs-label", "", "value", "a label of Slurm's accounting"),
    ("profile", "", "value", "what Slurm samples into its HDF5 files; `penstock metrics` has what jobs report"),
    ("wckey", "", "value", "a key of Slurm's accounting"),
)
_PINNED: Final = "nothing pins processes to cores here; leave it out, or say `--cpus-per-task`"
_SHAPE: Final = "the nodes' nearness is the matcher's affair; leave it out, or name nodes by `--nodelist`"
_REFUSED: Final = _options(
    "refused",
    (
        "batch",
        "",
        "value",
        "the script runs on the job's first node; choose devices by their kind: `--gres=gpu:KIND:N`",
    ),
    ("bb", "", "value", "there are no burst buffers; have the script copy its files"),
    ("bbf", "", "value", "there are no burst buffers; have the script copy its files"),
    ("cluster-constraint", "", "value", "there is one cluster; give `--url` to name another"),
    ("clusters", "M", "value", "a job is submitted to one cluster; give `--url` to name it"),
    ("consolidate-segments", "", "nothing", _SHAPE),
    ("container", "", "value", "for an OCI bundle; an image of docker, podman or apptainer: `penstock submit --image`"),
    (
        "container-id",
        "",
        "value",
        "for an OCI bundle; an image of docker, podman or apptainer: `penstock submit --image`",
    ),
    ("contiguous", "", "nothing", _SHAPE),
    ("core-spec", "S", "value", _PINNED),
    ("cores-per-socket", "", "value", _PINNED),
    ("cpu-freq", "", "value", "frequencies are the node's affair; leave it out"),
    ("delay-boot", "", "value", "nodes are not booted for jobs; leave it out"),
    ("distribution", "m", "value", "tasks go to nodes in blocks; give `srun` other nodes by `--nodelist`"),
    (
        "exclusive",
        "",
        "maybe",
        "devices are a job's own, and nodes are not; ask for all of a node's devices: `--gres=gpu:N`",
    ),
    ("extra-node-info", "B", "value", _PINNED),
    ("gid", "", "value", "a job is its submitter's; have its owner submit it"),
    ("gpu-bind", "", "value", "say `--gpus-per-task`, by which `srun` gives each task devices of its own"),
    ("gpu-freq", "", "value", "frequencies are the node's affair; leave it out"),
    ("gpus-per-socket", "", "value", "say how many devices a node has for it: `--gpus-per-node`"),
    ("gres-flags", "", "value", "nothing binds devices to cores here; leave it out"),
    ("hint", "", "value", _PINNED),
    ("licenses", "L", "value", "there are no licenses; bound what runs at a time by an array (`--array=0-99%4`)"),
    ("mem-bind", "", "value", _PINNED),
    ("mincpus", "", "value", "say `--cpus-per-task`"),
    ("network", "", "value", "there are no switch windows; leave it out"),
    ("no-kill", "k", "maybe", "a job that loses a node runs again from its last checkpoint, as a whole; leave it out"),
    ("nodefile", "F", "value", "name the nodes: `--nodelist`"),
    ("ntasks-per-core", "", "value", _PINNED),
    ("ntasks-per-socket", "", "value", _PINNED),
    ("oom-kill-step", "", "maybe", "a run that exceeds its memory is ended as a whole; leave it out"),
    ("power", "", "value", "power is the node's affair; leave it out"),
    ("prefer", "", "value", "name the kinds that will do: `--constraint='a100|h100'`"),
    ("priority", "", "value", "the order of a queue goes by its policy and classes: `--qos=CLASS`"),
    ("propagate", "", "maybe", "limits are the node's; have the script call `ulimit`"),
    ("reboot", "", "nothing", "nodes are not booted for jobs; leave it out"),
    ("reservation", "", "value", "reservations are a team's: `penstock submit --team`, `penstock reservations`"),
    ("resv-ports", "", "maybe", "ports are not reserved; have the script look for a free one"),
    ("segment", "", "value", _SHAPE),
    ("sockets-per-node", "", "value", _PINNED),
    ("spread-job", "", "nothing", "say on how many nodes: `--nodes`"),
    ("stepmgr", "", "nothing", "steps are managed within the job in any case; leave it out"),
    ("switches", "", "value", _SHAPE),
    ("thread-spec", "", "value", _PINNED),
    ("threads-per-core", "", "value", _PINNED),
    ("time-min", "", "value", "a limit is one number, which `penstock extend` changes; say `--time`"),
    ("tmp", "", "value", "disks are not counted; leave it out, or name nodes by `--nodelist`"),
    ("tres-bind", "", "value", "say `--gpus-per-task`"),
    ("tres-per-task", "", "value", "say `--cpus-per-task` and `--gpus-per-task`"),
    ("uid", "", "value", "a job is its submitter's; have its owner submit it"),
    ("use-min-nodes", "", "nothing", "say on how many nodes: `--nodes`"),
)
OPTIONS: Final[dict[str, SbatchOption]] = {one.name: one for one in (*_HONOURED, *_NOTED, *_REFUSED)}
LETTERS: Final[dict[str, SbatchOption]] = {one.letter: one for one in OPTIONS.values() if one.letter}
_OTHER_NAMES: Final = {
    "workdir": "chdir",
    "tasks": "ntasks",
    "share": "oversubscribe",
    "tasks-per-node": "ntasks-per-node",
}
_VARIABLES: Final = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_ACCTG_FREQ": "acctg-freq",
    **{f"SBATCH_{name.upper().replace('-', '_')}": name for name in OPTIONS},
}


def read_words(words: Sequence[str], place: str) -> tuple[list[GivenOption], list[str]]:
    """
    Return the options at the beginning of some words, and what stands behind them.

    Raises
    ------
    SbatchError
        If a word is no option of sbatch, or one lacks its value.

    Examples
    --------
    >>> given, rest = read_words(["-N2", "--gres", "gpu:2", "--hold", "job.sbatch", "-x"], "here")
    >>> [(one.name, one.value) for one in given], rest
    ([('nodes', '2'), ('gres', 'gpu:2'), ('hold', '')], ['job.sbatch', '-x'])
    """
    given: list[GivenOption] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word, at = words[at], at + 1
        if word == "--":
            break
        if not word.startswith("--"):
            at = _read_letters(word, words, at, place, given)
            continue
        typed, equals, value = word[2:].partition("=")
        option = _named(typed, place)
        if option.takes == "nothing" and equals:
            raise SbatchError(f"{place}: --{option.name} takes no value, got {value!r}; leave it out")
        if option.takes == "value" and not equals:
            if at == len(words):
                raise SbatchError(f"{place}: --{option.name} lacks its value: --{option.name}=…")
            value, at = words[at], at + 1
        given.append(GivenOption(option.name, value, place))
    return given, list(words[at:])


def _read_letters(word: str, words: Sequence[str], at: int, place: str, given: list[GivenOption]) -> int:
    """Read options of one letter, several of which may stand in a word; return where the words go on."""
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = LETTERS.get(letter)
        if option is None:
            raise SbatchError(f"{place}: -{letter} is no option of sbatch; `man sbatch` lists them")
        if option.takes != "value":
            given.append(GivenOption(option.name, "", place))
            continue
        if not letters and at == len(words):
            raise SbatchError(f"{place}: -{letter} (--{option.name}) lacks its value")
        value, at = (letters, at) if letters else (words[at], at + 1)
        given.append(GivenOption(option.name, value.removeprefix("=") if letters else value, place))
        return at
    return at


def _named(typed: str, place: str) -> SbatchOption:
    """Return the option of a name, or of its unique beginning, as getopt has it."""
    name = _OTHER_NAMES.get(typed, typed)
    if name in OPTIONS:
        return OPTIONS[name]
    beginnings = [one for one in OPTIONS if name and one.startswith(name)]
    if len(beginnings) == 1:
        return OPTIONS[beginnings[0]]
    from difflib import get_close_matches

    near = beginnings[:4] or get_close_matches(name, OPTIONS, 1)
    meant = f"; did you mean {' or '.join(f'--{one}' for one in near)}?" if near else "; `man sbatch` lists them"
    raise SbatchError(f"{place}: --{typed} is no option of sbatch{meant}")


def read_environment(environ: Mapping[str, str]) -> list[GivenOption]:
    """Return the options that variables of the environment give, such as ``SBATCH_PARTITION``."""
    return [
        GivenOption(name, "" if OPTIONS[name].takes == "nothing" else environ[variable], variable)
        for variable, name in _VARIABLES.items()
        if variable in environ
    ]
