"""``python -m penstock_autoscaler``."""

from penstock_autoscaler.runner import run
from penstock_autoscaler.settings import Settings
from penstock_bus.shell import main

if __name__ == "__main__":
    main("autoscaler", Settings, run)
