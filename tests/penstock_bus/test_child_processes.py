"""How processes of ours are started."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from penstock_bus.child_processes import module_command

ROOT = Path(__file__).parents[2]


def test_a_module_of_ours_does_not_import_from_the_current_folder_and_its_children_may(tmp_path: Path) -> None:
    package = tmp_path / "path"
    package.mkdir()
    (package / "shows.py").write_text(
        "import os, sys\nprint(sys.path, sys.argv[1:], os.environ.get('PYTHONSAFEPATH'))\n"
    )
    command, env = module_command("shows", "one"), {"PYTHONPATH": str(package)}
    shown = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(f"['{package}', ")
    assert shown.endswith("['one'] None\n")
    assert f"'{tmp_path}'" not in shown
    assert "''" not in shown


def test_every_module_of_ours_is_started_so() -> None:
    sources = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    unsafe = re.compile(r'(?<!_set_command_line\()sys\.executable,\s*"-[mc]"')
    assert [path for path in sources if unsafe.search(path.read_text())] == []
