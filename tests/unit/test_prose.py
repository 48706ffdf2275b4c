"""tools/prose.py: words of prose, and occurrences of habits, of texts whose counts are known."""

import importlib.util
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools" / "prose.py"


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
    assert {"README.md", "CHANGELOG.md", "index.md", "experts.md"} <= names and "CONTRIBUTING.md" not in names
