"""What a kernel of it is, which calls it takes, and how one of several is chosen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from gemmill.family import Measured, Reach, Row, ShapedCall, Sizes, Spelled, Sweep, Tuning
from gemmill.vocab import Arch, DType
from toy import NAME
from toy.ops import PACK


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """A kernel that packs so many pages at a time."""

    pages_at_a_time: int
    arch: Arch = Arch.SM90A

    @property
    def tag(self) -> str:
        return NAME

    @property
    def compiled(self) -> Self:
        return self


@dataclass(frozen=True, kw_only=True)
class ToyAccepts:
    """The calls that a kernel takes."""

    ops: tuple[str, ...]
    least_length: int

    @property
    def operand_dtype(self) -> DType:
        return DType.F32


class Facts(NamedTuple):
    pages_at_a_time: int


def check_count(config: ToyConfig) -> Iterator[str]:
    """A block has 1024 threads at most, of which a page takes one."""
    most = 1024
    if not 0 < config.pages_at_a_time <= most:
        yield f"a block packs 1 to {most} pages at a time"


def accepted(config: ToyConfig) -> ToyAccepts:
    return ToyAccepts(ops=(PACK.name,), least_length=config.pages_at_a_time)


def to_fields(config: ToyConfig) -> list[str]:
    return [f"p{config.pages_at_a_time}"]


def from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> ToyConfig:
    if len(fields) != 1 or not fields[0][1:].isdecimal():
        raise ValueError(f"pages {'_'.join(fields)!r}, expected p and a number")
    return ToyConfig(pages_at_a_time=int(fields[0][1:]), arch=arch)


def spell(config: ToyConfig) -> Spelled:
    return Spelled(template="toy/pack.cu.jinja", values={"pages_at_a_time": config.pages_at_a_time})


def selected(arch: Arch) -> Iterator[ToyConfig]:
    if arch is Arch.SM90A:
        yield from (ToyConfig(pages_at_a_time=count) for count in (1, 4, 8))


def call_of(sizes: Sizes, alignment: int = 16) -> ShapedCall:
    return ShapedCall(family=NAME, call_class=0, sizes=(sizes["length"], sizes["page"]), alignments=(alignment,))


def _rows(config: ToyConfig, accepts: ToyAccepts, kernel: int) -> Iterator[Row]:
    facts = Facts(pages_at_a_time=config.pages_at_a_time)
    yield Row(
        kernel=kernel, call_class=0, most=2**31 - 1, alignments=(4,), least=(accepts.least_length, 0), facts=facts
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
            serves=lambda accepts: True,
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


def filters(config: ToyConfig) -> dict[str, Any]:
    return {"arch": config.arch, "pages_at_a_time": config.pages_at_a_time}
