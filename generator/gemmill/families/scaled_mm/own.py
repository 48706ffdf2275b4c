"""Kernels that end in a user's own epilogue: their configs, the op that calls them, and the names of both."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmill.families.scaled_mm import built_in
from gemmill.families.scaled_mm.config import ACCUMULATOR_OF, RESULTS_OF, KernelConfig, Operands
from gemmill.family import Aspect, Check, Layout, Op, OpSchema, Require, ResultOf, Same, Step, Tensor, When, any_of
from gemmill.family.operand import INT32_MAX
from gemmill.gemm.traced import Along, Input, Kind, Stored, Traced, known, learn
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


BUILT_IN = {learn(one.traced).key: one for one in built_in.ALL}
"""The epilogues that come with gemmill, by their keys. Their ops have their names."""


@dataclass(frozen=True, kw_only=True)
class OwnConfig(KernelConfig):
    """One variant that ends in a user's epilogue."""

    own: str
    """The epilogue's key (gemmill.gemm.traced)."""

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue. Raises ValueError for one that this process does not know."""
        return known(self.own)

    @property
    def tag(self) -> str:
        """The field of its name after the architecture."""
        return VISITOR_TAG if self.backend is Backend.CUTLASS else TAG


def with_own(config: KernelConfig, traced: Traced) -> OwnConfig:
    """The variant of the same operands, design and backend that ends in a user's epilogue. It has no scales but the epilogue's."""
    learn(traced)
    x = config.operands
    operands = Operands(
        a_dtype=x.a_dtype, b_dtype=x.b_dtype, accumulator_dtype=x.accumulator_dtype, out_dtype=x.out_dtype
    )
    return OwnConfig(
        operands=operands,
        design=config.design,
        epilogue=EpilogueKind.SCALED,
        own=traced.key,
        launch=config.launch,
        arch=config.arch,
        backend=config.backend,
    )


# The op --------------------------------------------------------------------------------------------------------------


def op_name(traced: Traced) -> str:
    """The name of the op that calls an epilogue's kernels."""
    return traced.name if traced.key in BUILT_IN else f"{_PREFIX}{traced.name}_{traced.digest}"


def class_of_epilogue(traced: Traced) -> int:
    """The number of an epilogue within the numbers of its classes of calls."""
    return int(traced.digest[:10], 16)


def operands_of(traced: Traced) -> tuple[DType, ...]:
    """The operands whose sums an epilogue takes."""
    wanted = DType.S32 if traced.accumulator is Kind.S32 else DType.F32
    return tuple(operand for operand, accumulator in ACCUMULATOR_OF.items() if accumulator is wanted)


def roles_of(traced: Traced) -> dict[str, str]:
    """The roles of the epilogue's arguments, by their names."""
    return {given.name: f"{along}{at}" for along in Along for at, given in enumerate(traced.along(along))}


def op_of(traced: Traced) -> Op:
    """The op of an epilogue: out, a, b, then its function's arguments."""
    roles, operands = roles_of(traced), operands_of(traced)
    arguments = [_argument(given) for given in traced.inputs]
    schema = OpSchema(f"{op_name(traced)}({', '.join(['Tensor(a!) out', 'Tensor a', 'Tensor b', *arguments])}) -> ()")
    vectors = [given for given in traced.inputs if given.along is not Along.SCALAR]
    results = {operand: OWN_RESULTS_OF[operand] for operand in operands}
    told = [roles[given.name] for given in vectors]
    required = " ".join(roles[given.name] for given in vectors if given.absent is None)
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
            *((Check(Aspect.DTYPE, required),) if required else ()),
            *(_values(roles[given.name], given) for given in vectors),
            *_together(traced, roles),
            *(
                Check(aspect, f"out {role}", unread="operands that are")
                for role in every.split()[1:]
                for aspect in (Aspect.DEVICE, Aspect.APART)
            ),
        ),
        fixed={"own": class_of_epilogue(traced)},
    )


def with_others(traced: Traced) -> Mapping[str, str]:
    """Inputs that mean nothing without another one, each with that one's name."""
    return BUILT_IN[traced.key].with_others if traced.key in BUILT_IN else {}


def _together(traced: Traced, roles: Mapping[str, str]) -> Iterator[Step]:
    """That a call has the inputs without which another input means nothing."""
    for name, other in with_others(traced).items():
        say = f"{name} is given and {other} is not: {name} has no effect without it, so give both, or neither"
        yield When(roles[name], (Require(roles[other], say),))


def text_of(config: KernelConfig) -> str:
    """The text of all steps of a kernel's epilogue, as `gemmill.gemm.traced` writes it; empty for a kernel without a user's."""
    return config.traced.text if isinstance(config, OwnConfig) else ""


def _argument(given: Input) -> str:
    if given.along is Along.SCALAR:
        return f"float {given.name}"
    return f"Tensor {given.name}" if given.absent is None else f"Tensor? {given.name}=None"


def _values(role: str, given: Input) -> Step:
    count, what = ("M", "rows") if given.along is Along.ROW else ("N", "columns")
    values = Require(
        f"numel({role}) in (1, {count}) and longer({role}) <= 1 and dense({role}) == 1",
        f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}: there is one value, or one for each of "
        f"{{{count}}} {what}, without gaps",
    )
    return values if given.absent is None else When(role, (Check(Aspect.DTYPE, role), values))
