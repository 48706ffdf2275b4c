"""The built-in table by shape: which variants were fastest where, in order, as measured."""

import json
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

from gemmill.runtime.problem import Need, problem_code, scales_codes_of
from gemmill.space.config import KernelConfig
from gemmill.space.names import parse_gemm_name, to_name
from gemmill.vocab import DType, EpilogueKind, ScaleLayout

_FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True, kw_only=True)
class TunedChoice:
    """At (n, k), for up to m rows: these variants, best first."""

    problem: int
    n: int
    k: int
    m: int
    names: tuple[str, ...]


@cache
def built_in(arch: str) -> tuple[TunedChoice, ...]:
    """The choices shipped for an architecture; none where nothing was measured.

    A row was measured for one output dtype and epilogue. Its schedules are offered to the sibling classes of the same
    operands too: the main loop, which decides, is the same.
    """
    path = _FOLDER / f"{arch}.json"
    if not path.exists():
        return ()
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return tuple(choice for row in rows for choice in _siblings(row))


def _siblings(row: dict) -> list[TunedChoice]:
    configs = [parse_gemm_name(name) for name in row["names"]]
    operand = configs[0].problem.a_dtype
    azp = configs[0].problem.epilogue.takes_azp
    groups = configs[0].problem.scale_groups
    result = []
    kinds = scales_codes_of(groups, ScaleLayout.VECTOR if groups is None else ScaleLayout.STRIDED)
    for out, scales in product((DType.BF16, DType.F16), kinds):
        for need in (Need.AZP_ROW, Need.AZP_TOKEN) if azp else (Need.SCALE, Need.BIAS):
            result.append(
                TunedChoice(
                    problem=problem_code(need, operand.torch_name, out.torch_name, scales),
                    n=row["n"],
                    k=row["k"],
                    m=row["m"],
                    names=tuple(to_name(sibling) for config in configs for sibling in _configs_for(config, need, out)),
                )
            )
    return result


_KINDS = {
    Need.SCALE: (EpilogueKind.SCALED, EpilogueKind.SCALED_BIAS),
    Need.BIAS: (EpilogueKind.SCALED_BIAS,),
    Need.AZP_ROW: (EpilogueKind.SCALED_AZP, EpilogueKind.SCALED_AZP_PER_TOKEN),
    Need.AZP_TOKEN: (EpilogueKind.SCALED_AZP_PER_TOKEN,),
}


def _configs_for(config: KernelConfig, need: Need, out: DType) -> list[KernelConfig]:
    return [replace(config, problem=replace(config.problem, out_dtype=out, epilogue=kind)) for kind in _KINDS[need]]
