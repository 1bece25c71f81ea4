"""Answers about the past of devices: who held which one when, for who draws it."""

from __future__ import annotations

import msgspec

from penstock_log.views.answers import View


class TimelineSpan(msgspec.Struct, frozen=True, array_like=True):
    """
    A run on a device: from when to when, as a number in ``jobs``, in which state it is or how it ended.

    ``runs`` is how many it stands for, where each is shorter than a pixel; then ``job`` and ``state`` are the first
    one's.
    """

    from_s: float
    to_s: float
    job: int
    state: str
    runs: int = 1


class TimelineDevice(msgspec.Struct, frozen=True, array_like=True):
    """One device: its number on its node, its kind, and who held it. Spans overlap where it was shared."""

    index: int
    kind: str
    spans: tuple[TimelineSpan, ...] = ()


class TimelineNodeView(View, frozen=True, kw_only=True):
    """
    One node.

    Attributes
    ----------
    state : {"up", "draining", "drained", "lost", "left"}
    down : tuple of (float, float, str)
        From when to when it took no new jobs, and whether it was ``drained``, ``lost`` or ``left``.
    """

    id: str
    pool: str
    state: str
    devices: tuple[TimelineDevice, ...]
    down: tuple[tuple[float, float, str], ...] = ()


class TimelineJobView(View, frozen=True, kw_only=True):
    """A job that held a device; name and model are empty where they are not to be seen."""

    id: str
    user: str
    team: str
    state: str
    gpus: int
    name: str = ""
    model: str = ""


class TimelineView(View, frozen=True, kw_only=True):
    """
    Who held the devices of some nodes within a window.

    Attributes
    ----------
    nodes : tuple of TimelineNodeView
        The part that was asked for, by pool and id.
    jobs : tuple of TimelineJobView
        Those that are in it, each once.
    total : int
        Nodes that match.
    """

    since_s: float
    until_s: float
    now_s: float
    nodes: tuple[TimelineNodeView, ...]
    jobs: tuple[TimelineJobView, ...]
    total: int
    seq: int
