"""
The page "What if": the cluster's past under another policy, without preemption, or with more devices.

It is ``penstock replay`` with a form. The answer is the comparison that the command line prints, beside what really
happened. Below are the shadows that follow the cluster live, which can be scored in the same way.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock_bus.port import BusError, Shadowed
from penstock_bus.settings import CONFIG_VARIABLE, DEFAULT_FILE
from penstock_dashboard.computations import Computation, Computations
from penstock_dashboard.gateway_port import GatewayPort, PageRefused, Visitor
from penstock_dashboard.page import TEMPLATES, PageContent, PageRequest, at_path, pieces
from penstock_log import request_bodies, subjects
from penstock_log.users import has_rights_of
from penstock_log.views import DevicesView, JobsView, UserView

CONFIGURED: Final = "configured"
PREEMPTION: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "": ("as it is configured", ()),
    "never": ("never", ("min_run_s=1000000000",)),
    "any": ("at any time", ("min_run_s=0", "overhead_share=1")),
}
"""Choice → what people call it, and the settings that make it."""
_OTHERS: Final = {
    "allox": "One queue, matched by declared lengths; nobody is preempted.",
    "max-min": "One user at a time, the one who is least far; among their jobs first come, first served.",
}
"""Policies of the simulator beside those of the registry."""
_KIND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SINCE: Final = re.compile(r"[0-9A-Za-z.:+-]{1,40}")
_SHADOW: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
SHADOWS_S: Final = 2.0
"""For so long, in seconds, what shadows say of themselves is not read again."""
_MOST_DEVICES: Final = 10_000
_REPLAYED: Final = "as it was"


class ShadowLog(Protocol):
    """What shadows publish of themselves."""

    def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
        """Yield what is stored on a subject or pattern."""


class ReplayQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the form asks.

    Attributes
    ----------
    policy : str
        One that ``penstock replay`` knows.
    preemption : str
        One of :data:`PREEMPTION`.
    more : int
        Devices that are added.
    kind : str
        Their kind.
    since : str
        Jobs submitted from then on: a span ago, a sequence or a time; empty for the whole log.
    """

    policy: str = CONFIGURED
    preemption: str = ""
    more: int = 0
    kind: str = ""
    since: str = ""

    @classmethod
    def of(cls, form: Mapping[str, str]) -> ReplayQuestion:
        """
        Return the question that a form has.

        Raises
        ------
        PageRefused
            400 where a field is of another form.
        """
        given = {name: form.get(name, "").strip() for name in cls.__struct_fields__}
        more = given["more"] or "0"
        if not re.fullmatch(r"\d{1,5}", more) or int(more) > _MOST_DEVICES:
            raise PageRefused(400, f"{more!r} more devices are none; expected a number up to {_MOST_DEVICES}")
        if int(more) and not _KIND.fullmatch(given["kind"]):
            raise PageRefused(400, f"{given['kind']!r} is no kind of device; expected one such as fast or A100")
        if given["preemption"] not in PREEMPTION:
            raise PageRefused(
                400, f"{given['preemption']!r}: expected {', '.join(filter(None, PREEMPTION))}, or nothing"
            )
        if given["since"] and not _SINCE.fullmatch(given["since"]):
            raise PageRefused(400, f"{given['since']!r} is no moment; expected 7d, a sequence or 2026-01-31T12:00:00Z")
        policy = given["policy"] or CONFIGURED
        if not re.fullmatch(r"[a-z0-9+_-]{1,40}", policy):
            raise PageRefused(400, f"{policy!r} is no policy; choose one of the list")
        return cls(
            policy=policy,
            preemption=given["preemption"],
            more=int(more),
            kind=given["kind"] if int(more) else "",
            since=given["since"],
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of ``penstock replay``."""
        found = [f"--policy={self.policy}"]
        found += [f"--set={setting}" for setting in PREEMPTION[self.preemption][1]]
        if self.more:
            found.append(f"--cluster=+{self.more}x{self.kind}")
        if self.since:
            found.append(f"--from={self.since}")
        return tuple(found)

    @property
    def title(self) -> str:
        """The question in words."""
        found = [self.policy]
        if self.preemption:
            found.append(f"preemption {PREEMPTION[self.preemption][0]}")
        if self.more:
            found.append(f"{self.more} more {self.kind}")
        if self.since:
            found.append(f"jobs since {self.since}")
        return ", ".join(found)


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one policy, of those that the command line prints; times in seconds."""

    jobs: int
    finished: int
    avg_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    avg_queue_s: float
    makespan_s: float
    utilisation: float
    preemptions: int


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of completion times, of those of a user, a team or all; times in seconds."""

    jobs: int
    was_avg_s: float
    avg_s: float
    ratio: float | None
    avg_change_s: float
    ratio_interval: dict[str, float] | None = None
    was_p95_s: float = 0.0
    p95_s: float = 0.0

    @property
    def certain(self) -> bool:
        """Whether the whole interval is a gain, or a loss."""
        found = self.ratio_interval
        return found is not None and (found["low"] > 1.0 or found["high"] < 1.0)


class ChangedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job's completion time, really and in the replay, in seconds."""

    id: str
    was_s: float
    jct_s: float
    change_s: float


class PolicyScore(msgspec.Struct, frozen=True, kw_only=True):
    """One policy against what really happened."""

    all: ChangeRow
    teams: dict[str, ChangeRow] = {}
    users: dict[str, ChangeRow] = {}
    gained: tuple[ChangedJob, ...] = ()
    lost: tuple[ChangedJob, ...] = ()


class ReplayTrust(msgspec.Struct, frozen=True, kw_only=True):
    """How far the replay of what was recorded is off."""

    off: float | None
    tolerance: float
    holds: bool


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What ``penstock replay -o json`` prints, as far as the page shows it."""

    jobs: int
    completed: int
    policies: dict[str, PolicyRow]
    changes: dict[str, PolicyScore]
    check: ReplayTrust | None = None


class ShadowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What ``penstock shadow report -o json`` prints, as far as the page shows it."""

    all: ChangeRow
    teams: dict[str, ChangeRow] = {}
    preemptions: int = 0
    shadow_preemptions: int = 0


class ShadowPlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a shadow, as far as the page shows it."""

    name: str
    policy: str
    from_s: float
    settings: dict[str, Any] = {}
    pool: str = ""


class ShadowRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a shadow says of itself, as far as the page shows it."""

    plan: ShadowPlanRow
    seq: int
    at_s: float
    waiting: int = 0
    running: int = 0


class ShadowTable:
    """What each shadow said last, read at most once in :data:`SHADOWS_S` for all who look."""

    def __init__(self, shadows: ShadowLog, ticks: Callable[[], float]) -> None:
        self._shadows, self._ticks = shadows, ticks
        self._lock = asyncio.Lock()
        self._last: list[ShadowRow] = []
        self._until_s = float("-inf")

    async def last(self) -> list[ShadowRow]:
        """
        Return what each shadow said last, by name.

        Raises
        ------
        BusError
            If it cannot be read.
        """
        async with self._lock:
            if self._ticks() >= self._until_s:
                self._last = await self._read()
                self._until_s = self._ticks() + SHADOWS_S
            return self._last

    async def _read(self) -> list[ShadowRow]:
        last: dict[str, bytes] = {}
        async for one in self._shadows.read_shadow(subjects.SHADOWS):
            last[one.subject] = one.body
        rows = []
        for _, body in sorted(last.items()):
            try:
                rows.append(msgspec.json.decode(body, type=ShadowRow))
            except msgspec.MsgspecError:
                continue  # of a shadow of another version; `penstock shadow ls` says so
        return rows


class WhatIf:
    """
    The page and what it starts.

    Parameters
    ----------
    computations : Computations
    shadows : ShadowLog
    ticks : callable
        Seconds that never jump.
    config : str
        The services' settings file, for what the log does not hold; empty where there is none.
    """

    def __init__(
        self, computations: Computations, shadows: ShadowLog, ticks: Callable[[], float], config: str = ""
    ) -> None:
        self.computations, self._config = computations, config
        self._shadows = ShadowTable(shadows, ticks)

    async def page(self, visit: PageRequest) -> PageContent:
        """Show the form, what runs and what came of it."""
        allowed = await is_user(visit.gateway, visit.visitor)
        wanted, shown = visit.query.get("run", ""), None
        own = self.computations.of(visit.visitor) if allowed else []
        if wanted:
            if not allowed:
                raise PageRefused(403, "what was computed is shown to who asked for it; sign in first")
            shown = self.computations.find(visit.visitor, wanted)
        regions: dict[str, Mapping[str, str]] = {
            "runs": pieces("pieces/computation.html", [(one.id, _row(one, wanted)) for one in own]),
            "result": await _result(visit, shown) if shown is not None else {},
            "shadows": await self._shadow_rows(allowed=allowed),
        }
        asked = {name: visit.query.get(name, "") for name in ReplayQuestion.__struct_fields__}
        return PageContent(
            title="What if",
            template="what_if.html",
            regions=regions,
            values={
                "allowed": allowed,
                "asked": {**asked, "policy": asked["policy"] or CONFIGURED},
                "policies": await _policies() if allowed else [],
                "preemption": [(name, text) for name, (text, _) in PREEMPTION.items()],
                "kinds": await _kinds(visit) if allowed else [],
            },
            live=True,
        )

    async def start(self, gateway: GatewayPort, visitor: Visitor, form: Mapping[str, str]) -> str:
        """
        Start what a form asks, and return the address of its result.

        Raises
        ------
        PageRefused
            403 where the visitor may not; 400 where a field is of another form; 409 or 503 where too many run.
        """
        if not await is_user(gateway, visitor):
            raise PageRefused(403, "replays are for users and above; sign in as one")
        if shadow := form.get("shadow", ""):
            if not _SHADOW.fullmatch(shadow):
                raise PageRefused(400, f"{shadow!r} names no shadow")
            words = ("shadow", "report", f"--name={shadow}", "-o", "json")
            one = self.computations.start(visitor, "shadow", f"shadow {shadow}", words)
            return at_path("/what-if", {"run": one.id})
        asked = ReplayQuestion.of(form)
        own_file = (f"--config={self._config}",) if self._config else ()
        words = ("replay", *asked.words, *own_file, "--progress", "-o", "json")
        one = self.computations.start(visitor, "replay", asked.title, words)
        fields = {name: str(value) for name, value in msgspec.structs.asdict(asked).items() if value}
        return at_path("/what-if", {**fields, "run": one.id})

    async def _shadow_rows(self, *, allowed: bool) -> Mapping[str, str]:
        try:
            last = await self._shadows.last()
        except BusError as error:
            text = f"what shadows say cannot be read: {error}"
            return {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=7, text=text)}
        rows = [(row.plan.name, {"shadow": row, "allowed": allowed}) for row in last]
        return pieces("pieces/shadow.html", rows) or {
            "none": TEMPLATES.render(
                "pieces/no_rows.html",
                key="none",
                columns=7,
                text="No shadow follows the cluster; start one with `penstock shadow run --policy NAME`.",
            )
        }


