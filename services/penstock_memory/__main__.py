"""Program of one node's memory agent: ``python -m penstock_memory``."""

from penstock_bus.shell import main
from penstock_memory.machine import MemorySettings
from penstock_memory.runner import run

if __name__ == "__main__":
    main("memory", MemorySettings, run)
