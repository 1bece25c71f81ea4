"""What can be set for the gateway: ``[gateway]`` in TOML, ``PENSTOCK_GATEWAY_…`` in the environment."""

from __future__ import annotations

import msgspec


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
        How long a submission of the inbox is put back when the log cannot take it. After ten deliveries the bus moves
        it to REJECTED, so ten times this is how long a full disk may last.
    """

    max_spec_bytes: int = 256 * 1024
    append_timeout_s: float = 4.0
    retry_s: float = 10.0
