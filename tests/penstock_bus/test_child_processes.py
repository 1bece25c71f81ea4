"""How processes of ours are started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


def test_processes_of_multiprocessing_do_not_import_from_the_current_folder(tmp_path: Path) -> None:
    here, program = tmp_path / "here", tmp_path / "program"
    here.mkdir()
    program.mkdir()
    for name in ("queue", "pickle", "random", "runpy"):
        (here / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    (program / "main.py").write_text(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "import os\n"
        "from penstock_bus.child_processes import safe_imports\n"
        "if __name__ == '__main__':\n"
        "    with safe_imports(), ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:\n"
        "        there = pool.submit(abs, -7).result()\n"
        "    print(there, os.environ.get('PYTHONSAFEPATH'))\n"
    )
    command = (sys.executable, str(program / "main.py"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("7 None\n", "")
