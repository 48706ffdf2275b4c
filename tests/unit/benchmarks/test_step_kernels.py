"""Kernels of a decode step, from a record of launches."""

from served.step_kernels import Ran, of_steps


def launches(name, starts, us):
    return [Ran(name, 1000 * start, 1000 * us) for start in starts]


def test_kernels_of_prompts_are_left_out_and_times_are_of_a_step():
    ran = [
        *launches("prefill", [0], 900),
        *launches("head", [1000, 1300, 1600, 2900], 20),
        *launches("gemm", [500], 700),
        *launches("gemm", [at + place for at in (1020, 1320, 1620, 2920) for place in (0, 60)], 50),
    ]

    found = of_steps(ran, 4)

    assert found["step_us"] == 300  # the median, so one step that waited does not count
    assert found["idle_us"] == 180
    assert found["kernels_us"] == 120
    assert [(x["name"], x["launches"], x["us"]) for x in found["kernels"]] == [("gemm", 2, 100), ("head", 1, 20)]


def test_a_step_without_a_kernel_of_its_own_has_no_time():
    assert of_steps(launches("gemm", range(8), 3), 4) == {
        "step_us": None,
        "idle_us": None,
        "kernels_us": 6,
        "kernels": [{"name": "gemm", "launches": 2, "us": 6}],
    }
    assert of_steps([], 4) == {"step_us": None, "idle_us": None, "kernels_us": 0, "kernels": []}
