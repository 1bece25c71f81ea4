"""What was asked of `penstock sim`, before anything was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Literal

Engine = Literal["auto", "counted", "deciders"]

_OPTIONS: Final = {"settings": "--set", "policies": "--policy", "processes": "--jobs", "seeds": "--seed"}
"""Where an option is not called what its field is."""


@dataclass(frozen=True)
class SimulationArguments:
    """
    What was typed; see the options of ``penstock sim``. Whatever has its default here was not typed.

    Examples
    --------
    >>> policies = ("fifo", "srtf")
    >>> asked = SimulationArguments(Path("jobs.csv"), cluster="3x4", policies=policies, settings={"levels": "9"})
    >>> " ".join(asked.words())
    'jobs.csv --cluster 3x4 --policy fifo --policy srtf --set levels=9'
    """

    trace: Path
    cluster: str
    policies: tuple[str, ...]
    format: str = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str = ""
    speedups: Path | None = None
    overhead_s: float = 0.0
    seeds: tuple[int, ...] = ()
    compat: str = ""
    gpu_time_samples: Path | None = None
    engine: Engine = "auto"
    mtbf_s: float = 0.0
    repair_s: float = 600.0
    length_error: float = 0.0
    quota: Path | None = None
    borrow: bool | None = None
    scaling: Path | None = None
    profiles: Path | None = None
    window_s: float = 0.0
    log: Path | None = None
    processes: int = 1

    def words(self) -> Iterator[str]:
        """Yield the arguments that ask for this again."""
        yield str(self.trace)
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            option = _OPTIONS.get(one.name, f"--{one.name.replace('_', '-')}")
            match value:
                case tuple():
                    for item in value:
                        yield from (option, str(item))
                case dict():
                    for name, item in value.items():
                        yield from (option, f"{name}={item}")
                case bool():
                    yield option if value else option.replace("--", "--no-", 1)
                case _ if value != one.default:
                    yield from (option, f"{value:g}" if isinstance(value, float) else str(value))
                case _:
                    pass

    def described(self) -> dict[str, str]:
        """Return what was set otherwise than by default, in words."""
        shown = ("placement", "compat", "overhead_s", "mtbf_s", "length_error", "borrow", "window_s")
        default = {one.name: one.default for one in fields(self)}
        found = {name: str(getattr(self, name)) for name in shown if getattr(self, name) != default[name]}
        if self.seeds:
            found["seeds" if len(self.seeds) > 1 else "seed"] = ", ".join(map(str, self.seeds))
        files = {name: getattr(self, name) for name in ("speedups", "gpu_time_samples", "quota", "scaling", "profiles")}
        return {**self.settings, **found, **{name: path.name for name, path in files.items() if path is not None}}
