"""
Write a log of this version, with every kind of fact, and the state to which this version folds it.

``python tools/record_log.py [FOLDER]``: for each release, and whenever a fact gets a new version of its tag. Later
versions are held to the files by ``tests/system/test_earlier_logs.py``; they are named after the commit, and not
written anew.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from log_state import told, wire  # noqa: E402 - which are found only now
from recorded_clusters import log  # noqa: E402


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "data" / "logs"
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() + "-every-fact"
    _write(folder / f"{name}.log.gz", "\n".join(wire(log())) + "\n")
    _write(folder / f"{name}.state.json.gz", json.dumps(told(log())))


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
