"""Calls with one broken argument, of every op and of every function: each is refused in one sentence of the op's own, or legal."""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmill
from gemmill.runtime.schemas import OPS, ArgumentKind, OpSchema
from whole_calls import Call, moved, whole_call

every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
INTS = (0, -1, 2**31, 2**63 - 1)
SENTENCE = re.compile(r"[^\n]+(?<!\.)")


def zeros(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Zeros of a tensor's dtype and device."""
    return torch.zeros(shape, dtype=torch.float32, device=x.device).to(x.dtype)


OF_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "has rank 0": lambda x: zeros(x),
    "has rank 1": lambda x: zeros(x, x.numel()),
    "has a dimension more": lambda x: x[None],
    "has a dimension less": lambda x: zeros(x, *x.shape[1:]),
    "is empty": lambda x: zeros(x, *(0 for _ in x.shape)),
    "has no rows": lambda x: x[:0] if x.dim() else x,
    "is float64": lambda x: torch.zeros(x.shape, dtype=torch.float64, device=x.device),
    "is bool": lambda x: torch.zeros(x.shape, dtype=torch.bool, device=x.device),
    "is on meta": lambda x: moved(x, "meta"),
}


def broken_calls(parameters: dict[str, ArgumentKind], call: Call) -> Iterator[tuple[str, Call]]:
    """The fault, and the call."""
    for name, kind in parameters.items():
        value = call[name]
        if isinstance(value, torch.Tensor):
            for what, of in OF_TENSORS.items():
                yield f"{name} {what}", call | {name: of(value)}
        elif kind is ArgumentKind.INT:
            for number in INTS:
                yield f"{name} is {number}", call | {name: number}
        elif kind is ArgumentKind.INTS:
            for numbers in ((), *((number,) * 2 for number in INTS)):
                yield f"{name} is {numbers}", call | {name: numbers}


class Place:
    """Moves the tensors of calls to where they are made. Broken calls share all arguments but one: each tensor is moved once."""

    def __init__(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._move = move
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, call: Call) -> Call:
        return {name: self._of(value) if isinstance(value, torch.Tensor) else value for name, value in call.items()}

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._moved:
            self._moved[id(tensor)] = tensor, self._move(tensor)  # the first lives on, so that no other has its id
        return self._moved[id(tensor)][1]


PLACES: dict[str, Callable[[], Callable[[Call], Call]]] = {
    "on_cpu": lambda: lambda call: call,
    "on_meta": lambda: Place(lambda tensor: moved(tensor, "meta")),
    "faked": lambda: Place(FakeTensorMode().from_tensor),
}
STEPS = {"faked": 4}
"""Of so many broken calls one is made: the function that answers for fakes is that of meta, and takes ten times as long. Kinds of
breakages are 9 for a tensor, so that each comes up."""
everywhere = pytest.mark.parametrize("where", PLACES)


def check_refusal(name: str, what: str, run: Callable[[], Any]) -> bool:
    """Whether the call is refused, which it must be by a sentence of the op."""
    try:
        run()
    except Exception as error:
        assert type(error) is RuntimeError, f"{what}: {error!r}"
        assert re.fullmatch(rf"{name}: {SENTENCE.pattern}", str(error)), f"{what}: {error}"
        return True
    return False


def refused(name: str, kinds: dict[str, ArgumentKind], call: Call, where: str, run: Callable[..., Any]) -> int:
    """How many of the broken calls are refused. A quarter at least are."""
    place, made = PLACES[where](), islice(broken_calls(kinds, call), 0, None, STEPS.get(where, 1))
    found = [check_refusal(name, what, lambda broken=broken: run(**place(broken))) for what, broken in made]
    assert sum(found) > len(found) / 4
    return sum(found)


@everywhere
@every_op
def test_an_op_refuses_a_broken_call_in_its_own_sentence(op: OpSchema, where: str) -> None:
    kinds = {parameter.name: parameter.kind for parameter in op.parameters}
    assert refused(op.name, kinds, whole_call(op), where, getattr(torch.ops.gemmill, op.name).default)


ALIASES = {
    "mat_a": "a",
    "mat_b": "b",
    "scales_a": "a_sf",
    "scales_b": "b_sf",
    "expert_offsets": "input_offset_by_experts",
    "scale": "mod_scale",
    "shift": "mod_shift",
    "per_token": "none",
}
"""Arguments of functions that their op knows by another name."""


def function_call(function: Callable[..., Any], op: OpSchema) -> Call:
    """A function's arguments for a whole call of its op: by the names that both have, and by the op's outputs."""
    whole = whole_call(op)
    written = [whole[p.name] for p in op.parameters if p.written and isinstance(whole[p.name], torch.Tensor)]
    told = {
        "out_dtype": lambda: written[0].dtype,
        "dtype": lambda: written[0].dtype,
        "quant_dtype": lambda: written[0].dtype,
        "head_dim": lambda: written[0].shape[-1],
        "n": lambda: written[0].shape[0],
        "k": lambda: written[0].shape[-1],
        "check": lambda: True,
        "symmetric": lambda: False,
        "topk": lambda: written[-1].shape[1],
    }
    call: Call = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "order":
            continue  # which the op knows as a number
        if name in whole or ALIASES.get(name) in whole:
            call[name] = whole[name if name in whole else ALIASES[name]]
        elif name in told:
            call[name] = told[name]()
        else:
            assert parameter.default is not parameter.empty, name
    return call


