"""``python -m penstock_ranker``."""

from penstock_bus.shell import main
from penstock_ranker.runner import run
from penstock_ranker.settings import Settings

if __name__ == "__main__":
    main("ranker", Settings, run)
