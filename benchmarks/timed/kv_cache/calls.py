"""Which calls of the compressed cache's ops are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.measured import attention_arguments, random_cache
from gemmill.families.kv_cache.cases.packed_calls import AttendCase, PackCase, specs_of
from gemmill.families.kv_cache.packed import preset_format

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
    "prefill k_eden4_v_eden4",
    "prefill 4 bits",
    "chunk 4 bits",
    "chunk 3 bits",
    "pack eden4",
    "pack turboquant_prod3",
    "pack unit_centroids4",
)
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
class KvCacheWorkload:
    """One kind of call at one size, bf16: 32 query and 8 KV heads of 128 elements, pages of `page` tokens."""

    kind: str
    shape: tuple[int, ...]
    page: int = 64
    is_ragged: bool = False
    """Whether sequence i of n has i / n of the length, where each has one query row."""

    @property
    def op(self) -> str:
        """The op, without the bits."""
        return self.kind.split()[0]

    @property
    def bits(self) -> int:
        """Of an element."""
        return int(self.kind.split()[1]) if self.kind.endswith(" bits") else 0

    @property
    def format(self) -> str:
        """Of packed vectors: of keys and values, or of keys alone."""
        if self.bits:
            return f"k_eden{self.bits}_v_eden{self.bits}"
        told = self.kind.split()[1]
        return preset_format(told) if told in PRESETS else told

    @property
    def sizes(self) -> dict[str, int]:
        """By name."""
        return dict(zip(SIZES[self.op], self.shape, strict=True))

    @property
    def rows(self) -> int:
        """Query rows of a sequence."""
        return self.shape[1] if self.op in ("prefill", "chunk") else 1

    @property
    def case(self) -> HadamardCase | CompressCase | DecompressCase | DecodeCase | AttendCase | PackCase:
        """The call."""
        if self.op == "pack":
            return PackCase(tokens=self.shape[0], format=self.format)
        if self.op in ("attend", "prefill") and not self.bits:
            batch, length = self.shape
            return AttendCase(lengths=(length,) * batch, rows=self.rows, page=self.page, format=self.format)
        match self.op:
            case "hadamard":
                return HadamardCase(rows=self.shape[0], columns=self.shape[1])
            case "store":
                return CompressCase(tokens=self.shape[0], format=self.format, page=self.page)
            case "restore":
                return DecompressCase(tokens=self.shape[0], format=self.format, page=self.page)
        batch, length = self.shape[0], self.shape[-1]
        return DecodeCase(lengths=(length,) * batch, rows=self.rows, page=self.page, format=self.format)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        batch, length = self.shape[0], self.shape[-1]
        return tuple(-(-length * i // batch) for i in range(1, batch + 1)) if self.is_ragged else (length,) * batch

    @property
    def flops(self) -> float:
        """Of many rows: two products of the keys that each row sees. Of others none that count."""
        if self.op not in ("prefill", "chunk"):
            return 0.0
        batch, rows, length = self.shape[0], self.rows, self.shape[-1]
        return 4.0 * batch * HEADS * HEAD_DIM * rows * (2 * length - rows + 1) / 2

    @property
    def bytes(self) -> int:
        """The bytes that must be read and written, each once."""
        if self.op == "pack":
            spec = PackCase(tokens=1, format=self.format).spec
            return self.shape[0] * KV_HEADS * (HEAD_DIM * 2 + spec.format.size(HEAD_DIM))
        if self.op == "hadamard":
            return 4 * self.shape[0] * self.shape[1]
        token = KV_HEADS * sum(spec.format.size(HEAD_DIM) for spec in specs_of(self.format, HEAD_DIM))
        if self.op in ("store", "restore"):
            return self.shape[0] * (KV_HEADS * HEAD_DIM * 4 + token)
        return sum(self.lengths) * token + self.shape[0] * self.rows * HEADS * HEAD_DIM * 4

    def __str__(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.shape))}{' ragged' if self.is_ragged else ''}"


@dataclass(frozen=True, kw_only=True)
class KvCacheOperands:
    """Arguments of the op's schema by name, in copies that between them exceed L2 twice over."""

    workload: KvCacheWorkload
    given: tuple[dict[str, Any], ...]

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.given)


class KvCacheMaker:
    """Makes operands: normal vectors, random codes."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device, self._rotated_bytes = device, rotated_bytes

    def make(self, workload: KvCacheWorkload) -> KvCacheOperands:
        """As many copies as keep L2 from holding them."""
        count = min(MOST_COPIES, max(FEWEST_COPIES, -(-self._rotated_bytes // workload.bytes)))
        return KvCacheOperands(workload=workload, given=tuple(self._copy(workload) for _ in range(count)))

    def _copy(self, workload: KvCacheWorkload) -> dict[str, Any]:
        case = workload.case
        if isinstance(case, AttendCase | DecodeCase):
            given = attention_arguments(case, self._device)
            lengths = torch.tensor(workload.lengths, dtype=torch.int32, device=self._device)
            return given | {"seq_lens": lengths} if workload.is_ragged else given
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


def workloads_of(options: Namespace) -> list[KvCacheWorkload]:
    """Every kind at every size. Raises ValueError."""
    found = [kind for kind in KINDS if any(part in kind for part in options.op.split(","))]
    if not found:
        raise ValueError(f"no kind has {options.op!r} in its name: there are {', '.join(KINDS)}")
    return [workload for kind in found for workload in _of_kind(kind, options.page, options.ragged)]


def _of_kind(kind: str, page: int, ragged: bool) -> Iterator[KvCacheWorkload]:
    op = kind.split()[0]
    for shape in SHAPES[op]:
        if not ragged or (op in ("decode", "attend") and shape[0] > 1):
            yield KvCacheWorkload(kind=kind, shape=shape, page=page, is_ragged=ragged)


def small(kind: str) -> KvCacheWorkload:
    return KvCacheWorkload(kind=kind, shape=TINY[kind.split()[0]])


def add_options(parser: ArgumentParser) -> None:
    """Of the compressed cache alone."""
    parser.add_argument("--op", "--ops", default="", help="only kinds with one of these in their name, with commas")
    parser.add_argument("--page", type=int, default=64, help="tokens of a page (64)")
    parser.add_argument(
        "--ragged", action="store_true", help="batches of decode and attend whose lengths rise evenly to the longest"
    )
