"""
Devices as cells, by node, in the colour of who holds them.

A node takes one line or more: its name and state, then two characters for each device, grouped by kind. They are the
first letters of the holder's name, or of the job's state; so they can be told apart without colours too. Idle devices
are two dots, drained ones two dashes, and those of lost nodes two crosses. A node that is up has the state ``pilot``
where it is of an allocation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock_cli import render
from penstock_cli.top.terminal_style import NODE_STYLES, STATE_STYLES, Glyphs, Span, colour_of
from penstock_cli.value_formats import span

if TYPE_CHECKING:
    from penstock_log import views

ColourBy = Literal["user", "team", "state"]
COLOURED_BY: Final[tuple[ColourBy, ...]] = ("user", "team", "state")
_CELL: Final = 3
_BESIDE: Final = 18
"""Columns of a node's state and of the kind of its devices."""
_IDLE: Final = ".."
_DRAINED: Final = "--"
_LOST: Final = "xx"
_UNKNOWN: Final = "??"
_MOST_NAMED: Final = 8
_OUT: Final = {"lost": _LOST, "left": _LOST, "draining": _DRAINED, "drained": _DRAINED, "leaving": _DRAINED}


class DeviceLine(NamedTuple):
    """One line: devices of one kind of one node, from one number on to before another."""

    node: views.NodeDevicesView
    kind: str
    devices: Sequence[views.DeviceOccupation]
    is_first: bool


@dataclass(frozen=True)
class DeviceMap:
    """
    All devices as lines, for one width of the terminal.

    Attributes
    ----------
    holders : mapping of str to HolderView
        Job id → the job, of all that have devices.
    """

    lines: Sequence[DeviceLine]
    holders: Mapping[str, views.HolderView]
    colour_by: ColourBy
    width: int
    glyphs: Glyphs

    @property
    def margin(self) -> int:
        """Columns before the first cell."""
        return _margin(self.width)

    def row(self, number: int, selected: int | None = None) -> list[Span]:
        """Return a line; the ``selected`` one of its devices is marked."""
        line = self.lines[number]
        return [*self._head(line), *self._cells(line, selected)]

    def device_at(self, number: int, x: int) -> int | None:
        """Return which device of a line is at a column; None where there is none."""
        at = (x - self.margin) // _CELL
        return at if 0 <= at < len(self.lines[number].devices) else None

    def about(self, number: int, device: int, now_s: float) -> str:
        """Return what is known of one device, in one line."""
        line = self.lines[number]
        view = line.devices[min(device, len(line.devices) - 1)] if line.devices else None
        if view is None:
            return f"{line.node.id} has no devices"
        node = line.node
        where = f"{node.id}/{view.kind}{view.index} ({view.kind}, {render.size(view.memory_bytes)}), pool {node.pool}"
        idle = f"idle, {node.state}{f' ({node.reason})' if node.reason else ''}"
        heard = f"heard {span(now_s - node.heard_s)} ago" if node.heard_s is not None else ""
        stays = f", for {span(node.until_s - now_s)} more" if node.until_s > now_s else ""
        pilot = f"pilot {node.pilot}{stays}" if node.pilot else ""
        return "; ".join(filter(None, (where, self._holder(view, now_s) or idle, pilot, heard)))

    def legend(self) -> list[Span]:
        """Return who holds how many devices, the most first."""
        counts: Counter[str] = Counter()
        for line in self.lines:
            for view in line.devices:
                if view.job_ids:
                    counts[self._name(view) or "?"] += 1
        found: list[Span] = [(f"by {self.colour_by}: ", "bold")]
        for name, count in counts.most_common(_MOST_NAMED):
            shown = self.glyphs.plain(name)
            found += [(shown, self._style(name)), (f" {count}  ", "")]
        if len(counts) > _MOST_NAMED:
            found.append((f"and {len(counts) - _MOST_NAMED} more", "dim"))
        return found if counts else [("all devices are idle", "dim")]

    def _holder(self, view: views.DeviceOccupation, now_s: float) -> str:
        if not view.job_ids:
            return ""
        first = self.holders.get(view.job_ids[0])
        parts = [f"shared by {len(view.job_ids)}: " if len(view.job_ids) > 1 else "", ", ".join(view.job_ids)]
        if first is not None:
            parts.append(f" of {first.user}" if first.user else "")
            parts.append(f" for {span(now_s - first.started_s)}" if first.started_s else f" ({first.state})")
            parts.append(f", grows to {first.grows_to}" if first.grows_to else "")
            parts.append(f", gives it up for {', '.join(first.gives_to)}" if first.gives_to else "")
        return "".join(parts) + (f" ({view.taken})" if view.taken else "")

    def _head(self, line: DeviceLine) -> list[Span]:
        fitted = self.glyphs.fitted
        name, state, kind = self.glyphs.plain(line.node.id), line.node.state, self.glyphs.plain(line.kind)
        wide = self.margin - _BESIDE
        if not line.is_first:
            name = state = ""
        return [
            (fitted(name, wide) + " ", "bold" if line.is_first else ""),
            (fitted("pilot" if state == "up" and line.node.pilot else state, 9), NODE_STYLES.get(state, "")),
            (fitted(kind, 7) + " ", "dim"),
        ]

    def _cells(self, line: DeviceLine, selected: int | None) -> list[Span]:
        found: list[Span] = []
        for number, view in enumerate(line.devices):
            text, style = self._cell(line.node, view)
            found += [(text, f"{style} reverse bold underline" if number == selected else style), (" ", "")]
        return found

    def _cell(self, node: views.NodeDevicesView, view: views.DeviceOccupation) -> Span:
        if not view.job_ids:
            text = _OUT.get(node.state, _IDLE)
            return text, "red" if text == _LOST else "yellow" if text == _DRAINED else "dim"
        name = self._name(view)
        if not name:
            return _UNKNOWN, "reverse"
        letters = self.glyphs.plain(name)[:2] if name.isascii() else self.glyphs.fitted(self.glyphs.plain(name), 2)
        text = f"{letters[:1]}{min(len(view.job_ids), 9)}" if len(view.job_ids) > 1 else f"{letters:<2}"
        style = f"{self._style(name)} reverse"
        return text, style if node.state in {"up", "draining", "drained", "leaving"} else "red reverse"

    def _name(self, view: views.DeviceOccupation) -> str:
        job = self.holders.get(view.job_ids[0])
        if job is None:
            return ""
        return {"user": job.user, "team": job.team or job.user, "state": job.state}[self.colour_by]

    def _style(self, name: str) -> str:
        return STATE_STYLES.get(name, "") if self.colour_by == "state" else colour_of(name)


def device_map(
    nodes: Sequence[views.NodeDevicesView],
    holders: Mapping[str, views.HolderView],
    colour_by: ColourBy,
    width: int,
    glyphs: Glyphs,
    *,
    pool: str = "",
) -> DeviceMap:
    """Return the devices of all nodes, or of a pool's, as lines that fit into a width."""
    per_line = max(1, (width - _margin(width)) // _CELL)
    lines = []
    for node in nodes:
        if pool and node.pool != pool:
            continue
        is_first = True
        for kind, group in groupby(node.devices, lambda view: view.kind):
            devices = tuple(group)
            for begin in range(0, len(devices), per_line):
                lines.append(DeviceLine(node, kind, devices[begin : begin + per_line], is_first))
                is_first = False
        if is_first:
            lines.append(DeviceLine(node, "-", (), is_first=True))
    return DeviceMap(lines, holders, colour_by, width, glyphs)


def _margin(width: int) -> int:
    return _BESIDE + (14 if width < 100 else 20)
