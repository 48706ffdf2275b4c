"""References of renderings: of a variant of the smoke selection the file in `emitted`, of others one in a golden folder."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from gemmill.emit import emit
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name

EMITTED = Path(__file__).parents[1] / "emitted"
MEANT = "meant? gemmill generate, and pytest tests -k golden --update-golden"


def hold(name: str, reference: Path, update: bool) -> None:
    """Compare a variant's rendering with the emitted file, or where there is none with the reference; `update` writes that."""
    file = emit(parse_name(name))
    emitted = EMITTED / file.path
    if emitted.is_file():
        reference, update = emitted, False
    hold_text(file.text, reference, update)


def hold_text(text: str, reference: Path, update: bool) -> None:
    """Compare a text with a reference; `update` writes it first."""
    if update:
        reference.parent.mkdir(exist_ok=True)
        reference.write_text(text)
    expected = reference.read_text()
    difference = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), reference.name, "rendered now", lineterm=""
    )
    assert text == expected, "\n".join(["", *difference, MEANT])


def kept(cases: Mapping[str, str]) -> set[str]:
    """The cases, names of variants by file, of which `emitted` has no file: a golden folder has theirs alone."""
    return {file for file, name in cases.items() if not (EMITTED / emit(parse_name(name)).path).is_file()}


def templates_of(cases: Mapping[str, str]) -> set[str]:
    """The templates of the cases, by their paths."""
    configs = map(parse_name, cases.values())
    return {REGISTRY.kernels_of(config).spell(config).template for config in configs}
