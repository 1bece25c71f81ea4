"""
Workloads: which jobs are the same one, which command lines are opaque, and how skewed a model is.

:func:`key` is the workload's key, under which iteration times are remembered. :func:`is_opaque` says which commands
must not be sampled.

:func:`skew` says which jobs suffer from being spread over nodes: those whose model has one tensor that outweighs the
rest. Workers exchange a model tensor by tensor. One very large tensor is one very large message, which crowds the
network in bursts and makes all wait; many tensors of like size overlap with computing. So the shape of the model
decides, not its size, and it can be read from the model before it runs.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, sections 2.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from penstock_log.spec import JobSpec

ARRAY_ID: Final = "PENSTOCK_ARRAY_ID"
ARRAY_COUNT: Final = "PENSTOCK_ARRAY_COUNT"
ARRAY_MIN: Final = "PENSTOCK_ARRAY_MIN"
ARRAY_MAX: Final = "PENSTOCK_ARRAY_MAX"
ARRAY_STEP: Final = "PENSTOCK_ARRAY_STEP"
ARRAY_INDEX: Final = "PENSTOCK_ARRAY_INDEX"
"""The variable that says to a job of an array which one it is."""

_INTERPRETERS: Final = {".py": "python", ".sh": "sh", ".bash": "bash", ".R": "Rscript", ".jl": "julia"}


def key(spec: JobSpec) -> str:
    """
    Return the workload key of a job: 16 hexadecimal digits.

    With a model named, the key is of model, batch size, script digest and program: arguments such as the number of
    epochs do not change an iteration. Without one, all arguments count. Of an elastic job the batch size is left out,
    since it changes, and it is known how its iterations go with it.

    Examples
    --------
    >>> a = JobSpec(name="a", command=("python", "train.py", "--epochs", "3"), model="mlp")
    >>> b = JobSpec(name="b", command=("python", "train.py", "--epochs", "9"), model="mlp")
    >>> key(a) == key(b)
    True
    """
    program = spec.command[:2] if spec.model else spec.command
    return _digest((spec.model, 0 if spec.batch is not None else spec.batch_size, spec.digest, program))


def work(spec: JobSpec) -> str:
    """
    Return a key of everything that determines the work of a whole run: 16 hexadecimal digits.

    Jobs of one workload may be of different length; those of an array count as equal.

    Examples
    --------
    >>> a = JobSpec(name="a", command=("python", "train.py", "--epochs", "3"), model="mlp")
    >>> b = JobSpec(name="b", command=("python", "train.py", "--epochs", "9"), model="mlp")
    >>> key(a) == key(b), work(a) == work(b)
    (True, False)
    """
    env = {name: value for name, value in spec.env.items() if name != ARRAY_INDEX}
    return _hashed(msgspec.json.encode((spec.command, spec.params, env), order="deterministic"))


def is_opaque(command: Sequence[str], read: Callable[[str], bytes]) -> bool:
    """
    Return whether a command must not be sampled, because no file of its command line mentions Penstock.

    A sample stops after a few iterations and must leave nothing behind, which only :func:`penstock.session` sees to.

    Parameters
    ----------
    read : callable
        Gives the beginning of a file by its path as the command line has it; empty where there is none.

    Examples
    --------
    >>> files = {"train.py": b"import penstock"}
    >>> [is_opaque(line, lambda path: files.get(path, b"")) for line in (("python", "-m", "train"), ("sleep", "1"))]
    [False, True]
    """
    return not any(_mentions_penstock(read(path)) for path in (*command, *_module_files(command)))


def run_by(command: Sequence[str], *, is_executable: bool) -> tuple[str, ...]:
    """
    Return the words that run a command whose first one names a file, though no program on ``PATH``.

    Empty where its name does not tell what runs it.

    Examples
    --------
    >>> run_by(("train.py", "--lr", "1"), is_executable=False), run_by(("./go", "x"), is_executable=False)
    (('python', 'train.py', '--lr', '1'), ())
    >>> run_by(("go",), is_executable=True)
    ('./go',)
    """
    first, *rest = command
    if is_executable:
        return (first if "/" in first else f"./{first}", *rest)
    interpreter = next((name for suffix, name in _INTERPRETERS.items() if first.endswith(suffix)), "")
    return (interpreter, *command) if interpreter else ()


def first_line_problem(name: str, head: bytes, is_there: Callable[[str], bool]) -> str:
    """
    Return why the kernel cannot start a script whose file begins so, and what helps; empty where it can.

    Parameters
    ----------
    name : str
        What the script is called in the message.
    is_there : callable
        Says whether the program that its first line names is there.

    Examples
    --------
    >>> first_line_problem("go.sh", b"#!/bin/sh\\n", lambda _: True)
    ''
    >>> first_line_problem("go.sh", b"#!/bin/sh\\r\\n", lambda _: True).partition(", and")[0]
    'the lines of go.sh end as on Windows (CRLF), so its first line names /bin/sh^M (bad interpreter)'
    >>> first_line_problem("go.sh", b"#!/bin/zsh -e\\n", lambda _: False)
    'the first line of go.sh names /bin/zsh to run it, which is not there; install it, or name another program'
    """
    first, ended, _ = head.partition(b"\n")
    if not first.startswith(b"#!"):
        return ""
    named = first[2:].strip().decode(errors="backslashreplace")
    if ended and first.endswith(b"\r"):
        wrong = f"so its first line names {named}^M (bad interpreter), and not {named}"
        return f"the lines of {name} end as on Windows (CRLF), {wrong}; {WITHOUT_CR.format(name=name)}"
    program = named.split()[0] if named else ""
    if ended and program.startswith("/") and not is_there(program):
        what = f"the first line of {name} names {program} to run it, which is not there"
        return f"{what}; install it, or name another program"
    return ""


WITHOUT_CR: Final = "convert it: sed -i 's/\\r$//' {name}"
SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
"""Programs that take the CR at the end of a line for a part of its last word."""


def _module_files(command: Sequence[str]) -> list[str]:
    """Return where ``python -m package.module`` would find it in the working directory."""
    modules = [after.replace(".", "/") for flag, after in zip(command, command[1:]) if flag == "-m"]
    return [file for module in modules for file in (f"{module}.py", f"{module}/__main__.py")]


def _mentions_penstock(head: bytes) -> bool:
    first, _, rest = head.partition(b"\n")
    return b"penstock" in (rest if first.startswith(b"#!") else head)


@lru_cache(maxsize=4096)  # most jobs are of a workload that was there before
def _digest(parts: tuple[str, int, str, tuple[str, ...]]) -> str:
    return _hashed(msgspec.json.encode(parts))


def _hashed(described: bytes) -> str:
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, and a client that submits a job makes no key

    return hashlib.sha256(described).hexdigest()[:16]


LOWEST: Final = 0.14
HIGHEST: Final = 0.61
"""Thresholds in between tell the published models apart, which lie at or below 0.138 or at or above 0.611."""

THRESHOLD: Final = 0.5


def skew(tensors_bytes: Iterable[int]) -> float:
    """
    Return the share of a model's largest tensor in all of them: 0 for a model without any, 1 for one of one tensor.

    Raises
    ------
    ValueError
        If a size is negative.

    Examples
    --------
    >>> skew([100, 300, 600])
    0.6
    >>> skew([])
    0.0
    """
    largest = total = 0
    for size in tensors_bytes:
        if size < 0:
            raise ValueError(f"a tensor has {size} bytes; expected 0 or more")
        largest, total = max(largest, size), total + size
    return largest / total if total else 0.0


def consolidates(model_skew: float, threshold: float = THRESHOLD) -> bool:
    """
    Say whether a gang with such a model belongs on as few nodes as possible.

    Parameters
    ----------
    model_skew : float
        From :func:`skew`; 0 where it is not known, which asks for nothing.
    threshold : float

    Examples
    --------
    >>> consolidates(0.744), consolidates(0.112)
    (True, False)
    """
    return model_skew > threshold


def checked(threshold: float) -> float:
    """
    Return a threshold that somebody has set.

    Raises
    ------
    ValueError
        If it does not lie between ``LOWEST`` and ``HIGHEST``.
    """
    if not LOWEST <= threshold <= HIGHEST:
        raise ValueError(f"{threshold} is no threshold of skew; expected a number from {LOWEST} to {HIGHEST}")
    return threshold
