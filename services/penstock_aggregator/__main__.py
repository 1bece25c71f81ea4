"""Program of one node's aggregation agent: ``python -m penstock_aggregator``."""

from penstock_aggregator.machine import AggregatorSettings
from penstock_aggregator.runner import run
from penstock_bus.shell import main

if __name__ == "__main__":
    main("aggregator", AggregatorSettings, run)
