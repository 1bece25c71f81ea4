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
    retry_s : float
        Pause between two tries of a submission of the inbox while the log is away or full.
    """

    max_spec_bytes: int = 256 * 1024
    append_timeout_s: float = 4.0
    retry_s: Annotated[float, Meta(gt=0, le=10)] = 1.0
