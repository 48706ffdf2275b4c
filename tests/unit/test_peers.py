"""The page of other projects' names: each that is registered or offered is there, and each that is said to be there is."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmill
from gemmill.compat import deep_gemm, lightx2v
from gemmill.families.sparse_mm.functions import COMPRESS
from gemmill.family import VLLM_PREFIX
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import BY_NAME

pytestmark = pytest.mark.usefixtures("home")
PAGE = (Path(__file__).parents[2] / "docs/peers.md").read_text()
NOT_OFFERED = "not offered"
RESULTS = set(re.findall(r"^\| ([a-z ]+) \| [^|]+ \|$", PAGE.partition("## vLLM")[0], re.MULTILINE)) - {"results"}
OPS = {op.schema.name.removeprefix(VLLM_PREFIX) for family in REGISTRY.families for op in family.asks.ops}
"""Users' epilogues add ops of their own, which other tests do."""


def table(peer: str) -> dict[str, str]:
    """The results of each name of a peer; names of one row share them."""
    _, _, rest = PAGE.partition(f"| {peer}'s name | results |")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([a-z ]+) \|", rest.partition("\n\n")[0], re.MULTILINE)
    found = [(name, results) for names, results in rows for name in re.findall(r"\w+", names)]
    assert len(dict(found)) == len(found) > 10
    return dict(found)


VLLM, DEEP_GEMM, LIGHTX2V = map(table, ("vLLM", "DeepGEMM", "LightX2V"))
OWN = set(re.findall(r"`(\w+)`", PAGE.partition("## Names of gemmill's own")[2]))


def offered(names: dict[str, str]) -> set[str]:
    return {name for name, results in names.items() if results != NOT_OFFERED}


def test_results_are_of_the_kinds_that_the_page_explains() -> None:
    assert {"the same bits", "within a bound", "own answer", "refused", NOT_OFFERED} == RESULTS
    assert {*VLLM.values(), *DEEP_GEMM.values(), *LIGHTX2V.values()} <= RESULTS


def test_each_registered_op_is_a_peers_or_our_own() -> None:
    peers = offered(VLLM) | offered(LIGHTX2V)
    assert OPS - peers == OWN
    assert not OWN & offered(DEEP_GEMM)


def test_vllms_names_are_those_that_are_handed_out() -> None:
    vllm = import_module("gemmill.compat.vllm.ops")
    experts = {*vllm.moe_mm.SCHEMAS, *vllm.fp4_groups.SCHEMAS}
    given = {*vllm._SERVED_BY, *vllm._QUERIES, *experts, vllm._FP4, COMPRESS, vllm.hadamard.HADACORE}
    assert given - OWN - offered(LIGHTX2V) == offered(VLLM)
    assert all(hasattr(torch.ops._C, name) for name in offered(VLLM))
    assert not [name for name in VLLM.keys() - offered(VLLM) if hasattr(torch.ops._C, name)]


def test_what_has_codes_of_vllms_own_has_the_same_bits() -> None:
    """GEMMs apart, whose sums have an order."""
    own = {name.removeprefix(VLLM_PREFIX) for name in BY_NAME if name.startswith(VLLM_PREFIX)} & VLLM.keys()
    assert own and {VLLM[name] for name in own if not name.startswith("cutlass_")} == {"the same bits"}


@pytest.mark.parametrize(
    ("names", "module"), [(DEEP_GEMM, deep_gemm), (LIGHTX2V, lightx2v)], ids=["deep_gemm", "lightx2v"]
)
def test_functions_are_those_of_the_module(names: dict[str, str], module: Any) -> None:
    assert offered(names) == set(module.__all__)
    assert not [name for name in names.keys() - offered(names) if hasattr(module, name)]


def remark(name: str) -> str:
    found = re.search(rf"^\| [^|]*`{name}`[^|]* \| [a-z ]+ \|(.*)\|$", PAGE, re.MULTILINE)
    assert found is not None
    return found[1]


def _codes(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(4, 256, dtype=torch.float8_e4m3fn)


X, ONE = torch.ones(4, 256), torch.ones(1)
TAKEN: dict[str, Callable[[Any], object]] = {
    "rms_norm_static_fp8_quant": lambda op: op(_codes(X), X, X[0], ONE, 1e-6),
    "fused_add_rms_norm_static_fp8_quant": lambda op: op(_codes(X), X, X.clone(), X[0], ONE, 1e-6),
}
REFUSED: dict[str, Callable[[Any], object]] = {
    "silu_and_mul_quant": lambda op: op(_codes(X)[:, :128], X, ONE),
    "silu_and_mul_per_block_quant": lambda op: op(_codes(X)[:, :128], X, torch.ones(4, 1), 128),
}


def test_each_name_that_refuses_float32_does_and_is_said_to() -> None:
    import_module("gemmill.compat.vllm.ops")
    for name, call in TAKEN.items():
        call(getattr(torch.ops._C, name).default)
    assert {name for name in offered(VLLM) if "refuses float32" in remark(name)} == set(REFUSED)
    for name, call in REFUSED.items():
        with pytest.raises(RuntimeError, match=f"^vllm_{name}: input is float32, expected"):
            call(getattr(torch.ops._C, name).default)


@pytest.mark.parametrize("group", [1, 16, 256, 512])
def test_groups_of_any_size_are_taken(group: int) -> None:
    for name in ("per_token_group_fp8_quant", "per_token_group_quant_int8"):
        assert "groups of any size" in remark(name)
        codes, scales = getattr(gemmill, name)(torch.ones(4, 512, dtype=torch.bfloat16), group)
        assert codes.shape == (4, 512) and scales.shape == (4, 512 // group)
        with pytest.raises(RuntimeError, match=f"^{name}: group_size is 0, expected 1 or more$"):
            getattr(torch.ops.gemmill, name).default(torch.ones(4, 512), codes, scales, 0, *_limits(name))


def _limits(name: str) -> tuple[object, ...]:
    return (1e-10, -448.0, 448.0, False, False, False) if "fp8" in name else (1e-10, -128.0, 127.0)
