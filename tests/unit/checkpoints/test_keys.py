"""Keys in a sentence: every one, and no other."""

import re
from itertools import product
from random import Random

from gemmill.checkpoints.keys import named


def expanded(told: str) -> list[str]:
    """The keys that patterns stand for, read back without the module's help."""
    keys = []
    for pattern in re.split(r", (?![^{]*})", told):
        parts = re.split(r"\{([^}]*)\}", pattern)
        for place in range(1, len(parts), 2):
            ranges = [part.partition("-") for part in parts[place].split(",")]
            parts[place] = [str(i) for first, _, last in ranges for i in range(int(first), int(last or first) + 1)]
        keys += ["".join(chosen) for chosen in product(*([p] if isinstance(p, str) else p for p in parts))]
    return keys


def test_keys_of_many_layers_are_one_pattern() -> None:
    keys = [
        f"model.layers.{i}.mlp.experts.{e}.{part}" for i in range(32) for e in range(256) for part in ("up", "down")
    ]
    assert named(keys) == "model.layers.{0-31}.mlp.experts.{0-255}.up, model.layers.{0-31}.mlp.experts.{0-255}.down"
    assert named(["head", *(f"layers.{i}.up.weight" for i in (5, 0, 1, 2, 7))]) == "head, layers.{0-2,5,7}.up.weight"
    assert named(["a", "b.3.c", "a"]) == "a, b.3.c"
    assert named(["0", "1", "2.w"]) == "{0-1}, 2.w"
    assert named([]) == ""


def test_numbers_that_are_no_count_are_names() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert named(shards) == ", ".join(shards)
    assert named(["a.01.b", "a.02.b", "w1.b", "w2.b"]) == "a.01.b, a.02.b, w1.b, w2.b"


def test_every_key_is_named_once_and_no_other_is() -> None:
    random = Random(0)
    for _ in range(300):
        places = [f"{random.choice('ab')}.{{}}.{random.choice('cd')}.{{}}.{{}}", "e.{}", "{}.f.{}"]
        keys = {
            random.choice(places).format(*(random.randrange(5) for _ in range(3)))
            for _ in range(random.randrange(1, 60))
        }
        told = named(sorted(keys))
        assert sorted(expanded(told)) == sorted(keys), told
