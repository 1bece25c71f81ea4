"""Ask an advisory service about the pins of lock files: ``python tools/audit.py LOCK … [-- OPTION of pip-audit …]``.

pip-audit calls a distribution that the service does not know skipped, and passes. Here it fails: what nobody answered
for was not audited. Exit codes: 0 all are known and clean, 1 something is vulnerable, 2 not all were audited.
"""

import json
import subprocess
import sys
from typing import Any

VULNERABLE, NOT_AUDITED = 1, 2


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code for a report of pip-audit, and what to print."""
    asked = report["dependencies"]
    skipped = [one for one in asked if "skip_reason" in one]
    found = [
        f"  {one['name']} {one['version']}: {advisory['id']}, "
        f"fixed in {' or '.join(advisory['fix_versions']) or 'no release'}"
        for one in asked
        for advisory in one.get("vulns", ())
    ]
    lines = []
    if found:
        lines += [f"VULNERABLE: {len(found)} advisories; renew with: make lock ARGS=--upgrade", *found]
    if skipped or not asked:
        lines += [f"NOT AUDITED: the service answered for {len(asked) - len(skipped)} of {len(asked)} distributions"]
        lines += [f"  {one['name']}: {one['skip_reason']}" for one in skipped]
    if lines:
        return VULNERABLE if found else NOT_AUDITED, lines
    return 0, [f"{len(asked)} distributions, no advisory is known for their versions"]


def audit(lock: str, options: list[str]) -> tuple[int, list[str]]:
    """Audit one lock file."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--requirement", lock]
    done = subprocess.run(
        [*command, "--progress-spinner", "off", "--format", "json", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return verdict(json.loads(done.stdout))
    except json.JSONDecodeError:
        reason = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return NOT_AUDITED, [
            f"NOT AUDITED: {reason}",
            '  It needs an advisory service: pypi.org, or api.osv.dev with ARGS="-s osv"',
        ]


def main() -> None:
    """Audit each file; exit by the worst."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    codes = set()
    for lock in words[:cut]:
        code, lines = audit(lock, words[cut + 1 :])
        print("\n".join([f"{lock}: {lines[0]}", *lines[1:]]))
        codes.add(code)
    sys.exit(VULNERABLE if VULNERABLE in codes else max(codes, default=NOT_AUDITED))


if __name__ == "__main__":
    main()
