"""tools/prose.py: words of prose, and occurrences of habits, of texts whose counts are known. The words of gemmill's docstrings."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "prose.py"
GEMMILL = ROOT / "generator" / "gemmill"
BANNED = {
    r"what(?! if\b)": "the noun itself: the result, the arguments, the bytes",
    r"beside": "next to, compared with, in addition to",
    r"that (?:was|were) (?:not |never )?\w+(?:ed|en|ne|wn|de|un)": "an adjective, or a clause whose subject acts",
    r"(?:is|are|was|were|be) (?:not |never )?told": "receives, reads, knows",
    r"(?:is|are|was|were|be) (?:not |never )?(?:asked|judged|drawn)": "gets a call, is checked, is random",
    r"(?:call|calls) (?:is|are) asked by": "the operand that identifies a call",
    r"asked for": "requested, named",
    r"looked at": "compared, read, checked",
    r"held (?:against|to)": "compared with",
    r"drawn": "random",
    r"anew": "again",
    r"whoever|those who|who (?:loads|multiplies|sums|ends|codes|stores|waits|computes|serves)": "the thread, class or program that does it",
    r"(?:few|many) rows of (?-i:A)|for (?:few|many) rows": "a small M, a large M",
}
"""Private words and phrases of docstrings and comments, with the plain form."""
PATTERNS = {
    re.compile(rf"(?<![-`\w])(?:{phrase.replace(' ', chr(92) + 's+')})(?![-`\w])", re.IGNORECASE): plain
    for phrase, plain in BANNED.items()
}


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("prose", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["prose"]


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("One two `three four` five.", 4, [0, 0, 0, 0]),
        (
            "# What is no prose\n\n| what | beside |\n| --- | --- |\n| that was | is timed |\n\n    what\n",
            0,
            [0, 0, 0, 0],
        ),
        ("What it had, and what it has.", 7, [2, 0, 0, 0]),
        ("It is timed and are then measured; it is blue.", 10, [0, 2, 0, 0]),
        ("- kernels that was, that are, that has, that were, that is\n", 11, [0, 0, 4, 0]),
        ("A [link beside](beside.md)\nthis, besides.", 5, [0, 0, 0, 1]),
    ],
)
def test_words_and_habits_of_a_page(text: str, words: int, found: list[int], program) -> None:
    counted, habits = program.counts(text)
    assert (counted, list(habits.values())) == (words, found)


def test_the_table_has_each_page_their_sum_and_the_goal(program, tmp_path, capsys) -> None:
    for name, text in (("a.md", "What " * 5), ("b.md", "word " * 15)):
        (tmp_path / name).write_text(text)
    assert program.main([str(tmp_path / "a.md"), str(tmp_path / "b.md")]) == 0
    head, first, second, total, goal = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:2] == ["page", "words"] and first[1:3] == ["5", "1000.0"] and second[1:3] == ["15", "0.0"]
    assert total == ["all", "20", "250.0", "0.0", "0.0", "0.0"] and goal[-4:] == ["1.5", "6.0", "1.0", "0.3"]


def test_pages_are_readme_changelog_and_docs(program) -> None:
    names = {path.name for path in program.pages()}
    assert {"README.md", "CHANGELOG.md", "index.md", "fused_experts.md"} <= names and "CONTRIBUTING.md" not in names


@pytest.mark.parametrize(
    ("suffix", "text", "found"),
    [
        (
            ".py",
            '"""A."""\n# b\n# c\nx = 1  # d\n\ndef f():\n    """E.\n\n    F."""\n    return "no"  # noqa: X\n',
            [(1, "A."), (2, "b\nc\nd"), (7, "E.\n\n    F.")],
        ),
        (".cuh", '// a\n// b\nint x = 0; /* c\n d */\nchar const* y = "// no";\n', [(1, "a\nb"), (3, "c\n d")]),
    ],
)
def test_docstrings_and_comments_of_a_file(suffix: str, text: str, found: list, program, tmp_path) -> None:
    (tmp_path / f"file{suffix}").write_text(text)
    assert list(program.code_texts(tmp_path / f"file{suffix}")) == found


def test_the_table_has_folders_of_code(program, tmp_path, capsys) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text('"""What is timed beside `what`."""\nwhat = "beside"\n')
    (tmp_path / "code" / "b.h").write_text("// That was one\n")
    assert program.main([str(tmp_path / "code")]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[1:] == ["8", "125.0", "125.0", "125.0", "125.0"]


def banned(program, path: Path) -> list[str]:
    """Banned words in the docstrings and comments of a file, each with its line and the plain form."""
    found = []
    for at, text in program.code_texts(path):
        text = re.sub(r"`+[^`]+`+", "`code`", text)
        for phrase, plain in PATTERNS.items():
            for match in phrase.finditer(text):
                line = at + text.count("\n", 0, match.start())
                found.append(f"{path.name}:{line}: write {plain!r} for {' '.join(match[0].split())!r}")
    return found


def packages() -> list[Path]:
    """Folders of gemmill and of its kernels, but for the CuTe DSL's, whose text names builds."""
    files = [*GEMMILL.rglob("*.py"), *(ROOT / "kernels").rglob("*.*")]
    return sorted({path.parent for path in files} - {GEMMILL / "dsl"})


@pytest.mark.parametrize("package", packages(), ids=lambda package: str(package.relative_to(ROOT)))
def test_docstrings_and_comments_have_plain_words(package: Path, program) -> None:
    """All but the bodies of CuTe DSL kernels, whose text names builds."""
    of_body = re.compile(r"^\s*(?:import|from) cutlass\b", re.MULTILINE)
    files = [path for path in sorted(package.glob("*.*")) if path.suffix in (".py", *program.C_LIKE)]
    assert [found for path in files if not of_body.search(path.read_text()) for found in banned(program, path)] == []


def test_a_banned_word_of_a_docstring_is_found_with_its_line_and_its_plain_form(program, tmp_path) -> None:
    path = tmp_path / "a.py"
    path.write_text('x = 1\n"""Fine.\n\nIt ran\nbeside `what`."""\n# What if it is drawn?\n')
    assert banned(program, path) == [
        "a.py:5: write 'next to, compared with, in addition to' for 'beside'",
        "a.py:6: write 'gets a call, is checked, is random' for 'is drawn'",
        "a.py:6: write 'random' for 'drawn'",
    ]
