"""Program of the allocator: ``python -m penstock_allocator``."""

from penstock_allocator.machine import AllocatorSettings
from penstock_allocator.runner import run
from penstock_bus.shell import main

if __name__ == "__main__":
    main("allocator", AllocatorSettings, run)
