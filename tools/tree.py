"""Print the modules of libs and services with their sizes, and the longest bodies: ``python tools/tree.py``."""

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONG_BODY = 40


def main() -> None:
    """Print a line for each module and a summary."""
    bodies: list[tuple[int, str]] = []
    lengths = []
    for package in sorted([*(ROOT / "libs").iterdir(), *(ROOT / "services").iterdir()]):
        modules = sorted(package.rglob("*.py"))
        if not modules:
            continue
        print(f"{package.relative_to(ROOT)}/  {sum(_lines(m) for m in modules)} lines")
        for module in modules:
            found = _bodies(module)
            bodies += [(size, f"{module.relative_to(ROOT)}: {name}") for name, size in found]
            lengths.append(_lines(module))
            longest = max((size for _, size in found), default=0)
            print(f"    {module.relative_to(package)!s:<32} {_lines(module):>4} lines, longest body {longest}")
    tests = sum(_lines(path) for path in (ROOT / "tests").rglob("*.py"))
    sizes = [size for size, _ in bodies]
    print(f"\n{len(lengths)} modules, {sum(lengths)} lines, {tests} lines of tests")
    print(f"module lines: median {statistics.median(lengths):.0f}, p90 {_p90(lengths)}, longest {max(lengths)}")
    print(f"body lines: median {statistics.median(sizes):.0f}, p90 {_p90(sizes)}, longest {max(bodies)}")
    print(f"bodies over {LONG_BODY} lines: {[name for size, name in bodies if size > LONG_BODY] or 'none'}")


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def _p90(values: list[int]) -> int:
    return sorted(values)[int(0.9 * (len(values) - 1))]


def _bodies(path: Path) -> list[tuple[str, int]]:
    """Return name and length of each function's body, its docstring left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            size = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            found.append((node.name, size))
    return found


if __name__ == "__main__":
    main()
