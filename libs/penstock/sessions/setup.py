"""What the executor tells a job's process through its environment, decoded once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.sessions.rates import RULES, Rule
from penstock_events.agent import Env
from penstock_events.spec import Param


class SessionError(Exception):
    """Root of what :func:`penstock.session` refuses or cannot do."""


class BadEnvironment(SessionError):
    """A variable that the executor sets does not hold what it should."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """
    A process's place in its job; the defaults are those of a script run by hand.

    Attributes
    ----------
    socket : str
        Path of the executor's Unix socket; empty without an executor.
    lanes : str
        Path of the lane keeper's socket; empty where the job does not take turns with others.
    checkpoint_dir : Path or None
        Where checkpoints live; None where none are kept, as in a profiler's sample.
    resume_step : int or None
        Of the checkpoint to load, as the executor has found it there; 0 for none, None for the newest there is.
    begin_dir : Path or None
        The checkpoints of another job, from which this one begins where it has none.
    begin_step : int or None
        Of the one to load of those.
    save_at_end : bool
        Save a checkpoint when all is done as well.
    checkpoint_s : float
        Least seconds between two periodic checkpoints; 0 for none.
    base_batch_size, lr_rule : int, {"keep", "linear", "sqrt", "callback"}
        The batch size for which the script's learning rate is meant, 0 where nobody says, and what becomes of it at
        another.
    sample_iterations : int
        Iterations after which a profiler's sample ends; 0 where this is no sample.
    backend : str
        What its devices are: ``cuda``, ``cpu`` or ``emulated``; empty by hand.
    emulated_speed : float
        Speed of the emulated device relative to this host; 0 on a real device.
    memory_fraction : float
        Part of each of its devices that a framework's allocator may take; 0 where nobody says.
    """

    job_id: str = ""
    epoch: int = 0
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    socket: str = ""
    lanes: str = ""
    checkpoint_dir: Path | None = None
    resume_step: int | None = None
    begin_dir: Path | None = None
    begin_step: int | None = None
    save_at_end: bool = False
    checkpoint_s: float = 0.0
    params: dict[str, Param] = {}
    batch_size: int = 0
    base_batch_size: int = 0
    lr_rule: Rule = "keep"
    sample_iterations: int = 0
    device_kind: str = ""
    backend: str = ""
    emulated_speed: float = 0.0
    memory_fraction: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether nothing has to happen at the boundary of a step."""
        return not (self.socket or self.lanes or self.checkpoint_dir or self.sample_iterations or self.emulated_speed)


def read(environ: Mapping[str, str]) -> Setup:
    """
    Decode the variables of :class:`penstock_events.agent.Env`; unset and empty ones keep their defaults.

    Raises
    ------
    BadEnvironment
        If a value has the wrong form, is negative, or the rank is outside of the world.
    """
    sample = _whole(environ, Env.SAMPLE_ITERATIONS)
    folder, begin = environ.get(Env.CHECKPOINT_DIR, ""), environ.get(Env.BEGIN_DIR, "")
    setup = Setup(
        job_id=environ.get(Env.JOB_ID, ""),
        epoch=_whole(environ, Env.EPOCH),
        rank=_whole(environ, Env.RANK),
        local_rank=_whole(environ, Env.LOCAL_RANK),
        world_size=_whole(environ, Env.WORLD_SIZE) or 1,
        socket=environ.get(Env.SOCKET, ""),
        lanes=environ.get(Env.LANES, ""),
        checkpoint_dir=Path(folder) if folder and not sample else None,
        resume_step=_whole(environ, Env.RESUME_STEP) if environ.get(Env.RESUME_STEP) else None,
        begin_dir=Path(begin) if begin and not sample else None,
        begin_step=_whole(environ, Env.BEGIN_STEP) if environ.get(Env.BEGIN_STEP) else None,
        save_at_end=bool(_whole(environ, Env.SAVE_AT_END)),
        checkpoint_s=_number(environ, Env.CHECKPOINT_S),
        params=_params(environ),
        batch_size=_whole(environ, Env.BATCH_SIZE),
        base_batch_size=_whole(environ, Env.BASE_BATCH_SIZE),
        lr_rule=_rule(environ),
        sample_iterations=sample,
        device_kind=environ.get(Env.DEVICE_KIND, ""),
        backend=environ.get(Env.BACKEND, ""),
        emulated_speed=_number(environ, Env.EMULATED_SPEED),
        memory_fraction=min(_number(environ, Env.MEMORY_FRACTION), 1.0),
    )
    if setup.rank >= setup.world_size:
        message = f"{Env.RANK} is {setup.rank}, but {Env.WORLD_SIZE} is {setup.world_size}: ranks run from 0 below it"
        raise BadEnvironment(message)
    if setup.lr_rule != "keep" and not setup.base_batch_size:
        message = (
            f"{Env.LR_RULE} is {setup.lr_rule!r}, but {Env.BASE_BATCH_SIZE} is not set; expected the batch size for "
            "which the script's learning rate is meant"
        )
        raise BadEnvironment(message)
    return setup


def _whole(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name) or "0"
    if not text.isdecimal():
        raise _bad(name, text, "a whole number, 0 or more")
    return int(text)


def _number(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name) or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise _bad(name, text, "a number, 0 or more")
    return value


def _rule(environ: Mapping[str, str]) -> Rule:
    text = environ.get(Env.LR_RULE) or "keep"
    try:
        rule: Rule = msgspec.convert(text, Rule)
    except msgspec.ValidationError as error:
        raise _bad(Env.LR_RULE, text, f"{', '.join(RULES[:-1])} or {RULES[-1]}") from error
    return rule


def _params(environ: Mapping[str, str]) -> dict[str, Param]:
    text = environ.get(Env.PARAMS) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, Param])
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _bad(Env.PARAMS, text, f"a JSON object of numbers, strings and booleans ({error})") from error


def _bad(name: str, text: str, expected: str) -> BadEnvironment:
    return BadEnvironment(f"{name} is {text!r}, expected {expected}; the executor sets it, unset it to run by hand")
