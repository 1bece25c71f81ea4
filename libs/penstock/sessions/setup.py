"""
Setup of a process: what the executor sets in its environment, decoded once.

:func:`read` makes a :class:`ProcessSetup` from the environment. :class:`Resize` and :func:`factor` say what becomes of
a script's learning rate where its job has another batch size; they are pure.

References
----------
Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017 (linear).
Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014 (square root).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Optional, get_args

import msgspec

from penstock_log.agent_protocol import AgentEnv
from penstock_log.spec import AggregationMode, Param


class SessionError(Exception):
    """Root of the errors of :func:`penstock.session`."""


class BadEnvironment(SessionError):
    """A variable that the executor sets does not hold what it should."""


class ProcessSetup(msgspec.Struct, frozen=True, kw_only=True):
    """
    A process's place in its job; the defaults are those of a script run by hand.

    Attributes
    ----------
    socket : str
        Path of the executor's Unix socket; empty without an executor.
    lanes : str
        Path of the token broker's socket; empty where the job does not take turns with others.
    checkpoint_dir : Path or None
        Where checkpoints live; None where none are kept, as in a profiler's sample.
    checkpoint_memory : Path or None
        Folder in memory, where a checkpoint may be before it is on the disk; None where the job does not ask for that.
    checkpoint_most : int
        Bytes of the largest checkpoint that may be there.
    memory_socket : str
        Path of the socket of the node's memory agent; empty where there is none.
    aggregation, aggregation_servers : {"shared", "own", "none"}, int
        How the job would have its pushes aggregated, and how many aggregators it would have as its own.
    aggregation_socket, aggregation_token : str
        Path of the socket of the node's aggregation agent, and what proves to it that the process is of its run; empty
        where there is none.
    resume_step : int or None
        The step of the checkpoint to load, as the executor has found it there; 0 for none, None for the newest.
    begin_dir : Path or None
        The checkpoints of another job, from which this one begins where it has none.
    begin_step : int or None
        The step of the checkpoint to load from there.
    save_at_end : bool
        Whether to save a checkpoint at the end of the work as well.
    checkpoint_s : float
        Least seconds between two periodic checkpoints; 0 for none.
    base_batch_size, lr_rule : int, {"keep", "linear", "sqrt", "callback"}
        The batch size for which the script's learning rate is meant, 0 where none is given, and what becomes of it at
        another.
    heard, hold_s : str, float
        Path of the page that says when this node was last heard, and for how many seconds after that the process may go
        on; empty where nobody asks for it.
    sample_iterations : int
        Iterations after which a profiler's sample ends; 0 where this is no sample.
    backend : str
        The backend of its devices: ``cuda``, ``cpu`` or ``emulated``; empty by hand.
    emulated_speed : float
        Speed of the emulated device relative to this host; 0 on a real device.
    memory_fraction : float
        Part of each of its devices that a framework's allocator may take; 0 where none is given.
    """

    job_id: str = ""
    epoch: int = 0
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    socket: str = ""
    lanes: str = ""
    checkpoint_dir: Optional[Path] = None
    checkpoint_memory: Optional[Path] = None
    checkpoint_most: int = 0
    memory_socket: str = ""
    aggregation: AggregationMode = "shared"
    aggregation_servers: int = 1
    aggregation_socket: str = ""
    aggregation_token: str = ""
    resume_step: Optional[int] = None
    begin_dir: Optional[Path] = None
    begin_step: Optional[int] = None
    save_at_end: bool = False
    checkpoint_s: float = 0.0
    params: dict[str, Param] = {}
    batch_size: int = 0
    base_batch_size: int = 0
    lr_rule: Rule = "keep"
    heard: str = ""
    hold_s: float = 0.0
    sample_iterations: int = 0
    device_kind: str = ""
    backend: str = ""
    emulated_speed: float = 0.0
    memory_fraction: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether nothing has to happen at the boundary of a step."""
        return not (self.socket or self.lanes or self.checkpoint_dir or self.sample_iterations or self.emulated_speed)


