"""Answers to commands."""

from __future__ import annotations

from penstock_events.views.base import View


class SubmitAnswer(View, frozen=True, kw_only=True):
    """
    The job or sweep is in the log.

    Attributes
    ----------
    seq : int
        Stream sequence of the submission; a query with ``at`` this or later knows the job.
    created : bool
        False where the same id with equal content was there before.
    warnings : tuple of str
        What does not prevent it from being accepted, but will keep it waiting.
    """

    id: str
    seq: int
    created: bool
    warnings: tuple[str, ...] = ()


class ActAnswer(View, frozen=True, kw_only=True):
    """
    What became of a cancel, hold, release, drain, resume or cancel_sweep.

    Attributes
    ----------
    id : str
        The whole id, also where a prefix was given.
    changed : bool
        False where it was so before.
    state : str
        Of the job (two letters), sweep or node afterwards.
    message : str
        One sentence for people.
    """

    id: str
    changed: bool
    state: str
    message: str
    seq: int = 0
