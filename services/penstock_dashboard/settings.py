"""Settings of the dashboard: ``[dashboard]`` in TOML, ``PENSTOCK_DASHBOARD_…`` in the environment."""

from __future__ import annotations

from typing import Annotated, Literal

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
    port_file : str
        Keeps the port that was taken last, which is tried before ``port``, so that addresses stay; empty: none is kept.
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
    most_pages : int
        So many different pages are kept up to date at once.
    otlp_endpoint : str
        Collector that takes the spans of all jobs by OTLP over HTTP, such as ``http://127.0.0.1:4318``; empty: none.
    metrics : {"local", "token", "open", "off"}
        Who may scrape ``/metrics``, which names users and teams: who asks from this machine (a proxy here must send
        ``X-Forwarded-For``, or everybody does), who has the token, everybody, or nobody.
    metrics_token_file : str
        A file with the token of ``metrics = "token"``. It is read at each scrape, so that it can be replaced.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8484
    port_file: str = ""
    url: str = ""
    anonymous: bool = True
    secret_file: str = ""
    session_s: Annotated[float, Meta(gt=0)] = 7 * 24 * 3600.0
    refresh_s: Annotated[float, Meta(ge=0.1)] = 1.0
    replays: Annotated[int, Meta(ge=0)] = 2
    replay_s: Annotated[float, Meta(gt=0)] = 600.0
    most_pages: Annotated[int, Meta(ge=1)] = 200
    otlp_endpoint: str = ""
    metrics: Literal["local", "token", "open", "off"] = "local"
    metrics_token_file: str = ""

    def __post_init__(self) -> None:
        """Refuse a token that is asked for and nowhere to be found."""
        if self.metrics == "token" and not self.metrics_token_file:
            raise ValueError('metrics = "token" needs metrics_token_file, the path of a file that has the token')
