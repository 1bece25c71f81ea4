"""
``session.aggregate()``: what the processes of a job add up, in one of three ways.

* :meth:`JobAggregation.mean` replaces values by their mean over all processes, and :meth:`JobAggregation.ddp_hook`
  does that for PyTorch's ``DistributedDataParallel``.
* :meth:`JobAggregation.push` gives gradients, and :meth:`JobAggregation.pull` fetches the parameters that an optimizer
  on the aggregators has updated with their mean.
* :meth:`JobAggregation.step` averages parameters once in so many steps, as local SGD and DiLoCo do.

A job of one process does the same arithmetic by itself, and needs no aggregator. So does each process of a profiler's
sample, which has no aggregators.

References
----------
Gu, *Efficient Memory and Network Sharing in Shared Clusters*, dissertation, 2021, ch. IV (AutoPS; arXiv 2204.03211).
Stich, *Local SGD Converges Fast and Communicates Little*, 2019.
Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Optional, Protocol, get_args

import numpy as np

from penstock.aggregation.agent_conversation import AgentConversation
from penstock.aggregation.exchange import VectorExchange
from penstock.aggregation.flat_vector import FlatVector, Values
from penstock.aggregation.local_update import LocalUpdate
from penstock.sessions.setup import ProcessSetup, SessionError
from penstock_log.aggregation_facts import RuleName
from penstock_log.aggregation_messages import VERSION, AskAggregation, UpdateRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

STATE: Final = "aggregation.npz"
"""The file in a checkpoint's folder."""
_joined: Final[set[tuple[str, int, int]]] = set()
"""Runs that this process has aggregated in, with its id: an aggregator knows one vector of a run."""


def aggregation_of(
    setup: ProcessSetup, values: Values, rule: RuleName, every: int, about: dict[str, Any]
) -> JobAggregation:
    """
    Return a session's aggregation; ``about`` has the optimizer's ``lr``, ``betas`` and so on.

    Raises
    ------
    SessionError
        If an argument makes no sense.
    """
    if rule not in get_args(RuleName):
        raise SessionError(f"rule is {rule!r}; expected one of {', '.join(get_args(RuleName))}")
    if not isinstance(every, int) or every < 0:
        raise SessionError(f"every is {every!r}; expected a number of steps, or 0 where step() is not used")
    beta1, beta2 = about.pop("betas")
    figures = {name: float(value) for name, value in {**about, "beta1": beta1, "beta2": beta2}.items()}
    for name, value in figures.items():
        if not 0 <= value < math.inf or (name.startswith("beta") and value >= 1):
            raise SessionError(
                f"{name} is {value}; expected a number, 0 or more{' and below 1' * (name[:4] == 'beta')}"
            )
    return JobAggregation(setup, values, UpdateRule(name=rule, **figures), every)


class VectorUpdate(Protocol):
    """What is done with a flat vector in each step, by aggregators or by the process itself."""

    @property
    def step(self) -> int:
        """The last step that was pushed, those before a checkpoint included."""

    def begin(self, values: Vector, state: Optional[Vector] = None, step: int = 0) -> None:
        """Begin with these parameters and this state of the optimizer, which have had so many steps."""

    def push(self, values: Vector) -> None:
        """Give this process's values of the next step."""

    def pull(self, into: Vector) -> None:
        """Wait for the step's result, and write it."""

    def exchange(self, values: Vector) -> None:
        """Push, and pull in place."""

    def state(self) -> Vector:
        """Return the optimizer's state after the last step that was pulled."""

    def leave(self) -> None:
        """Push nothing any more, after a good end."""

    def close(self) -> None:
        """Need no aggregation any more."""


