"""
``why`` and ``story`` of a job, from a log in a file.

The gateway answers the same questions about a live log; both use its code, so the answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_bus import Delivery
from penstock_bus.decider import Fold
from penstock_bus.port import ServiceError
from penstock_bus.stored_messages import matches_any
from penstock_gateway import acceptance, story
from penstock_gateway.answers import ReadModel
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings, GatewayState, decider
from penstock_log import ARCHIVE, Job, subjects
from penstock_log.views import StoryView, WhyView
from penstock_simulator.traces import log_file

Moment = int | float | None
"""A sequence, a time on the log's clock, or the log's end."""


def tell(text: Iterable[str | bytes], job_id: str, at: Moment = None) -> StoryView:
    """
    Return a job's story.

    Raises
    ------
    ServiceError
        If no job of the log has this id or beginning: as a gateway answers.
    ValueError
        If a line is no fact of a log.
    """
    log = list(_until(text, at))
    job = _job_named(_model(log, at), job_id)
    timeline = story.Timeline(job)
    about = [*story.own_subjects(job), *story.shared_subjects(job)]
    life = [delivery for delivery in _life(log, job.id) if matches_any(about, delivery.subject)]
    lines = tuple(line for delivery in life for line in timeline.lines(delivery))
    return StoryView(id=job.id, name=job.spec.name, lines=lines)


def explain(text: Iterable[str | bytes], job_id: str, at: Moment = None) -> tuple[WhyView, float]:
    """Return why a job is where it is, and the time of the answer; raises as :func:`tell` does."""
    answering = model(text, at)
    return answering.why.explain(_job_named(answering, job_id)), answering.now_s


def model(text: Iterable[str | bytes], at: Moment = None) -> ReadModel:
    """Return the read model of a log up to a moment; raises as :func:`tell` does."""
    return _model(_until(text, at), at)


def _until(text: Iterable[str | bytes], at: Moment) -> Iterable[Delivery]:
    """Yield the commits up to a moment; not what the archive says of itself, since what it removed is in the text."""
    for delivery in log_file.decode(text):
        if delivery.subject == subjects.archive(ARCHIVE):
            continue
        if at is not None and (delivery.seq if isinstance(at, int) else delivery.stored_s) > at:
            return
        yield delivery


def _life(log: Iterable[Delivery], job_id: str) -> Iterable[Delivery]:
    """Yield the commits from a job's first one on; earlier rounds of its pool do not concern the job."""
    begun = False
    for delivery in log:
        begun = begun or delivery.subject.endswith(f".{job_id}")
        if begun:
            yield delivery


def _model(log: Iterable[Delivery], at: Moment) -> ReadModel:
    fold: Fold[GatewayState] = Fold(decider(GatewaySettings()))
    now_s = 0.0
    for delivery in log:
        fold.apply(delivery)
        now_s = delivery.stored_s
    return ReadModel(state=fold.state, now_s=at if isinstance(at, float) else now_s, seq=fold.last_seq)


def _job_named(model: ReadModel, job_id: str) -> Job:
    try:
        return acceptance.job_named(model.state, job_id)
    except RequestRefused as error:
        raise ServiceError(error.code, str(error)) from error
