"""Program of one node's executor: ``python -m penstock_executor``."""

from penstock_bus.shell import main
from penstock_executor.launchers.confinement import hide_from_jobs
from penstock_executor.refusal import end_runs
from penstock_executor.runner import run
from penstock_executor.settings import ExecutorSettings

if __name__ == "__main__":
    hide_from_jobs()  # jobs may have the same user, and this process its password
    main("executor", ExecutorSettings, run, refused=end_runs)
