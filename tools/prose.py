#!/usr/bin/env python3
"""Counts the habits that make prose tiring, for each page and in all: README, docs, notes and changelog, or code.

    tools/prose.py                          # every page
    tools/prose.py docs/notes/*.md          # some pages
    tools/prose.py --code                   # docstrings and comments of generator, kernels, tests, benchmarks and tools
    tools/prose.py generator/gemmill/*      # those of some folders and files

A figure is occurrences per 1,000 words of prose: paragraphs and list items, where a piece of code is one word. Tables, headings and
blocks of code are no prose. The prose of a source file is its docstrings and comments. The last lines have the sum and the goal.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = MarkdownIt("commonmark").enable("table")
WORD = re.compile(r"\S*\w\S*")
CODE = ("generator", "kernels", "tests", "benchmarks", "tools")
"""Folders with a row each under --code."""
C_LIKE = (".cuh", ".cu", ".h", ".cpp", ".jinja")
_C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NOTES_OF_TOOLS = re.compile(r"#(?:!| ?(?:noqa|type:|pragma|fmt:|mypy:))")


@dataclass(frozen=True, kw_only=True)
class Habit:
    """A habit of prose, and how much of it a page may have."""

    name: str
    pattern: re.Pattern[str]
    goal: float
    """Per 1,000 words."""


HABITS = (
    Habit(name="what", pattern=re.compile(r"\bwhat\b", re.IGNORECASE), goal=1.5),
    Habit(name="is ...ed", pattern=re.compile(r"\b(?:is|are) (?:\w+ )?\w+ed\b", re.IGNORECASE), goal=6.0),
    Habit(name="that was", pattern=re.compile(r"\bthat (?:was|are|has|were)\b", re.IGNORECASE), goal=1.0),
    Habit(name="beside", pattern=re.compile(r"\bbeside\b", re.IGNORECASE), goal=0.3),
)


def prose(text: str) -> str:
    """Paragraphs and list items of a page in Markdown, each piece of code in a sentence one word."""
    tokens = MARKDOWN.parse(text)
    inline = (token for before, token in pairwise(tokens) if before.type == "paragraph_open" and token.type == "inline")
    return "\n".join("".join(map(_seen, token.children or ())) for token in inline)


def _seen(child: object) -> str:
    kind, content = getattr(child, "type", ""), getattr(child, "content", "")
    return "code" if kind == "code_inline" else " " if kind.endswith("break") else content


def counts(text: str) -> tuple[int, dict[str, int]]:
    """Words of a page, and occurrences of each habit."""
    words = prose(text)
    return len(WORD.findall(words)), {habit.name: len(habit.pattern.findall(words)) for habit in HABITS}


def code_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a source file, each with its line; comments on consecutive lines are one text."""
    text = path.read_text(encoding="utf-8")
    found = sorted(_of_python(text) if path.suffix == ".py" else _of_c(text), key=lambda at: at[0])
    last, parts, begun = -2, [], 0
    for line, part, is_comment in found:
        if parts and not (is_comment and line == last + 1):
            yield begun, "\n".join(parts)
            parts = []
        begun = line if not parts else begun
        parts.append(part)
        last = line if is_comment else -2
    if parts:
        yield begun, "\n".join(parts)


def _of_python(text: str) -> Iterator[tuple[int, str, bool]]:
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not _NOTES_OF_TOOLS.match(token.string):
            yield token.start[0], token.string.lstrip("# "), True
        elif token.type == tokenize.STRING and begins:  # a statement of its own
            yield token.start[0], ast.literal_eval(token.string), False
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _of_c(text: str) -> Iterator[tuple[int, str, bool]]:
    for match in _C_COMMENT.finditer(text):
        if match[0][0] == "/":
            yield text.count("\n", 0, match.start()) + 1, match[0].strip("/* "), match[0].startswith("//")


def code_counts(paths: Sequence[Path]) -> tuple[int, dict[str, int]]:
    """Words of the docstrings and comments of source files, and occurrences of each habit."""
    words = "\n".join(re.sub(r"`+[^`]+`+", "code", text) for path in paths for _, text in code_texts(path))
    return len(WORD.findall(words)), {habit.name: len(habit.pattern.findall(words)) for habit in HABITS}


def sources(folder: Path) -> list[Path]:
    """Source files of a folder and its folders, or the file itself."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return [path for path in files if path.suffix in (".py", *C_LIKE)]


def pages() -> list[Path]:
    """README, changelog and docs."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]


def line(name: str, words: int, found: dict[str, int]) -> str:
    """A row of the table: occurrences per 1,000 words."""
    return f"{name:32} {words:7} " + " ".join(f"{1000 * n / max(words, 1):9.1f}" for n in found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pages", nargs="*", type=Path, help="pages, source files and folders; by default README, changelog and docs"
    )
    parser.add_argument("--code", action="store_true", help=f"the docstrings and comments of {', '.join(CODE)}")
    asked = parser.parse_args(arguments)
    given = [*asked.pages, *(ROOT / folder for folder in CODE if asked.code)] or pages()
    print(f"{'page':32} {'words':>7} " + " ".join(f"{habit.name:>9}" for habit in HABITS))
    all_words, total = 0, dict.fromkeys((habit.name for habit in HABITS), 0)
    for page in given:
        is_page = page.suffix == ".md"
        words, found = counts(page.read_text(encoding="utf-8")) if is_page else code_counts(sources(page))
        all_words, total = all_words + words, {name: total[name] + n for name, n in found.items()}
        path = page.resolve()
        print(line(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path), words, found))
    print(line("all", all_words, total))
    print(f"{'goal, at most':32} {'':7} " + " ".join(f"{habit.goal:9.1f}" for habit in HABITS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