def read(environ: Mapping[str, str]) -> ProcessSetup:
    """
    Decode the variables of :class:`penstock_log.agent_protocol.AgentEnv`; unset and empty ones keep their defaults.

    Raises
    ------
    BadEnvironment
        If a value has the wrong form, is negative, or the rank is outside of the world.
    """
    sample = _whole(environ, AgentEnv.SAMPLE_ITERATIONS)
    folder, begin = environ.get(AgentEnv.CHECKPOINT_DIR, ""), environ.get(AgentEnv.BEGIN_DIR, "")
    memory = environ.get(AgentEnv.CHECKPOINT_MEMORY, "")
    setup = ProcessSetup(
        job_id=environ.get(AgentEnv.JOB_ID, ""),
        epoch=_whole(environ, AgentEnv.EPOCH),
        rank=_whole(environ, AgentEnv.RANK),
        local_rank=_whole(environ, AgentEnv.LOCAL_RANK),
        world_size=_whole(environ, AgentEnv.WORLD_SIZE) or 1,
        socket=environ.get(AgentEnv.SOCKET, ""),
        lanes=environ.get(AgentEnv.LANES, ""),
        checkpoint_dir=Path(folder) if folder and not sample else None,
        checkpoint_memory=Path(memory) if memory and not sample else None,
        checkpoint_most=_whole(environ, AgentEnv.CHECKPOINT_MOST),
        memory_socket=environ.get(AgentEnv.MEMORY_SOCKET, ""),
        aggregation=_aggregation(environ),
        aggregation_servers=_whole(environ, AgentEnv.AGGREGATION_SERVERS) or 1,
        aggregation_socket=environ.get(AgentEnv.AGGREGATION_SOCKET, ""),
        aggregation_token=environ.get(AgentEnv.AGGREGATION_TOKEN, ""),
        resume_step=_whole(environ, AgentEnv.RESUME_STEP) if environ.get(AgentEnv.RESUME_STEP) else None,
        begin_dir=Path(begin) if begin and not sample else None,
        begin_step=_whole(environ, AgentEnv.BEGIN_STEP) if environ.get(AgentEnv.BEGIN_STEP) else None,
        save_at_end=bool(_whole(environ, AgentEnv.SAVE_AT_END)),
        checkpoint_s=_number(environ, AgentEnv.CHECKPOINT_S),
        params=_params(environ),
        batch_size=_whole(environ, AgentEnv.BATCH_SIZE),
        base_batch_size=_whole(environ, AgentEnv.BASE_BATCH_SIZE),
        lr_rule=_rule(environ),
        heard=environ.get(AgentEnv.HEARD, ""),
        hold_s=_number(environ, AgentEnv.HOLD_S),
        sample_iterations=sample,
        device_kind=environ.get(AgentEnv.DEVICE_KIND, ""),
        backend=environ.get(AgentEnv.BACKEND, ""),
        emulated_speed=_number(environ, AgentEnv.EMULATED_SPEED),
        memory_fraction=min(_number(environ, AgentEnv.MEMORY_FRACTION), 1.0),
    )
    if setup.rank >= setup.world_size:
        size = f"{AgentEnv.WORLD_SIZE} is {setup.world_size}"
        message = f"{AgentEnv.RANK} is {setup.rank}, but {size}: ranks run from 0 below it"
        raise BadEnvironment(message)
    if setup.lr_rule != "keep" and not setup.base_batch_size:
        message = (
            f"{AgentEnv.LR_RULE} is {setup.lr_rule!r}, but {AgentEnv.BASE_BATCH_SIZE} is not set; expected the batch "
            "size for which the script's learning rate is meant"
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
    text = environ.get(AgentEnv.LR_RULE) or "keep"
    try:
        rule: Rule = msgspec.convert(text, Rule)
    except msgspec.ValidationError as error:
        raise _bad(AgentEnv.LR_RULE, text, f"{', '.join(RULES[:-1])} or {RULES[-1]}") from error
    return rule


def _aggregation(environ: Mapping[str, str]) -> AggregationMode:
    text = environ.get(AgentEnv.AGGREGATION) or "shared"
    try:
        mode: AggregationMode = msgspec.convert(text, AggregationMode)
    except msgspec.ValidationError as error:
        raise _bad(AgentEnv.AGGREGATION, text, "shared, own or none") from error
    return mode


def _params(environ: Mapping[str, str]) -> dict[str, Param]:
    text = environ.get(AgentEnv.PARAMS) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, Param])
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _bad(AgentEnv.PARAMS, text, f"a JSON object of numbers, strings and booleans ({error})") from error


def _bad(name: str, text: str, expected: str) -> BadEnvironment:
    return BadEnvironment(f"{name} is {text!r}, expected {expected}; the executor sets it, unset it to run by hand")


Rule = Literal["keep", "linear", "sqrt", "callback"]
RULES: tuple[str, ...] = get_args(Rule)


class Resize(msgspec.Struct, frozen=True, kw_only=True):
    """
    The size that a run has, and the size with which its state was trained.

    Attributes
    ----------
    batch_size : int
        Samples of one step over all processes; 0 where it is not known.
    base_batch_size : int
        The batch size for which the script's learning rate is meant.
    previous_batch_size : int
        The batch size of the run that saved the checkpoint; the base where none was loaded.
    world_size, previous_world_size : int
        Processes now and then; the same where no checkpoint was loaded.
    rule : {"keep", "linear", "sqrt", "callback"}
        The job's rule for its learning rate.
    """

    batch_size: int
    base_batch_size: int
    previous_batch_size: int
    world_size: int
    previous_world_size: int
    rule: Rule

    @property
    def factor(self) -> float:
        """The factor of the script's learning rate; 1 where the script's own function decides."""
        return factor(self.rule, self.base_batch_size, self.batch_size)


def factor(rule: Rule, base_batch_size: int, batch_size: int) -> float:
    """
    Return the factor of a learning rate that is meant for one batch size, at another.

    Examples
    --------
    >>> [factor(rule, 32, 128) for rule in ("keep", "linear", "sqrt")]
    [1.0, 4.0, 2.0]
    """
    if not base_batch_size or not batch_size:
        return 1.0
    ratio = batch_size / base_batch_size
    return {"keep": 1.0, "callback": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
