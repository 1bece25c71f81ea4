"""Print the dependencies of pyproject.toml and of the extras named: ``python tools/dependencies.py [EXTRA …]``."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one requirement a line, so that an image can install them before the code is copied."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
    print("\n".join([*project["dependencies"], *extras]))


if __name__ == "__main__":
    main()
