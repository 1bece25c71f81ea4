"""The pictures of `penstock top` in docs/ can be drawn anew by the command that docs/top.md names."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {
    "top-queue.svg": ("r0train", "pretrain-0", "(capacity)", "16 busy"),
    "top-devices.svg": ("by user:", "drained", "xx"),
    "top-job.svg": ("resnet-0", "accuracy", "python train.py"),
}


def words(path: Path) -> str:
    """Return the text of a picture."""
    text = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))
    return html.unescape(text).replace("\xa0", " ")


@pytest.mark.parametrize("name", SHOWN)
def test_the_pictures_in_docs_show_what_is_said_of_them_and_fetch_nothing(name: str) -> None:
    path = ROOT / "docs" / name
    assert all(text in words(path) for text in SHOWN[name]), words(path)
    assert not re.search(r"(url\(|href=|src=)[\"']?https?:", path.read_text())
    assert f"]({name})" in (ROOT / "docs" / "top.md").read_text()


@pytest.mark.slow
@pytest.mark.thorough
def test_the_command_draws_them_anew(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "libs", ROOT / "services")))}
    command = [sys.executable, str(ROOT / "tools" / "top_pictures.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=110)
    for name, texts in SHOWN.items():
        assert all(text in words(tmp_path / name) for text in texts), words(tmp_path / name)
