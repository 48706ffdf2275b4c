"""The ops in the runtime."""

from collections.abc import Iterator
from typing import Any

import torch

from gemmill.families.blockscaled import reference
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.formats.folded_blocks import FoldedBlocks
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.layout import BLOCK_COLUMNS
from gemmill.formats.packed_rows import parted
from gemmill.formats.quantise import products, unswizzle
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, count_of_variants
from gemmill.vocab import Format


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    a, b, alpha, bias = operands_of(call, given)
    yield given["out"], reference.rounded(reference.exact_mm(a, b, alpha, bias), given["out"].dtype)


def operands_of(call: Judged, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
    """The operands of a legal call: values of A and B, float64, alpha and bias."""
    pair = list(Pair)[call["pair"]]
    if pair in WEIGHT_PAIRS:
        a, b = given["a"].double(), _weights(call, given, pair.b_format)
    elif pair in FOLDED_PAIRS:
        a, b = _scaled(call, given), _folded(call, given, pair.b_format)
    else:
        assert pair.a_format is not None
        a = _codes(call["M"], call["K"], pair.a_format, given["a"], given["a_sf"])
        b = _codes(call["N"], call["K"], pair.b_format, given["b"], given["b_sf"])
    alpha, bias = given.get("alpha"), given.get("bias")
    return a, b, None if alpha is None else alpha.reshape(()), None if bias is None else bias.reshape(-1)


def _weights(call: Judged, given: dict[str, Any], format: Format) -> torch.Tensor:
    b, b_sf = given["b"], given["b_sf"]
    if not call["prepacked"]:
        return products(format, b, b_sf.view(torch.uint8))
    base = b_sf.reshape(-1).double().unsqueeze(1)
    if b.dim() == 2:
        rows: torch.Tensor = parted(b, format, call["K"]).values() * base
        return rows
    packed = Fp4Blocks(format=format, n=call["N"], k=call["K"], blocks=b, base=b_sf.reshape(-1))
    weights: torch.Tensor = packed.weights()[0].values() * base
    return weights


def _scaled(call: Judged, given: dict[str, Any]) -> torch.Tensor:
    """Values of e4m3 numbers times the scales of their rows, or of 128 columns of each row."""
    each = -(-call["K"] // BLOCK_COLUMNS) if call["grouped"] else 1
    scales = given["a_sf"].double().reshape(call["M"], each)
    columns = scales.repeat_interleave(BLOCK_COLUMNS, 1)[:, : call["K"]] if call["grouped"] else scales
    numbers: torch.Tensor = given["a"].double() * columns
    return numbers


def _folded(call: Judged, given: dict[str, Any], format: Format) -> torch.Tensor:
    base = given["b_sf"] if call["grouped"] else given["b_sf"].reshape(-1)
    return FoldedBlocks(format=format, n=call["N"], k=call["K"], blocks=given["b"], base=base).values()


def _codes(rows: int, k: int, format: Format, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    plain = unswizzle(scales.view(torch.uint8), rows, k // format.group)
    return products(format, codes.view(torch.uint8), plain)


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    judged = checks.check(op, call)
    pair, asked = list(Pair)[judged["pair"]], shaped_call_of(judged)
    sizes, alignments = (", ".join(map(str, numbers)) for numbers in (asked.sizes, asked.alignments))
    of_pair = sum(entry.config.pair is pair for entry in manifest.entries if entry.family == asked.family)
    packed = "; pack weights (gemmill.quantize)" if pair in WEIGHT_PAIRS and not judged["prepacked"] else ""
    return (
        f"none of {count_of_variants(of_pair)} of {pair} in build {manifest.build_id} takes M, N, K = {sizes} with alignments of a, b, "
        f"out and scales = {alignments} bytes and {judged['out'].dtype} results{packed}; `gemmill build --arch {manifest.arch} --select "
        f"default` builds those that there are"
    )


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
