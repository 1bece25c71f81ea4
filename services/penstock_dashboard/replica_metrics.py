"""
The metrics of all replicas of all services, asked over the bus and merged.

:class:`HeardReplicas` knows from heartbeats which replicas there are. :class:`ReplicaScraper` asks each of them on a
subject of its own, so many at a time and with a deadline. :func:`merged` makes one family of each metric: its samples
are labelled with service and replica by who was asked, whatever the answer says. :func:`of_heartbeats` has what the
heartbeats themselves say, also of replicas that do not answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import structlog
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock_bus import BusError, RequestPort, TelemetryPort
from penstock_bus.health import GONE_AFTER_S, Vitals, parse_vitals
from penstock_dashboard.metric_catalogue import gauge
from penstock_log import subjects
from penstock_log.services import CORE

_AT_ONCE: Final = 64
"""Replicas that are asked at the same time."""
Replica = tuple[str, str]
"""Service and id."""


class HeardReplicas:
    """
    The replicas whose heartbeats are fresh.

    Parameters
    ----------
    clock : callable
        Seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Replica, tuple[float, Vitals]] = {}

    async def listen(self, bus: TelemetryPort) -> None:
        """Note the heartbeats of all replicas, for ever."""
        async for subject, body in bus.subscribe(subjects.REPLICAS):
            service, replica = subject.split(".")[-2:]
            if (vitals := parse_vitals(body)) is not None:
                # the server lets a service say this of its own replicas only; the body may say anything
                vitals.service, vitals.replica = service, replica
                self._seen[service, replica] = self._clock(), vitals

    def alive(self) -> list[Vitals]:
        """Return the last heartbeat of each live replica, by service and id."""
        now_s = self._clock()
        self._seen = {who: seen for who, seen in self._seen.items() if now_s - seen[0] < GONE_AFTER_S}
        return [vitals for _, (_, vitals) in sorted(self._seen.items())]


class ReplicaAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the replicas have answered.

    Attributes
    ----------
    texts : dict of (str, str) to str
        Replica → its metrics in Prometheus' text form.
    missing : dict of (str, str) to str
        Replica that was heard and has not answered in time → why.
    """

    texts: dict[Replica, str]
    missing: dict[Replica, str]


class ReplicaScraper:
    """
    Asks every live replica for its metrics.

    Scrapes that overlap share one round of questions, so that several of Prometheus' servers cost what one does.
    """

    def __init__(self, bus: RequestPort) -> None:
        self._bus = bus
        self._under_way: asyncio.Task[ReplicaAnswers] | None = None
        self._ends_s = 0.0

    async def ask(self, replicas: Iterable[Replica], deadline_s: float) -> ReplicaAnswers:
        """Return what the replicas answer within ``deadline_s`` seconds; who does not is missing."""
        ends_s = asyncio.get_running_loop().time() + deadline_s
        task = self._under_way
        if task is None or task.done() or self._ends_s > ends_s:
            task = self._under_way = asyncio.create_task(self._ask_all(list(replicas), ends_s))
            self._ends_s = ends_s
        return await asyncio.shield(task)  # another scrape may want it, though this one is given up

    async def _ask_all(self, replicas: Sequence[Replica], ends_s: float) -> ReplicaAnswers:
        answers = ReplicaAnswers(texts={}, missing={})
        waiting = iter(replicas)

        async def ask_on() -> None:
            for replica in waiting:
                left_s = max(0.0, ends_s - asyncio.get_running_loop().time())
                try:
                    async with asyncio.timeout(left_s):
                        body = await self._bus.request(subjects.metrics_of(*replica), b"", left_s)
                    answers.texts[replica] = body.decode()
                except TimeoutError:
                    answers.missing[replica] = "no answer in time"
                except (BusError, UnicodeDecodeError) as error:
                    answers.missing[replica] = str(error) or type(error).__name__

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(replicas))):
                group.create_task(ask_on())
        return answers


def merged(answers: ReplicaAnswers) -> list[Metric]:
    """
    Return the families of all answers, and how many replicas of each service are missing.

    A replica whose answer is no metrics counts as missing. Where replicas disagree about a metric's type, as different
    versions may, the first one's counts and the others' samples of it are left out.
    """
    families: dict[str, Metric] = {}
    missing = dict(answers.missing)
    for (service, replica), text in sorted(answers.texts.items()):
        try:
            found = list(text_string_to_metric_families(text))
        except (ValueError, KeyError, IndexError) as error:  # as its parser meets what it does not expect
            missing[service, replica] = f"unreadable: {error}"
            continue
        for one in found:
            into = families.setdefault(one.name, Metric(one.name, one.documentation, one.type, one.unit))
            if into.type == one.type:
                who = {"service": service, "replica": replica}
                into.samples += [sample._replace(labels={**sample.labels, **who}) for sample in one.samples]
    for (service, replica), why in sorted(missing.items()):
        _log.warning("replica_not_scraped", service_asked=service, replica_asked=replica, reason=why)
    silent = Counter(service for service, _ in missing)
    about = gauge("penstock_scrape_missing_replicas")
    for service in sorted({*CORE, *silent, *(service for service, _ in answers.texts)}):
        about.add_metric([service], silent[service])
    return [*(families[name] for name in sorted(families)), about]


def of_heartbeats(replicas: Sequence[Vitals], last_seq: int | None) -> list[Metric]:
    """
    Return what heartbeats say of replicas.

    Parameters
    ----------
    replicas : sequence of Vitals
    last_seq : int or None
        Sequence of the log's last commit; None where it is not known.
    """
    ready, leading = gauge("penstock_replica_ready"), gauge("penstock_replica_leading")
    info, undecided = gauge("penstock_replica_info"), gauge("penstock_replica_undecided_seconds")
    lag, by_service = gauge("penstock_replica_event_lag"), gauge("penstock_replicas_ready")
    leaders = gauge("penstock_leaders")
    for one in replicas:
        who = [one.service, one.replica]
        ready.add_metric(who, one.ready)
        info.add_metric([*who, one.version, one.host], 1)
        undecided.add_metric(who, one.undecided_s)
        if one.elected:
            leading.add_metric(who, one.leading)
        if last_seq is not None and one.last_seq:
            lag.add_metric(who, max(0, last_seq - one.last_seq))
    counts = Counter(one.service for one in replicas if one.ready)
    for service in sorted({*CORE, *counts}):
        by_service.add_metric([service], counts[service])
    for service in sorted({one.service for one in replicas if one.elected}):
        leaders.add_metric([service], sum(one.leading for one in replicas if one.service == service))
    return [ready, leading, leaders, by_service, info, undecided, lag]


_log = structlog.get_logger("penstock.dashboard")
