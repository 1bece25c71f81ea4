"""Run the gateway: ``python -m penstock_gateway``."""

from penstock_bus.shell import main
from penstock_gateway.runner import run
from penstock_gateway.settings import Settings

if __name__ == "__main__":
    main("gateway", Settings, run)
