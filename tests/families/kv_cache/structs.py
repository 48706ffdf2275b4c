"""The kernels' arguments as ctypes, read from their header; and what kernels are given of a codebook."""

import ctypes
import re
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.codebooks import codebook
from gemmill.locations import kernels_dir

_TYPES = {"int64_t": ctypes.c_int64, "float": ctypes.c_float}


def struct_of(name: str) -> type[ctypes.Structure]:
    """A struct of kernels/kv_cache/abi.h."""
    text = (kernels_dir() / "kv_cache" / "abi.h").read_text()
    body = re.search(rf"struct {name} {{(.*?)\n}};", text, re.DOTALL)
    assert body is not None
    fields: list[tuple[str, Any]] = []
    for kind, names in re.findall(r"^  ([\w ]+?\*?) ((?:\w+(?:\[\d\])?(?:, )?)+);", body[1], re.MULTILINE):
        for field in names.split(", "):
            one, count = re.fullmatch(r"(\w+)(?:\[(\d)\])?", field).groups()
            ctype = ctypes.c_void_p if kind.endswith("*") else _TYPES[kind]
            fields.append((one, ctype * int(count) if count else ctype))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Hadamard, Compress, Attention = map(
    struct_of, ("gemmill_hadamard_args", "gemmill_kv_compress_args", "gemmill_kv_attention_args")
)


def filled(struct: type[ctypes.Structure], **given: Any) -> ctypes.Structure:
    """With tensors as their addresses and tuples as arrays; all fields are told."""
    of = dict(struct._fields_)
    assert set(of) == set(given), set(of) ^ set(given)
    told = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in given.items()}
    return struct(**{name: of[name](*value) if isinstance(value, tuple) else value for name, value in told.items()})


def book(head_dim: int, bits: int) -> list[float]:
    """Centroids and boundaries above 0 as kernels that store take them."""
    whole = codebook(head_dim, bits)
    half = 1 << (bits - 1)
    return [*whole.centroids[half:], *whole.boundaries[half:]]


def centroids(bits: tuple[int, int] = (4, 4), head_dim: int = 128) -> Tensor:
    """Of keys and values, ascending, as those that attend take them: f16 [2, 16]."""
    return torch.tensor([codebook(head_dim, b).centroids for b in bits], dtype=torch.float64).half()
