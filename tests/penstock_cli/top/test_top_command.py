"""The command `penstock top`: what it loads, what it needs, and what it says without that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock_cli.commands import top
from penstock_cli.commands.top import first_environment
from penstock_cli.top.terminal_style import glyphs_of

Run = Callable[..., tuple[int, str, str]]


def python(program: str, **environment: str) -> str:
    """Run a program in an interpreter of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.strip()


def test_without_a_terminal_it_says_what_to_use(penstock: Run) -> None:
    code, out, err = penstock("top")
    assert (code, out) == (2, "")
    assert err.startswith("penstock: `penstock top` needs a terminal; for scripts there are `penstock ps`")


def test_without_textual_it_says_which_extra_brings_it(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("textual", "penstock_cli.top.screen_app"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    code, out, err = penstock("top")
    assert (code, out) == (1, "")
    assert err == "penstock: `penstock top` needs Textual, which is not installed: pip install 'penstock[top]'\n"


def test_a_moment_that_is_none_is_refused(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "has_terminal", lambda: True)
    code, _, err = penstock("top", "--at", "yesterday")
    assert code == 2
    assert "'yesterday' is no moment" in err


@pytest.mark.slow
def test_no_other_command_loads_textual() -> None:
    program = (
        "import sys; from penstock_cli.app import app, load_commands; from penstock_cli.quick_start import MODULE_OF\n"
        "for module in set(MODULE_OF.values()): load_commands(module)\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'textual'])"
    )
    assert python(program) == "[]"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NOT TESTED: reads the first environment from /proc")
def test_the_locale_is_the_users_and_not_the_one_that_python_sets_for_itself() -> None:
    program = (
        "import os; from penstock_cli.commands.top import first_environment as first\n"
        "print(os.environ.get('LC_CTYPE'), first().get('LC_CTYPE'), first()['LANG'])"
    )
    assert python(program, LANG="C", LC_ALL="", LC_CTYPE="").split()[-1] == "C"
    assert glyphs_of({"LANG": "C", "LC_CTYPE": "", "LC_ALL": ""}).is_ascii
    assert first_environment()
