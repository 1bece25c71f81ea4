"""Which engine simulates what was asked for: counting where that will do, for it is many times faster."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from penstock.cli.asking import Asked, Engine
from penstock.cli.errors import bad_input
from penstock_matcher.settings import Settings as MatcherSettings
from penstock_policies.placement import PLACEMENTS as PLACED
from penstock_ranker.settings import Settings as RankerSettings
from penstock_sim import counted
from penstock_sim.cluster import Nodes
from penstock_sim.counted.settings import Settings as CountedSettings
from penstock_sim.counted.sizing import Sizing
from penstock_sim.quotas import Quotas
from penstock_sim.virtual import policies as virtual

POLICIES: Final = tuple(dict.fromkeys((*counted.POLICIES, *virtual.POLICIES, *counted.SIZED)))
PLACEMENTS: Final = tuple(dict.fromkeys((*counted.PLACEMENTS, *PLACED)))
COUNTED: Final = CountedSettings.__struct_fields__
DECIDED: Final = (*RankerSettings.__struct_fields__, *MatcherSettings.__struct_fields__)
SIZED: Final = Sizing.__struct_fields__
_ANY_SIZED: Final = " or ".join((", ".join(counted.SIZED[:-1]), counted.SIZED[-1]))


def sized(asked: Asked) -> list[str]:
    """Return the policies asked for that may give jobs other sizes."""
    return [policy for policy in asked.policies if policy in counted.SIZED]


def check_names(asked: Asked) -> None:
    """End with a message where a name is not known."""
    if not asked.policies:
        bad_input(f"no policy is named; expected --policy with some of {', '.join(POLICIES)}")
    for policy in asked.policies:
        _check_known("policy", policy, POLICIES)
    for name in asked.settings:
        _check_known("setting", name, sorted({*COUNTED, *DECIDED, *SIZED}))
        if name in {*SIZED} - {*COUNTED, *DECIDED} and not sized(asked):
            bad_input(f"--set {name} is of policy {_ANY_SIZED}, none of which is named; add one, or leave it out")
    if asked.placement:
        _check_known("placement", asked.placement, PLACEMENTS)
    if asked.compat:
        _check_known("compat mode", asked.compat, counted.COMPATS)
    if asked.log and (len(asked.policies) > 1 or len(asked.seeds) > 1):
        bad_input("--log takes the log of one policy and seed; name one of each, or leave --log out")
    if asked.borrow is not None and asked.quota is None:
        bad_input("--borrow and --no-borrow are about quotas; give --quota FILE with them, or leave them out")
    _check_speeds(asked)


def _check_speeds(asked: Asked) -> None:
    for option, file in (("--scaling", asked.scaling), ("--profiles", asked.profiles)):
        if file is not None and not sized(asked):
            bad_input(f"{option} is for policy {_ANY_SIZED}, none of which is named; add one, or leave {option} out")
    if asked.scaling is not None and asked.profiles is not None:
        bad_input("--scaling and --profiles both say how fast models are; give one of them")


def _check_known(what: str, name: str, known: tuple[str, ...] | list[str]) -> None:
    if name not in known:
        close = [one for one in known if one.startswith(name)] or difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        bad_input(f"there is no {what} {name!r}; expected one of {', '.join(known)}{meant}")


def engine(asked: Asked, nodes: Nodes, quotas: Quotas | None, *, spells: bool) -> Engine:
    """Return the engine of all policies but those that size jobs, which are always counted; tell if none will do."""
    needs, told = list(_needs_deciders(asked, nodes, quotas, spells=spells)), list(_told_deciders(asked))
    if sized(asked) and needs:
        bad_input(f"--policy {sized(asked)[0]} can only be counted, and {needs[0]} needs the deciders; leave one out")
    deciders, counting = [*told, *needs], list(_only_counted(asked))
    if deciders and counting:
        bad_input(f"{counting[0]} can only be counted, and {deciders[0]} needs the deciders; leave one of them out")
    if asked.engine == "counted" and deciders:
        bad_input(f"{deciders[0]} needs the deciders; leave it out, or leave --engine counted out")
    if asked.engine == "deciders" and counting:
        bad_input(f"{counting[0]} can only be counted; leave it out, or leave --engine deciders out")
    if asked.engine != "auto":
        return asked.engine
    return "deciders" if deciders else "counted"


def _told_deciders(asked: Asked) -> Iterator[str]:
    """Yield what only the deciders know, for the policies that they run."""
    known = (*counted.POLICIES, *counted.SIZED)
    yield from (f"--policy {policy}" for policy in asked.policies if policy not in known)
    yield from (f"--set {name}" for name in asked.settings if name not in COUNTED and name not in SIZED)
    if asked.placement in PLACED:
        yield f"--placement {asked.placement}"


def _needs_deciders(asked: Asked, nodes: Nodes, quotas: Quotas | None, *, spells: bool) -> Iterator[str]:
    """Yield what is asked for of the cluster that cannot be counted."""
    if len(nodes.kinds) > 1 or len({group.speed for group in nodes.groups}) > 1:
        yield f"a cluster of several device kinds ({', '.join(nodes.kinds)})"
    if quotas is not None and quotas.borrow:
        yield "--quota with borrowing"
    given = {
        "--speedups": asked.speedups,
        "--log": asked.log,
        "--gantt": spells,
        "--mtbf-s": asked.mtbf_s,
        "--length-error": asked.length_error,
    }
    yield from (option for option, value in given.items() if value)


def _only_counted(asked: Asked) -> Iterator[str]:
    """Yield what was asked for and the deciders do not know."""
    if asked.compat:
        yield f"--compat {asked.compat}"
    if asked.placement and asked.placement not in PLACED:
        yield f"--placement {asked.placement}"
    known = (*virtual.POLICIES, *counted.SIZED)
    yield from (f"--policy {policy}" for policy in asked.policies if policy not in known)
    yield from (f"--set {name}" for name in asked.settings if name not in DECIDED and name not in SIZED)
