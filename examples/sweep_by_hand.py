"""
Submit the network with several learning rates, wait for all of them, and write their losses as one table.

``python sweep_by_hand.py 0.02 0.05 0.1 > losses.csv``, with `penstock up` running: the synchronous client, without
`async` and `await`.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import penstock

SCRIPT = Path(__file__).with_name("digits_mlp.py")


def main(rates: list[float]) -> None:
    """Run a job for each learning rate, and print the step and loss of each as CSV."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    with penstock.SyncClient() as client:
        jobs = [
            client.submit(name="digits", command=(sys.executable, str(SCRIPT)), params={"lr": rate, "steps": 200})
            for rate in rates
        ]
        table.writerow(["lr", "step", "loss"])
        for rate, job in zip(rates, jobs, strict=True):
            ended = client.wait(job.id)
            print(f"lr {rate}: {ended.state} after {ended.steps} steps", file=sys.stderr)
            series = client.metrics(job.id)
            if "loss" in series.metrics:
                table.writerows((rate, *row) for row in zip(series.steps, series.values("loss"), strict=True))


if __name__ == "__main__":
    main([float(word) for word in sys.argv[1:]] or [0.02, 0.05, 0.1])
