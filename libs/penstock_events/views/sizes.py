"""Sizes of elastic jobs: what they had, how fast they went, and why they came to others."""

from __future__ import annotations

from penstock_events.states import Size
from penstock_events.views.base import View


class RunView(View, frozen=True, kw_only=True):
    """
    One run of an elastic job.

    Attributes
    ----------
    end_s : float or None
        None where it goes on.
    batch_size : int
        Of one step over all of its devices, as the script says that it uses it; 0 where nobody told one.
    steps, loop_s : int, float
        Iterations of this run and the seconds that they took; of one that goes on, as it last told.
    samples_per_s : float or None
        Over the seconds of the whole run with its start and end: what its sampler handed out, or batch size times
        steps where it has none. None where that is not known.
    outcome : str
        How it ended, ``resized`` where it made way for another size of the job; empty where it goes on.
    """

    start_s: float
    end_s: float | None
    gpus: int
    batch_size: int
    kind: str
    steps: int
    loop_s: float
    samples_per_s: float | None
    outcome: str


class ResizeView(View, frozen=True, kw_only=True):
    """
    A decision to give a job another size.

    Attributes
    ----------
    because : str
        As :class:`penstock_events.ScaleDecided` has it; ``unfit`` where the job went back from a size that did not do.
    before, after : Size
    kinds : tuple of str
        Device kinds for which the new size is; empty for all that it accepts.
    reason : str
        In one sentence.
    gives, takes : dict of str to int
        Job → devices that this one gives up for it; job → devices that it gives up for this one.
    done_s : float or None
        When its first run with that size began; None where none has.
    """

    at_s: float
    because: str
    before: Size
    after: Size
    kinds: tuple[str, ...]
    reason: str
    gives: dict[str, int]
    takes: dict[str, int]
    done_s: float | None


class SizingView(View, frozen=True, kw_only=True):
    """
    What an elastic job may have, what it has, and how it came to that.

    Attributes
    ----------
    widths : tuple of int
        The fewest and the most devices.
    batches : tuple of int
        The smallest and the largest batch; equal where it never changes.
    size : Size
        What it has, or asks for.
    lr_rule : str
        What becomes of its learning rate at another batch size.
    lr_factor : float or None
        What that makes of it at the present one; None where the script's own function says.
    samples_per_s : float or None
        Of the run that goes on.
    runs : tuple of RunView
        The last of its runs, oldest first.
    left_out : int
        How many before them are not kept.
    resizes : tuple of ResizeView
        The last decisions about its size, oldest first.
    unfit : tuple of Size
        Sizes with which its run failed at once; a batch size of 0 stands for all.
    """

    widths: tuple[int, int]
    batches: tuple[int, int]
    size: Size
    lr_rule: str
    lr_factor: float | None
    samples_per_s: float | None
    runs: tuple[RunView, ...]
    left_out: int
    resizes: tuple[ResizeView, ...]
    unfit: tuple[Size, ...]
