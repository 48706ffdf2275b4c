"""Kernels that end in a user's own epilogue: what they are, the op that calls them, and how both are named."""

from dataclasses import dataclass

from gemmill.families.scaled_mm.config import ACCUMULATOR_OF, RESULTS_OF, KernelConfig, Problem
from gemmill.family import Aspect, Check, Layout, Op, OpSchema, Require, ResultOf, Same, Tensor, any_of
from gemmill.family.operand import INT32_MAX
from gemmill.gemm.traced import Along, Kind, Stored, Traced, all_known, known, learn
from gemmill.vocab import Backend, DType, EpilogueKind

TAG = "epiloguemm"
VISITOR_TAG = "visitormm"
"""The tags of kernels of the CuTe DSL that end in a user's epilogue, and of CUTLASS's."""
_PREFIX = "mm_"
OWN_RESULTS_OF = RESULTS_OF | {DType.E4M3: (*RESULTS_OF[DType.E4M3], DType.E4M3)}
"""The dtypes that results can be stored in. Codes, which CUTLASS's epilogues store saturated, are among them."""
_STORED: dict[Stored, tuple[DType, ...] | Same] = {
    Stored.F32: (DType.F32,),
    Stored.S32: (DType.S32,),
    Stored.OUT: Same("out"),
}


@dataclass(frozen=True, kw_only=True)
class OwnProblem(Problem):
    """A product that ends in a user's epilogue."""

    own: str
    """The epilogue's key (gemmill.gemm.traced)."""

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue. Raises ValueError where it is not known here."""
        return known(self.own)


@dataclass(frozen=True, kw_only=True)
class OwnConfig(KernelConfig):
    """One variant that ends in a user's epilogue."""

    problem: OwnProblem

    @property
    def tag(self) -> str:
        """The field of its name after the architecture."""
        return VISITOR_TAG if self.backend is Backend.CUTLASS else TAG


def with_own(config: KernelConfig, traced: Traced) -> OwnConfig:
    """The variant of the same problem, schedule and backend that ends in a user's epilogue."""
    learn(traced)
    p = config.problem
    problem = OwnProblem(
        a_dtype=p.a_dtype,
        b_dtype=p.b_dtype,
        accumulator_dtype=p.accumulator_dtype,
        out_dtype=p.out_dtype,
        epilogue=EpilogueKind.SCALED,
        own=traced.key,
    )
    return OwnConfig(
        problem=problem, design=config.design, launch=config.launch, arch=config.arch, backend=config.backend
    )


# The op --------------------------------------------------------------------------------------------------------------


def op_name(traced: Traced) -> str:
    """The name of the op that calls an epilogue's kernels."""
    return f"{_PREFIX}{traced.name}_{traced.digest}"


def class_of_epilogue(traced: Traced) -> int:
    """The number of an epilogue within the numbers of its classes of calls."""
    return int(traced.digest[:10], 16)


def operands_of(traced: Traced) -> tuple[DType, ...]:
    """The operands whose sums an epilogue takes."""
    wanted = DType.S32 if traced.accumulator is Kind.S32 else DType.F32
    return tuple(operand for operand, accumulator in ACCUMULATOR_OF.items() if accumulator is wanted)


def is_of_floats(traced: Traced) -> bool:
    """Whether all values of its steps are float32, or comparisons."""
    return Kind.S32 not in traced.kinds


def key_is_of_floats(key: str) -> bool:
    """Whether all values of the steps are float32 or comparisons, of the epilogue with a key. It is so where that is
    not known here."""
    return all(is_of_floats(traced) for traced in all_known() if traced.key == key)


def roles_of(traced: Traced) -> dict[str, str]:
    """The roles of the epilogue's arguments, by their names."""
    return {given.name: f"{along}{at}" for along in Along for at, given in enumerate(traced.along(along))}


def op_of(traced: Traced) -> Op:
    """The op of an epilogue: out, a, b, then its function's arguments."""
    roles, operands = roles_of(traced), operands_of(traced)
    arguments = [f"{'float' if given.along is Along.SCALAR else 'Tensor'} {given.name}" for given in traced.inputs]
    schema = OpSchema(f"{op_name(traced)}({', '.join(['Tensor(a!) out', 'Tensor a', 'Tensor b', *arguments])}) -> ()")
    vectors = [given for given in traced.inputs if given.along is not Along.SCALAR]
    results = {operand: OWN_RESULTS_OF[operand] for operand in operands}
    told = [roles[given.name] for given in vectors]
    every = " ".join(("out", "a", "b", *told))
    return Op(
        schema=schema,
        roles=roles,
        tensors=(
            Tensor("out", "M N", ResultOf("a", results), Layout.ROWS),
            Tensor("a", "M K", operands, Layout.ROWS),
            Tensor("b", "K N", Same("a"), Layout.COLUMNS, said=any_of([dtype.torch_name for dtype in operands])),
            *(
                Tensor(roles[given.name], "M" if given.along is Along.ROW else "N", _STORED[given.stored])
                for given in vectors
            ),
        ),
        contract=(
            Check(Aspect.RANK, "out a b"),
            Check(Aspect.SHAPE, "a b out"),
            Require(
                f"M <= {INT32_MAX} and N <= {INT32_MAX} and K <= {INT32_MAX}",
                f"M, N, K = {{M}}, {{N}}, {{K}}: each must be at most {INT32_MAX}",
            ),
            Check(Aspect.DTYPE, "a b out"),
            Check(Aspect.LAYOUT, "a b out"),
            *((Check(Aspect.DTYPE, " ".join(told)),) if told else ()),
            *(_values(roles[given.name], given.along) for given in vectors),
            *(
                Check(aspect, f"out {role}", unread="operands that are")
                for role in every.split()[1:]
                for aspect in (Aspect.DEVICE, Aspect.APART)
            ),
        ),
        fixed={"own": class_of_epilogue(traced)},
    )


def text_of(config: KernelConfig) -> str:
    """The text of all steps of a kernel's epilogue, as `gemmill.gemm.traced` writes it; empty for a kernel without a user's."""
    return config.problem.traced.text if isinstance(config, OwnConfig) else ""


def _values(role: str, along: Along) -> Require:
    count, what = ("M", "rows") if along is Along.ROW else ("N", "columns")
    return Require(
        f"numel({role}) in (1, {count}) and longer({role}) <= 1 and dense({role}) == 1",
        f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}: there is one value, or one for each of "
        f"{{{count}}} {what}, without gaps",
    )
