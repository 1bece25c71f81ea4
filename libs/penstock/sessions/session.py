"""
``penstock.session()``: the one line by which a training script can be measured, preempted and resumed.

No module of this package is called ``session``: importing it would put the module in the function's place.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, SupportsFloat, TypeVar

from penstock.sessions.boundary import Boundary
from penstock.sessions.loop_position import LoopCourse, LoopRecord, skip
from penstock.sessions.sampler_state import RunSize, SamplerState
from penstock.sessions.setup import ProcessSetup, Resize, SessionError, read
from penstock_log.agent_protocol import LONGEST_METRIC, MOST_METRICS
from penstock_log.spec import Param
from penstock_log.workload import skew

if TYPE_CHECKING:
    from penstock.aggregation.flat_vector import Values
    from penstock.aggregation.job_aggregation import JobAggregation
    from penstock.sessions.sampler import DataSampler
    from penstock.sessions.torch_support import ProcessGroup
    from penstock_log.aggregation_facts import RuleName
    from penstock_sharing.token.lane_client import LaneClient

T = TypeVar("T")
_log = logging.getLogger("penstock.session")


class Tensor(Protocol):
    """What is asked of a tensor."""

    def numel(self) -> int:
        """Return the number of its elements."""
        ...

    def element_size(self) -> int:
        """Return the bytes of one."""
        ...


class Module(Protocol):
    """What is asked of a model; ``torch.nn.Module`` has it."""

    def parameters(self) -> Iterable[Tensor]:
        """Return its tensors, each once."""
        ...


_active: Session | None = None


def session() -> Session:
    """
    Return the session of this process, to be used in a ``with`` statement.

    Without Penstock around it, it is a plain loop: no daemon, no variable and no file is needed.

    Raises
    ------
    BadEnvironment
        If a variable that the executor sets cannot be read.

    Examples
    --------
    >>> with session() as s:
    ...     for batch in s.iterations(["a", "b"]):
    ...         s.report(loss=0.5)
    ...     s.step
    2
    """
    return Session(read(os.environ))


class Session:
    """
    A training script's side of Penstock; made by :func:`session`.

    A step is one item of :meth:`iterations`. It counts as done when the loop comes back for the next item, or is
    left by ``break``.
    """

    def __init__(self, setup: ProcessSetup) -> None:
        self._setup = setup
        self._course = LoopCourse()
        self._sampling = SamplerState()
        self._sizing = RunSize(setup, self._sampling)
        self._boundary = Boundary(setup, self._course, self._sampling, self._sizing)
        self._crowded = False
        self._aggregation: JobAggregation | None = None

    # --- what the job is
    @property
    def job_id(self) -> str:
        """The job's id; empty where the script is run by hand."""
        return self._setup.job_id

    @property
    def params(self) -> dict[str, Param]:
        """The job's hyper-parameters, to be read with defaults: ``float(session.params.get("lr", 0.1))``."""
        return dict(self._setup.params)

    @property
    def batch_size(self) -> int:
        """The batch size of one step, over all processes, that Penstock has chosen; 0 where it has chosen none."""
        return self._sizing.desired()

    @property
    def rank(self) -> int:
        """This process's number in the gang, from 0."""
        return self._setup.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its node, from 0."""
        return self._setup.local_rank

    @property
    def world_size(self) -> int:
        """The number of processes in the gang."""
        return self._setup.world_size

    @property
    def device_kind(self) -> str:
        """The kind of device, such as ``h100``; empty where the script is run by hand."""
        return self._setup.device_kind

    @property
    def sampling(self) -> bool:
        """Whether this is a short run for the profiler: it keeps no checkpoints and its result is thrown away."""
        return self._setup.sample_iterations > 0

    @property
    def checkpoint_dir(self) -> Path | None:
        """The folder of the job's checkpoints, the same for all attempts; None where none are kept."""
        return self._setup.checkpoint_dir

    # --- where it is
    @property
    def step(self) -> int:
        """Steps done since the job's very beginning, over all its runs."""
        return self._course.step

    @property
    def samples(self) -> int:
        """
        Samples that :meth:`sampler` handed out and that were done, over all processes, runs and epochs; 0 without one.

        Where the batch size may change, this says how far a training has come, and the number of its steps does not.
        """
        return self._boundary.samples

    @property
    def replaying(self) -> bool:
        """
        Whether the script, after a resume, is still on its way to where the checkpoint was taken.

        Loops that had ended give no items then. What stands between them (an evaluation, a scheduler's step) was done
        before the checkpoint, and can be left out by asking this.
        """
        return self._course.replaying

    @property
    def should_checkpoint(self) -> bool:
        """Whether a checkpoint is going to be saved at the end of the step in which this is asked."""
        return self._boundary.checkpoint_comes()

    @property
    def time_left_s(self) -> float | None:
        """How long the job may still run by its time limit, in seconds; None where it has none, or is run by hand."""
        return self._boundary.time_left_s

    @property
    def time_is_short(self) -> bool:
        """Whether the job was warned that its time limit ends it soon (``warn_s``), and was not given more since."""
        return self._boundary.time_is_short

    # --- what the script does
    def on_time_warning(self, call: Callable[[float], object]) -> None:
        """
        Set what is done when the job is warned that its time limit ends it soon.

        A checkpoint is saved then in any case, where :meth:`on_checkpoint` has said how.

        Parameters
        ----------
        call : callable
            Called with the seconds that are left, on every rank, between two steps.
        """
        self._boundary.on_time_warning = call

    def on_checkpoint(self, save: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        """
        Set how the job's state is saved and loaded, and load the last checkpoint at once where there is one.

        Parameters
        ----------
        save : callable
            Called with an empty folder, on rank 0 only, between two steps. What it writes becomes a checkpoint as a
            whole or not at all; if it raises, the job goes on with the checkpoint from before.
        load : callable
            Called with such a folder, on every rank.

        Raises
        ------
        SessionError
            If a loop has begun, or if functions were given before.
        CheckpointDamaged
            If there are checkpoints and ``load`` failed on each of them.
        """
        boundary = self._boundary
        if self._course.begun or self._course.in_epochs or boundary.save:
            message = "on_checkpoint() is called once, and before the first iterations(): a checkpoint moves the start"
            raise SessionError(message)
        boundary.save = save
        if boundary.checkpoints is None:
            return
        boundary.claim_checkpoints()
        manifest = boundary.load(load)
        if manifest is not None:
            self._course.resume(manifest.step, manifest.history)
            self._sampling.resume(manifest.place)
            self._sizing.resume(manifest)
            boundary.send_progress()
        boundary.put_off_checkpoint()

    def on_park(self, away: Callable[[], object] | None, back: Callable[[], object] | None = None) -> None:
        """
        Set what the script does where it is parked: preempted, stopped with its memory kept, and continued later.

        Its checkpoint is saved before. Without this, a script whose devices are the host's own may be parked, and one
        with GPUs is not: it leaves, and a later run loads its checkpoint.

        Parameters
        ----------
        away : callable or None
            Called before the process is stopped: moves off the device what the script has there. If it raises, the
            process leaves. None: the process is never to be parked.
        back : callable, optional
            Called when it goes on: moves it back. What it raises ends the run as it would in the script's loop.
        """
        parking = self._boundary.parking
        parking.refused |= away is None
        parking.away, parking.back, parking.undo = away, back, None

    def park_torch(self) -> None:
        """
        Let the script be parked on GPUs: what PyTorch holds there is moved to the host's memory, and back later.

        All tensors of the process are moved, models, optimizers and gradients among them, and stay the objects that
        they are; nothing has to be named. It takes as much of the host's memory as they have on the device. Where there
        is less, where there are CUDA graphs, and where something large cannot be moved, the process leaves as without
        parking, and says why. It is what :meth:`on_park` sets; the last of both calls counts.

        A process that was parked and does not go on, as its memory or its place is needed, ends at once, by
        ``os._exit(75)``: its tensors are not on the device, so what the script does behind its loop, ``finally``,
        ``with`` and ``atexit`` among it, is not done. Its checkpoint is complete by then.
        """
        self._boundary.parking.move_torch()

    def report(self, **metrics: SupportsFloat) -> None:
        """
        Keep the latest value of each metric; sent a few times a second, and at the end.

        A tensor is detached and only read when sent, so that a report does not wait for the device. Values that are not
        finite are not sent. At most 256 metrics are kept, by names of at most 128 characters.
        """
        known = self._boundary.metrics
        for name, value in metrics.items():
            if name not in known and (len(known) >= MOST_METRICS or len(name) > LONGEST_METRIC):
                self._leave_out(name)
                continue
            detach = getattr(value, "detach", None)
            known[name] = detach() if detach else _number(name, value)

    def _leave_out(self, name: str) -> None:
        if not self._crowded:
            self._crowded = True
            kept = f"{MOST_METRICS} are kept, by names of at most {LONGEST_METRIC} characters"
            _log.warning("metric_left_out name=%s; %s, and of what is more nothing", name[:LONGEST_METRIC], kept)

    def describe(self, model: Module) -> float:
        """
        Let the scheduler know the model's shape; return its skew: the share of its largest tensor in all of them.

        Gangs whose model has one tensor that outweighs the rest suffer from being spread over nodes. Nothing of the
        model is sent but this number.

        Parameters
        ----------
        model : torch.nn.Module
            Or anything else whose ``parameters()`` have ``numel()`` and ``element_size()``; whole, before it is divided
            among the processes.

        Examples
        --------
        ``session.describe(torchvision.models.vgg16())`` gives 0.743.
        """
        self._boundary.skew = skew(tensor.numel() * tensor.element_size() for tensor in model.parameters())
        return self._boundary.skew

    def sampler(self, dataset_size: int, batch_size: int = 0, *, seed: int = 0, shuffle: bool = True) -> DataSampler:
        """
        Return this process's rows of each step's batch, to be iterated: each loop of :meth:`iterations` is an epoch.

        Each epoch sees each sample once, over all processes of the gang and all runs of the job, also where a later run
        has another number of processes or another batch size: checkpoints keep how many samples of it are done.

        Parameters
        ----------
        dataset_size : int
        batch_size : int
            Of one step over all processes, where Penstock has chosen none (:attr:`batch_size`).
        seed : int
            Of the orders, on all processes and in all runs the same.
        shuffle : bool
            Whether each epoch has an order of its own, or goes from the first sample to the last.

        Raises
        ------
        SessionError
            If there is a sampler already, if there is nothing to sample from, if a batch has fewer samples than there
            are processes, or if a checkpoint's epoch cannot be gone on with.

        Examples
        --------
        >>> with session() as s:
        ...     sampler = s.sampler(5, batch_size=2, shuffle=False)
        ...     [rows.tolist() for epoch in range(2) for rows in s.iterations(sampler)]
        [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4]]
        """
        from penstock.sessions.sampler import DataSampler  # noqa: PLC0415 - it needs numpy, which a plain loop does not

        size, rank, world_size = self._setup.batch_size or batch_size, self.rank, self.world_size
        return self._sampling.adopt(
            DataSampler(dataset_size, batch_size=size, rank=rank, world_size=world_size, seed=seed, shuffle=shuffle)
        )

    def lr(self, base: float) -> float:
        """
        Return a learning rate for the batch size that this run has, by the job's rule.

        An optimizer that was loaded from a checkpoint has the rate of the run that saved it. So set it after
        :meth:`on_checkpoint`: ``for group in optimizer.param_groups: group["lr"] = session.lr(0.1)``.

        Parameters
        ----------
        base : float
            As it is meant for the job's base batch size.

        Examples
        --------
        >>> s = Session(ProcessSetup(batch_size=64, base_batch_size=32, lr_rule="linear"))
        >>> s.lr(0.1)
        0.2
        """
        return base * self._sizing.factor()

    def on_resize(self, adapt: Callable[[Resize], object]) -> None:
        """
        Set what the script does with the size that it has, such as to choose its learning rate (``lr = "callback"``).

        Parameters
        ----------
        adapt : callable
            Called once in each run, before its first step: after the checkpoint was loaded, and also where the size is
            as it was, so that nothing of what it does has to be saved.

        Raises
        ------
        SessionError
            If a loop has begun, or if a function was given before.
        """
        if self._course.begun or self._sizing.adapt is not None:
            raise SessionError(
                "on_resize() is called once, and before the first iterations(): it is for the first step"
            )
        self._sizing.adapt = adapt

    def distributed(self, *, timeout_s: float = 1800.0) -> ProcessGroup:
        """
        Return the gang's process group for PyTorch, to be used in a ``with`` statement; also for a gang of one.

        Parameters
        ----------
        timeout_s : float
            How long a process waits for its peers in one operation. A peer that has ended is noticed at once; this is
            for one that hangs, and must be longer than a checkpoint takes.

        Raises
        ------
        SessionError
            If there is no torch, or none that can use the job's devices.
        """
        from penstock.sessions.torch_support import distributed  # noqa: PLC0415 - for those who ask

        return distributed(self._setup, timeout_s)

    def aggregate(
        self,
        values: Values,
        rule: RuleName = "mean",
        *,
        every: int = 0,
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> JobAggregation:
        """
        Return what adds up values over the job's processes, by aggregators that jobs share; once in a script.

        Parameters
        ----------
        values : array, tensor, sequence or mapping of them, or torch.nn.Module
            The parameters, of numpy or PyTorch; the same shapes on all processes.
        rule : {"mean", "sgd", "momentum", "adamw"}
            The mean of what the processes give, or an optimizer on the aggregators that takes it as its gradient.
        every : int
            For ``step()``: how many local steps lie between two averages.
        lr, momentum, weight_decay, betas, eps : float
            Of the optimizer, as those of ``torch.optim``.

        Raises
        ------
        SessionError
            If numpy is missing, an argument makes no sense, or it was called before.

        Examples
        --------
        >>> import numpy as np
        >>> weights = np.zeros(3, "f4")
        >>> with session() as s:
        ...     local = s.aggregate(weights, every=2)
        ...     for batch in s.iterations(range(4)):
        ...         weights += 1
        ...         if local.step():
        ...             print(weights.tolist())
        [2.0, 2.0, 2.0]
        [4.0, 4.0, 4.0]
        """
        if self._aggregation is not None:
            raise SessionError("aggregate() is called once in a script; give it all values together")
        try:
            from penstock.aggregation.job_aggregation import aggregation_of  # noqa: PLC0415 - it needs numpy
        except ImportError as error:
            raise SessionError(f"session.aggregate() needs numpy: {error}") from error
        about = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        self._boundary.parking.refused = True  # its agent knows a run by its token
        self._aggregation = aggregation_of(self._setup, values, rule, every, about)
        return self._aggregation

    def iterations(self, items: Iterable[T]) -> Iterator[T]:
        """
        Yield the items, one for each step; progress, checkpoints, turns and stops come between two of them.

        After a resume, the items that were done before are left out, over all loops of the script. Of a sampler (or a
        ``DataLoader`` whose ``batch_sampler`` it is) those are the samples, however many steps they took.

        Raises
        ------
        SessionError
            If another loop is open, or outside of the ``with`` statement.
        SystemExit
            Out of the loop, where the job has been asked to stop and its checkpoint is complete.
        """
        self._begin_loop()
        course, boundary = self._course, self._boundary
        loop = course.next_loop()
        sampler = self._sampling.of(items)
        found = self._rest(items, sampler, loop)
        if found is None:
            return
        rest, left = found
        boundary.begin()
        course.open_loop(loop.items)
        boundary.pace.resume()
        try:
            if self._setup.plain:
                for item in rest:
                    yield item
                    course.step += 1
            elif boundary.turns is not None:
                yield from _in_turn(rest, left, boundary, boundary.turns)
            else:
                for item in rest:
                    yield item
                    left -= 1
                    if left:
                        boundary.cross()
                    else:
                        boundary.cross_last()
        except GeneratorExit:  # a break: nothing can be raised from here, so the next loop's start attends
            course.count()
            course.unattended = True
            boundary.pace.lap()
            raise
        finally:
            course.close_loop()
            if sampler is not None:
                self._sampling.close(sampler, course.step)
            boundary.pause()

    def epochs(self, count: int) -> Iterator[int]:
        """
        Yield the numbers of the epochs from the one in which the job was stopped, or else from 0.

        An epoch is complete when the loop comes back for the next one: whatever stands behind its :meth:`iterations`,
        such as an evaluation or a scheduler's step, is done once for each, and needs no :attr:`replaying`. A stop or a
        checkpoint that falls due at the end of :meth:`iterations` waits for that. A job that begins from another's
        checkpoint, or has another ``count`` after a resume, does the epochs that are missing.

        Parameters
        ----------
        count : int
            Epochs in all, those of earlier runs included.

        Raises
        ------
        SessionError
            If it stands in another loop, or outside of the ``with`` statement.

        Examples
        --------
        >>> with session() as s:
        ...     for epoch in s.epochs(2):
        ...         done = [f"{epoch}{batch}" for batch in s.iterations("ab")]
        ...         print(done)
        ['0a', '0b']
        ['1a', '1b']
        """
        self._check_open("epochs()")
        course = self._course
        if course.open or course.in_epochs:
            message = "epochs() stands around the loops over batches, once: for epoch in session.epochs(n): ..."
            raise SessionError(message)
        loop = course.next_epochs()
        if loop.state == "ended" or (loop.state == "reopened" and loop.items >= count):
            return
        course.open_epochs(loop)
        try:
            inner = loop.inner
            for epoch in range(loop.items, count):
                course.begin_epoch(inner)
                inner = None
                yield epoch
                course.end_epoch()
                self._boundary.catch_up()
        except GeneratorExit:  # a break: this epoch was the last
            course.end_epoch()
            raise
        finally:
            course.close_epochs()
        course.replaying = False

    def __enter__(self) -> Session:
        """Connect to the executor, if there is one."""
        global _active  # noqa: PLW0603 - a process has one place in its job, hence one session
        if _active is not None:
            message = "this process has a session already; use that one, a process can be at one step only"
            raise SessionError(message)
        _active = self
        self._boundary.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Report how it ended, and disconnect."""
        global _active  # noqa: PLW0603 - see above
        _active = None
        if self._course.begun:
            self._sizing.end()
        try:
            self._boundary.disconnect(error)
        finally:  # after the last checkpoint, which has the optimizer's state
            if self._aggregation is not None:
                self._aggregation.close(well=error is None or (isinstance(error, SystemExit) and not error.code))

    def _rest(
        self, items: Iterable[T], sampler: DataSampler | None, loop: LoopRecord
    ) -> tuple[Iterator[T], int] | None:
        """
        Return what a loop is still to give, and how many that is, where that matters; None where it was replayed.

        The count is 0 or less where it is unknown, or where the end of a loop is like any other of its steps.
        """
        rest = skip(items, loop.items) if sampler is None else iter(())
        if loop.state == "ended":
            return None
        if loop.state == "reopened":
            first = list(islice(rest, 1))
            if not (first if sampler is None else sampler.reopen()):
                return None
            rest = chain(first, rest)
            self._course.reopen_loop()
        if sampler is not None:  # which knows by itself what was done
            self._sampling.open(sampler, self._course.step, loop.items)
            rest = iter(items)
        done = loop.items if sampler is None else 0
        return rest, (_length(items) - done if self._course.in_epochs else 0)

    def _check_open(self, what: str) -> None:
        if _active is not self:
            raise SessionError(f"{what} needs an open session: with penstock.session() as session: ...")

    def _begin_loop(self) -> None:
        self._check_open("iterations()")
        if self._course.open:
            message = (
                "an iterations() loop is open already; put epochs around it: "
                "for epoch in session.epochs(n): for batch in session.iterations(loader): ..."
            )
            raise SessionError(message)
        if not self._course.begun:
            self._sizing.begin()


def _in_turn(items: Iterable[T], left: int, boundary: Boundary, turns: LaneClient) -> Iterator[T]:
    """Yield each item when it is this process's turn; it has been fetched before. ``left`` are so many, if positive."""
    for item in items:
        boundary.enter(turns)
        yield item
        left -= 1
        if left:
            boundary.cross()
        else:
            boundary.cross_last()
        boundary.rest(turns)


def _length(items: object) -> int:
    """Return how many items there are; 0 where that is unknown before they have come."""
    try:
        return len(items)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return 0


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        message = f"report({name}={value!r}): a metric is a number or a tensor of one element"
        raise SessionError(message) from error