class JobAggregation:
    """
    Values that a job's processes add up; made by :meth:`penstock.Session.aggregate`.

    Every process makes the same calls in the same order. Nothing is sent before the first of them.
    """

    def __init__(self, setup: ProcessSetup, values: Values, rule: UpdateRule, every: int) -> None:
        if isinstance(values, Iterator):  # such as a module's parameters(): they are needed in each step
            values = list(values)
        self._setup, self._values, self._rule, self._every = setup, values, rule, every
        self._vector = FlatVector(values, setup.aggregation_servers)
        self._anchor: Optional[Vector] = None
        self._state: Optional[Vector] = None
        self._steps = self._since = 0
        self._pushed = False
        if every and rule.name != "mean":  # the outer optimizer's parameters are those before the first local step
            self._vector.pack(values)
            self._anchor = self._vector.data.copy()
        self._update: Optional[VectorUpdate] = None
        self._agent: Optional[AgentConversation] = None
        self._hook_place = 0
        self._hook_futures: list[tuple[Any, slice, Any]] = []

    # --- the mean of values
    def mean(self, values: Optional[Values] = None) -> None:
        """
        Replace values by their mean over all processes; the sum is in the order of the ranks.

        Parameters
        ----------
        values : as given to ``aggregate``, or None
            Of the same shapes, such as the gradients; None: those that were given.

        Raises
        ------
        SessionError
            If an optimizer was asked for, a shape is another one, or there are no aggregators.
        """
        self._only("mean", "mean()", "push() and pull()")
        values = self._values if values is None else values
        self._vector.pack(values)
        self._exchange()
        self._vector.unpack(values)

    def ddp_hook(self) -> Callable[[Any, Any], Any]:
        """
        Return a communication hook: ``model.register_comm_hook(None, aggregation.ddp_hook())``.

        The gradients of all buckets are exchanged with the last of them. On GPUs with NCCL between them, PyTorch's own
        all-reduce is faster.

        Raises
        ------
        SessionError
            If an optimizer was asked for.
        """
        self._only("mean", "ddp_hook()", "push() and pull()")

        def hook(state: object, bucket: Any) -> Any:
            return self._hook(state, bucket)

        hook.__annotations__.clear()  # PyTorch refuses annotations that are not its own classes
        return hook

    def _hook(self, _: object, bucket: Any) -> Any:
        torch = sys.modules["torch"]
        buffer, future = bucket.buffer(), torch.futures.Future()
        place = slice(self._hook_place, self._hook_place + buffer.numel())
        if place.stop > self._vector.data.size:
            raise SessionError(
                f"the buckets have more than the {self._vector.data.size} elements that aggregate() was given; "
                "give it the parameters of the whole model: session.aggregate(model)"
            )
        torch.from_numpy(self._vector.data[place]).copy_(buffer)
        self._hook_place = place.stop
        self._hook_futures.append((buffer, place, future))
        if bucket.is_last():
            waiting, self._hook_futures, self._hook_place = self._hook_futures, [], 0
            self._exchange()
            for target, where, due in waiting:
                target.copy_(torch.from_numpy(self._vector.data[where]))
                due.set_result(target)
        return future

    # --- an optimizer on the aggregators
    def push(self, gradients: Values) -> None:
        """
        Give this process's gradients of the step; it is not waited for the others.

        Parameters
        ----------
        gradients : as given to ``aggregate``
            Of the same shapes as the parameters.

        Raises
        ------
        SessionError
            If no optimizer was asked for, or the last push was not pulled.
        """
        self._needs_rule("push()")
        if self._pushed:
            raise SessionError("push() was called twice; pull() comes between two of them")
        if callable(getattr(gradients, "parameters", None)):
            raise SessionError(
                "push() takes gradients, and a module stands for its parameters: "
                "push([parameter.grad for parameter in module.parameters()])"
            )
        update = self._begun()
        self._vector.pack(gradients)
        update.push(self._vector.data)
        self._pushed = True

    def pull(self, parameters: Optional[Values] = None) -> None:
        """
        Wait for the step, and write the updated parameters.

        Parameters
        ----------
        parameters : as given to ``aggregate``, or None
            Where to; None: into those that were given.

        Raises
        ------
        SessionError
            If no optimizer was asked for, or nothing was pushed.
        """
        self._needs_rule("pull()")
        if not self._pushed:
            raise SessionError("pull() was called without a push() before it")
        self._begun().pull(self._vector.data)
        self._pushed = False
        self._vector.unpack(self._values if parameters is None else parameters)

    # --- local SGD
    def step(self) -> bool:
        """
        Count a step that the process took by itself; once in ``every`` steps, bring the processes together.

        Without an optimizer, the parameters become their mean. With one, it takes what they have moved since the last
        time as its gradient (DiLoCo's outer optimizer).

        Returns
        -------
        bool
            Whether they were brought together in this step.

        Raises
        ------
        SessionError
            If ``aggregate`` was not told ``every``.
        """
        if not self._every:
            raise SessionError("step() needs to know how often: session.aggregate(parameters, every=8)")
        self._since += 1
        if self._since < self._every:
            return False
        self._since = 0
        self._vector.pack(self._values)
        if self._anchor is not None:
            np.subtract(self._anchor, self._vector.data, out=self._vector.data)
        self._exchange()
        if self._anchor is not None:
            np.copyto(self._anchor, self._vector.data)
        self._vector.unpack(self._values)
        return True

    # --- checkpoints
    def save(self, folder: Path) -> None:
        """
        Write what a resumed job needs beside its parameters: the optimizer's state, and how many steps it is since.

        It belongs into the function that saves the job, on rank 0, between two steps.

        Raises
        ------
        SessionError
            If a push was not pulled.
        """
        if self._pushed:
            raise SessionError("a checkpoint was due between push() and pull(); pull() before the step ends")
        begun = self._update is not None and self._update.step > 0
        state = self._update.state() if self._update is not None and begun else self._state
        steps = self._update.step if self._update is not None else self._steps
        about = {"since": self._since, "rule": self._rule.name, "steps": steps}
        arrays = {"about": np.array(json.dumps(about))}
        if state is not None:
            arrays["state"] = state
        if self._anchor is not None:
            arrays["anchor"] = self._anchor
        np.savez(folder / STATE, allow_pickle=False, **arrays)

    def load(self, folder: Path) -> None:
        """
        Read it back, on every rank, before the first step; the parameters are read by the script as ever.

        Raises
        ------
        SessionError
            If steps were made already, or it is of another rule or of other parameters.
        """
        if self._update is not None:
            raise SessionError("load() comes before the first step: on_checkpoint() calls it in time")
        with np.load(folder / STATE) as arrays:
            about = json.loads(str(arrays["about"]))
            state, anchor = (arrays[name] if name in arrays.files else None for name in ("state", "anchor"))
        if about["rule"] != self._rule.name:
            raise SessionError(f"the checkpoint is of the rule {about['rule']!r}, and this job has {self._rule.name!r}")
        for found in (state, anchor):
            if found is not None and found.shape[-1] != self._vector.data.size:
                raise SessionError(
                    f"the checkpoint is of {found.shape[-1]} elements, and these values have {self._vector.data.size}"
                )
        self._since, self._steps = int(about["since"]), int(about["steps"])
        self._state, self._anchor = state, anchor

    def close(self, *, well: bool = True) -> None:
        """
        Need no aggregation any more; the session calls it at its end.

        Parameters
        ----------
        well : bool
            Whether the script has ended well: then processes that go on are told, and do not wait for it.
        """
        if self._update is not None:
            if well:
                self._update.leave()
            self._update.close()
        if self._agent is not None:
            self._agent.close()

    # --- within
    def _exchange(self) -> None:
        self._begun().exchange(self._vector.data)

    def _begun(self) -> VectorUpdate:
        if self._update is None:
            start = self._vector.data if self._rule.name == "mean" else self._start_values()
            alone = self._setup.world_size == 1 or self._setup.sample_iterations > 0  # a sample's result is thrown away
            update = LocalUpdate(self._rule) if alone else self._joined(self._setup)
            update.begin(start, self._state, self._steps)
            self._update = update
        return self._update

    def _start_values(self) -> Vector:
        """Return the parameters that the optimizer begins with; the vector in use is left as it is."""
        if self._anchor is not None:
            return self._anchor.copy()
        kept = self._vector.data.copy()
        self._vector.pack(self._values)
        start = self._vector.data.copy()
        np.copyto(self._vector.data, kept)
        return start

    def _joined(self, setup: ProcessSetup) -> VectorExchange:
        if setup.aggregation == "none":
            raise SessionError(
                'this job says aggregation = "none"; leave that out, or add up as torch.distributed does'
            )
        if not setup.aggregation_socket:
            raise SessionError(
                f"{setup.world_size} processes need aggregators, and there is no aggregation agent on this node: "
                "run `penstock service aggregator` beside the executor, and set [executor] aggregator_dir; pilots have "
                "one where their allocation was added with --agents"
            )
        process = (setup.job_id, setup.epoch, os.getpid())
        if process in _joined:
            raise SessionError(
                "an earlier session of this process has aggregated in this run; open one session, and give aggregate() "
                "all values together"
            )
        _joined.add(process)
        lost: list[AgentConversation] = []
        exchange = VectorExchange(
            self._vector.layout,
            self._rule,
            rank=setup.rank,
            world_size=setup.world_size,
            on_lost=lambda message: lost[0].report_lost(message) if lost else None,
        )
        ask = AskAggregation(
            version=VERSION,
            pid=os.getpid(),
            job_id=setup.job_id,
            epoch=setup.epoch,
            rank=setup.rank,
            world_size=setup.world_size,
            token=setup.aggregation_token,
            layout=self._vector.layout,
            rule=self._rule,
            mode="own" if setup.aggregation == "own" else "shared",
            servers=setup.aggregation_servers,
        )
        self._agent = AgentConversation(setup.aggregation_socket, ask, exchange.placed, exchange.denied)
        lost.append(self._agent)
        os.register_at_fork(after_in_child=self._agent.detach)
        return exchange

    def _only(self, rule: str, what: str, instead: str) -> None:
        if self._rule.name != rule:
            raise SessionError(f"{what} is for the rule {rule!r}, and this has {self._rule.name!r}: use {instead}")

    def _needs_rule(self, what: str) -> None:
        if self._rule.name == "mean":
            raise SessionError(f'{what} needs an optimizer: session.aggregate(parameters, rule="adamw", lr=0.001)')
        if self._every:
            raise SessionError(f"{what} and every do not go together: step() brings the processes together")
