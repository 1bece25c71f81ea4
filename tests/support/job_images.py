"""Images for tests: a root file system with a shell, a few programs and Python, made of this machine's own files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LIBS: Final = Path(__file__).parents[2] / "libs"
PROGRAMS: Final = (
    *("sh", "env", "sleep", "cat", "id", "ls", "touch", "head", "grep", "mkdir", "true", "test", "sync", "stat"),
    "python3",
)
NAME: Final = "penstock-test-root:1"
SAYS: Final = "of the image"
"""What the image's own variable GREETING says; its entry point is a program that fails."""


def small_root(folder: Path) -> Path:
    """Make the file system in a folder; return it."""
    files: set[str] = set()
    for name in PROGRAMS:
        path = shutil.which(name, path="/usr/bin:/bin")
        assert path is not None, f"{name} is not on this machine"
        target = folder / "usr/bin" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755)
        files |= libraries(path)
    standard = Path(
        subprocess.check_output(["/usr/bin/python3", "-c", "import os; print(os.__file__)"], text=True)
    ).parent
    ignored = shutil.ignore_patterns("test", "tests", "__pycache__", "idlelib", "tkinter", "*-packages", "config-*")
    shutil.copytree(standard, folder / str(standard).lstrip("/"), ignore=ignored)
    for extension in (standard / "lib-dynload").iterdir():
        files |= libraries(str(extension))
    copy_libraries(files, folder)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / "usr" / name).mkdir(exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("etc", "tmp", "var/tmp", "proc", "dev", "sys", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/penstock-test").write_text("a file of the image\n")
    return folder


def libraries(path: str) -> set[str]:
    """Return the shared libraries that a program or library needs, with the loader."""
    found = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(/\S+) \(0x", found))


def copy_libraries(files: Iterable[str], root: Path) -> None:
    """Copy shared libraries of this machine to where they are."""
    for path in files:
        target = root / os.path.realpath(os.path.dirname(path)).lstrip("/") / os.path.basename(path)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o755)


def load(engine: str, root: Path, name: str = NAME) -> str:
    """Have an engine take the file system as an image; return its name."""
    changes = (f"ENV GREETING={SAYS!r}".replace("'", '"'), 'ENTRYPOINT ["/bin/false"]', 'CMD ["never"]')
    options = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run([engine, "import", *options, "-", name], stdin=tar.stdout, check=True, capture_output=True)
    return name if engine == "docker" else f"localhost/{name}"


def add_sdk(root: Path, *more: str) -> Path:
    """Give the image's Python the SDK's files and what it needs, and further packages of this environment."""
    (packages,) = (path.parent for path in root.glob("usr/lib/python3*/os.py"))
    for name in ("msgspec", *more):
        origin = Path(str(find_spec(name).origin)).parent  # type: ignore[union-attr]
        for folder in (origin, *origin.parent.glob(f"{name}.libs")):
            shutil.copytree(folder, packages / folder.name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
            files = {path for compiled in folder.rglob("*.so*") for path in libraries(str(compiled))}
            copy_libraries((path for path in files if not path.startswith(str(origin.parent))), root)
    wheel = tomllib.loads((LIBS / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name in wheel["only-include"]:
        (packages / name).parent.mkdir(exist_ok=True, parents=True)
        if (LIBS / name).is_dir():
            shutil.copytree(LIBS / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(LIBS / name, packages / name)
    return root


def has_our_python() -> bool:
    """Say whether the Python that goes into images is of this one's version, as compiled packages need."""
    found = subprocess.check_output(["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"], text=True)
    return found.strip() == str(sys.version_info[:2])
