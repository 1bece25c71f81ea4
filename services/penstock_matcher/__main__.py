"""``python -m penstock_matcher``."""

from penstock_bus.shell import main
from penstock_matcher.runner import run
from penstock_matcher.settings import Settings

if __name__ == "__main__":
    main("matcher", Settings, run)
