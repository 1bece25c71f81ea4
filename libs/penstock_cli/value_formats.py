"""Formats of values that people type and read: sizes, NAME=VALUE pairs, array indices, times and spans."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from penstock import submission
from penstock_cli.invocation import bad_input

MOST_IN_ARRAY: Final = 10_000


def size(text: str) -> int:
    """
    Return bytes; K, M, G and T are binary, as everywhere where memory is spoken of, KB to TB decimal.

    Examples
    --------
    >>> size("8GiB") == size("8g") == 8 * 2**30, size("1.5KB"), size("100")
    (True, 1500, 100)
    """
    from penstock_log import validation

    try:
        return validation.amount(text)
    except ValueError as error:
        bad_input(str(error))


def widths(text: str) -> dict[str, int]:
    """
    Return the fields that say how many devices: a number, or the fewest and the most; ``1-4``, as Slurm has it, too.

    Examples
    --------
    >>> widths("4"), widths("1..8") == widths("1-8")
    ({'gpus': 4, 'min_gpus': 0, 'max_gpus': 0}, True)
    """
    from penstock_log import validation

    if re.fullmatch(r"[1-9]\d{0,4}", text.strip()):
        return {"gpus": int(text), "min_gpus": 0, "max_gpus": 0}
    try:
        least, most = validation.bounds(_dotted(text), "--gpus")
    except validation.BadInput as error:
        bad_input(str(error))
    return {"gpus": least, "min_gpus": least, "max_gpus": most}


def batch(text: str, table: Mapping[str, int | str]) -> dict[str, object]:
    """
    Return the fields that say which batch: always the same, or between two.

    Parameters
    ----------
    table : mapping
        What else was typed of how it may change.

    Examples
    --------
    >>> batch("64..512", {"lr": "linear"})
    {'batch': {'min': 64, 'max': 512, 'lr': 'linear'}}
    >>> batch("128", {})
    {'batch_size': 128, 'batch': None}
    """
    if not text:
        return {"batch": table} if table else {}
    least, dots, most = (part.strip() for part in _dotted(text).partition(".."))
    if not (_is_count(least) and (_is_count(most) or not dots)):
        bad_input(f"--batch {text!r} is no batch; expected examples over all devices, such as 256, or 64..512")
    if dots:
        return {"batch": {"min": int(least), "max": int(most), **table}}
    if table:
        bad_input(f"--batch {text} never changes; expected a range, such as {text}..{4 * int(text)}, with such flags")
    return {"batch_size": int(least), "batch": None}


def _is_count(text: str) -> bool:
    return re.fullmatch(r"[1-9]\d{0,9}", text) is not None


def _dotted(text: str) -> str:
    """Return ``1-4`` as ``1..4``."""
    return re.sub(r"^\s*(\d+)\s*[-:]\s*(\d+)\s*$", r"\1..\2", text)


def need(text: str) -> dict[str, int]:
    """
    Return what a lane job needs of a device's memory: kept, of the framework, and in an iteration.

    Examples
    --------
    >>> need("1GiB,512M,3g")["ephemeral_bytes"] == 3 * 2**30
    True
    """
    parts = text.split(",")
    if len(parts) != 3:
        bad_input(f"{text!r} is no need; expected three amounts of memory, kept, of the framework, and in an iteration")
    return dict(zip(("persistent_bytes", "framework_bytes", "ephemeral_bytes"), map(size, parts), strict=True))


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            bad_input(f"{option} {word!r} is no pair; expected NAME=VALUE")
        found[name] = value
    return found


def environment(words: Iterable[str]) -> dict[str, str]:
    """Return NAME=VALUE words, and bare NAMEs with their value in this shell, as a table."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in os.environ:
            bad_input(f"--env {name} is not set in this shell; set it, or give NAME=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def warning(warn: str, signal: str) -> dict[str, str | float]:
    """
    Return the fields of a warning before a time limit, by ``--warn`` and by Slurm's ``--signal``.

    Examples
    --------
    >>> warning("5m", ""), warning("", "USR1@60"), warning("0", "SIGUSR2")
    ({'warn_s': 300.0}, {'warn_signal': 'USR1', 'warn_s': 60.0}, {'warn_signal': 'USR2', 'warn_s': 0.0})
    """
    found: dict[str, str | float] = {}
    if signal:
        name, at, seconds = signal.partition("@")
        found["warn_signal"] = name.upper().removeprefix("SIG")
        if at and not seconds.isdecimal():
            bad_input(f"--signal {signal!r}: expected such as USR1@60, with the seconds before the limit behind @")
        if at:
            found["warn_s"] = float(seconds)
    if warn:
        found["warn_s"] = 0.0 if warn == "0" else duration_s(warn, "--warn")
    return found


def secrets(words: Iterable[str]) -> dict[str, str]:
    """
    Return VARIABLE=NAME words, and bare NAMEs of secrets with the variables that are called as they are.

    Examples
    --------
    >>> secrets(["WANDB_API_KEY=wandb", "hf-token"])
    {'WANDB_API_KEY': 'wandb', 'HF_TOKEN': 'hf-token'}
    """
    from penstock_log.validation import variable_of

    return pairs((word if "=" in word else f"{variable_of(word)}={word}" for word in words), "--secret")


def parameters(words: Iterable[str]) -> dict[str, str | int | float | bool]:
    """
    Return hyper-parameters: numbers and booleans as such, all else as text.

    Examples
    --------
    >>> parameters(["lr=0.1", "layers=3", "nesterov=true", "name=adam"])
    {'lr': 0.1, 'layers': 3, 'nesterov': True, 'name': 'adam'}
    """
    return {name: _value(text) for name, text in pairs(words, "--param").items()}


def _value(text: str) -> str | int | float | bool:
    import json

    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, int | float | bool) else text


