"""Which calls of the compressed cache's ops are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.measured import attention_arguments, random_cache
from gemmill.families.kv_cache.cases.packed_calls import AttendCase, PackCase, specs_of
from gemmill.families.kv_cache.packed import preset_format
from timed.workload import Kind, Workload, any_size

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
FEWEST_COPIES, MOST_COPIES = 1, 32
SHAPES = {
    "hadamard": ((64, 128), (16384, 128), (1 << 20, 128), (1 << 20, 64), (1 << 19, 256)),
    "store": ((1,), (64,), (4096,), (16384,)),
    "restore": ((4096,), (16384,), (131072,)),
    "decode": ((1, 16384), (1, 131072), (8, 16384), (32, 4096), (64, 8192)),
    "attend": ((1, 16384), (8, 16384), (32, 4096), (64, 8192)),
    "prefill": ((1, 4096), (1, 16384)),
    "chunk": ((1, 4096, 69632), (1, 512, 66048), (8, 4, 16384), (8, 2, 16384), (8, 1, 16384)),
    "pack": ((1,), (4096,), (16384,)),
}
"""Rows and columns; tokens; sequences and their length, of which prefilling has as many query rows; sequences, their last query rows
and their length: a chunk of a prompt over 64K tokens, drafts."""
_SEQUENCES = ("batch", "length")
RAGGED = ("decode", "attend")
"""Ops whose batches can have sequences of several lengths."""
SIZES = {
    "hadamard": ("rows", "columns"),
    "store": ("tokens",),
    "restore": ("tokens",),
    "pack": ("tokens",),
    "chunk": ("batch", "rows", "length"),
} | dict.fromkeys(("decode", "attend", "prefill"), _SEQUENCES)
PRESETS = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit")
KINDS = (
    "hadamard",
    "store 4 bits",
    "store 3 bits",
    "restore 4 bits",
    "restore 3 bits",
    "decode 4 bits",
    "decode 3 bits",
    *(f"attend {name}" for name in PRESETS),
    "attend k_turboquant_prod3_v_turboquant_mse2",
    "attend k_eden4_v_eden4",
    "attend k_e4m3_v_e4m3",
    "prefill k_eden4_v_eden4",
    "prefill 4 bits",
    "chunk 4 bits",
    "chunk 3 bits",
    "pack eden4",
    "pack turboquant_prod3",
    "pack unit_centroids4",
)
DRAWN_SEQUENCES, DRAWN_TOKENS = (1, 64), (16, 32768)
"""Least and most sequences of a random batch, and tokens of each: each as likely to be twice as many at any number."""
_TINY, _WARM = (2, 33), (8, 16384)
TINY = {
    "hadamard": (17, 128),
    "store": (9,),
    "restore": (9,),
    "pack": (9,),
    "decode": _TINY,
    "attend": _TINY,
    "prefill": _TINY,
    "chunk": (2, 3, 33),
}
WARM = {
    "hadamard": (1 << 18, 128),
    "store": (4096,),
    "restore": (4096,),
    "pack": (4096,),
    "decode": _WARM,
    "attend": _WARM,
}


@dataclass(frozen=True, kw_only=True)
class KvCacheKind(Kind):
    """An op and a format, bf16: 32 query and 8 KV heads of 128 elements, pages of `page` tokens. Sequences have the `lengths`, or all
    have one where there are none."""

    @property
    def op(self) -> str:
        """The op, without the bits."""
        return self.name.split()[0]

    @property
    def bits(self) -> int:
        """Of an element."""
        return int(self.name.split()[1]) if self.name.endswith(" bits") else 0

    @property
    def format(self) -> str:
        """Of packed vectors: of keys and values, or of keys alone."""
        if self.bits:
            return f"k_eden{self.bits}_v_eden{self.bits}"
        told = self.name.split()[1]
        return preset_format(told) if told in PRESETS else told

    def sizes(self, p: Workload) -> dict[str, int]:
        """By name; of ragged batches the tokens of all sequences too."""
        found = {name: getattr(p, name) for name in SIZES[self.op]}
        return found | ({"tokens": sum(p.lengths)} if p.lengths else {})

    def flops(self, p: Workload) -> float:
        """Of many rows: two products of the keys that each row sees. Of others none that count."""
        if self.op not in ("prefill", "chunk"):
            return 0.0
        rows = rows_of(p)
        return 4.0 * p.batch * HEADS * HEAD_DIM * rows * (2 * p.length - rows + 1) / 2

    def bytes(self, p: Workload) -> int:
        """The bytes that must be read and written, each once."""
        if self.op == "pack":
            spec = PackCase(tokens=1, format=self.format).spec
            return p.tokens * KV_HEADS * (HEAD_DIM * 2 + spec.format.size(HEAD_DIM))
        if self.op == "hadamard":
            return 4 * p.rows * p.columns
        token = KV_HEADS * sum(spec.format.size(HEAD_DIM) for spec in specs_of(self.format, HEAD_DIM))
        if self.op in ("store", "restore"):
            return p.tokens * (KV_HEADS * HEAD_DIM * 4 + token)
        return sum(lengths_of(p)) * token + p.batch * rows_of(p) * HEADS * HEAD_DIM * 4

    def text(self, p: Workload) -> str:
        """The sizes in words."""
        told = " x ".join(str(getattr(p, name)) for name in SIZES[self.op])
        return f"{told} ragged, {sum(p.lengths)} tokens" if p.lengths else told


def workload_of(
    kind: str, shape: Sequence[int], page: int = 64, *, lengths: tuple[int, ...] = ()
) -> Workload[KvCacheKind]:
    """A kind's call at the sizes that SIZES names. Of ragged batches `lengths` are those of all sequences."""
    found = KvCacheKind(name=kind)
    return found.at(**dict(zip(SIZES[found.op], shape, strict=True)), page=page, lengths=lengths)


