"""
A simulation or comparison, from its plan to what is shown, with its progress.

``penstock sim`` and ``penstock replay`` show and keep comparisons of policies in the same way. A long computation says
on a terminal how far it is, and Ctrl-C leaves the results so far.
"""

from __future__ import annotations

import json
import math
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Self

import typer

from penstock_bus.child_processes import safe_imports
from penstock_cli import render
from penstock_cli.invocation import Exit, Failure, tell
from penstock_cli.render import count, seen
from penstock_cli.simulation_arguments import ReportOptions, SimulationArguments
from penstock_cli.simulation_plan import SimulationPlan, plan, sizing_option
from penstock_cli.value_formats import span
from penstock_policies.kernels import Kernels
from penstock_simulator.outcome import Outcome
from penstock_simulator.report import device_timeline, page, policy_comparison
from penstock_simulator.report.picture import ReportAddition
from penstock_simulator.report.policy_comparison import Comparison, SeedComparison

_LOOK_EVERY_S: Final = 0.2


class PolicyRun(NamedTuple):
    """The outcome of one policy under one seed."""

    policy: str
    seed: int
    outcome: Outcome


def simulate(asked: SimulationArguments, wanted: ReportOptions) -> None:
    """Simulate every policy, and show and keep what came out; Ctrl-C leaves the results so far."""
    wanted.check()
    planned = plan(asked, timeline=wanted.out is not None, spells=wanted.gantt)
    compile_kernels(planned, says=sys.stderr is not None and sys.stderr.isatty())
    with ComputationProgress() as progress:
        found = list(_one_by_one(planned, progress) if asked.processes == 1 else _at_once(planned, progress))
    if found:
        _present(planned, found, wanted, over=progress.over)
    if progress.over:
        tell(
            "stopped by Ctrl-C" + ("; what is shown are the results so far" if found else " before there was a result")
        )
        raise typer.Exit(Exit.INTERRUPTED)


def compile_kernels(planned: SimulationPlan, *, says: bool) -> None:
    """Compile or load the kernels that a plan needs, before anything is timed; ``says`` so where that takes long."""
    from penstock_policies import matching
    from penstock_simulator.fast import kernel_state
    from penstock_simulator.fast.fast_path import warm

    found: list[tuple[Kernels, Callable[[], None]]] = []
    if planned.engine == "counted" or sizing_option(planned.asked):
        found.append((kernel_state.KERNELS, warm))
    if planned.engine == "deciders":
        found.append((matching.KERNELS, matching.warm))
    for kernels, compile_all in found:
        if not kernels.are_kept():
            if says:
                tell("compiling the simulator, once on this machine: about 40 s")
            kernels.keep_all(compile_all)


def present(comparison: Comparison, wanted: ReportOptions, title: str, addition: ReportAddition | None = None) -> None:
    """Show the results on standard output, and write them into the folder where one was named."""
    if wanted.output == "json":
        render.show_json(comparison.document if addition is None else addition.document)
    else:
        show(comparison, wide=wanted.output == "wide")
        if addition is not None:
            render.say_lines(["", *addition.lines])
    if wanted.gantt:
        for outcome in comparison.outcomes:
            render.say()
            render.say_lines(device_timeline.lines(outcome, render.terminal_width() or _WIDTH))
    if wanted.out is not None:
        missing = page.write_folder(comparison, wanted.out, title, addition)
        tell(f"wrote {wanted.out / page.PAGE}")
        if missing:
            raise Failure(missing)


def versions() -> dict[str, str]:
    """Return the versions on which results rest."""
    return {
        "penstock": metadata.version("penstock"),
        "Python": platform.python_version(),
        "NumPy": metadata.version("numpy"),
    }


def _present(planned: SimulationPlan, found: Sequence[PolicyRun], wanted: ReportOptions, *, over: bool) -> None:
    stopped = ["stopped by Ctrl-C: these are the results so far"] if over else []
    comparison = Comparison(
        trace=planned.trace,
        cluster=planned.asked.cluster,
        outcomes=[ran.outcome for ran in found if ran.seed == planned.seeds[0]],
        settings=planned.described,
        command=["penstock", "sim", *planned.asked.words(), *wanted.words()],
        versions=versions(),
        notes=[*planned.notes, *stopped],
        window_s=planned.asked.window_s or math.inf,
    )
    if len(planned.seeds) == 1:
        present(comparison, wanted, "Simulation")
        return
    several = over_seeds(comparison, found)
    lines = render.table(policy_comparison.headers(several), policy_comparison.seed_rows(several, span))
    addition = ReportAddition(several.seeds_document, lines, [policy_comparison.section(several, span)])
    present(several, wanted, "Simulation", addition)


def over_seeds(comparison: Comparison, found: Sequence[PolicyRun]) -> SeedComparison:
    """Return a comparison whose figures are means over the seeds of all runs."""
    policies = dict.fromkeys(ran.policy for ran in found)
    by_seed = {policy: {ran.seed: ran.outcome for ran in found if ran.policy == policy} for policy in policies}
    note = f"means over {max(map(len, by_seed.values()))} seeds; +- is the standard deviation between them"
    return SeedComparison(
        **{**vars(comparison), "notes": [*comparison.notes, note]},
        by_seed=by_seed,
    )


def _one_by_one(planned: SimulationPlan, progress: ComputationProgress) -> Iterator[PolicyRun]:
    """Run seed by seed, so that what Ctrl-C leaves compares all policies."""
    runs = [(policy, seed) for seed in planned.seeds for policy in planned.asked.policies]
    for at, (policy, seed) in enumerate(runs):
        if progress.over:
            return
        what = policy if len(planned.seeds) == 1 else f"{policy}, seed {seed}"
        label = what if len(runs) == 1 else f"{what} ({at + 1} of {len(runs)})"
        report = progress.watch(label, len(planned.trace))
        report(0)
        yield PolicyRun(policy, seed, planned.run(policy, seed, report))