class ArrayText(NamedTuple):
    """
    The indices of an array of jobs, and how many of them run at a time; 0: any number.

    ``step`` lies between two indices; 1 where that is not always the same.
    """

    indices: list[int]
    most: int = 0

    @property
    def step(self) -> int:
        """What lies between two indices, if it is always the same."""
        steps = {after - before for before, after in zip(self.indices, self.indices[1:], strict=False)}
        return steps.pop() if len(steps) == 1 and min(steps) > 0 else 1


def array(text: str) -> ArrayText:
    """
    Return the indices of an array of jobs, as Slurm has them: with steps behind a colon, and behind ``%`` how many run.

    Examples
    --------
    >>> array("1,5,7-8").indices, array("0-100:50%2")
    ([1, 5, 7, 8], ArrayText(indices=[0, 50, 100], most=2))
    """
    listed_, percent, at_once = text.partition("%")
    if percent and not re.fullmatch(r"[1-9]\d{0,5}", at_once):
        bad_input(f"--array {text!r}: expected behind % how many run at a time, such as 0-199%8")
    indices: list[int] = []
    for part in listed_.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?\s*", part)
        if found is None:
            bad_input(f"--array {text!r} is no list of indices; expected such as 0-9, 1,3,7-8, 0-100:10 or 0-199%8")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or (last - first) // step >= MOST_IN_ARRAY:
            bad_input(f"--array {text!r} is empty or too long; expected 1 to {MOST_IN_ARRAY} rising indices")
        indices += range(first, last + 1, step)
    if len(set(indices)) != len(indices) or len(indices) > MOST_IN_ARRAY:
        bad_input(f"--array {text!r} repeats an index or has more than {MOST_IN_ARRAY}")
    return ArrayText(indices, int(at_once or 0))


def dependencies(entries: Iterable[str]) -> tuple[str, ...]:
    """
    Return what ``--after`` names: Slurm's words, each with one id or several; an id alone is that of ``afterok``.

    Examples
    --------
    >>> dependencies(["afterok:j1:j2,afterany:j3", "j4"])
    ('afterok:j1', 'afterok:j2', 'afterany:j3', 'afterok:j4')
    """
    found: list[str] = []
    for word in words(entries):
        kind, *ids = word.split(":") if ":" in word else ("afterok", word)
        if kind not in AFTER or not all(ids):
            bad_input(f"--after {word!r}: expected {', '.join(AFTER)}, each with :ID, or an id alone (for afterok)")
        found += [f"{kind}:{one.lower()}" for one in ids]
    return tuple(dict.fromkeys(found))


