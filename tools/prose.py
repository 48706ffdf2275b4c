#!/usr/bin/env python3
"""Counts the habits that make prose tiring, for each page and in all: README, docs, notes and changelog.

    tools/prose.py                      # every page
    tools/prose.py docs/notes/*.md      # some pages

A figure is occurrences per 1,000 words of prose: paragraphs and list items, where a piece of code is one word. Tables, headings and
blocks of code are no prose. The last lines have the sum and the goal.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = MarkdownIt("commonmark").enable("table")
WORD = re.compile(r"\S*\w\S*")


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


def pages() -> list[Path]:
    """README, changelog and docs."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]


def line(name: str, words: int, found: dict[str, int]) -> str:
    """A row of the table: occurrences per 1,000 words."""
    return f"{name:32} {words:7} " + " ".join(f"{1000 * n / max(words, 1):9.1f}" for n in found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="README, changelog and docs without any")
    given = parser.parse_args(arguments).pages or pages()
    print(f"{'page':32} {'words':>7} " + " ".join(f"{habit.name:>9}" for habit in HABITS))
    all_words, total = 0, dict.fromkeys((habit.name for habit in HABITS), 0)
    for page in given:
        words, found = counts(page.read_text(encoding="utf-8"))
        all_words, total = all_words + words, {name: total[name] + n for name, n in found.items()}
        path = page.resolve()
        print(line(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path), words, found))
    print(line("all", all_words, total))
    print(f"{'goal, at most':32} {'':7} " + " ".join(f"{habit.goal:9.1f}" for habit in HABITS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
