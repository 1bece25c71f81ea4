"""
Aggregation: the ranks of a job add up their vectors on shared aggregators.

The names are loaded when they are first used, so that who imports one module pays for it only. It needs NumPy.

In reading order:

* ``exchange``: One rank's side: it pushes a vector and pulls the result.
* ``aggregator_talk``: What it says to aggregators: each part's next request, answers, connections.
* ``aggregator_connection``: One connection of a rank to an aggregator, which never blocks.
* ``shared_vectors``: A rank's pushes and results, in memory that aggregators of its host share.
* ``rules``: Sums in the order of ranks, and optimizers, in place.
* ``frames``: Frames between ranks and aggregators.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in penstock: importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock.aggregation.aggregator_talk import AggregationError
    from penstock.aggregation.exchange import ExchangeStats, VectorExchange

_HOMES = {
    "AggregationError": "penstock.aggregation.aggregator_talk",
    "ExchangeStats": "penstock.aggregation.exchange",
    "VectorExchange": "penstock.aggregation.exchange",
}

__all__ = ["AggregationError", "ExchangeStats", "VectorExchange"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
