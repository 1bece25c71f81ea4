"""
What a pool does about runs that hold devices and do nothing.

The rule is set live for a pool (``penstock policy set idle_after_s=1800 idle_action=stop``). The executors measure; the
gateway stops runs, and the autoscaler takes devices from them. :class:`IdleRun` is what both know of a run from the
facts of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock_log import Job, RunBusyAgain, RunIdle, Setting
from penstock_log.job_state import JobState
from penstock_log.text import duration

Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class IdleRules(msgspec.Struct, frozen=True, kw_only=True):
    """
    A pool's rule.

    Attributes
    ----------
    idle_after_s : float
        Seconds without any work after which a run counts as idle; 0: none ever does.
    idle_grace_s : float
        Seconds from then on until it is acted on.
    idle_action : {"warn", "stop", "shrink"}
        ``warn``: it is said in the log, and that is all. ``stop``: the job is cancelled, with the reason. ``shrink``:
        an elastic job has its least number of devices until it works again; for any other it is as ``warn``.
    """

    idle_after_s: Seconds = 0.0
    idle_grace_s: Seconds = 300.0
    idle_action: Literal["warn", "stop", "shrink"] = "warn"

    @classmethod
    def of(cls, settings: Mapping[str, Setting]) -> IdleRules:
        """
        Return the rule that live settings of a pool make; nothing counts as idle by values that are none of its own.

        The gateway refuses such values, so that only another version can have written them.

        Examples
        --------
        >>> IdleRules.of({"order": "fifo", "idle_after_s": 60}).idle_after_s
        60.0
        >>> IdleRules.of({"idle_after_s": 60, "idle_action": "shout"}).idle_after_s
        0.0
        """
        own = {name: settings[name] for name in cls.__struct_fields__ if name in settings}
        try:
            return msgspec.convert(own, cls)
        except msgspec.ValidationError:
            return cls()

    @property
    def shrinks(self) -> bool:
        """Whether devices are taken from idle runs."""
        return self.idle_after_s > 0 and self.idle_action == "shrink"

    def due_s(self, since_s: float) -> float | None:
        """Return when a run that has been idle since then is acted on; None where it is not."""
        if not self.idle_after_s or self.idle_action == "warn":
            return None
        return since_s + self.idle_after_s + self.idle_grace_s


MEASURES: Final = {
    "iterations": "no iteration was done",
    "processor": "its devices were not used, and almost no processor time was",
}
"""What each measure of an idle run has found."""


class IdleRun(msgspec.Struct, kw_only=True):
    """
    A run that is idle on some of its nodes.

    Attributes
    ----------
    since_s : dict of str to float
        Node → since when.
    measure : str
        By what, as the last node said.
    """

    epoch: int
    since_s: dict[str, float] = msgspec.field(default_factory=dict)
    measure: str = "iterations"

    def is_of(self, job: Job) -> bool:
        """Say whether it is the job's present run."""
        return job.placement is not None and job.epoch == self.epoch

    def idle_since_s(self, job: Job) -> float | None:
        """Return since when the whole run has been idle; None where it works on a node."""
        if job.state is not JobState.RUNNING or not job.open_nodes or not job.open_nodes <= self.since_s.keys():
            return None
        return max(self.since_s[node_id] for node_id in job.open_nodes)

    def found(self, idle_s: float) -> str:
        """Return for how long it has been idle, and by what measure."""
        return f"idle for {duration(idle_s)}: {MEASURES[self.measure]}"


def note_idleness(idle: dict[str, IdleRun], job: Job | None, event: RunIdle | RunBusyAgain) -> bool:
    """
    Note in a table by job that a run is idle on a node, or works again there.

    Returns
    -------
    bool
        False where the fact is not about the job's present run, or the job is allowed to be idle.
    """
    if job is None or not job.may_run(event.epoch, event.node_id) or job.spec.idle == "allow":
        return False
    run = idle.get(job.id)
    if isinstance(event, RunIdle):
        if run is None or run.epoch != event.epoch:
            run = idle[job.id] = IdleRun(epoch=event.epoch)
        run.since_s[event.node_id], run.measure = event.since_s, event.measure
    elif run is not None and run.epoch == event.epoch:
        run.since_s.pop(event.node_id, None)
        if not run.since_s:
            del idle[job.id]
    return True
