"""Its op."""

from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, OpSet, Require, Tensor
from gemmill.vocab import DType
from gemmill.vocab.format import NVFP4

PACK = OpSchema("toy_pack(Tensor(a!) codes, Tensor(b!) peaks, Tensor pages, int low=0) -> ()")
_TENSORS = "pages codes peaks"
OPS = OpSet(
    ops=(
        Op(
            schema=PACK,
            fixed={"format": NVFP4},
            tensors=(
                Tensor("pages", "length page", (DType.F32,), Layout.ROWS),
                Tensor("codes", "length page/2", (NVFP4,), Layout.ROWS),
                Tensor("peaks", "length", (DType.F32,), Layout.VALUES, each="page"),
            ),
            contract=(
                Check(Aspect.DTYPE, _TENSORS),
                Check(Aspect.RANK, "pages codes"),
                Check(Aspect.SHAPE, _TENSORS),
                Check(Aspect.LAYOUT, _TENSORS),
                Require("low >= 0 and low <= 15", "low is {low}, expected a code from 0 to 15"),
                Let("pages_stride", "row_stride(pages)"),
                Check(Aspect.DEVICE, _TENSORS),
                Check(Aspect.APART, _TENSORS),
            ),
        ),
    )
)
