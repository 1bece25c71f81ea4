"""What can be set for the gateway: ``[gateway]`` in TOML, ``PENSTOCK_GATEWAY_…`` in the environment."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The gateway's settings.

    Attributes
    ----------
    max_spec_bytes : int
        Largest job or sweep specification; also bounded by what the server takes.
    append_timeout_s : float
        How long a command waits for the log before it answers 503.
    query_timeout_s : float
        How long a query may take before it is given up with 503. The next one of its kind waits that long at most;
        commands never wait for queries.
    retry_s : float
        Pause between two tries of a submission of the inbox while the log is away or full.
    """

    max_spec_bytes: Annotated[int, Meta(gt=0)] = 256 * 1024
    append_timeout_s: Annotated[float, Meta(gt=0)] = 4.0
    query_timeout_s: Annotated[float, Meta(gt=0)] = 4.0
    retry_s: Annotated[float, Meta(gt=0, le=10)] = 1.0
