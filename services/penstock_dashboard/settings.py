"""Settings of the dashboard: ``[dashboard]`` in TOML, ``PENSTOCK_DASHBOARD_…`` in the environment."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where the dashboard listens, and what visitors see who have not signed in.

    Attributes
    ----------
    host : str
        Address to listen at. Other than loopback: put a proxy with TLS before it, or sign-in keys travel in the clear.
    port : int
        If another process has it, a free one is taken and told by ``penstock dashboard``; 0 always takes a free one.
    url : str
        Address under which people reach it, such as ``https://gpus.lab.example``; empty: host and port.
    anonymous : bool
        Whether visitors who have not signed in see what viewers see.
    secret_file : str
        Signs sessions, and is made where it is not there; replicas share it. Empty: a restart ends all sessions.
    session_s : float
        How long a browser stays signed in, in seconds.
    refresh_s : float
        How often a page that is looked at is brought up to date, in seconds.
    replays : int
        Replays that run at a time for visitors of the page "What if", one for each visitor at most; 0: none.
    replay_s : float
        Longest time for one of them, in seconds.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8484
    url: str = ""
    anonymous: bool = True
    secret_file: str = ""
    session_s: Annotated[float, Meta(gt=0)] = 7 * 24 * 3600.0
    refresh_s: Annotated[float, Meta(ge=0.1)] = 1.0
    replays: Annotated[int, Meta(ge=0)] = 2
    replay_s: Annotated[float, Meta(gt=0)] = 600.0
