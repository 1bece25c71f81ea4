"""
Random facts: whatever the log holds, every service folds it and decides, and none ends for it.

Facts of the right types with values that no service of today would write, in any order; ``PENSTOCK_TEST_INPUTS`` says
how many. The seed is fixed, so that a failure comes again.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - seeded; arrays would only be in the way
from collections.abc import Callable, Iterator
from typing import Any, Final, get_args

import pytest
from msgspec import inspect

from penstock_aggregator import machine as aggregator
from penstock_allocator import machine as allocator
from penstock_assigner import machine as assigner
from penstock_autoscaler import machine as autoscaler
from penstock_bus import Decider, Delivery
from penstock_bus.decider import Fold
from penstock_executor import machine as executor
from penstock_gateway import machine as gateway
from penstock_gateway.machine import GatewaySettings
from penstock_log import AnyEvent, CodecError, Commit, decode, encode
from penstock_matcher import machine as matcher
from penstock_memory import machine as memory
from penstock_profiler import machine as profiler
from penstock_ranker import machine as ranker
from penstock_tuner import machine as tuner

INPUTS: Final = int(os.environ.get("PENSTOCK_TEST_INPUTS", "150"))
LIFE: Final = 400
"""So many facts make one log: the more there are, the more of them are about things that are there."""
WORDS: Final = ("a", "b", "n1", "n2", "s1", "default", "w", "fast", "slow", "x")
WHOLE: Final = (0, 1, 1, 2, 3, -1, 7, 2**62)
REAL: Final = (0.0, 0.5, 1.0, 2.0, 10.0, -1.0, 1e300, 1e-300)
KINDS: Final = tuple(inspect.type_info(kind) for kind in get_args(AnyEvent))
DECIDERS: Final[dict[str, Callable[[], Decider[Any]]]] = {
    "allocator": allocator.decider,
    "aggregator": lambda: aggregator.decider("n1"),
    "assigner": assigner.decider,
    "autoscaler": autoscaler.decider,
    "executor": executor.decider,
    "gateway": lambda: gateway.decider(GatewaySettings()),
    "matcher": lambda: matcher.decider(heard=lambda nodes, now_s: dict.fromkeys(nodes, now_s - 1.0)),
    "memory": lambda: memory.decider("n1"),
    "profiler": profiler.decider,
    "ranker": ranker.decider,
    "tuner": tuner.decider,
}


class Chance:
    """Values of any type, by chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311
        self.now_s = 1_000.0

    def value(self, info: inspect.Type, name: str = "") -> Any:  # noqa: C901, PLR0911, PLR0912 - one for each type
        match info:
            case inspect.Metadata():
                return self.value(info.type, name)
            case inspect.StructType():
                told = [field for field in info.fields if field.required or self.rng.random() < 0.6]
                return info.cls(**{field.name: self.value(field.type, field.name) for field in told})
            case inspect.UnionType():
                return self.value(self.rng.choice(info.types), name)
            case inspect.VarTupleType():
                count = max(info.min_length or 0, self.rng.choice((0, 1, 1, 2)))
                return tuple(self.value(info.item_type, name) for _ in range(count))
            case inspect.TupleType():
                return tuple(self.value(item, name) for item in info.item_types)
            case inspect.ListType():
                return [self.value(info.item_type, name) for _ in range(self.rng.randrange(3))]
            case inspect.DictType():
                count = self.rng.randrange(3)
                return {self.value(info.key_type): self.value(info.value_type, name) for _ in range(count)}
            case inspect.StrType():
                return self.rng.choice(WORDS)
            case inspect.IntType():
                return self._within(self.rng.choice(WHOLE), info, 1)
            case inspect.FloatType():
                return self._within(self._time() if name == "at_s" else self.rng.choice(REAL), info, 0.5)
            case inspect.BoolType():
                return self.rng.random() < 0.5
            case inspect.LiteralType():
                return self.rng.choice(info.values)
            case inspect.NoneType():
                return None
            case _:
                raise TypeError(info)

    def _time(self) -> float:
        return self.now_s + (self.rng.choice((-3600.0, 3600.0, 1e300, -1e300)) if self.rng.random() < 0.05 else 0.0)

    @staticmethod
    def _within(number: float, info: inspect.IntType | inspect.FloatType, step: float) -> float:
        least = info.ge if info.ge is not None else None if info.gt is None else info.gt + step
        number = number if least is None else max(number, least)
        return number if info.le is None else min(number, info.le)

    def commits(self, count: int) -> Iterator[Commit]:
        """Yield as many commits as there can be: some values are refused by their own types, or by the codec."""
        for number in range(count):
            self.now_s += self.rng.random()
            try:
                fact = self.value(self.rng.choice(KINDS))
                yield decode(encode(Commit(id=f"c{number}", actor="test", facts=(fact,))))
            except (ValueError, CodecError):
                continue


@pytest.mark.parametrize("service", DECIDERS)
def test_no_fact_ends_a_service(service: str) -> None:
    decider, chance = DECIDERS[service](), Chance(19)
    fold: Fold[Any] = Fold(decider)
    for seq, commit in enumerate(chance.commits(INPUTS), 1):
        fold = fold if seq % LIFE else Fold(decider)
        fold.apply(Delivery(seq=seq, subject="penstock.evt.job.a", stored_s=chance.now_s, pending=0, commit=commit))
        if chance.rng.random() < 0.3 and service != "executor":  # whose decisions are about processes
            for proposal in decider.decide(fold.state, chance.now_s).proposals:
                assert encode(Commit(id="p", actor=service, facts=proposal.facts))
        if chance.rng.random() < 0.05:
            assert fold.snapshot().last_seq == seq
