"""All commands together: each is found without loading the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock_cli
from penstock_cli.app import MODULE_OF, load_commands


@pytest.mark.parametrize("module", sorted(set(MODULE_OF.values())))
def test_a_module_registers_the_commands_that_are_expected_there(module: str) -> None:
    assert set(load_commands(module)) == {name for name in MODULE_OF if MODULE_OF[name] == module}


def test_every_module_with_commands_is_known() -> None:
    commands = Path(penstock_cli.__path__[0]) / "commands"
    files = {path.stem for path in commands.glob("*.py")} - {"__init__"}
    assert {f"commands.{name}" for name in files} == set(MODULE_OF.values()) - {"app"}


def test_the_module_of_another_command_is_not_loaded() -> None:
    asking = "from penstock_cli.app import app; app(['status', '--help'], standalone_mode=False)"
    code = f"import sys; {asking}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert {name for name in MODULE_OF.values() if f"penstock_cli.{name}" in loaded} == {"app", "commands.cluster"}
