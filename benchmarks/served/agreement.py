"""How far two engines' outputs agree, and one engine's with itself."""

from statistics import median
from typing import Any

Outputs = dict[str, Any]


def agreement(one: Outputs, other: Outputs) -> dict[str, Any]:
    """Of the same prompts scored by both: positions whose most likely token is the same, and differences of log-probabilities;
    of greedy decoding: equal tokens, and those before the first that differs."""
    pairs = [
        (mine, its) for x, y in zip(one["scored"], other["scored"], strict=True) for mine, its in zip(x, y, strict=True)
    ]
    differences = [abs(mine[1] - its[1]) for mine, its in pairs]
    equal = [
        [mine[0] == its[0] for mine, its in zip(x, y, strict=True)]
        for x, y in zip(one["greedy"], other["greedy"], strict=True)
    ]
    return {
        "positions": len(pairs),
        "most_likely_equal": sum(mine[3] == its[3] for mine, its in pairs),
        "log_probability_median": round(median(differences), 6),
        "log_probability_largest": round(max(differences), 6),
        "greedy_tokens": sum(map(len, equal)),
        "greedy_equal": sum(map(sum, equal)),
        "greedy_equal_before_a_difference": sum([*same, False].index(False) for same in equal),
    }


def among_others(found: Outputs) -> dict[str, Any]:
    """Of one prompt alone and in batches with others: positions whose token and log-probability are the same, to the last bit, and
    those of each batch."""
    alone, *batches = found["batches"]
    equal = {
        of["batch"]: sum(mine == its for mine, its in zip(of["values"], alone["values"], strict=True)) for of in batches
    }
    return {
        "positions": len(alone["values"]) * len(batches),
        "most_likely_equal": sum(equal.values()),
        "equal_in_batches_of": equal,
    }


def with_itself(outputs: Outputs) -> dict[str, Any]:
    """Of decoded tokens that the same engine scored as a prompt: how many it still holds most likely, and the differences."""
    pairs = [
        (decoded, scored)
        for x, y in zip(outputs["greedy"], outputs["decoded_scored"], strict=True)
        for decoded, scored in zip(x, y, strict=True)
    ]
    differences = [abs(decoded[1] - scored[1]) for decoded, scored in pairs]
    return {
        "positions": len(pairs),
        "most_likely": sum(scored[2] == 1 for _, scored in pairs),
        "log_probability_median": round(median(differences), 6),
        "log_probability_largest": round(max(differences), 6),
    }
