"""How `engine.py` takes times: the steps in which all sequences decode, rounds, and prompts that come before them."""

import pytest

import engine as program
from served.one_engine import decoding


@pytest.mark.parametrize(
    ("ends", "tokens", "found"),
    [
        ("...e", 4, (3, 3.0)),
        ("...e..e", 4, (0, 0.0)),  # the last gets its first token as the first gets its last
        (".....eee", 6, (3, 3.0)),  # one begins at each of three steps
        (".....e.e", 4, (1, 1.0)),
        ("...e.....e", 4, (-3, -3.0)),
    ],
)
def test_steps_in_which_all_sequences_decode(ends, tokens, found):
    assert decoding([(float(place), step == "e") for place, step in enumerate(ends)], tokens) == found


class Told:
    """An engine that takes the given times, one after another, and decodes in half of each."""

    def __init__(self, name: str, *seconds: float) -> None:
        self.name, self._seconds, self.asked = name, list(seconds), 0

    def ask(self, _what: str, **_request: object) -> dict[str, float]:
        self.asked += 1
        seconds = self._seconds.pop(0)
        return {"seconds": seconds, "steps": 4, "steps_s": seconds / 2}


def test_rounds_in_which_an_engine_compiles_come_first():
    slow, steady = Told("engine", 30.0, 12.0, 1.2, 1.1, 1.0), Told("gemmill", 2.0, 1.0, 1.0, 1.0, 1.0)

    def seconds(*sides: Told) -> list[dict[str, float]]:
        return [{name: of["seconds"] for name, of in found.items()} for found in program.timed(sides, 2, 0)]

    assert seconds(slow, steady) == [{"engine": 1.1, "gemmill": 1.0}, {"engine": 1.0, "gemmill": 1.0}]
    once = Told("engine", 1.2, 1.0, 1.3)
    assert seconds(once) == [{"engine": 1.0}, {"engine": 1.3}]
    never = Told("engine", *(2.0**-i for i in range(8)))
    assert len(seconds(never)) == 2 and never.asked == 2 + program.MOST_FIRST


def test_a_rate_is_of_the_steps_in_which_all_sequences_decode():
    options = program.parse(["llama-3.1-8b-fp8", "--rounds", "2"])
    assert program.decoding([Told("engine", 3.0, 2.0, 4.0, 8.0)], 16, options) == {"engine": [32.0, 16.0]}
    assert len(program.decoding([Told("engine", *[1.0] * 9)], 1, options)["engine"]) == 8


@pytest.mark.parametrize(("given", "batches"), [("--batches 1 256", 16), ("--batches 3", 3), ("--length 32000", 0)])
def test_engines_answer_few_prompts_before_times_are_taken(given, batches):
    side = Told("engine", *[1.0] * 99)
    program.answer_few([side], program.parse(["llama-3.1-8b-fp8", *given.split()]))
    assert side.asked == batches
