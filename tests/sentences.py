"""The sentences of a text in Markdown, for tests of the docs."""

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark").enable("table")
ABBREVIATION = re.compile(r"(?:\be\.g|\bi\.e|\bcf|\bvs)\.$")
END = re.compile(r"[.!?][)\]\"'*]*\s+")
END_IN_CELL = re.compile(r"[.!?;][)\]\"'*]*\s+")  # a cell is a list, whose items semicolons part


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of `text`, each with the line (from 1) at which its paragraph, list item, heading or cell begins.

    Code blocks hold none. Code within a sentence is one word; a link is its text.
    """
    end, line = END, 0
    for token in MARKDOWN.parse(text):
        if token.type in ("td_open", "th_open"):
            end = END_IN_CELL
        elif token.type in ("td_close", "th_close"):
            end = END
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            yield from ((line, sentence) for sentence in _parted(_plain(token), end))


def _plain(inline: Token) -> str:
    """The text as a reader sees it, each piece of code as one word."""
    return "".join(_seen(child) for child in inline.children or ())


def _seen(child: Token) -> str:
    if child.type == "code_inline":
        return f"`{'_'.join(child.content.split())}`"
    return " " if child.type in ("softbreak", "hardbreak") else child.content


def _parted(text: str, end: re.Pattern[str]) -> Iterator[str]:
    begin = 0
    for match in end.finditer(f"{text} "):
        if not ABBREVIATION.search(text[begin : match.start() + 1]):
            yield text[begin : match.end()].strip()
            begin = match.end()
    if text[begin:].strip():
        yield text[begin:].strip()
