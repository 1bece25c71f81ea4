"""Tables of sbatch's options, and of what becomes of the collection of scripts, within the page about such scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from penstock_cli.sbatch.job import translate
from penstock_cli.sbatch.options import OPTIONS, Fate, SbatchError
from penstock_cli.sbatch.script import of_text

_MARKS: Final = {
    name: (f"<!-- {name}, generated: make docs -->", f"<!-- end of {name} -->") for name in ("options", "scripts")
}
_COLLECTION: Final = Path(__file__).parents[2] / "tests" / "data" / "sbatch"
_ALWAYS: Final = {"processes", "profile", "opaque"}
_MOMENTS: Final = {"begin_s": "in a minute"}
_HEADS: Final[dict[Fate, str]] = {
    "honoured": "honoured: it becomes",
    "noted": "changes nothing, and is told: it is about",
    "refused": "refused by name, with these words",
}


def render(path: Path) -> str:
    """Return the page with its two tables."""
    return _with(_with(path.read_text(encoding="utf-8"), "options", _options()), "scripts", _scripts())


def _options() -> list[str]:
    lines: list[str] = []
    for fate, head in _HEADS.items():
        rows = [
            f"| `--{one.name}`{f', `-{one.letter}`' if one.letter else ''} | {_cell(one.says)} |"
            for one in sorted(OPTIONS.values(), key=lambda one: one.name)
            if one.fate == fate
        ]
        lines += [f"| option | {head} |", "|---|---|", *rows, ""]
    return lines[:-1]


def _scripts() -> list[str]:
    rows = []
    for path in sorted(_COLLECTION.iterdir()):
        try:
            script = of_text(path.name, path.read_bytes())
            job = translate(script.given)
        except SbatchError as error:
            words = [line.removeprefix(f"{path.name}:") for line in str(error).splitlines()]
            rows.append(
                f"| `{path.name}` | refused: {_cell('; '.join(word for word in words if word[:1].isdigit()))} |"
            )
            continue
        fields = {name: value for name, value in job.fields.items() if name not in _ALWAYS}
        shown = [f"`{name}` {_value(name, value)}" for name, value in fields.items()]
        shown += [f"array `{job.array}`"] if job.array else []
        told = [note.partition(": ")[2] if note.startswith(path.name) else note for note in job.notes]
        more = f"; told: {_cell('; '.join(told))}" if told else ""
        rows.append(f"| `{path.name}` | {', '.join(shown)}{more} |")
    return ["| script | becomes |", "|---|---|", *rows]


def _value(name: str, value: Any) -> str:
    if name in _MOMENTS:
        return _MOMENTS[name]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,.0f}" if isinstance(value, float) and value >= 10_000 else str(value).removesuffix(".0")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _with(text: str, name: str, lines: list[str]) -> str:
    """Return a text with these lines between two marks."""
    begin, end = _MARKS[name]
    before, _, rest = text.partition(f"{begin}\n")
    _, _, after = rest.partition(f"{end}\n")
    return "\n".join([f"{before}{begin}", *lines, f"{end}\n{after}"])
