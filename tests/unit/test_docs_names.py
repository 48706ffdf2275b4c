"""The guide names ops, verbs, settings and formats: those that exist, and all of them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import typer

import gemmill.public
from gemmill import settings
from gemmill.checkpoints.sparse import SPARSE
from gemmill.checkpoints.steps import BF16
from gemmill.cli.app import app
from gemmill.quantize.weights import WEIGHT_FORMATS
from gemmill.registry import REGISTRY
from gemmill.vocab.format import FORMATS

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - set(ROOT.glob("docs/contributing/*.md")))
"""But those that tell of another tree: tests/unit/test_contributing.py makes it."""
GUIDE = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
OPS = {op.schema.name for family in REGISTRY.families for op in family.asks.ops}
VERBS = set(typer.main.get_command(app).commands)
SETTINGS = set(re.findall(r'"(GEMMILL_\w+)"', Path(settings.__file__).read_text()))
TABLES_OF_FORMATS = {"docs/formats.md": set(map(str, FORMATS)), "docs/weights.md": set(WEIGHT_FORMATS)}
KNOWN = {
    "op": OPS,
    "function": OPS | set(gemmill.public.__all__),
    "verb": VERBS,
    "setting": SETTINGS,
    "format": set().union(*TABLES_OF_FORMATS.values(), {BF16, SPARSE}),
    "workload": {*REGISTRY.measured, "all"},
}
"""Where the guide may name an op by vLLM's or by its own name, both are declared."""
PATTERNS = {
    "op": r"torch\.ops\.gemmill\.(\w+)\b(?!<)|gemmill explain ([a-z]\w*)",
    "function": r"(?<![\w.])gemmill\.(\w+)\(",
    "verb": r"(?:`|^    )gemmill ([a-z]+)",
    "setting": r"\b(GEMMILL_\w+)",
    "format": r"gemmill convert \S+ \S+ --to ([a-z]\w*)|quantize_(?:weight|module)\([^()]*, \"(\w+)\"",
    "workload": r"gemmill tune [^`\n]*--op (\w+)",
}
"""How a page names them, besides tables whose first column is headed by the word."""


def _columns(text: str, head: str) -> Iterator[str]:
    """The names in the first cells of tables whose first column is headed `head`: code, or a format's one word."""
    for table in re.findall(rf"^\| `?{head}s?`? \|.*\n\|[- |]+\|\n((?:\|.*\n?)*)", text, re.MULTILINE):
        for cell in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE):
            yield from re.findall(r"^\w+$" if head == "format" and "`" not in cell else r"`(\w+)[(`]", cell)


def unknown(guide: Mapping[str, str]) -> list[str]:
    """Names in the guide that nothing has."""
    found = []
    for page, text in guide.items():
        for kind, pattern in PATTERNS.items():
            named = {name for groups in re.findall(pattern, text, re.MULTILINE) for name in _texts(groups)}
            of_tables = page.startswith("docs/") and "/notes/" not in page and kind in ("op", "format")
            told = set(_columns(text, kind)) if of_tables else set()
            found += [f"{page}: {kind} {name}" for name in sorted(named - KNOWN[kind])]
            found += [f"{page}: {kind} {name} in a table" for name in sorted(told - KNOWN[kind] - KNOWN["function"])]
    return found


def _texts(groups: str | tuple[str, ...]) -> Iterable[str]:
    return [groups] if isinstance(groups, str) else filter(None, groups)


def untold(guide: Mapping[str, str]) -> list[str]:
    """Existing names without a place in the guide. An op under vLLM's name counts as its own. The
    page of peers' names lists, and tells of none."""
    words = set(
        re.findall(
            r"\w+", " ".join(text for page, text in guide.items() if re.fullmatch(r"docs/(?!peers)\w+\.md", page))
        )
    )
    found = [f"op {name}" for name in sorted(OPS) if not {name, name.removeprefix("vllm_")} & words]
    found += [f"verb {verb}" for verb in sorted(VERBS) if f"| `gemmill {verb}" not in guide["docs/cli.md"]]
    found += [f"setting {name}" for name in sorted(SETTINGS) if f"| `{name}` |" not in guide["docs/settings.md"]]
    for page, formats in TABLES_OF_FORMATS.items():
        found += [f"format {name}" for name in sorted(formats - set(_columns(guide[page], "format")))]
    return found


def test_what_the_guide_names_exists() -> None:
    assert unknown(GUIDE) == []


def test_what_exists_is_in_the_guide() -> None:
    assert untold(GUIDE) == []


@pytest.mark.parametrize(
    ("page", "text", "found"),
    [
        ("docs/grouped_mm.md", "`torch.ops.gemmill.fake_mm` multiplies.", "op fake_mm"),
        (
            "docs/grouped_mm.md",
            "| op | what |\n| --- | --- |\n| `fake_mm(out, a)` | nothing |",
            "op fake_mm in a table",
        ),
        ("docs/fake_mm.md", "# Fake\n\n    gemmill explain fake_mm -m 1", "op fake_mm"),
        ("docs/layers.md", "y = gemmill.fake_mm(x)", "function fake_mm"),
        ("docs/cli.md", "| `gemmill grind` | grinds | nothing |", "verb grind"),
        ("CONTRIBUTING.md", "    gemmill grind", "verb grind"),
        ("docs/settings.md", "| `GEMMILL_FAKE` | nothing |", "setting GEMMILL_FAKE"),
        ("docs/formats.md", "| format | codes |\n| --- | --- |\n| fp3 | e1m1 |", "format fp3 in a table"),
        ("docs/weights.md", "    gemmill convert model out --to fp3", "format fp3"),
        ("docs/weights.md", 'quantize_weight(weight, "fp3")', "format fp3"),
        ("docs/tuning.md", "`gemmill tune --op fp3_bf16`", "workload fp3_bf16"),
    ],
)
def test_what_does_not_exist_is_found(page: str, text: str, found: str) -> None:
    assert unknown(GUIDE | {page: f"{GUIDE.get(page, '')}\n\n{text}\n"}) == [f"{page}: {found}"]


@pytest.mark.parametrize(
    ("page", "gone", "found"),
    [
        ("docs/kv_cache.md", "kv_decompress_keys", "op kv_decompress_keys"),
        ("docs/cli.md", "| `gemmill fuzz`", "verb fuzz"),
        ("docs/settings.md", "| `GEMMILL_NVTX` |", "setting GEMMILL_NVTX"),
        ("docs/formats.md", "| mxfp6_e2m3 |", "format mxfp6_e2m3"),
        ("docs/weights.md", "| `block128` |", "format block128"),
    ],
)
def test_what_is_not_told_is_found(page: str, gone: str, found: str) -> None:
    assert gone in GUIDE[page]
    assert untold(GUIDE | {page: GUIDE[page].replace(gone, "| nothing |")}) == [found]
