"""
A page: what it asks, its regions, and how it becomes HTML.

A page is a coroutine from a :class:`PageRequest` to a :class:`PageContent`. Its regions are keyed pieces of HTML, each
one element with ``data-key``; the page is first sent whole, and then as changes of its regions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import jinja2
import msgspec
from markupsafe import Markup

from penstock_bus.health import VERSION
from penstock_dashboard.device_metrics import HeardNodes
from penstock_dashboard.gateway_port import GatewayPort, PageRefused, Visitor
from penstock_dashboard.job_output import JobOutputs
from penstock_dashboard.job_story import JobStories
from penstock_dashboard.kept_series import KeptSeries
from penstock_dashboard.live_page import Regions
from penstock_dashboard.metric_series import MetricTable
from penstock_log.job_state import JobState
from penstock_log.text import duration, escaped, escaped_json

R = TypeVar("R", bound=msgspec.Struct)
COLORS: Final = 12
_LAST_S: Final = 253_402_300_799.0
"""The end of the year 9999: of later times nobody has a date."""
_SMALL_GPU_S: Final = 360.0
STATES: Final = {
    JobState.PENDING: "waiting",
    JobState.RUNNING: "running",
    JobState.PREEMPTING: "being preempted",
    JobState.COMPLETING: "being cancelled",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
"""What people call the states."""


class JobSources(msgspec.Struct, frozen=True, kw_only=True):
    """What pages of jobs read beside the gateway's answers: metrics, live and kept, output, and kept stories."""

    series: MetricTable
    kept: KeptSeries
    outputs: JobOutputs
    stories: JobStories


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A visit to a page, with the fields of its address."""

    visitor: Visitor
    path: str
    query: dict[str, str]
    params: dict[str, str]
    """What the address has in place of the names in braces."""
    gateway: GatewayPort
    jobs: JobSources
    nodes: HeardNodes

    @property
    def at(self) -> str:
        """The moment that is looked at; empty for now."""
        return self.query.get("at", "")

    @property
    def moment(self) -> str | None:
        """The moment as requests have it."""
        return self.at or None

    def asked(self, type_: type[R], **own: Any) -> R:
        """
        Return a request of the gateway's with the fields that the address names; others in the address are left out.

        Raises
        ------
        PageRefused
            400 where a field is of another form.
        """
        given = {name: value for name, value in self.query.items() if name in type_.__struct_fields__ and value != ""}
        try:
            return msgspec.convert({**given, **own}, type=type_, strict=False)
        except msgspec.ValidationError as error:
            raise PageRefused(400, f"the address asks for what is not there: {error}") from error

    def pager(self, offset: int, limit: int, shown: int, total: int) -> dict[str, str]:
        """Return the piece that leads to the parts of a list before and after the one that is shown."""
        last = offset + shown
        before = self.address(offset=max(0, offset - limit) or "") if offset else ""
        after = self.address(offset=last) if last < total else ""
        values = {"from": offset + 1 if shown else 0, "to": last, "total": total, "before": before, "after": after}
        return {"pager": TEMPLATES.render("pieces/pager.html", key="pager", **values)}

    def address(self, **changed: str | int) -> str:
        """Return the address of this page with some fields changed; an empty one is left out."""
        return at_path(self.path, {**self.query, **{name: str(value) for name, value in changed.items()}})


class PageContent(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a page shows.

    Attributes
    ----------
    regions : mapping
        Region → key → HTML of one element.
    now_s : float
        The time of the answers, by which ages are counted.
    live : bool
        Whether the page is to be brought up to date; never for the past.
    """

    title: str
    template: str
    regions: Regions = {}
    values: dict[str, Any] = {}
    now_s: float = 0.0
    live: bool = True


Page = Callable[[PageRequest], Awaitable[PageContent]]


def at_path(path: str, query: Mapping[str, str]) -> str:
    """
    Return an address with a query, without empty fields.

    Examples
    --------
    >>> at_path("/queue", {"user": "alice", "team": ""}), at_path("/jobs", {})
    ('/queue?user=alice', '/jobs')
    >>> at_path("//elsewhere.example/x", {})
    '/elsewhere.example/x'
    """
    given = {name: value for name, value in query.items() if value != ""}
    path = f"/{path.lstrip('/')}"  # one with two slashes would be another host
    return f"{path}?{urlencode(given)}" if given else path


@lru_cache(maxsize=10_000)
def color_of(name: str) -> str:
    """Return the class of a name's colour: the same for the same name on every page; empty for no name."""
    if not name:
        return "c8"
    return f"c{int.from_bytes(hashlib.blake2s(name.encode(), digest_size=2).digest()) % COLORS}"


def since(at_s: float, plus_s: float = 0.0) -> Markup:
    """Return an element that says how long ago a time was, which the page's script keeps up to date."""
    plus = Markup(' data-plus="{:.0f}"').format(plus_s) if plus_s else Markup("")
    return Markup('<time data-since="{:.1f}"{}>since {}</time>').format(at_s, plus, utc(at_s))


def moment(at_s: float | None) -> Markup:
    """Return an element that says when something was; a dash where it was not."""
    if not at_s:
        return Markup("-")
    return Markup('<time datetime="{}" data-at="{:.3f}">{}</time>').format(_iso(at_s), at_s, utc(at_s))


def utc(at_s: float) -> str:
    """Return a time as text, in UTC."""
    return datetime.fromtimestamp(min(max(at_s, 0.0), _LAST_S), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(min(max(at_s, 0.0), _LAST_S), UTC).isoformat()


def span(seconds: float | None) -> str:
    """Return a duration for people; a dash where there is none."""
    return "-" if seconds is None else duration(seconds)


def size(size_bytes: float) -> str:
    """
    Return a size for people.

    Examples
    --------
    >>> size(3 * 2**30), size(500)
    ('3.0 GiB', '500 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024 or unit == "TiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"


def gpu_hours(gpu_s: float) -> str:
    """
    Return device time for people.

    Examples
    --------
    >>> gpu_hours(45_000.0), gpu_hours(90.0)
    ('12.5 GPU-hours', '90 GPU-seconds')
    """
    return f"{gpu_s / 3600:.3g} GPU-hours" if gpu_s >= _SMALL_GPU_S else f"{gpu_s:.3g} GPU-seconds"


def json_text(value: Any) -> str:
    """Return a value as JSON, with every invisible character as its escape."""
    return escaped_json(msgspec.json.encode(value).decode())


class Templates:
    """The templates of the pages; whatever they are given is escaped, and control characters are made visible."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("penstock_dashboard"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=_visible,
        )
        self._environment.filters |= {"since": since, "moment": moment, "span": span, "size": size, "color": color_of}
        self._environment.filters |= {"json": json_text, "gpu_hours": gpu_hours}
        self._environment.globals |= {
            "release": VERSION,
            "states_text": {str(state): text for state, text in STATES.items()},
        }

    def render(self, name: str, /, **values: Any) -> str:
        """Return a template with values."""
        return self._environment.get_template(name).render(values)


def _visible(value: Any) -> Any:
    return escaped(value) if type(value) is str and not value.isprintable() else value


TEMPLATES: Final = Templates()
"""Of this package; compiled once in a process."""


def pieces(template: str, items: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Return keyed pieces, each rendered with its key and its values."""
    return {key: TEMPLATES.render(template, key=key, **values) for key, values in items}


def person_label(user: str) -> str:
    """Return a user as pages call them."""
    return user or "nobody"
