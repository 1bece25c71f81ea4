"""
What a pool does about runs that hold devices and do nothing.

The rule is set live for a pool (``penstock policy set idle_after_s=1800 idle_action=stop``). The executors measure, and
the gateway acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock_log import Setting

Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class IdleRules(msgspec.Struct, frozen=True, kw_only=True):
    """
    A pool's rule.

    Attributes
    ----------
    idle_after_s : float
        Seconds without any work after which a run counts as idle; 0: none ever does.
    idle_grace_s : float
        Seconds from then on until it is acted on.
    idle_action : {"warn", "stop"}
        ``warn``: it is said in the log, and that is all. ``stop``: the job is cancelled, with the reason.
    """

    idle_after_s: Seconds = 0.0
    idle_grace_s: Seconds = 300.0
    idle_action: Literal["warn", "stop"] = "warn"

    @classmethod
    def of(cls, settings: Mapping[str, Setting]) -> IdleRules:
        """
        Return the rule that live settings of a pool make; nothing counts as idle by values that are none of its own.

        The gateway refuses such values, so that only another version can have written them.

        Examples
        --------
        >>> IdleRules.of({"order": "fifo", "idle_after_s": 60}).idle_after_s
        60.0
        >>> IdleRules.of({"idle_after_s": 60, "idle_action": "shout"}).idle_after_s
        0.0
        """
        own = {name: settings[name] for name in cls.__struct_fields__ if name in settings}
        try:
            return msgspec.convert(own, cls)
        except msgspec.ValidationError:
            return cls()

    def due_s(self, since_s: float) -> float | None:
        """Return when a run that has been idle since then is stopped; None where it is not."""
        if not self.idle_after_s or self.idle_action != "stop":
            return None
        return since_s + self.idle_after_s + self.idle_grace_s
