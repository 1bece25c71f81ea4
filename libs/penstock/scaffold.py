"""Write the skeleton of a service that stands beside Penstock: ``penstock new service NAME``."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,40}")
_SUFFIX: Final = ".txt"


def write_service(name: str, into: Path) -> list[Path]:
    """
    Write a working service and its test into the folder ``into / name``.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and hyphens; the package becomes ``penstock_<name>`` with underscores.
    into : Path
        An existing folder.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    ValueError
        If the name is of another form.
    FileExistsError
        If the folder exists and holds something: nothing is overwritten.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a service; expected lower-case letters, digits and -, such as my-notifier"
        )
    target = into / name
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(f"{target} exists and is not empty; choose another name or folder")
    module = name.replace("-", "_")
    words = {"@name@": name, "@module@": module, "@MODULE@": module.upper()}
    return [_write(source, target / path, words) for source, path in _templates(module)]


def _templates(module: str) -> list[tuple[Traversable, Path]]:
    root = files("penstock") / "templates" / "service"
    places = {"package": Path(f"penstock_{module}"), "tests": Path("tests")}
    found = [(item, Path(item.name)) for item in root.iterdir() if item.is_file()]
    for folder, place in places.items():
        found += [(item, place / item.name) for item in (root / folder).iterdir() if item.is_file()]
    renamed = {"test_service.py": f"test_{module}.py"}
    named = [(item, path.with_name(path.name.removesuffix(_SUFFIX))) for item, path in found]
    return sorted(((i, p.with_name(renamed.get(p.name, p.name))) for i, p in named), key=lambda pair: pair[1])


def _write(source: Traversable, target: Path, words: dict[str, str]) -> Path:
    text = source.read_text(encoding="utf-8")
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target