async def is_user(gateway: GatewayPort, visitor: Visitor) -> bool:
    """Say whether a visitor has signed in as a user or somebody with more rights."""
    if not visitor.signed_in:
        return False
    person = await gateway.query(visitor, "whoami", request_bodies.EmptyRequest(), UserView)
    return has_rights_of(person.role, "user")


def settings_file() -> str:
    """Return the services' settings file; empty where there is none."""
    found = os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE
    return found if Path(found).is_file() else ""


def _row(one: Computation, shown: str) -> dict[str, Any]:
    step = one.steps[-1] if one.steps else None
    part = min(1.0, step.ended / step.jobs) if step is not None and step.jobs else 0.0
    rest = about(one.left_s) if one.left_s is not None else ""
    return {
        "one": one,
        "step": step,
        "part": part,
        "rest": rest,
        "is_shown": one.id == shown,
        "replays": len(one.steps),
    }


def about(seconds: float) -> str:
    """
    Return a time that is only estimated, in as few figures as it is worth.

    Examples
    --------
    >>> about(3.2), about(44.0), about(396.5), about(7_400.0)
    ('about 5 s', 'about 45 s', 'about 7 min', 'about 2 h 3 min')
    """
    if seconds < 60:
        return f"about {max(1, math.ceil(seconds / 5)) * 5} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60} min"


