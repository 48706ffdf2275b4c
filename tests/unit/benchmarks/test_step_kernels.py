"""Kernels of a decode step, from a record of launches."""

import pytest

from served.step_kernels import Ran, of_steps


def launches(name, starts, us):
    return [Ran(name, 1000 * start, 1000 * us) for start in starts]


def test_prompts_and_last_steps_are_left_out_and_times_are_of_a_step():
    begins = (1000, 1300, 1600, 1900, 2200, 2600, 2900, 3200)  # the fifth waits
    ran = [
        *launches("prefill", [0], 900),
        *launches("head", begins, 20),
        *launches("gemm", [500], 700),
        *launches("gemm", [at + place for at in begins for place in (20, 70)], 50),
        *launches("last", [3220], 5000),
    ]

    found = of_steps(ran, 8)

    assert (found["step_us"], found["idle_us"]) == (300, 180)  # medians, so one step that waited does not count
    assert found["kernels_us"] == 120
    assert [(x["name"], x["launches"], x["us"]) for x in found["kernels"]] == [("gemm", 2, 100), ("head", 1, 20)]


def test_own_times_are_those_after_all_before_has_ended():
    """`ahead` is launched within `gemm` and waits for it; `beside` ends before it."""
    begins = range(0, 800, 100)
    ran = [
        *launches("head", begins, 10),
        *launches("gemm", [at + 10 for at in begins], 50),
        *launches("beside", [at + 15 for at in begins], 20),
        *launches("ahead", [at + 30 for at in begins], 60),
    ]

    found = of_steps(ran, 8)

    own = {x["name"]: x["own_us"] for x in found["kernels"]}
    assert own == {"head": 10, "gemm": pytest.approx(25), "beside": pytest.approx(25), "ahead": pytest.approx(30)}
    assert sum(own.values()) + found["idle_us"] == pytest.approx(found["step_us"]) and found["kernels_us"] == 140


def test_a_step_without_a_kernel_of_its_own_has_no_time():
    none = {"step_us": None, "idle_us": None, "kernels_us": None, "kernels": []}
    assert of_steps(launches("gemm", range(8), 3), 4) == of_steps([], 4) == none
