"""Install a lock file and, editable, Penstock itself into this environment: ``python tools/install.py LOCK EXTRAS``."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def is_missing_file(stderr: str) -> bool:
    """Tell whether pip found no file of a locked version, rather than one with another hash."""
    return "No matching distribution found" in stderr and "DO NOT MATCH THE HASHES" not in stderr


def locked(name: str) -> subprocess.CompletedProcess[str]:
    """Install ``locks/NAME.txt``, each file with one of its hashes, and before it what the rest is built by."""
    for lock in ("build", name):
        file = str(ROOT / "locks" / f"{lock}.txt")
        done = subprocess.run(
            [*PIP, "--require-hashes", "--no-build-isolation", "--requirement", file],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            break
    return done


def main() -> None:
    """Install by the lock; where the index lacks a file of it and ``LOCKED`` is not set, by the ranges."""
    lock, extras = sys.argv[1:]
    only_locked = bool(os.environ.get("LOCKED"))
    done = locked(lock)
    sys.stderr.write(done.stderr)
    if done.returncode == 0:  # a dependency that is newer than the lock is still fetched, but not where CI looks
        words = ["--no-build-isolation", "--editable", f"{ROOT}[{extras}]", *(["--no-deps"] if only_locked else [])]
    elif only_locked or not is_missing_file(done.stderr):
        sys.exit(f"Nothing was installed: locks/{lock}.txt could not be followed. What pip said stands above.")
    else:
        print(f"NOT LOCKED: the index has not every file of locks/{lock}.txt; installing what pyproject.toml allows.")
        words = ["--editable", f"{ROOT}[{extras}]"]
    if code := subprocess.run([*PIP, *words], check=False).returncode:
        sys.exit(code)
    if only_locked and subprocess.run([sys.executable, "-m", "pip", "check"], check=False).returncode:
        sys.exit("pyproject.toml asks for what locks/ has not; run `make lock` and commit it")


if __name__ == "__main__":
    main()
