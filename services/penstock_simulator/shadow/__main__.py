"""Program of a shadow: ``python -m penstock_simulator.shadow``."""

import os

from penstock_bus.shell import main
from penstock_simulator.shadow.plan import ShadowSettings
from penstock_simulator.shadow.runner import run

_NICE = 10

if __name__ == "__main__":
    os.nice(_NICE)  # the services that run the cluster come first
    main("shadow", ShadowSettings, run)
