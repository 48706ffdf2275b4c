"""Peers that compile in processes of their own."""

import math

from harness.compile_ahead import compile_ahead


def test_what_came_of_it() -> None:
    found = compile_ahead("A peer", math.sqrt, [4.0, -1.0], 1, 120)
    assert found.startswith("A peer compiled its kernels for 2 shapes in ")
    assert "; 1 failed, the first with: -1.0: " in found


def test_no_more_than_its_time() -> None:
    assert (
        compile_ahead("A peer", math.sqrt, [4.0], 1, 0) == "A peer had not compiled its kernels for 1 shapes after 0 s"
    )