async def _result(visit: PageRequest, one: Computation) -> Mapping[str, str]:
    if one.state != "done":
        return {}
    if one.kind == "shadow":
        found = msgspec.json.decode(one.printed, type=ShadowAnswer)
        values = {"title": one.title, "changes": _scores({"": found}), "found": found}
        return pieces("pieces/shadow_result.html", [("shadow", values)])
    answer = msgspec.json.decode(one.printed, type=ReplayAnswer)
    names = await _names(visit, answer)
    base = answer.policies.get(_REPLAYED)
    values = {
        "title": one.title,
        "answer": answer,
        "base": base,
        "rows": [(name, row, _against(base, row)) for name, row in answer.policies.items()],
        "changes": _scores(answer.changes),
        "jobs": [(policy, score.gained, score.lost) for policy, score in answer.changes.items()],
        "names": names,
    }
    return pieces("pieces/replay_result.html", [("replay", values)])


_FIGURES: Final = ("avg_jct_s", "median_jct_s", "p95_jct_s", "avg_queue_s", "makespan_s", "utilisation")


def _against(base: PolicyRow | None, row: PolicyRow) -> dict[str, float]:
    """Return each figure over what it was, less 1."""
    if base is None or base is row:
        return {}
    return {
        name: getattr(row, name) / getattr(base, name) - 1.0
        for name in _FIGURES
        if getattr(base, name) and row.finished
    }


