"""Its kernels' config, the calls that each takes, and the choice among them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from gemmill.family import Field, Grammar, Measured, Reach, Row, ShapedCall, Sizes, Spelled, Sweep, Tuning
from gemmill.vocab import Arch, DType
from toy import NAME


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """A kernel that packs so many pages at a time."""

    pages_at_a_time: int
    arch: Arch = Arch.SM90A
    operand_dtype: ClassVar[DType] = DType.F32
    out_dtype: ClassVar[DType] = DType.U8
    group_size: ClassVar[int] = 0

    @property
    def tag(self) -> str:
        return NAME

    @property
    def compiled(self) -> Self:
        return self


class RowFacts(NamedTuple):
    pages_at_a_time: int


def check_count(config: ToyConfig) -> Iterator[str]:
    """A block has 1024 threads at most, of which a page takes one."""
    most = 1024
    if not 0 < config.pages_at_a_time <= most:
        yield f"a block packs 1 to {most} pages at a time"


GRAMMAR = Grammar(ToyConfig, (Field("p{pages_at_a_time}"),))


def spell(config: ToyConfig) -> Spelled:
    return Spelled(template="toy/pack.cu.jinja", values={"pages_at_a_time": config.pages_at_a_time})


def selected(arch: Arch) -> Iterator[ToyConfig]:
    if arch is Arch.SM90A:
        yield from (ToyConfig(pages_at_a_time=count) for count in (1, 4, 8))


def call_of(sizes: Sizes, alignment: int = 16) -> ShapedCall:
    return ShapedCall(family=NAME, call_class=0, sizes=(sizes["length"], sizes["page"]), alignments=(alignment,))


def _rows(config: ToyConfig, kernel: int) -> Iterator[Row]:
    facts = RowFacts(pages_at_a_time=config.pages_at_a_time)
    yield Row(
        kernel=kernel, call_class=0, most=2**31 - 1, alignments=(4,), least=(config.pages_at_a_time, 0), facts=facts
    )


def _model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    length, page = call.sizes
    return float(-(-length // row.facts.pages_at_a_time) * page)


SWEEP = Sweep(
    measured=(
        Measured(
            name="toy_pages",
            call=call_of,
            flops=lambda sizes: 0.0,
            operand_bits=32,
            bytes=lambda sizes: 9 * sizes["length"] * sizes["page"] // 2,
            serves=lambda config: True,
        ),
    ),
    steps=(16, 64),
    example={"length": 64, "page": 128},
    tiny={"length": 16, "page": 32},
    is_last_resort=lambda config: config.pages_at_a_time == 1,
    kin=lambda config: config.pages_at_a_time,
    kinds={"pages": "some pages at a time"},
    shown=lambda config: ("pages", str(config.pages_at_a_time)),
)
TUNING = Tuning(
    sizes=("length", "page"),
    result=("length",),
    aligned=("pages",),
    near=("page",),
    bucketed="length",
    reach=Reach(few=4, many=512, endless=4096, ratio=2, distance=0.5),
    rows=_rows,
    describe=lambda number: "pages of f32 to 4 bits",
    differs=lambda of, wanted: "there is one class only",
    model_ns=_model_ns,
    offers=lambda config: {0: (config,)},
    measured_as=lambda call: "toy_pages",
    sweep=SWEEP,
)