def _at_once(planned: SimulationPlan, progress: ComputationProgress) -> list[PolicyRun]:
    """Run policies and seeds in processes of their own; return what they found in the order in which it was asked."""
    runs = [(policy, seed) for seed in planned.seeds for policy in planned.asked.policies]
    context = get_context("spawn")
    with safe_imports():  # the event has a process too, which tidies up
        stop = context.Event()
    found: dict[tuple[str, int], Outcome] = {}
    with ProcessPoolExecutor(
        min(planned.asked.processes, len(runs)), mp_context=context, initializer=_heed, initargs=(stop,)
    ) as pool:
        with progress.ignoring_interrupts(), safe_imports():  # processes are started now, and the event stops them
            running = {pool.submit(_run, planned, policy, seed): (policy, seed) for policy, seed in runs}
        report, waiting = progress.steps("simulations", len(runs)), set(running)
        while waiting:
            done, waiting = wait(waiting, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            found.update({running[one]: outcome for one in done if (outcome := one.result()) is not None})
            if not report(len(found)):
                stop.set()
                waiting = {one for one in waiting if not one.cancel()}
    return [PolicyRun(policy, seed, found[policy, seed]) for policy, seed in runs if (policy, seed) in found]


_stops: list[Event] = []
"""In a process of its own: what tells it to end with the results so far."""


def _heed(stop: Event) -> None:
    _stops.append(stop)


def _run(planned: SimulationPlan, policy: str, seed: int) -> Outcome | None:
    """Simulate in a process of its own; return None where it has been stopped before it began."""
    stop = _stops[0]
    return None if stop.is_set() else planned.run(policy, seed, lambda _ended: not stop.is_set())


_WIDTH: Final = 100
"""Of charts where standard output is no terminal."""


def show(comparison: Comparison, *, wide: bool = False) -> None:
    """Write the comparison's table to standard output, and under it the notes."""
    if wide:
        render.show_table(policy_comparison.WIDE, policy_comparison.wide_rows(comparison), wide=True)
    else:
        render.show_table(policy_comparison.HEADERS, policy_comparison.rows(comparison, span))
    for line in render.wrapped(policy_comparison.notes(comparison)):
        render.say(line)


_EVERY_S: Final = 0.2


class ComputationProgress:
    """
    Progress of a computation, as a context: the first Ctrl-C within sets ``over``, the second interrupts.

    Examples
    --------
    >>> with ComputationProgress() as progress:
    ...     report = progress.watch("fifo", jobs=3)
    ...     report(1), progress.over
    (True, False)
    """

    def __init__(self, *, for_programs: bool = False) -> None:
        """Begin without an interrupt; ``for_programs``: what is said is JSON, one object a line, terminal or not."""
        self.over, self._for_programs = False, for_programs
        self.further = 0
        """How many computations are to follow the present one."""
        self._before: Any = None
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        """Take Ctrl-C."""
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give Ctrl-C back, and clear the line."""
        signal.signal(signal.SIGINT, self._before)
        self._say("")

    def watch(self, what: str, jobs: int) -> Callable[[int], bool]:
        """Return a function that takes how many jobs have ended, and says whether to go on."""
        began_s = _now_s()

        def report(ended: int) -> bool:
            now_s = _now_s()
            if now_s - self._shown_s >= _EVERY_S:
                self._shown_s = now_s
                if self._for_programs:
                    self._tell_program(what, ended, jobs)
                else:
                    self._say(progress_line(what, ended, jobs, now_s - began_s))
            return not self.over

        return report

    def steps(self, what: str, of: int) -> Callable[[int], bool]:
        """Return a function that takes how many of several are done, and says whether to go on."""
        began_s = _now_s()

        def report(done: int) -> bool:
            left = f", {span((_now_s() - began_s) / done * (of - done))} left" if done else ""
            self._say(f"{what}: {done} of {of} done{left}")
            return not self.over

        return report

    @contextmanager
    def ignoring_interrupts(self) -> Iterator[None]:
        """Ignore Ctrl-C within, as processes that are started within will."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        if self.over:
            raise KeyboardInterrupt
        self.over = True

    def _tell_program(self, what: str, ended: int, jobs: int) -> None:
        if sys.stderr is not None:
            said = {"replay": what, "ended": ended, "jobs": jobs, "further": self.further}
            sys.stderr.write(f"{json.dumps(said)}\n")
            sys.stderr.flush()

    def _say(self, line: str) -> None:
        if not self._for_programs and sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{seen(line)}")
            sys.stderr.flush()


def progress_line(what: str, ended: int, jobs: int, elapsed_s: float) -> str:
    """
    Return the line of progress: jobs that have ended, jobs a second, and the time left at this pace.

    Examples
    --------
    >>> progress_line("2d-las", 2000, 8000, 4.0)
    '2d-las: 2,000 of 8,000 jobs, 25 %, 500 jobs/s, 12.0s left'
    """
    line = f"{what}: {ended:,} of {count(jobs, 'job')}, {100 * ended // max(jobs, 1)} %"
    if not (ended and elapsed_s > 0):
        return line
    rate = ended / elapsed_s
    return f"{line}, {rate:,.0f} jobs/s, {span((jobs - ended) / rate)} left"


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - people are shown a rate; nothing is decided by it