FUNCTIONS = [op for op in OPS if hasattr(gemmill, op.name)]


@everywhere
@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.name)
def test_a_function_refuses_a_broken_call_in_its_own_sentence(op: OpSchema, where: str) -> None:
    function = getattr(gemmill, op.name)
    call = function_call(function, op)
    kinds = {name: ArgumentKind.INT for name, value in call.items() if type(value) is int}
    names = dict.fromkeys(call, ArgumentKind.TEXT) | kinds
    assert refused(op.name, names, call, where, function)


def decompressed() -> Call:
    values, meta = gemmill.cutlass_sparse_compress(torch.eye(64, 128, dtype=torch.float16))
    return {"bt_nzs": values, "bt_meta": meta, "k": 128}


@everywhere
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cutlass_sparse_compress", {"a": torch.eye(8, 64, dtype=torch.int8)}),
        ("cutlass_sparse_decompress", decompressed()),
    ],
)
def test_functions_whose_result_the_data_tells(name: str, call: Call, where: str) -> None:
    kinds = {argument: ArgumentKind.INT if argument == "k" else ArgumentKind.TENSOR for argument in call}
    assert refused(name, kinds, call, where, getattr(gemmill, name))
    if where == "on_cpu":
        getattr(gemmill, name)(**call)


def under_vllms_names() -> dict[str, Call]:
    """Ops made of others, with a call of each."""
    x = torch.randn(8, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    experts = dict.fromkeys(("a_strides", "b_strides", "c_strides"), torch.full((2,), 64))
    return {
        "scaled_fp4_quant": {"input": x, "input_scale": torch.ones(1), "is_sf_swizzled_layout": True},
        "cutlass_moe_mm": {
            "out_tensors": torch.empty(8, 32, dtype=torch.bfloat16),
            "a_tensors": x.to(torch.float8_e4m3fn),
            "b_tensors": torch.ones(2, 32, 64).to(torch.float8_e4m3fn).transpose(1, 2),
            "a_scales": torch.ones(8, 1),
            "b_scales": torch.ones(2, 32),
            "expert_offsets": torch.tensor([0, 3], dtype=torch.int32),
            "problem_sizes": torch.tensor([[32, 3, 64], [32, 5, 64]], dtype=torch.int32),
            **experts,
            "per_act_token": True,
            "per_out_ch": True,
        },
    }


@pytest.mark.parametrize("name", under_vllms_names())
def test_ops_under_vllms_names_that_are_made_of_others(name: str) -> None:
    import_module("gemmill.compat.vllm.ops")
    call = under_vllms_names()[name]
    run = getattr(torch.ops._C, name)
    run(**call)
    read = [argument for argument in call if not argument.endswith("strides")]
    kinds = {argument: ArgumentKind.TENSOR for argument in read if isinstance(call[argument], torch.Tensor)}
    assert refused(r"\w+", kinds, call, "on_cpu", run)


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (
            lambda x: gemmill.per_token_group_fp8_quant(x, 0),
            "per_token_group_fp8_quant: group_size is 0, expected 1 or more",
        ),
        (
            lambda x: gemmill.per_token_group_quant_int8(x, -1),
            "per_token_group_quant_int8: group_size is -1, expected 1 or more",
        ),
        (
            lambda x: gemmill.scaled_mxfp8_quant(x[0, 0]),
            "scaled_mxfp8_quant: input has no dimensions, expected rows of values: [..., hidden]",
        ),
        (
            lambda x: gemmill.mxfp4_experts_quant(x, torch.empty(0, dtype=torch.int32)),
            "mxfp4_experts_quant: input_offset_by_experts has shape [0]: expected a value for each expert, and one for the end",
        ),
        (
            lambda x: gemmill.cutlass_scaled_mm(x, x[0], torch.ones(1), torch.ones(1), x.dtype),
            "cutlass_scaled_mm: b has 1 dimensions [128], expected 2",
        ),
        (
            lambda x: gemmill.kv_decompress_keys(torch.empty(8, 2, 68, dtype=torch.uint8), -1),
            "kv_decompress_keys: vectors have -1 elements, expected 64, 96, 128, 192, 256 or 512",
        ),
        (
            lambda x: gemmill.grouped_mm(
                x.to("meta"),
                x[None].to("meta"),
                None,
                None,
                torch.empty(2, dtype=torch.int32, device="meta"),
                check=True,
            ),
            "grouped_mm: check is True and out is a tensor without values on meta: leave check out, or call it with data",
        ),
        (
            lambda x: gemmill.cutlass_sparse_decompress(x, x, 64),
            "cutlass_sparse_decompress: k is 64 and bt_nzs has 128 columns, expected the columns of the matrix that was compressed, "
            "a multiple of 4: half of them are kept, padded to 16 bytes",
        ),
    ],
)
def test_sentences(run: Callable[[torch.Tensor], Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(sentence)}$"):
        run(torch.zeros(4, 128, dtype=torch.bfloat16))
