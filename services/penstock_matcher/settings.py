"""What can be set about the matcher: table ``[matcher]`` or ``PENSTOCK_MATCHER_…``."""

from penstock_policies.rounds.settings import Settings

__all__ = ["Settings"]
