"""``python -m penstock_tuner``."""

from penstock_bus import shell
from penstock_tuner.runner import run
from penstock_tuner.settings import Settings

if __name__ == "__main__":
    shell.main("tuner", Settings, run)
