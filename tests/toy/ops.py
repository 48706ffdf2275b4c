"""What can be asked of it."""

from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, OpSet, Require, Tensor
from gemmill.vocab import DType

PACK = OpSchema("toy_pack(Tensor(a!) codes, Tensor(b!) peaks, Tensor pages, int low) -> ()")
_TENSORS = "codes peaks pages"
OPS = OpSet(
    ops=(
        Op(
            schema=PACK,
            tensors=(
                Tensor("pages", "length page", (DType.F32,), Layout.ROWS),
                Tensor("peaks", "length", (DType.F32,), Layout.VALUES, each="page"),
            ),
            contract=(
                Check(Aspect.DTYPE, "pages peaks"),
                Require("dtype(codes) == uint8", "codes is {codes.dtype}, expected uint8"),
                Check(Aspect.RANK, "pages"),
                Require("rank(codes) == 2", "codes has {codes.rank} dimensions {codes.shape}, expected 2"),
                Check(Aspect.SHAPE, "pages"),
                Require("page % 2 == 0", "pages of {page} numbers: two share a byte, so their number must be even"),
                Let("half", "page // 2"),
                Require(
                    "size(codes, 0) == length and size(codes, 1) == half",
                    "codes is {codes.shape}, expected [length, page / 2] = [{length}, {half}]",
                ),
                Check(Aspect.SHAPE, "peaks"),
                Check(Aspect.LAYOUT, "pages peaks"),
                Require("dense(codes) == 1", "codes has strides {codes.strides}: its bytes must be contiguous"),
                Require("low >= 0 and low <= 15", "low is {low}, expected a code from 0 to 15"),
                Let("pages_stride", "row_stride(pages)"),
                Check(Aspect.DEVICE, _TENSORS),
                Check(Aspect.APART, _TENSORS),
            ),
        ),
    )
)
