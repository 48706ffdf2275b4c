"""The sparse GEMMs' ops as functions that allocate their results, and the functions that make their weights."""

import torch

from gemmill.formats.two_to_four import GROUP, compress, decompress, kept_columns, meta_shape
from gemmill.runtime.ops import define_in_python, overload
from gemmill.runtime.sizes import has_values, size

__all__ = [
    "cutlass_scaled_sparse_mm",
    "cutlass_scaled_sparse_mm_azp",
    "cutlass_sparse_compress",
    "cutlass_sparse_decompress",
]

COMPRESS = "cutlass_sparse_compress"
"""The op that compresses. vLLM had it, with the sparse GEMM, until March 2026."""
_SPARSE_MM, _SPARSE_MM_AZP = overload("cutlass_scaled_sparse_mm"), overload("cutlass_scaled_sparse_mm_azp")
_COMPRESSED = (torch.float8_e4m3fn, torch.int8, torch.bfloat16, torch.float16)
_KNOWN = ", ".join(str(dtype).removeprefix("torch.") for dtype in _COMPRESSED)


def cutlass_scaled_sparse_mm(
    a: torch.Tensor,
    bt_nzs: torch.Tensor,
    bt_meta: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return out[M, N] = a_scales * (b_scales * (a @ b)) + bias of 2:4 sparse b, as vLLM's op of this name.

    `a` is [M, K] row-major of float8_e4m3fn, int8, bfloat16 or float16. `bt_nzs` [N, K/2] and `bt_meta` are b's
    transpose as `cutlass_sparse_compress` returns it. Scales are float32: one value, or one for each row of a and of
    bt_nzs. `out_dtype` is bfloat16 or float16; with 16-bit operands it is their own. `bias` is [N] of out_dtype.

    Raises RuntimeError with one sentence where the arguments do not fit. On a GPU the op does not check metadata:
    patterns that no compression makes give unspecified values.
    """
    out = a.new_empty((size(a, 0), size(bt_nzs, 0)), dtype=out_dtype)
    _SPARSE_MM(out, a, bt_nzs, bt_meta, a_scales, b_scales, bias)
    return out


def cutlass_scaled_sparse_mm_azp(
    a: torch.Tensor,
    bt_nzs: torch.Tensor,
    bt_meta: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    azp_adj: torch.Tensor,
    azp: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return out[M, N] = a_scales * (b_scales * (a @ b - zero points)) + bias of 2:4 sparse b, for int8.

    `azp_adj`, int32 [N], has the column sums of b. With one zero point for the tensor, they are its multiples already,
    and `azp` is None. Else `azp`, int32 [M], has a zero point for each row, which multiplies azp_adj here. The rest is
    as for cutlass_scaled_sparse_mm.
    """
    out = a.new_empty((size(a, 0), size(bt_nzs, 0)), dtype=out_dtype)
    _SPARSE_MM_AZP(out, a, bt_nzs, bt_meta, a_scales, b_scales, azp_adj, azp, bias)
    return out


def cutlass_sparse_compress(a: torch.Tensor) -> list[torch.Tensor]:
    """Return the kept values [N, K/2] of a's dtype and metadata uint8 of a 2:4 sparse matrix [N, K], as vLLM's op of
    this name.

    `a` is of float8_e4m3fn, int8, bfloat16 or float16, on any device. Padding fills rows of kept values to 16 bytes,
    metadata to 64 rows and 128 columns. Its bytes are those of CUTLASS's compressor. A negative zero is a zero.

    Raises RuntimeError for another dtype or shape. It also raises it where more than two of four values are not zero,
    with the first such place. The function is for loading: its answer on a GPU waits for the device.
    """
    if a.dim() != 2 or a.dtype not in _COMPRESSED:
        raise RuntimeError(
            f"cutlass_sparse_compress: a is {str(a.dtype).removeprefix('torch.')} of shape {list(a.shape)}, expected a matrix [N, K] "
            f"of {_KNOWN}"
        )
    _check_values("cutlass_sparse_compress", a=a)
    try:
        return list(compress(a))
    except ValueError as error:
        raise RuntimeError(f"cutlass_sparse_compress: {error}") from None


def cutlass_sparse_decompress(bt_nzs: torch.Tensor, bt_meta: torch.Tensor, k: int) -> torch.Tensor:
    """Return the matrix [N, k] that cutlass_sparse_compress made `bt_nzs` and `bt_meta` of.

    Raises RuntimeError where the arguments are no compressed matrix. So it does for an impossible pattern in the
    metadata, with the first such place.
    """
    told = f"{str(bt_nzs.dtype).removeprefix('torch.')} of shape {list(bt_nzs.shape)}"
    if bt_nzs.dim() != 2 or bt_nzs.dtype not in _COMPRESSED:
        raise RuntimeError(f"cutlass_sparse_decompress: bt_nzs is {told}, expected a matrix [N, K / 2] of {_KNOWN}")
    n, columns = bt_nzs.shape
    if k < 0 or k % GROUP or kept_columns(k, bt_nzs.element_size()) != columns:
        raise RuntimeError(
            f"cutlass_sparse_decompress: k is {k} and bt_nzs has {columns} columns, expected the columns of the matrix that was "
            "compressed, a multiple of 4: half of them are kept, padded to 16 bytes"
        )
    if bt_meta.dtype is not torch.uint8 or tuple(bt_meta.shape) != meta_shape(n, k):
        raise RuntimeError(
            f"cutlass_sparse_decompress: bt_meta is {str(bt_meta.dtype).removeprefix('torch.')} of shape {list(bt_meta.shape)}, "
            f"expected uint8 of shape {list(meta_shape(n, k))}, as cutlass_sparse_compress returns it"
        )
    _check_values("cutlass_sparse_decompress", bt_nzs=bt_nzs, bt_meta=bt_meta)
    try:
        return decompress(bt_nzs, bt_meta, k)
    except ValueError as error:
        raise RuntimeError(f"cutlass_sparse_decompress: {error}") from None


def _check_values(op: str, **tensors: torch.Tensor) -> None:
    """Raise RuntimeError where values that the answer depends on are none, or lie apart."""
    for name, x in tensors.items():
        if not has_values(x):
            raise RuntimeError(f"{op}: {name} is a tensor without values on {x.device.type}: its pattern is looked at")
    (first, x), (last, y) = (*tensors.items(),)[0], (*tensors.items(),)[-1]
    if x.device != y.device:
        raise RuntimeError(
            f"{op}: {last} is on {y.device} and {first} is on {x.device}: all tensors must be on one device"
        )


define_in_python(f"{COMPRESS}(Tensor a) -> Tensor[]", cutlass_sparse_compress)
