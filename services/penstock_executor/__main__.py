"""Program of one node's executor: ``python -m penstock_executor``."""

from penstock_bus.shell import main
from penstock_executor.runner import run
from penstock_executor.settings import ExecutorSettings

if __name__ == "__main__":
    main("executor", ExecutorSettings, run)
