"""Epilogues of your own: a function of the accumulator, row and column vectors and numbers, as part of a GEMM's kernel.

    from gemmill.epilogue import Column, ColumnOut, Row, Scalar, Value, epilogue, fma, where

    @epilogue
    def leaky(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut, slope: Scalar) -> Value:
        x = fma(a_scale, acc * b_scale, bias)
        return where(x > 0, x, slope * x)

    out = leaky(a, b, a_scale, b_scale, bias, 0.1)

`gemmill build --epilogue MODULE:FUNCTION` compiles its kernels. gemmill calls the function once, with values that
record the operations on them; the reference for CPU tensors computes the same steps. The op is
`torch.ops.gemmill.mm_<name>_<digest>`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, overload

from gemmill.family import Family, Op
from gemmill.gemm.traced import Kind, Traced, learn
from gemmill.gemm.tracing import (
    Column,
    ColumnOut,
    ColumnS32,
    Row,
    RowOut,
    RowS32,
    Scalar,
    UntraceableError,
    Value,
    as_float,
    erf,
    exp,
    exp2,
    fma,
    log,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
    trace,
    where,
)
from gemmill.registry import REGISTRY
from gemmill.vocab import DType

__all__ = [
    "Column",
    "ColumnOut",
    "ColumnS32",
    "Epilogue",
    "Row",
    "RowOut",
    "RowS32",
    "Scalar",
    "UntraceableError",
    "Value",
    "as_float",
    "epilogue",
    "erf",
    "exp",
    "exp2",
    "fma",
    "log",
    "maximum",
    "minimum",
    "named",
    "rsqrt",
    "sigmoid",
    "sqrt",
    "tanh",
    "where",
]
_FAMILY: Family = next(family for family in REGISTRY.families if family.epilogues is not None)
_RUNTIME = "gemmill.runtime.ops"


@dataclass(frozen=True)
class Epilogue:
    """A traced function, and the op that ends in it."""

    function: Callable[..., Any]
    traced: Traced
    operands: tuple[DType, ...]
    """Dtypes of a and b that kernels exist for."""
    results: tuple[DType, ...]
    """Dtypes of out for which they are."""

    @property
    def name(self) -> str:
        """Of its op, in `torch.ops.gemmill`."""
        return self.op.schema.name

    @cached_property
    def op(self) -> Op:
        """Its op."""
        assert _FAMILY.epilogues is not None
        return _FAMILY.epilogues.op(self.traced.text)

    def __call__(self, a: Any, b: Any, *given: Any, out_dtype: Any = None, **named: Any) -> Any:
        """The epilogue of a b: [M, N] of out_dtype, which is bfloat16 unless a is float16, or results are float8_e4m3fn alone.

        a is [M, K] row-major, b [K, N] column-major, of one dtype: float8_e4m3fn, bfloat16 or float16, or int8 where
        the epilogue takes int32 sums. Then come the function's arguments after the accumulator: a vector has one value,
        or one for each row or column, without gaps. Raises RuntimeError with one sentence where the arguments do not
        fit.
        """
        torch = import_module("torch")
        told = signature(self.function).bind(None, *given, **named).arguments
        if out_dtype is None:
            codes = torch.float8_e4m3fn if self.results == (DType.E4M3,) else torch.bfloat16
            out_dtype = torch.float16 if a.dtype is torch.float16 else codes
        out = a.new_empty((a.shape[0], b.shape[-1]), dtype=out_dtype)
        import_module(_RUNTIME).overload(self.name)(out, a, b, *(told.get(x.name) for x in self.traced.inputs))
        return out


@overload
def epilogue(function: Callable[..., Any], /) -> Epilogue: ...


@overload
def epilogue(
    *, operands: Sequence[str] = ..., results: Sequence[str] = ...
) -> Callable[[Callable[..., Any]], Epilogue]: ...


def epilogue(
    function: Callable[..., Any] | None = None,
    /,
    *,
    operands: Sequence[str] = ("e4m3",),
    results: Sequence[str] = ("bf16",),
) -> Any:
    """Trace a function, and define the op that ends in it. As decorator, with or without arguments.

    The function's first argument is the accumulator. Annotate the others as Row, Column, RowOut, ColumnOut, RowS32,
    ColumnS32 or Scalar: up to four along rows, along columns, and scalars. A call may omit a vector with a number as
    its default. It returns the value to store. `operands` (e4m3, bf16, f16, or s8 alone, whose sums are int32) and
    `results` (bf16, f16; of e4m3 operands e4m3 too) are the dtypes of the kernels to build. Raises UntraceableError,
    with file and line, for a function that cannot be traced; ValueError for other dtypes, and for names that schemas of
    torch's ops cannot have.
    """
    if function is None:
        return lambda given: _made(given, tuple(map(DType, operands)), tuple(map(DType, results)))
    return _made(function, tuple(map(DType, operands)), tuple(map(DType, results)))


def _made(function: Callable[..., Any], operands: tuple[DType, ...], results: tuple[DType, ...]) -> Epilogue:
    traced = trace(function, Kind.S32 if operands == (DType.S8,) else Kind.F32)
    for name in (traced.name, *(given.name for given in traced.inputs)):
        if not name.isascii() or name == "NoneType":
            raise ValueError(
                f"epilogue {traced.name!r} has the name {name!r}, which schemas of torch's ops cannot have: use letters of ASCII, "
                "digits and _"
            )
    made = Epilogue(function, learn(traced), operands, results)
    assert _FAMILY.epilogues is not None
    possible = _FAMILY.epilogues.operands(made.traced.text)
    if not operands or not set(operands) <= set(possible):
        raise ValueError(
            f"epilogue {function.__name__!r} is for operands {', '.join(operands) or 'of no dtype'}: it is s8 alone, whose sums are "
            f"int32, or one or more of {', '.join(p for p in possible if p is not DType.S8)}"
        )
    if not results or not set(results) <= {DType.BF16, DType.F16, DType.E4M3}:
        raise ValueError(
            f"epilogue {function.__name__!r} is for results {', '.join(results) or 'of no dtype'}: kernels store bf16, f16 and e4m3"
        )
    if DType.E4M3 in results and operands != (DType.E4M3,):
        raise ValueError(
            f"epilogue {function.__name__!r} is for operands {', '.join(operands)} and results {', '.join(results)}: e4m3 is stored of "
            "e4m3 operands alone"
        )
    if _RUNTIME in sys.modules:
        sys.modules[_RUNTIME].add(_FAMILY, made.op)
    else:
        REGISTRY.add(_FAMILY, made.op)  # importing the runtime defines the op with all others
    return made


def named(text: str) -> Epilogue:
    """The epilogue that `MODULE:FUNCTION` names, a function as it is or under `epilogue`. The search for the module
    includes the current folder. Raises ValueError for another text, and where there is none.
    """
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"epilogue {text!r} is not spelled MODULE:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"epilogue {text!r}: {error}; it is looked for in the current folder, then where Python does"
        ) from None
    finally:
        sys.path.pop(0)
    if found is None:
        raise ValueError(f"epilogue {text!r}: module {module} has no {name!r}")
    return found if isinstance(found, Epilogue) else epilogue(found)
