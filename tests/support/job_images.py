"""Images for tests: a root file system with a shell, a few programs and Python, made of this machine's own files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

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
    for path in files:
        target = folder / os.path.realpath(os.path.dirname(path)).lstrip("/") / os.path.basename(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755)
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


def load(engine: str, root: Path) -> str:
    """Have an engine take the file system as an image; return its name."""
    changes = (f"ENV GREETING={SAYS!r}".replace("'", '"'), 'ENTRYPOINT ["/bin/false"]', 'CMD ["never"]')
    options = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run([engine, "import", *options, "-", NAME], stdin=tar.stdout, check=True, capture_output=True)
    return NAME if engine == "docker" else f"localhost/{NAME}"


SITE: Final = sysconfig.get_paths()["platlib"]
