"""
What can be set about elastic jobs in a simulation, and how fast a model is on how many devices where its batch stays.

A file of scaling curves is TOML or JSON: model → devices → throughput, in any unit; ``"*"`` stands for models that have
no entry of their own. Between the widths that are named a curve goes straight; beyond the widest it is not defined.

```toml
["resnet-50"]
1 = 95.0
2 = 171.0
4 = 262.0

["*"]
1 = 1.0
8 = 5.3
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock_policies.autoscale.wish import DEFAULT, Rules
from penstock_sim.counted.settings import check_rising, converted

Curves = Mapping[str, Mapping[int, float]]
"""Model → devices → throughput."""

ANY: Final = "*"

EXPONENT: Final = 0.8
"""
Without a file, throughput goes with the number of devices to this power: 1.74, 3.03 and 5.28 on 2, 4 and 8. The medians
of 19 models measured on three kinds of devices by Narayanan et al. (*Gavel*, OSDI 2020) are 1.66 to 1.81, 2.28 to 2.99
and 3.96 to 6.48.
"""


class Sizing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The parameters of the policy ``elastic``, of its relatives with a fixed batch, and of ``fixed``.

    Attributes
    ----------
    admit : {"fifo", "2d-las"}
        In which order jobs are admitted: by submission, or by attained device time in queues.
    thresholds_gpu_s : tuple of float
        Device-seconds at which a job leaves queue 0, 1, … of ``2d-las``; rising.
    most_gpus : int or None
        Each job may be given up to so many devices, or as many as it asked for if that is more; None: as many as it
        asked for.
    horizon_s : float
        Sizes change for nothing but more throughput only if what is gained in this time exceeds what resizing costs.
    least_gain : float
        Nor for less than this share of a job's present throughput.
    drop : bool
        A job that finds no room when it comes is over, instead of waiting.
    """

    admit: Literal["fifo", "2d-las"] = "fifo"
    thresholds_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    most_gpus: Annotated[int, Meta(ge=1)] | None = None
    horizon_s: Annotated[float, Meta(gt=0)] = 3600.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = DEFAULT.least_gain
    drop: bool = False

    def __post_init__(self) -> None:
        check_rising(self.thresholds_gpu_s)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Sizing:
        """
        Return the settings of names and values, text among them.

        Raises
        ------
        ValueError
            If a name is unknown or a value is not what it should be.

        Examples
        --------
        >>> Sizing.of({"most_gpus": "8", "thresholds_gpu_s": "60,600"}).thresholds_gpu_s
        (60.0, 600.0)
        """
        return converted(values, cls, "settings of elastic")

    @property
    def rules(self) -> Rules:
        """What bounds resizing, as the autoscaler has it."""
        return Rules(horizon_s=self.horizon_s, least_gain=self.least_gain, drop=self.drop)


def read(path: Path) -> Curves:
    """
    Return a file's curves.

    Raises
    ------
    ValueError
        If it cannot be read, or does not hold a number above 0 for each model and number of devices.
    """
    form = dict[str, dict[int, float]]
    try:
        body = path.read_bytes()
        found: Curves = (
            msgspec.toml.decode(body, type=form, strict=False)
            if path.suffix == ".toml"
            else msgspec.json.decode(body, type=form, strict=False)
        )
    except OSError as error:
        raise ValueError(f"scaling {path} cannot be read: {error.strerror}; name a file that can") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"scaling {path}: {error}; expected a table for each model: devices = throughput") from error
    for model, curve in found.items():
        for gpus, throughput in curve.items():
            if gpus < 1 or not (throughput > 0 and math.isfinite(throughput)):
                raise ValueError(
                    f"scaling {path}: {model} on {gpus} devices is {throughput}; expected numbers above 0 on 1 or more"
                )
        if not curve:
            raise ValueError(f"scaling {path}: {model} has no width; expected devices = throughput")
    return found
