"""Program of the tuner: ``python -m penstock_tuner``."""

from penstock_bus import shell
from penstock_tuner.machine import TunerSettings
from penstock_tuner.runner import run

if __name__ == "__main__":
    shell.main("tuner", TunerSettings, run)