def _scores(scores: Mapping[str, PolicyScore | ShadowAnswer]) -> list[dict[str, Any]]:
    """Return for each policy the rows of all, of teams and of users, with bars of a common scale."""
    found = []
    for policy, score in scores.items():
        groups: list[tuple[str, str, ChangeRow]] = [("", "all", score.all)]
        groups += [("team", name or "no team", row) for name, row in score.teams.items()]
        if isinstance(score, PolicyScore):
            groups += [("user", name or "nobody", row) for name, row in score.users.items()]
        most = max((abs(row.ratio - 1.0) for _, _, row in groups if row.ratio is not None), default=0.0) or 1.0
        rows = [
            {
                "what": what,
                "name": name,
                "row": row,
                "bar": (row.ratio - 1.0) / most if row.ratio is not None else 0.0,
            }
            for what, name, row in groups
        ]
        found.append({"policy": policy, "rows": rows})
    return found


async def _names(visit: PageRequest, answer: ReplayAnswer) -> dict[str, str]:
    """Return the names of the jobs that gain or lose most, of those that the visitor may see."""
    ids = [job.id for score in answer.changes.values() for job in (*score.gained, *score.lost)]
    if not ids:
        return {}
    asked = request_bodies.JobsRequest(ids=tuple(dict.fromkeys(ids)))
    view = await visit.gateway.query(visit.visitor, "jobs", asked, JobsView)
    return {job.id: job.name for job in view.jobs}


async def _kinds(visit: PageRequest) -> list[str]:
    view = await visit.gateway.query(visit.visitor, "devices", request_bodies.AllRequest(), DevicesView)
    return sorted({device.kind for node in view.nodes for device in node.devices})


_known_policies: list[tuple[str, str]] = []


async def _policies() -> Sequence[tuple[str, str]]:
    """Return the policies with a sentence on each; the registry is loaded when somebody asks for it first."""
    if not _known_policies:
        _known_policies.extend(await asyncio.to_thread(_registered))
    return _known_policies


def _registered() -> list[tuple[str, str]]:
    from penstock_policies.queue_policies import QUEUE_POLICIES  # noqa: PLC0415 - it needs NumPy, as no other page does

    found = [(CONFIGURED, "The cluster's own settings, once more.")]
    return [*found, *((name, policy.says) for name, policy in QUEUE_POLICIES.items()), *_OTHERS.items()]
