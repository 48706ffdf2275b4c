"""Records of serving engines: one line for each signature, as tools/record_engines.py writes them."""

import importlib.util
import json
from pathlib import Path

import pytest

RECORDS = sorted((Path(__file__).parent / "engines").glob("*.json"))
PROGRAM = Path(__file__).parents[3] / "tools" / "record_engines.py"


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("record_engines", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_lies_as_the_program_writes_it(path: Path, program) -> None:
    record = json.loads(path.read_text())
    assert path.read_text() == program.text(record) + "\n"
    assert path.read_text().count('"parameters"') <= path.read_text().count("\n")


def test_only_dictionaries_of_dictionaries_are_spread(program) -> None:
    record = {"a": {"parameters": [["x", "positional", False]]}, "b": {}, "c": 'a "text"'}
    assert program.text(record) == (
        '{\n "a": {"parameters": [["x", "positional", false]]},\n "b": {},\n "c": "a \\"text\\""\n}'
    )
