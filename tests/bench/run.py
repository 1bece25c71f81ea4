"""Run every benchmark in this folder, one after the other: ``make bench``."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Return the number of benchmarks that failed."""
    wanted = sys.argv[1:]
    failed = 0
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        if wanted and path.stem.removeprefix("bench_") not in wanted:
            continue
        print(f"== {path.stem.removeprefix('bench_')}", flush=True)
        failed += subprocess.run([sys.executable, str(path)], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
