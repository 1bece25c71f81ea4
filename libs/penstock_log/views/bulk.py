"""Answers about many jobs at a time: what became of each of many submissions, and of each job of a bulk command."""

from __future__ import annotations

from penstock_log.views.answers import View


class SubmittedJob(View, frozen=True, kw_only=True, omit_defaults=True):
    """
    What became of one of many submissions.

    Attributes
    ----------
    id, seq, created, warnings
        As of :class:`SubmitAnswer`, where it was accepted.
    code : int
        0 where it was accepted; else the code with which it would have been refused by itself.
    error : str
        Why it was refused, in one sentence.
    """

    id: str = ""
    seq: int = 0
    created: bool = False
    warnings: tuple[str, ...] = ()
    code: int = 0
    error: str = ""


class SubmittedJobsView(View, frozen=True, kw_only=True):
    """What became of many submissions, in the order of the request."""

    answers: tuple[SubmittedJob, ...]


class BulkAnswer(View, frozen=True, kw_only=True, omit_defaults=True):
    """
    What became of one job of many.

    Attributes
    ----------
    id : str
        The whole id; where no job was found, what the request said.
    changed, state, message, seq
        As of :class:`ActAnswer`, where it was not refused.
    code : int
        0 where it was done, or was so before; else the code with which the command would have been refused.
    error : str
        Why it was refused, in one sentence.
    """

    id: str
    changed: bool = False
    state: str = ""
    message: str = ""
    code: int = 0
    error: str = ""
    seq: int = 0


class BulkView(View, frozen=True, kw_only=True):
    """
    What became of a command about many jobs.

    Attributes
    ----------
    answers : tuple of BulkAnswer
        In the order of the ids, or of the submissions of the jobs that a filter chose.
    matched : int
        Jobs that were chosen, behind ``after``: also those that this answer leaves to the next request.
    changed, refused : int
        Of ``answers``; under a dry run, what would be.
    next : int
        What to send as ``after`` with the next request; 0 where nothing is left.
    """

    answers: tuple[BulkAnswer, ...]
    matched: int
    changed: int
    refused: int
    next: int = 0
