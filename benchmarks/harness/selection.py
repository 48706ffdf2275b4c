"""The time that the choice of a variant adds to a call: the extension's own choice, timed through ctypes."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.classes import Need, class_code
from gemmill.family import ShapedCall
from gemmill.runtime.library import Build
from gemmill.runtime.packed import PackedCall, PackedChoice, packed_call

CALLS = 100_000
ROUNDS = 7
SM_COUNT = 132


def selection_us(build: Build) -> dict[str, float]:
    """Microseconds of a choice by a loaded build's extension: `remembered`, as in all calls but the first of a shape, and
    `first`, which asks table and model; each with the time of ctypes (`ctypes`, a call that only sets a thread's variable).

    The least of seven rounds. The op adds `remembered` less `ctypes`, at most.
    """
    library = ctypes.CDLL(str(build.folder / build.manifest.extension))
    choose, pin = library.gemmill_choose, library.gemmill_pin
    pin.argtypes, pin.restype = [ctypes.c_int64], ctypes.c_int64
    choose.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    family = list(build.table.families).index(scaled_mm.NAME)
    call_class = class_code(Need.BIAS, "float8_e4m3fn", "bfloat16")
    shape = ShapedCall(family=scaled_mm.NAME, call_class=call_class, sizes=(16, 8192, 16), alignments=(16, 16, 16))
    calls = (PackedCall * CALLS)(*(packed_call(replace(shape, sizes=(16, 8192, 16 * (1 + i)))) for i in range(CALLS)))
    addresses = [ctypes.addressof(call) for call in calls]
    answer = ctypes.addressof(result := PackedChoice())
    same = [addresses[0]] * CALLS
    choose(family, same[0], SM_COUNT, answer)
    assert result.row >= 0, "every build has a variant for e4m3 to bf16"
    return {
        "remembered": _least_us(lambda: [choose(family, call, SM_COUNT, answer) for call in same]),
        "first": _least_us(lambda: [choose(family, call, SM_COUNT, answer) for call in addresses[:2000]], calls=2000),
        "ctypes": _least_us(lambda: [pin(-1) for _ in same]),
    }


def _least_us(run: Callable[[], object], calls: int = CALLS) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(min(times) / calls * 1e6, 4)
