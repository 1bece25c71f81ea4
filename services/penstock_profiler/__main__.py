"""``python -m penstock_profiler``."""

from penstock_bus import shell
from penstock_profiler.runner import run
from penstock_profiler.settings import Settings

if __name__ == "__main__":
    shell.main("profiler", Settings, run)
