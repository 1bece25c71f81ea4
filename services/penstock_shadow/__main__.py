"""``python -m penstock_shadow``."""

import os

from penstock_bus.shell import main
from penstock_shadow.runner import run
from penstock_shadow.settings import Settings

_NICE = 10

if __name__ == "__main__":
    os.nice(_NICE)  # the services that run the cluster come first
    main("shadow", Settings, run)