def image(text: str) -> str:
    """
    Return an image as specifications have it: paths in full, names as they are.

    Examples
    --------
    >>> image("pytorch/pytorch:2.4.0"), image("/images/./torch.sif")
    ('pytorch/pytorch:2.4.0', '/images/torch.sif')
    """
    is_path = text.startswith(("/", "./", "../", "~")) or text.endswith(".sif") or text in {".", ".."}
    return submission.absolute(text) if is_path else text


def time_limit_s(text: str, option: str = "--time") -> float:
    """
    Return a time limit in seconds; Slurm's forms, ``minutes[:seconds]`` or ``[days-]hours:minutes:seconds``, too.

    0 s is no limit: it is typed ``0``, ``UNLIMITED``, ``INFINITE`` or ``none``.

    Examples
    --------
    >>> [time_limit_s(text) for text in ("90m", "90", "90:30", "1:30:00", "1-06", "2-00:00:01", "UNLIMITED", "0")]
    [5400.0, 5400.0, 5430.0, 5400.0, 108000.0, 172801.0, 0.0, 0.0]
    """
    if text.strip().lower() in {"unlimited", "infinite", "none"}:
        return 0.0
    found = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,9})(?::(\d\d))?(?::(\d\d))?", text.strip())
    if found is None:
        return duration_s(text, option, "; or as in Slurm: 90 (minutes), 1:30:00, 1-12:00:00 or UNLIMITED")
    days, first, second, third = (None if part is None else int(part) for part in found.groups())
    if days is not None or third is not None:  # hours come first
        limit_s = (days or 0) * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    else:
        limit_s = (first or 0) * 60 + (second or 0)
    if limit_s > MOST_S:
        bad_input(f"{option} {text!r}: expected {MOST_S // 86400:,} days at most; 0 or UNLIMITED is no limit")
    return float(limit_s)


def begin_s(text: str, now: float | None = None, option: str = "--begin") -> float:
    """
    Return the time that ``--begin``, or another ``option``, names, in seconds since the epoch.

    It is typed as a span from now (``2h``, ``now+5minutes``, or ``now+90``, seconds as in Slurm), a time of day
    (``18:00``: today's, or tomorrow's where that is over), ``now``, ``tomorrow`` (its beginning), or RFC 3339.

    Examples
    --------
    >>> begin_s("2h", now=100.0), begin_s("now+5minutes", now=100.0), begin_s("2026-01-02T03:04:05Z")
    (7300.0, 400.0, 1767323045.0)
    """
    typed, at_s = text.strip().lower(), now_s() if now is None else now
    if typed == "now":
        return at_s
    later = re.fullmatch(r"(now\s*\+\s*)?(\d{1,9}(?:\.\d+)?)\s*([smhdw]|(?:second|minute|hour|day|week)s?)?", typed)
    if later and (later[1] or later[3]):
        return at_s + float(later[2]) * _BEGIN_UNITS[(later[3] or "s")[0]]
    local = datetime.fromtimestamp(at_s).astimezone()
    today = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)  # its days may have 23 hours
    if typed == "tomorrow":
        return (today + timedelta(days=1)).timestamp()
    if of_day := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", typed):
        then = today.replace(hour=int(of_day[1]), minute=int(of_day[2]), second=int(of_day[3] or 0))
        return (then if then.timestamp() > at_s else then + timedelta(days=1)).timestamp()
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except ValueError:
        bad_input(
            f"{option} {text!r} is no time; expected such as 2h or now+5minutes (from now), 18:00, tomorrow, or "
            "2026-01-31T18:00"
        )


