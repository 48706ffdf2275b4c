"""Batch invariance on real tensors: rows alone, and the same rows anywhere in batches of any size, bits compared.

A subject is one op with weights and a pool of rows. The run calls each row alone once, then draws random batches: some
number of rows of the pool, in any place, next to rows of NaN or infinity. Each finite row of a batch is one pair with
its lone result. A batch may pin another variant with the same order of K: then the pair compares two variants of one
order.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.manifest import KernelEntry
from gemmill.numerics.cases import cases_of
from gemmill.registry import REGISTRY
from gemmill.runtime import ops
from gemmill.runtime.holding import batch_invariant
from gemmill.runtime.invariance import order_of
from gemmill.runtime.schemas import NAMESPACE
from gemmill.space.filters import apply
from gemmill.space.selections import Selection, select
from gemmill.vocab import Arch

POOL = 509
"""Rows of a subject: a prime that is no other size of a call, so that it identifies the dimension of rows."""
TILE_ROWS = 128
"""Rows to whose multiples block-scaled formats pad their scales."""
FRUITLESS = 20
"""Subjects without a single call after which the run leaves a family out."""
MOST_DIFFERENT = 20
"""Differences that the report quotes; it counts the others."""
_READ_TOO = ("residual",)
"""Arguments that a call both reads and writes."""
_POISONS = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The result of a run."""

    pairs: dict[str, int]
    """Compared pairs, by family."""
    of_two_variants: int
    """Those of them whose batch had another variant than the row alone, of the same order."""
    poisoned: int
    """Rows of batches with NaN or infinity."""
    left_out: dict[str, int]
    """Subjects without a call, by the reason."""
    different: int
    """Pairs whose bits differ."""
    examples: tuple[str, ...]
    """A sentence for some of them."""
    seconds: float

    @property
    def total(self) -> int:
        """All pairs."""
        return sum(self.pairs.values())


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The length of a run, and the sizes of its calls."""

    pairs: int | None
    seconds: float | None
    most_rows: int
    most_columns: int
    batches: int
    """Random batches of each subject."""


ON_GPU = {"most_rows": 4096, "most_columns": 8192, "batches": 96}
"""A subject's operands take longer than a batch of it."""
ON_CPU = {"most_rows": 64, "most_columns": 256, "batches": 24}


class _LeftOut(Exception):  # noqa: N818  (it is no error)
    pass


class Subject:
    """One op with a pool of rows, and the result of each row alone."""

    def __init__(self, entry: KernelEntry, rng: random.Random, limits: Limits, device: str) -> None:
        self.entry = entry
        self.family = entry.family
        case = _case(entry.config, rng, limits)
        self._what = str(case)
        self.op = case.op
        self._call = getattr(getattr(torch.ops, NAMESPACE), case.op).default
        arguments = self._call._schema.arguments
        self._names = [argument.name for argument in arguments]
        self._written = [bool(argument.alias_info and argument.alias_info.is_write) for argument in arguments]
        self._given = list(case.arguments(device))
        if not any(w and _rows_at(x) is not None for w, x in zip(self._written, self._given, strict=True)):
            raise _LeftOut(f"{self.op}: its results have no dimension of rows")
        if any(_is_padded(name, x) for name, x in zip(self._names, self._given, strict=True)):
            raise _LeftOut(f"{self.op}: its scales lie in tiles of rows, of which none can be moved alone")
        if "input_offset_by_experts" in self._names:
            raise _LeftOut(f"{self.op}: a row's expert, whose scale it has, follows from its place")
        self.by_expert = "expert_offsets" in self._names
        self._gathers = "token_ids" in self._names and self._given[self._names.index("token_ids")] is not None
        self._alone = self._results_alone()

    def __str__(self) -> str:
        return f"{self.op}: {self._what}"

    def explained(self) -> Any:
        """The choice for the whole pool."""
        return ops.explain(self.op, *self._given)

    def results(self, rows: Tensor, poisoned: Tensor | None = None, poison: float = 0.0) -> list[Tensor]:
        """The written tensors of a call of these rows of the pool, of which those at `poisoned` places are not finite."""
        given = [
            self._of_rows(name, x, rows, written)
            for name, x, written in zip(self._names, self._given, self._written, strict=True)
        ]
        if poisoned is not None and not self._gathers:
            for x, whole, written in zip(given, self._given, self._written, strict=True):
                if not written and isinstance(x, Tensor) and (at := _rows_at(whole)) is not None:
                    _poison(x.movedim(at, 0), poisoned, poison)
        self._call(*given)
        return [
            x.movedim(_dimension_of(whole), 0)
            for x, whole, written in zip(given, self._given, self._written, strict=True)
            if written and _rows_at(whole) is not None
        ]

    def differing(self, rows: Tensor, kept: Tensor, found: Sequence[Tensor]) -> Tensor:
        """The kept places of a batch whose results have other bits than their rows alone."""
        wrong = torch.zeros(len(kept), dtype=torch.bool, device=rows.device)
        for result, alone in zip(found, self._alone, strict=True):
            here, there = _bits(result[kept]), _bits(alone[rows[kept]])
            wrong |= (here != there).flatten(1).any(1)
        return kept[wrong]

    def _results_alone(self) -> list[Tensor]:
        device = next(x.device for x in self._given if isinstance(x, Tensor))
        each = [self.results(torch.tensor([row], dtype=torch.int64, device=device)) for row in range(POOL)]
        return [torch.cat(results) for results in zip(*each, strict=True)]

    def _of_rows(self, name: str, x: Any, rows: Tensor, written: bool) -> Any:
        if name == "expert_offsets":  # rows are in order: an expert's begin behind those of the experts before
            return torch.searchsorted(rows, x.to(rows.dtype)).to(x.dtype)
        if not isinstance(x, Tensor) or (at := _rows_at(x)) is None or (self._gathers and name in ("a", "a_scales")):
            return x
        if x.dim() == 2 and at == 0 and x.stride(0) == 1 and x.shape[1] > 1:  # by columns, as scales may be
            made = x.t().index_select(1, rows).t()
        else:
            made = x.index_select(at, rows)
        if name == "block_table":  # as wide as the longest sequence of the batch wants
            pages = self._given[self._names.index("cache" if "cache" in self._names else "keys")].shape[0]
            made = made[:, : max(int(((made >= 0) & (made < pages)).any(0).sum()), 1)]
        if written and name not in _READ_TOO:
            made.view(torch.uint8).fill_(0xFF) if made.is_contiguous() else made.fill_(0)
        return made


