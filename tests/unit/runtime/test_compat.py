"""vLLM's capability queries are answered by the active build: what it lacks is not claimed."""

from importlib import import_module

import pytest
import torch

from builds import TableOnly
from gemmill.runtime import ops
from gemmill.vocab import DType


@pytest.mark.parametrize(
    ("groups", "dtypes", "answers"),
    [
        ((0, 128), list(DType), (True, True)),
        ((0,), list(DType), (True, False)),
        ((128,), list(DType), (False, True)),
        ((0, 128), [DType.S8], (False, False)),
    ],
)
def test_queries(
    groups: tuple, dtypes: list, answers: tuple, smoke_configs, table_of, make_manifest, monkeypatch
) -> None:
    import_module("gemmill.compat.vllm")
    kept = [c for c in smoke_configs if c.problem.group_size in groups and c.problem.a_dtype in dtypes]
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*kept), table_of(*kept)))
    queries = [getattr(torch.ops._C, f"cutlass_scaled_mm_supports_{what}") for what in ("fp8", "block_fp8")]
    assert tuple(query(90) for query in queries) == answers
    assert not any(query(capability) for query in queries for capability in (80, 89, 100, 120))
