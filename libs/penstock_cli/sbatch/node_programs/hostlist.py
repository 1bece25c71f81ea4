"""
Lists of hosts as Slurm writes them: ``n[1-3,7]`` for ``n1,n2,n3,n7``.

:func:`compress` writes such a list, and :func:`expand` reads one.
"""

from __future__ import annotations

import itertools
import re
from typing import Iterable, Iterator

_NUMBERED = re.compile(r"(.*?)(\d+)$")
_PART = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")
_MOST = 65_536


def compress(names: Iterable[str]) -> str:
    """
    Return a list of hosts in their order, with the numbers at the ends of neighbours in brackets.

    Examples
    --------
    >>> compress(["n1", "n2", "n3", "n7", "login"]), compress(["gpu08", "gpu09", "gpu10"]), compress(["a", "a"])
    ('n[1-3,7],login', 'gpu[08-10]', 'a,a')
    >>> compress(["a1", "b2", "a2"])
    'a1,b2,a2'
    """
    groups: list[tuple[str, int, list[int]]] = []
    for name in names:
        found = _NUMBERED.match(name)
        if found is None:
            groups.append((name, 0, []))
            continue
        prefix, digits = found.groups()
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        if groups and groups[-1][2] and _is_of_group(groups[-1], prefix, digits, width):
            groups[-1][2].append(int(digits))
        else:
            groups.append((prefix, width, [int(digits)]))
    return ",".join(prefix_and_numbers(*group) if group[2] else group[0] for group in groups)


def _is_of_group(group: tuple[str, int, list[int]], prefix: str, digits: str, width: int) -> bool:
    """Say whether a number is of a group; one without leading zeros is of a padded group that is as wide as it is."""
    return group[0] == prefix and group[1] in (width, *(() if width else (len(digits),)))


def prefix_and_numbers(prefix: str, width: int, numbers: list[int]) -> str:
    """Return one group: its prefix, and its number or its numbers in brackets."""
    if len(numbers) == 1:
        return "{}{:0{}d}".format(prefix, numbers[0], width)
    return "{}[{}]".format(prefix, ",".join(_ranges(numbers, width)))


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    begin = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        first = "{:0{}d}".format(begin, width)
        yield first if begin == last else "{}-{:0{}d}".format(first, last, width)
        begin = last = number


def expand(text: str) -> list[str]:
    """
    Return the hosts of a list.

    Raises
    ------
    ValueError
        If brackets are open, or stand around something else than numbers.

    Examples
    --------
    >>> expand("n[1-3,7],login"), expand("gpu[08-10]")
    (['n1', 'n2', 'n3', 'n7', 'login'], ['gpu08', 'gpu09', 'gpu10'])
    """
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} is no list of hosts; expected such as n[1-3,7]")
    found: list[str] = []
    for part in (one.strip() for one in _PART.findall(text)):
        if part:
            pieces = [
                _numbers(one) if one.startswith("[") else [one] for one in re.findall(r"\[[^\]]*\]|[^\[\]]+", part)
            ]
            found.extend("".join(words) for words in itertools.product(*pieces))
    return found


def _numbers(brackets: str) -> list[str]:
    found: list[str] = []
    for part in brackets[1:-1].split(","):
        numbers = re.match(r"(\d+)(?:-(\d+))?$", part.strip())
        if numbers is None:
            raise ValueError(f"[{part}] holds no numbers; expected such as n[1-3,7]")
        first, last = int(numbers.group(1)), int(numbers.group(2) or numbers.group(1))
        if not first <= last < first + _MOST:
            raise ValueError(f"[{part}] is no range of numbers that rise")
        found += ["{:0{}d}".format(number, len(numbers.group(1))) for number in range(first, last + 1)]
    return found
