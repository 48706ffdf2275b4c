"""The op, and its contract."""

from gemmill.families.routing.classes import CLASSES
from gemmill.families.routing.config import HALVES, MOST_EXPERTS, MOST_TOPK, MULTIPLE
from gemmill.family import Aspect, Check, Layout, Op, OpSchema, OpSet, Require, Same, Tensor
from gemmill.family.operand import MOST_OF_TMA
from gemmill.vocab import DType

ROUTER_TOPK = OpSchema(
    "router_topk(Tensor(a!) logits, Tensor(b!) topk_weights, Tensor(c!) topk_ids, Tensor x, Tensor weight, "
    "bool renormalize=True, Tensor? is_padding=None) -> ()"
)
_TENSORS = "x weight logits topk_weights topk_ids"
_ALL = f"{_TENSORS} is_padding"


def _in_eights(role: str, count: str) -> Require:
    return Require(
        f"{count} <= 1 or row_stride({role}) % {MULTIPLE} == 0",
        f"{{{role}.name}} has strides {{{role}.strides}}: rows lie a multiple of {MULTIPLE} elements apart, of which a lane reads as many at once",
    )


OPS = OpSet(
    ops=(
        Op(
            schema=ROUTER_TOPK,
            tensors=(
                Tensor("x", "M K", HALVES, Layout.ROWS, alignment=16),
                Tensor("weight", "E K", Same("x"), Layout.ROWS, alignment=16),
                Tensor("logits", "M E", Same("x"), Layout.ROWS),
                Tensor("topk_weights", "M topk", (DType.F32,), Layout.ROWS),
                Tensor("topk_ids", "M topk", (DType.S32,), Layout.ROWS),
                Tensor("is_padding", "M", (DType.U8,), Layout.VECTOR),
            ),
            contract=(
                Check(Aspect.DTYPE, _TENSORS),
                Check(Aspect.RANK, _TENSORS),
                Check(Aspect.SHAPE, _TENSORS),
                Require(
                    f"M <= {MOST_OF_TMA} and K <= {MOST_OF_TMA}",
                    f"{{x.name}} is {{x.shape}}: each must be at most {MOST_OF_TMA}",
                ),
                Require(
                    f"E >= 1 and E <= {MOST_EXPERTS}",
                    f"{{weight.name}} is {{weight.shape}}, of {{E}} experts: kernels have room for the logits of 1 to {MOST_EXPERTS}",
                ),
                Require(
                    f"topk >= 1 and topk <= {MOST_TOPK} and topk <= E",
                    f"{{topk_ids.name}} is {{topk_ids.shape}}: kernels take the largest 1 to {MOST_TOPK} logits of a token, of {{E}} that there are",
                ),
                Require(
                    f"K >= {MULTIPLE} and K % {MULTIPLE} == 0",
                    f"rows of {{x.name}} and {{weight.name}} have {{K}} elements: expected a multiple of {MULTIPLE}, pad both with zeros",
                ),
                Check(Aspect.LAYOUT, _TENSORS),
                _in_eights("x", "M"),
                _in_eights("weight", "E"),
                Check(Aspect.WHOLE, "is_padding"),
                Check(Aspect.DEVICE, _ALL),
                Check(Aspect.APART, _ALL),
                CLASSES,
            ),
        ),
    )
)
