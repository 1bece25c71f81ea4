"""Program of the gateway: ``python -m penstock_gateway``."""

from penstock_bus.shell import main
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.runner import run

if __name__ == "__main__":
    main("gateway", GatewaySettings, run)
