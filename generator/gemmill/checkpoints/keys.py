"""Keys in a sentence: one by one, but those of many layers and experts together."""

import re
from collections.abc import Iterable

Numbers = tuple[int, ...]
_NUMBER = re.compile(r"(?:(?<=\.)|^)(?:0|[1-9]\d{0,8})(?=\.|$)")
"""A part of a key, between dots, that counts layers or experts. One with zeros before it is a name."""


def named(keys: Iterable[str]) -> str:
    """All keys, and no others. Those that differ in the number of a layer or an expert are one pattern: `layers.{0-31}.up.weight`."""
    alike: dict[tuple[str, ...], list[Numbers]] = {}
    for key in dict.fromkeys(keys):
        alike.setdefault(tuple(_NUMBER.split(key)), []).append(tuple(map(int, _NUMBER.findall(key))))
    return ", ".join(_spelled(between, boxes) for between, found in alike.items() for boxes in _boxes(found))


def _boxes(found: list[Numbers]) -> list[tuple[Numbers, ...]]:
    """The numbers as products of sets, one set for each place. No numbers are in two products."""
    boxes = [tuple((number,) for number in numbers) for numbers in found]
    for place in reversed(range(len(found[0]))):
        merged: dict[tuple[Numbers, ...], list[int]] = {}
        for box in boxes:
            merged.setdefault(box[:place] + box[place + 1 :], []).extend(box[place])
        boxes = [(*others[:place], tuple(sorted(at)), *others[place:]) for others, at in merged.items()]
    return boxes


def _spelled(between: tuple[str, ...], box: tuple[Numbers, ...]) -> str:
    parts = [between[0]]
    for numbers, after in zip(box, between[1:], strict=True):
        parts += [str(numbers[0]) if len(numbers) == 1 else f"{{{_ranges(numbers)}}}", after]
    return "".join(parts)


def _ranges(numbers: Numbers) -> str:
    """Ascending numbers in the form `0-3,7`."""
    runs = list[list[int]]()
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