class Campaign:
    """A run over the variants of a build, or on the CPU over those of the default selection, whose ops the reference answers."""

    def __init__(
        self,
        limits: Limits,
        *,
        seed: int,
        families: Sequence[str] = (),
        filters: Sequence[str] = (),
        tell: Callable[[str], None],
    ) -> None:
        """Random calls are of variants of `families` that fit all `filters`, as `gemmill list` takes them; of none: for all."""
        self._limits, self._rng, self._tell, self._filters = limits, random.Random(seed), tell, filters  # noqa: S311
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._build = ops.active() if self._device == "cuda" else None
        self._families = families
        self._pairs: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._fruitless: Counter[str] = Counter()
        self._two, self._poisoned, self._different = 0, 0, 0
        self._examples: list[str] = []

    def run(self) -> Pairs:
        """Draw subjects, a family after the other, until there were enough pairs or time is up."""
        begun = told = time.monotonic()
        with batch_invariant():
            for entry in self._entries():
                now = time.monotonic()
                if now - told > 5:
                    told = now
                    self._tell(f"{self._pairs.total():,} pairs after {now - begun:.0f} s, {self._different} differ")
                if self._is_over(now - begun):
                    break
                try:
                    self._draw(Subject(entry, self._rng, self._limits, self._device))
                except (_LeftOut, RuntimeError, ValueError) as error:
                    self._fruitless[entry.family] += 1
                    self._left_out[f"{entry.family}: {str(error).splitlines()[0]}"] += 1
        return Pairs(
            pairs=dict(self._pairs),
            of_two_variants=self._two,
            poisoned=self._poisoned,
            left_out=dict(self._left_out),
            different=self._different,
            examples=tuple(self._examples),
            seconds=time.monotonic() - begun,
        )

    def _is_over(self, seconds: float) -> bool:
        limits = self._limits
        return (limits.pairs is not None and self._pairs.total() >= limits.pairs) or (
            limits.seconds is not None and seconds >= limits.seconds
        )

    def _entries(self) -> Iterator[KernelEntry]:
        """One variant of each family in turns, for ever: its config decides which call to make."""
        by_family: dict[str, list[Any]] = {}
        for entry in self._wanted():
            if order_of(entry) is not None and (not self._families or entry.family in self._families):
                by_family.setdefault(entry.family, []).append(entry)
        if not by_family:
            fitting = f", that fits {' and '.join(map(repr, self._filters))}" if self._filters else ""
            raise ValueError(
                f"no variant with an order of K to compare, of the families {', '.join(self._families) or 'of the build'}{fitting}"
            )
        while by_family:
            for name, entries in list(by_family.items()):
                yield self._rng.choice(entries)
                if self._fruitless[name] >= FRUITLESS and not self._pairs[name]:
                    del by_family[name]  # of its ops none has a dimension of rows alone

    def _wanted(self) -> Sequence[KernelEntry]:
        """Raises FilterError."""
        known = self._known()
        everything = Selection(
            name="default" if self._build is None else self._build.manifest.selection,
            arch=Arch.SM90A if self._build is None else Arch(self._build.manifest.arch),
            configs=tuple(entry.config for entry in known),
            rejections=(),
        )
        kept = set(apply(everything, self._filters).configs)
        return [entry for entry in known if entry.config in kept]

    def _known(self) -> Sequence[KernelEntry]:
        if self._build is not None:
            return self._build.manifest.entries
        configs = select("default").configs
        return [
            KernelEntry(
                name=str(i),
                family=REGISTRY.family_of(config).name,
                config=config,
                symbol="",
                ops=REGISTRY.ops_of(config),
            )
            for i, config in enumerate(configs)
        ]

    def _draw(self, subject: Subject) -> None:
        rng, device = self._rng, torch.device(self._device)
        others = self._of_one_order(subject)
        for _ in range(self._limits.batches):
            count = min(self._limits.most_rows, int((self._limits.most_rows + 1) ** rng.random()))
            of_batch = torch.Generator("cpu").manual_seed(rng.getrandbits(63))
            rows = torch.randint(POOL, (count,), generator=of_batch, dtype=torch.int64, device="cpu").to(device)
            if subject.by_expert:
                rows = rows.sort().values
            is_poisoned = torch.rand(count, generator=of_batch, dtype=torch.float32, device="cpu") < 0.25
            places, kept = (x.nonzero().flatten().to(device) for x in (is_poisoned, ~is_poisoned))
            poison = rng.choice(_POISONS) if rng.random() < 0.5 and len(kept) else None
            if poison is None:
                places, kept = places[:0], torch.arange(count, dtype=torch.int64, device=device)
            pinned = rng.choice(others) if others and rng.random() < 0.5 else None
            with nullcontext() if pinned is None else ops.use_variant(pinned):
                try:
                    found = subject.results(rows, places if poison is not None else None, poison or 0.0)
                except RuntimeError:
                    if pinned is None:
                        raise
                    continue  # a pinned variant takes fewer calls
            self._compare(subject, rows, kept, found, pinned)
            self._poisoned += len(places)

    def _compare(
        self, subject: Subject, rows: Tensor, kept: Tensor, found: Sequence[Tensor], pinned: str | None
    ) -> None:
        self._pairs[subject.family] += len(kept)
        self._two += len(kept) if pinned is not None else 0
        wrong = subject.differing(rows, kept, found).tolist()
        self._different += len(wrong)
        if wrong and len(self._examples) < MOST_DIFFERENT:
            by = f", with {pinned}" if pinned is not None else ""
            self._examples.append(
                f"{subject}: row {int(rows[wrong[0]])} at place {wrong[0]} of a batch of {len(rows)}{by} has other bits than alone, as "
                f"have {len(wrong) - 1} others of the batch"
            )

    def _of_one_order(self, subject: Subject) -> list[str]:
        """Names of the build's variants that answer the subject's class of calls in the same order of K."""
        if self._build is None:
            return []
        choice, table = subject.explained(), self._build.table
        if choice.row < 0 or choice.held is None:
            return []
        number = table.rows[choice.row].call_class
        return [
            entry.name
            for _, row, entry in table.of(subject.family)
            if row.call_class == number and choice.held.is_kept_by(order_of(entry)) and not row.quarantined
        ]


