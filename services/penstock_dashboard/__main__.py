"""The dashboard on a bus: ``python -m penstock_dashboard``."""

from __future__ import annotations

from penstock_bus.shell import main
from penstock_dashboard.runner import run
from penstock_dashboard.settings import DashboardSettings

if __name__ == "__main__":
    main("dashboard", DashboardSettings, run)