def resized(p: Workload[KvCacheKind], shape: Sequence[int]) -> Workload[KvCacheKind]:
    """The same kind of call at other sizes; lengths of a ragged batch rise to the longest."""
    return workload_of(p.kind, shape, p.page, lengths=rising(*shape) if p.lengths else ())


def rising(batch: int, length: int) -> tuple[int, ...]:
    """Lengths of which sequence i of n has i / n of the longest."""
    return tuple(-(-length * i // batch) for i in range(1, batch + 1))


def rows_of(p: Workload) -> int:
    """Query rows of a sequence."""
    sizes = {"prefill": "length", "chunk": "rows"}
    return getattr(p, sizes[p.of.op]) if p.of.op in sizes else 1


def lengths_of(p: Workload) -> tuple[int, ...]:
    """Tokens of each sequence."""
    lengths: tuple[int, ...] = p.lengths or (p.length,) * p.batch
    return lengths


def case_of(p: Workload) -> HadamardCase | CompressCase | DecompressCase | DecodeCase | AttendCase | PackCase:
    """The call; of sequences that are as long as the longest."""
    match p.of.op:
        case "pack":
            return PackCase(tokens=p.tokens, format=p.of.format)
        case "hadamard":
            return HadamardCase(rows=p.rows, columns=p.columns)
        case "store":
            return CompressCase(tokens=p.tokens, format=p.of.format, page=p.page)
        case "restore":
            return DecompressCase(tokens=p.tokens, format=p.of.format, page=p.page)
    case_class = AttendCase if p.of.op in ("attend", "prefill") and not p.of.bits else DecodeCase
    return case_class(lengths=(p.length,) * p.batch, rows=rows_of(p), page=p.page, format=p.of.format)


@dataclass(frozen=True, kw_only=True)
class KvCacheOperands:
    """Arguments of the op's schema by name, in copies that between them exceed L2 twice over."""

    workload: Workload
    given: tuple[dict[str, Any], ...]

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.given)


class KvCacheMaker:
    """Makes operands: normal vectors, random codes."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device, self._rotated_bytes = device, rotated_bytes

    def make(self, workload: Workload) -> KvCacheOperands:
        """As many copies as keep L2 from holding them."""
        count = min(MOST_COPIES, max(FEWEST_COPIES, -(-self._rotated_bytes // workload.bytes)))
        return KvCacheOperands(workload=workload, given=tuple(self._copy(workload) for _ in range(count)))

    def _copy(self, workload: Workload) -> dict[str, Any]:
        case = case_of(workload)
        if isinstance(case, AttendCase | DecodeCase):
            given = attention_arguments(case, self._device)
            lengths = torch.tensor(lengths_of(workload), dtype=torch.int32, device=self._device)
            return given | {"seq_lens": lengths} if workload.lengths else given
        values = self._restored(case) if isinstance(case, DecompressCase) else case.arguments(self._device)
        return dict(zip(case.schema.arguments, values, strict=True))

    def _restored(self, case: DecompressCase) -> list[Any]:
        """The case's arguments, except for the contents of pages."""
        pages = -(-case.tokens // case.page)
        slots = torch.randperm(pages, device=self._device)[:, None] * case.page + torch.arange(
            case.page, device=self._device
        )
        cache = random_cache(case, pages, self._device)
        out = [
            torch.empty(case.tokens, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=self._device) for _ in range(2)
        ]
        return [*out, cache, slots.flatten()[: case.tokens], case.format, case.spec.seed]


def workloads_of(options: Namespace) -> list[Workload]:
    """Every kind at every size. Raises ValueError."""
    found = [kind for kind in KINDS if any(part in kind for part in options.op.split(","))]
    if not found:
        raise ValueError(f"no kind has {options.op!r} in its name: there are {', '.join(KINDS)}")
    if options.draw is not None:
        return _drawn(Random(options.draw), options.draws, found, options.page)
    return [workload for kind in found for workload in _of_kind(kind, options.page, options.ragged)]


def _of_kind(kind: str, page: int, ragged: bool) -> Iterator[Workload]:
    op = kind.split()[0]
    for shape in SHAPES[op]:
        if not ragged:
            yield workload_of(kind, shape, page)
        elif op in RAGGED and shape[0] > 1:
            yield workload_of(kind, shape, page, lengths=rising(*shape))


def _drawn(random: Random, count: int, kinds: Sequence[str], page: int) -> list[Workload]:
    """Random batches, the same of each kind that attends over them. Raises ValueError."""
    batches = [_lengths(random) for _ in range(count)]
    shapes = [(len(lengths), max(lengths)) for lengths in batches]
    ragged = [kind for kind in kinds if kind.split()[0] in RAGGED]
    if not ragged:
        raise ValueError(f"--draw makes batches of {' and '.join(RAGGED)}, not of {', '.join(kinds)}")
    return [
        workload_of(kind, shape, page, lengths=lengths)
        for shape, lengths in zip(shapes, batches, strict=True)
        for kind in ragged
    ]


def _lengths(random: Random) -> tuple[int, ...]:
    """Of the sequences of a random batch."""
    sequences = round(any_size(random, *DRAWN_SEQUENCES))
    return tuple(round(any_size(random, *DRAWN_TOKENS)) for _ in range(sequences))


def small(kind: str) -> Workload:
    return workload_of(kind, TINY[kind.split()[0]])


def add_options(parser: ArgumentParser) -> None:
    """Of the compressed cache alone."""
    parser.add_argument("--op", "--ops", default="", help="only kinds with one of these in their name, with commas")
    parser.add_argument("--page", type=int, default=64, help="tokens of a page (64)")
    parser.add_argument(
        "--ragged", action="store_true", help="batches of decode and attend whose lengths rise evenly to the longest"
    )
    parser.add_argument(
        "--draw", type=int, metavar="SEED", help="draw batches of decode and attend in place of the table's"
    )
    parser.add_argument("--draws", type=int, default=10, help="how many are drawn")
