"""`explain` says by the kernel's name which way a weight in blocks of 32 went."""

import re
from functools import partial
from typing import Any

import pytest
import torch

import gemmill
from builds import TableOnly
from gemmill.families.scaled_mm import selections
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.quantize import prepack_blocks, quantize_weight
from gemmill.quantize.block_folding import FOLDS
from gemmill.runtime import ops
from gemmill.vocab import Arch


def test_explain_says_which_way_a_weight_went(
    make_manifest: Any, table_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = tuple(c for c in selections.default(Arch.SM90A) if accepted(c).group_size)
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    meta = partial(torch.empty, device="meta")
    weight = quantize_weight(torch.randn(256, 512, generator=torch.Generator().manual_seed(1)), "block32")
    found = []
    for kept in (weight, *(prepack_blocks(weight, fold=fold, rounded=True).weight for fold in FOLDS)):
        b, b_scales = kept.codes.t().to("meta"), kept.scales.t().to("meta")
        a, a_scales = meta(64, 512, dtype=torch.float8_e4m3fn), meta(64, b_scales.shape[0])
        out = meta(64, 256, dtype=torch.bfloat16)
        choice = gemmill.explain("cutlass_scaled_mm", out, a, b, a_scales, b_scales, None)
        assert choice.entry is not None
        found += re.findall(r"group(?:block|group)\d+", choice.entry.name)
    assert found == ["groupblock32", "groupblock128", "groupgroup128"]