def _case(config: Any, rng: random.Random, limits: Limits) -> Any:
    """A call that a config serves, of POOL rows, random data and random sizes."""
    most = limits.most_columns

    def size(multiple: int) -> int:
        return multiple * max(1, int((most // multiple + 1) ** rng.random()))

    n, k = size(256), size(256)  # half of N, a gated GEMM's results, has whole groups of 128
    case: Any = cases_of(config).sized(config, {"m": POOL, "n": n, "k": k, "hidden": k, "sequences": POOL})
    if not hasattr(case, "spec"):
        return replace(case, residual=rng.random() < 0.5) if hasattr(case, "residual") else case
    spec = case.spec
    changes: dict[str, Any] = {"data": "random"} if hasattr(spec, "data") else {}
    if hasattr(spec, "counts"):
        cuts = sorted(rng.randrange(POOL + 1) for _ in range(4))
        changes["counts"] = tuple(b - a for a, b in zip((0, *cuts), (*cuts, POOL), strict=True))
    return replace(case, spec=replace(spec, **changes)) if changes else case


def _rows_at(x: Any) -> int | None:
    """The dimension of a tensor that counts rows."""
    if not isinstance(x, Tensor):
        return None
    return next((at for at, size in enumerate(x.shape) if size == POOL), None)


def _is_padded(name: str, x: Any) -> bool:
    """Whether scales of rows have more rows than the pool, as swizzled or padded scales have."""
    is_scale = ("scale" in name or name.endswith("sf")) and not name.startswith("w")
    return is_scale and isinstance(x, Tensor) and -(-POOL // TILE_ROWS) * TILE_ROWS in x.shape


def _dimension_of(x: Any) -> int:
    at = _rows_at(x)
    assert at is not None
    return at


def _poison(rows: Tensor, places: Tensor, value: float) -> None:
    """Make rows NaN or infinite; codes of 8 bits become NaN of e4m3 where they are that, integers stay."""
    if rows.dtype in (torch.float8_e4m3fn, torch.uint8):
        rows.view(torch.uint8)[places] = 0x7F
    elif rows.dtype.is_floating_point:
        rows[places] = value


def _bits(x: Tensor) -> Tensor:
    """The tensor's bytes, whatever their values: NaN is equal to itself."""
    return x.contiguous().view(torch.uint8) if x.element_size() == 1 else x.contiguous().view(torch.int8)
