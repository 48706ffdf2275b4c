"""The sentences of tools/tensor_maps.py about maps and launches: none about CUTLASS 4.2's requests to the driver, one about each slip."""

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmill.families.blockscaled.config import PairConfig
from gemmill.space.names import parse_name

_SPEC = importlib.util.spec_from_file_location("tensor_maps", Path(__file__).parents[2] / "tools" / "tensor_maps.py")
assert _SPEC is not None and _SPEC.loader is not None
program = importlib.util.module_from_spec(_SPEC)
sys.modules["tensor_maps"] = program
_SPEC.loader.exec_module(program)

NAME = "sm120f_blockscaled_nvfp4xnvfp4_bf16_t128x128x128_c1x1x1_cooperative"
M, N, K = 300, 264, 256
MAPS: dict[str, dict[str, Any]] = {
    "a": {"type": 13, "dims": (K, M, 1), "strides": (224, 0), "box": (128, 128, 1), "swizzle": 2},
    "b": {"type": 13, "dims": (K, N, 1), "strides": (224, 0), "box": (128, 128, 1), "swizzle": 2},
    "a_sf": {"type": 1, "dims": (256, 4, 3, 1), "strides": (512, 2048, 6144), "box": (256, 2, 1, 1)},
    "b_sf": {"type": 1, "dims": (256, 4, 3, 1), "strides": (512, 2048, 6144), "box": (256, 2, 1, 1)},
    "d": {"type": 9, "dims": (N, M, 1), "strides": (544, 0), "box": (32, 64, 1), "swizzle": 2},
}
"""As the host side of the kernel asked for them (CUTLASS 4.2)."""
LAUNCH: dict[str, Any] = {"grid": (3, 3, 1), "block": (384, 1, 1), "cluster": (1, 1, 1), "shared_bytes": 83968}


class Host:
    """A library whose answers are given."""

    def __init__(self, maps: dict[str, dict[str, Any]], launch: dict[str, Any], driver: int = 0) -> None:
        self._maps, self._launch, self._driver = maps, launch, driver

    def describe(self, _call: Any, _how: Any, maps: Any, room: int, launched: Any) -> int:
        assert len(self._maps) <= room
        for one, (role, given) in zip(maps, self._maps.items(), strict=False):
            one.address, one.rank, one.driver = program.ADDRESSES[role], len(given["dims"]), self._driver
            one.emulated = 0 if given["type"] >= 13 else -1
            for name, value in ({"element_strides": (1,) * one.rank} | given).items():
                if isinstance(value, tuple):
                    getattr(one, name)[: len(value)] = value
                else:
                    setattr(one, name, value)
        for name, value in self._launch.items():
            setattr(launched._obj, name, (ctypes.c_int32 * 3)(*value) if isinstance(value, tuple) else value)
        return len(self._maps)


def told(config: PairConfig, host: Host) -> list[str]:
    return list(program.differences(config, host, M, N, K))


@pytest.fixture
def config() -> PairConfig:
    found = parse_name(NAME)
    assert isinstance(found, PairConfig)
    return found


def test_what_cutlass_asks_for_is_what_the_call_means(config: PairConfig) -> None:
    assert told(config, Host(MAPS, LAUNCH)) == []


@pytest.mark.parametrize(
    ("role", "change", "said"),
    [
        ("a", {"type": 14}, "a: elements of type 14, expected 13"),
        ("b", {"dims": (K, M, 1)}, "b: extents [256, 300, 1], expected 256 columns and 264 rows"),
        ("a", {"strides": (256, 0)}, "a: rows 256 bytes apart, expected 224"),
        ("b", {"box": (96, 128, 1)}, "b: boxes [96, 128, 1] do not make tiles of 128 rows and 128 columns"),
        ("a", {"swizzle": 1}, "a: 128 columns of 4 bits do not fit 32 swizzled bytes"),
        ("a_sf", {"dims": (256, 4, 2, 1)}, "a_sf: 2 x [256, 4, 2, 1] bytes, expected 6144 scales"),
        (
            "b_sf",
            {"box": (256, 3, 1, 1)},
            "b_sf: boxes of 2 x [256, 3, 1, 1] bytes do not make the 1024 scales of a tile",
        ),
        (
            "d",
            {"fill": 1},
            "d: element strides, interleaving and filling ({1}, 0, 1), expected steps of 1, none, zeros",
        ),
        ("d", {"strides": (528, 0)}, "d: rows 528 bytes apart, expected 544"),
        ("a", {"emulated": 1}, "a: packed_map.h refuses it with 1"),
    ],
)
def test_a_map_of_another_call(config: PairConfig, role: str, change: dict[str, Any], said: str) -> None:
    assert told(config, Host(MAPS | {role: MAPS[role] | change}, LAUNCH)) == [said]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cluster": (2, 1, 1), "grid": (4, 3, 1)}, "clusters of [2, 1, 1], expected (1, 1, 1)"),
        ({"grid": (3, 2, 1)}, "6 CTAs for 9 tiles: each is asked for by a CTA of its own"),
        ({"shared_bytes": 103424}, "103424 bytes of shared memory, a CTA has 101376"),
    ],
)
def test_a_launch_of_another_kernel(config: PairConfig, change: dict[str, Any], said: str) -> None:
    assert told(config, Host(MAPS, LAUNCH | change)) == [said]


def test_a_map_that_is_missing_and_maps_that_the_driver_refuses(config: PairConfig) -> None:
    without = {role: given for role, given in MAPS.items() if role != "b_sf"}
    assert told(config, Host(without, LAUNCH)) == ["maps of a, a_sf, b, d, expected those of a, a_sf, b, b_sf, d"]
    refused = told(config, Host(MAPS, LAUNCH, driver=1))
    assert refused == [f"{role}: the driver refuses it with 1" for role in MAPS]


def test_a_hopper_gpus_driver_refuses_packed_maps_alone(config: PairConfig) -> None:
    host = Host(MAPS, LAUNCH, driver=1)
    found = list(program.differences(config, host, M, N, K, program.Encoded.BYTES))
    assert found == [f"{role}: the driver refuses it with 1" for role in ("a_sf", "b_sf", "d")]
    found = list(program.differences(config, host, M, N, K, program.Encoded.ALL))
    assert found == [f"{role}: the driver refuses it with 1" for role in MAPS]
