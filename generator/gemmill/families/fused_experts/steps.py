"""Conditions on a layer of experts, for any storage of its weights."""

from collections.abc import Mapping

from gemmill.families.fused_experts.classes import CLASSES
from gemmill.families.fused_experts.config import MOST_WEIGHTS
from gemmill.families.fused_experts.workspace import EXPRESSIONS, SHARED
from gemmill.family import Aspect, Check, Layout, Let, Require, Same, Step, Tensor, When
from gemmill.gemm import gates
from gemmill.vocab import DType

MULTIPLE = 16
"""The lengths of rows are multiples of this: loads take 16 bytes, and an instruction takes 16 rows of weights."""
MOST_PAIRS, MOST_SIZE = 2**30, 2**24
ROLES = "out x w13 w2 w13_scales w2_scales topk_ids topk_weights w13_bias w2_bias expert_map workspace"
NUMBERS: tuple[Step, ...] = (
    gates.KNOWN,
    *gates.NUMBERS,
    Require(
        "order in (0, 1, 2)",
        "order is {order}, expected 0 (gates, then ups), 1 (ups, then gates) or 2 (each gate before its up)",
    ),
)
LIMITS: tuple[Step, ...] = (
    Require(
        f"weights >= 1 and weights <= {MOST_WEIGHTS}",
        f"{{w13.name}} is {{w13.shape}}, weights of {{weights}} experts: a kernel sorts by 1 to {MOST_WEIGHTS}",
    ),
    Check(Aspect.SHAPE, "topk_ids topk_weights"),
    Require("topk >= 1", "{topk_ids.name} is {topk_ids.shape}: each token has one expert or more"),
    Require(
        "expert_map == 1 or topk <= weights",
        "{topk_ids.name} is {topk_ids.shape}, {topk} experts of each token, and there are {weights}: give an expert_map where others "
        "are elsewhere",
    ),
    Require(
        f"M * topk <= {MOST_PAIRS} and K <= {MOST_SIZE} and inner <= {MOST_SIZE}",
        f"pairs, hidden, inner = {{M}} * {{topk}}, {{K}}, {{inner}}: there are at most {MOST_PAIRS} pairs, and {MOST_SIZE} elements of a row",
    ),
)


def bias(role: str, columns: str) -> Step:
    """A bias [weights, columns], contiguous, where one is given."""
    return When(
        role,
        (
            Check(Aspect.DTYPE, role),
            Require(
                f"rank({role}) == 2 and size({role}, 0) == weights and size({role}, 1) == {columns} and dense({role}) == 1",
                f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}, expected [{{weights}}, {{{columns}}}], contiguous",
            ),
        ),
    )


MAP = When(
    "expert_map",
    (
        Check(Aspect.DTYPE, "expert_map"),
        Require(
            "longer(expert_map) <= 1 and dense(expert_map) == 1",
            "{expert_map.name} has shape {expert_map.shape} and strides {expert_map.strides}: expected one number for each expert, contiguous",
        ),
    ),
)
PARTS: tuple[Step, ...] = (
    *(Let(name, said) for name, said in EXPRESSIONS.items() if name != "inner_groups"),
    Let("shared_bytes", SHARED),
)
"""Values in the sizes of a workspace, and the bytes of those parts that every call has."""
OPERANDS = (
    Tensor("topk_ids", "M topk", (DType.S32, DType.S64), Layout.ROWS),
    Tensor("topk_weights", "M topk", (DType.F32,), Layout.ROWS),
    Tensor("w13_bias", "weights gates", Same("x")),
    Tensor("w2_bias", "weights K", Same("x")),
    Tensor("expert_map", "weights", (DType.S32,)),
    Tensor("workspace", "weights", (DType.U8,)),
)
"""Those besides x, weights and scales."""


def ending(*sizes: Step, needed: Mapping[str, str]) -> tuple[Step, ...]:
    """The last steps of a contract: on biases, the map, the workspace, and on all operands together.

    `sizes` make the values that `needed` names: by a condition, the bytes of a workspace.
    """
    return (
        bias("w13_bias", "gates"),
        bias("w2_bias", "K"),
        MAP,
        *sizes,
        When(
            "workspace",
            (
                Check(Aspect.DTYPE, "workspace"),
                Require(
                    "longer(workspace) <= 1 and dense(workspace) == 1",
                    "{workspace.name} has shape {workspace.shape} and strides {workspace.strides}: expected bytes without gaps",
                ),
                *(When(condition, (_large_enough(count),)) for condition, count in needed.items()),
            ),
        ),
        Check(Aspect.DEVICE, ROLES),
        Check(Aspect.APART, ROLES),
        CLASSES,
    )


def _large_enough(needed: str) -> Require:
    """Requires a workspace of at least as many bytes as the value of this name says."""
    return Require(
        f"numel(workspace) >= {needed}",
        f"{{workspace.name}} has {{workspace.shape}} bytes, expected {{{needed}}} or more: gemmill.fused_experts_workspace says how many",
    )