def words(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a repeatable option that also takes commas."""
    return tuple(word.strip() for entry in entries for word in entry.split(",") if word.strip())


_STATE_NAMES: Final = {
    "PD": ("waiting", "pending", "queued"),
    "R": ("running",),
    "PR": ("preempting",),
    "CG": ("stopping", "completing"),
    "CD": ("completed", "done"),
    "F": ("failed",),
    "CA": ("cancelled", "canceled"),
}
"""Of each state: how it may be typed, what the error names first."""


def job_states(typed: Iterable[str]) -> tuple[str, ...]:
    """
    Return the states of jobs that were typed, by letters or names, some with commas between them.

    Examples
    --------
    >>> job_states(["pd,running", "F"])
    ('PD', 'R', 'F')
    """
    states: dict[str, None] = {}
    for word in (word.strip() for entry in typed for word in entry.split(",") if word.strip()):
        found = next((state for state, names in _STATE_NAMES.items() if word.lower() in {state.lower(), *names}), None)
        if found is None:
            names = f"{', '.join(_STATE_NAMES)}, or {', '.join(names[0] for names in _STATE_NAMES.values())}"
            bad_input(f"--state {word!r} is no state; expected some of {names}")
        states[found] = None
    return tuple(states)


AFTER: Final = ("after", "afterok", "afterany", "afternotok", "aftercorr")
"""What a job may wait for, in Slurm's words; :data:`penstock_log.spec.Dependency` says what they mean."""
MOST_S: Final = 1_000_000_000
MOST_EPOCH_S: Final = 1e11
"""The latest moment that anybody may mean."""
TIME_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BEGIN_UNITS: Final = {**TIME_UNITS, "w": 7 * 86400}


def now_s() -> float:
    """Return the time by this machine's clock, to show ages and to resolve ``--at 10m``."""
    return time.time()  # noqa: TID251 - the command line shows ages to people; nothing is decided by them


def span(seconds: float | None) -> str:
    """
    Return a span in at most two units; a dash for none.

    Examples
    --------
    >>> [span(s) for s in (None, 0.04, 9.96, 59.9, 61, 7265, 90061)]
    ['-', '0.0s', '10.0s', '59.9s', '1m01s', '2h01m', '1d01h']
    """
    if not seconds:  # as of all jobs that have not run
        return "-" if seconds is None else "0.0s"
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f}s"
    return _whole_span(int(seconds + 0.5))


@lru_cache(maxsize=10_000)  # a list of jobs has many alike
def _whole_span(whole: int) -> str:
    for size, unit, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{small}"
    raise AssertionError(whole)


def duration_s(text: str, option: str, others: str = "") -> float:
    """
    Return how long a text says, in seconds; ``others`` says which forms the option takes beside these.

    Examples
    --------
    >>> duration_s("90d", "--valid"), duration_s("1.5h", "--valid"), duration_s("30s", "--valid")
    (7776000.0, 5400.0, 30.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or not float(found[1]):
        bad_input(f"{option} {text!r} is no duration; expected a number over 0 with s, m, h or d, such as 12h{others}")
    return float(found[1]) * TIME_UNITS[found[2]]


def clock(at_s: float | None) -> str:
    """Return a moment in the local time zone, to the second; a dash for none."""
    return "-" if at_s is None else datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def moment(text: str | None, now: float | None = None, option: str = "--at") -> int | float | str | None:
    """
    Return what ``--at`` means to the gateway: a sequence, seconds since the epoch, or RFC 3339; ``10m`` is so long ago.

    Examples
    --------
    >>> moment("12"), moment("1.5m", now=100.0), moment("2026-01-02T03:04:05Z")
    (12, 10.0, '2026-01-02T03:04:05Z')
    """
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    if ago := re.fullmatch(r"-?(\d+(?:\.\d+)?)([smhd])", text):
        return (now_s() if now is None else now) - float(ago[1]) * TIME_UNITS[ago[2]]
    try:
        return float(text)
    except ValueError:
        return _rfc3339(text, option)


def since_s(text: str, now: float | None = None) -> float:
    """
    Return what ``--since`` of jobs means, in seconds since the epoch; ``2h`` is so long ago.

    Examples
    --------
    >>> since_s("1.5m", now=100.0), since_s("1e9"), since_s("2026-01-02T03:04:05Z")
    (10.0, 1000000000.0, 1767323045.0)
    """
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return (now_s() if now is None else now) - float(ago[1]) * TIME_UNITS[ago[2]]
    try:
        at_s = float(text) if re.fullmatch(r"[0-9.e+]+", text) else datetime.fromisoformat(text).timestamp()
    except ValueError:
        at_s = -1.0
    if not 0 <= at_s <= MOST_EPOCH_S:
        bad_input(
            f"--since {text!r} is no time; expected a span ago such as 2h, a time such as 2026-01-31T09:30:00, or "
            "seconds since the epoch"
        )
    return at_s


def _rfc3339(text: str, option: str) -> str:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        bad_input(
            f"{option} {text!r} is no moment; expected a stream sequence, a span such as 10m, seconds since the epoch, "
            "or a time such as 2026-01-31T09:30:00Z"
        )
    return text if parsed.tzinfo else parsed.astimezone().isoformat()
