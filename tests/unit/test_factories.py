"""Tensors that the package makes have a dtype and a device that it names, whatever the defaults of the caller are."""

import ast
from pathlib import Path

import pytest

import gemmill

PACKAGE = Path(gemmill.__file__).parent
FACTORIES = frozenset(
    "arange asarray as_tensor bernoulli empty empty_strided eye full linspace logspace normal ones rand randint randn randperm "
    "scalar_tensor tensor tril_indices triu_indices zeros".split()
)
NAMED = ("dtype", "device")


def unnamed(source: str) -> dict[int, str]:
    """Lines of calls of torch's factories that leave out dtype or device, and the missing word."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {
        call.lineno: f"torch.{call.func.attr} without {' and '.join(left_out)}"
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and call.func.attr in FACTORIES
        and (left_out := [name for name in NAMED if name not in {given.arg for given in call.keywords}])
    }


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("torch.ones(3)", "torch.ones without dtype and device"),
        ("torch.full((2,), 1.0, device=x.device)", "torch.full without dtype"),
        ("torch.arange(3, dtype=torch.int64)", "torch.arange without device"),
        ("torch.tensor([1.0], **same)", "torch.tensor without dtype and device"),
        ("torch.zeros(3, dtype=d, device=x.device)", None),
        ("torch.zeros_like(x)", None),
        ("x.new_zeros(3)", None),
    ],
)
def test_the_rule_finds_what_depends_on_defaults(source: str, found: str | None) -> None:
    assert unnamed(source) == ({1: found} if found else {})


def test_factories_name_dtype_and_device() -> None:
    """Engines load models under a default dtype of bf16, and under a default device."""
    found = {
        f"{path.relative_to(PACKAGE)}:{line}": left_out
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, left_out in unnamed(path.read_text(encoding="utf-8")).items()
    }
    assert not found
