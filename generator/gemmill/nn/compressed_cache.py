"""A compressed KV cache of many sequences, which hands pages out, shares them between forks, and takes them back.

Page tables are lists on the host; each step makes new tensors of them for kernels. Forks share pages until one of them
writes into a page that is not full: then it gets a copy.
"""

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count as counting
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.config import FORMATS, format_of
from gemmill.families.kv_cache.formats import CacheSpec, check_tag
from gemmill.families.kv_cache.functions import kv_compress, kv_decode_attention, kv_decompress
from gemmill.nn.cache_prefill import Attention, attend_by_torch, heads_of_pass

_generations = counting()


@dataclass(frozen=True, kw_only=True)
class Step:
    """New tokens of some sequences: the slots that store them, and the tokens that they attend over."""

    sequences: tuple[int, ...]
    """The sequences by number, in the order of the tensors."""
    generations: tuple[int, ...]
    """The generation of each sequence. The step ends where a sequence gets another."""
    counts: tuple[int, ...]
    """New tokens of each sequence."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, new ones included."""
    slot_mapping: Tensor
    """int64 [new tokens of all], sequence after sequence."""
    block_table: Tensor
    """int32 [sequences, pages of the longest]."""
    seq_lens: Tensor
    """int32 [sequences], new tokens included."""


@dataclass(kw_only=True)
class _Sequence:
    pages: list[int]
    length: int
    generation: int = field(default_factory=_generations.__next__)
    """A number that no other sequence of any cache has. A sequence gets another where a copy replaces a page."""


def _check_queries(step: Step, q: Tensor) -> None:
    if set(step.counts) - {q.shape[1]} or len(step.counts) != q.shape[0]:
        raise ValueError(
            f"Queries {list(q.shape)} were given for {len(step.counts)} sequences of {', '.join(map(str, step.counts))} new "
            "tokens; they are [sequences, new tokens of each, heads, head dim]: make a step for sequences of as many."
        )


def _as_index(value: Any) -> Any:
    """A whole number of any type as an int; another value as it is."""
    try:
        return int(operator.index(value))
    except TypeError:
        return value


def _check_sizes(pages: Any, layers: Any) -> None:
    for name, number in (("pages", pages), ("layers", layers)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"A cache of {number} {name} was asked for; it has at least one: give a whole number.")


def _check_device(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f'A cache on {device} was asked for; torch {torch.__version__} finds no GPU here: pass device="cpu" for the '
            "reference, or run where torch finds one."
        )


class CompressedKVCache:
    """Keys and values of the layers of a model in 2 to 4 bits an element.

    `pages` pages of `page` tokens hold `kv_heads` heads of `head_dim` elements, for each of `layers` layers. Values have
    `value_dim` elements; None stands for as many as keys. Formats are those of `gemmill.kv_decode_attention`. The arithmetic is that of the ops: see docs/kv_cache.md. Errors are one
    sentence, and leave the cache as it was.
    """

    def __init__(
        self,
        *,
        pages: int,
        kv_heads: int,
        head_dim: int = 128,
        value_dim: int | None = None,
        layers: int = 1,
        format: str = "k_eden4_v_eden4",
        page: int = 64,
        seed: int = 0,
        device: torch.device | str = "cuda",
    ) -> None:
        """Allocates all pages. Raises ValueError for an unknown format, head dim or page.

        It also raises it for no pages, layers or KV heads, for a seed that is no whole number from 0 to 2^63 - 1, and
        for a GPU where torch finds none.
        """
        if format not in FORMATS:
            raise ValueError(
                f"A cache of {format!r} was asked for; there are {', '.join(FORMATS)}: choose one of these."
            )
        pages, layers, seed = map(_as_index, (pages, layers, seed))
        _check_sizes(pages, layers)
        _check_device(device)
        self.format = format
        self.spec = CacheSpec(
            format=format_of(*FORMATS[format]),
            head_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
            kv_heads=kv_heads,
            page_size=page,
            seed=seed,
        )
        size = sum(vectors.format.size(vectors.head_dim) for vectors in (self.spec.keys, self.spec.values))
        self.data = torch.zeros((layers, pages, kv_heads, page, size), dtype=torch.uint8, device=device)
        """u8 [layers, pages, kv_heads, page, bytes of a key and a value]; `data[layer]` is an operand of the ops."""
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages
        self._sequences: dict[int, _Sequence] = {}
        self._current: set[tuple[int, int]] = set()
        """Each sequence with its generation."""
        self._next = 0

    @property
    def tag(self) -> str:
        """Format, sizes, rotation and seed: pages may be read as nothing else."""
        return self.spec.tag

    @property
    def free_pages(self) -> int:
        """How many pages belong to no sequence."""
        return len(self._free)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return self._of(sequence).length

    def allocate(self) -> int:
        """Make a sequence without tokens or pages. Return its number."""
        return self._add(_Sequence(pages=[], length=0))

    def fork(self, sequence: int) -> int:
        """Copy a sequence, sharing its pages. Return the copy's number."""
        origin = self._of(sequence)
        for page in origin.pages:
            self._users[page] += 1
        return self._add(_Sequence(pages=list(origin.pages), length=origin.length))

    def free(self, sequence: int) -> None:
        """Gives back the pages that no fork of the sequence has."""
        own = self._of(sequence)
        for page in own.pages:
            self._release(page)
        del self._sequences[sequence]
        self._current.remove((sequence, own.generation))

    def append(self, counts: Mapping[int, int]) -> Step:
        """Make places for so many new tokens of each sequence.

        A step ends when the cache frees one of its sequences, or gives it a copy of a page that a fork shares: store
        and attend before. Raises RuntimeError where pages are too few, ValueError for a count that is negative or not
        whole.
        """
        counts = {sequence: self._count(sequence, count) for sequence, count in counts.items()}
        needed = self._needed(counts)
        if needed > len(self._free):
            raise RuntimeError(
                f"{sum(counts.values())} new tokens need {needed} pages; {len(self._free)} of {len(self._users)} are free: "
                "free a sequence, or allocate a larger cache."
            )
        slots = [slot for sequence, count in counts.items() for slot in self._extend(sequence, count)]
        own = [self._of(sequence) for sequence in counts]
        widest = max((len(each.pages) for each in own), default=0)
        table = [each.pages + [0] * (widest - len(each.pages)) for each in own]
        device = self.data.device
        return Step(
            sequences=tuple(counts),
            generations=tuple(each.generation for each in own),
            counts=tuple(counts.values()),
            lengths=tuple(each.length for each in own),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
            block_table=torch.tensor(table, dtype=torch.int32, device=device).reshape(len(own), widest),
            seq_lens=torch.tensor([each.length for each in own], dtype=torch.int32, device=device),
        )

    def store(
        self,
        step: Step,
        keys: Tensor,
        values: Tensor,
        layer: int = 0,
        *,
        rotated_keys: bool = False,
        rotated_values: bool = False,
    ) -> None:
        """Store keys and values [new tokens of all sequences, kv_heads, elements] (bf16 or f16) of a step.

        With `rotated_keys` or `rotated_values` those come rotated by the cache's seed: see
        gemmill.quantize.fold_rotation. Raises ValueError for an ended step.
        """
        self._check_step(step)
        rotated = {"rotated_keys": rotated_keys, "rotated_values": rotated_values}
        kv_compress(self.data[layer], keys, values, step.slot_mapping, self.format, self.spec.seed, **rotated)

    def attend(
        self,
        step: Step,
        q: Tensor,
        layer: int = 0,
        *,
        scale: float | None = None,
        causal: bool = True,
        window: int = 0,
        sinks: Tensor | None = None,
        softcap: float = 0.0,
        rotated: bool = False,
        rotated_out: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Attend by the new tokens q [sequences, new tokens of each, heads, head_dim] over their sequences.

        With `rotated` q comes rotated by the cache's seed, and the output stays so. With `rotated_out` only the output
        does. Other options and results are those of `gemmill.kv_decode_attention`. Raises ValueError unless all have as
        many new tokens, and for an ended step.
        """
        self._check_step(step)
        _check_queries(step, q)
        options = {"scale": scale, "causal": causal, "window": window, "sinks": sinks, "softcap": softcap}
        where = (self.data[layer], step.block_table, step.seq_lens, self.format)
        seed = -1 if rotated else self.spec.seed
        elements = self.spec.values.head_dim
        return kv_decode_attention(q, *where, seed=seed, rotated_out=rotated_out, value_dim=elements, **options)  # type: ignore[arg-type]

    def prefill(
        self,
        step: Step,
        q: Tensor,
        layer: int = 0,
        *,
        scale: float | None = None,
        causal: bool = True,
        attention: Attention | None = None,
    ) -> Tensor:
        """Attend as `attend` does, by restored keys and values: the way for many new tokens.

        q is [sequences, new tokens of each, heads, head_dim]; the result has a value's elements. It restores one sequence after the
        other, of a long one some KV heads at a time, and attends over them by `attention`, or by torch's
        scaled_dot_product_attention. So `attention` gets the heads of one pass, and has to treat all heads alike. Neither q nor the result is in the rotated basis. Raises ValueError as `attend`.
        """
        self._check_step(step)
        _check_queries(step, q)
        kv_heads, group = self.spec.kv_heads, q.shape[2] // self.spec.kv_heads
        if q.shape[2] != group * kv_heads:
            raise ValueError(
                f"Queries of {q.shape[2]} heads were given; this cache has {kv_heads} KV heads: give a multiple of {kv_heads}."
            )
        factor = self.spec.head_dim**-0.5 if scale is None else scale
        attended = attention or attend_by_torch
        elements, page = self.spec.values.head_dim, self.spec.page_size
        out = q.new_empty((*q.shape[:3], elements))
        within = torch.arange(page, device=q.device, dtype=torch.int64)
        token_bytes = (self.spec.head_dim + elements) * q.element_size()
        for i, length in enumerate(step.lengths):
            table = step.block_table[i, : -(-length // page)].long()
            slots = (table[:, None] * page + within).flatten()[:length]
            heads = heads_of_pass(kv_heads, q.shape[1] * group, length * token_bytes)
            for first in range(0, kv_heads, heads):
                own = slice(first * group, (first + heads) * group)
                where = (
                    self.data[layer][:, first : first + heads],
                    slots,
                    self.spec.head_dim,
                    self.format,
                    self.spec.seed,
                )
                restored = kv_decompress(*where, q.dtype, value_dim=elements)
                out[i, :, own] = attended(q[i][:, own], *restored, factor, causal)
                del restored  # the next pass takes its memory
        return out

    def load_pages(self, data: Tensor, tag: str) -> None:
        """Take over all pages from a tensor of `data`'s shape that another cache of this tag wrote.

        Raises ValueError for another tensor or tag.
        """
        check_tag(tag, self.spec)
        if data.shape != self.data.shape or data.dtype is not torch.uint8:
            raise ValueError(
                f"Pages {data.dtype} {list(data.shape)} were to be loaded; this cache has torch.uint8 {list(self.data.shape)}: "
                "allocate one of the same size."
            )
        self.data.copy_(data)

    def _of(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            raise ValueError(
                f"Sequence {sequence} was asked for; this cache has {len(self._sequences)} sequences and not that one: it was "
                "freed, or is another cache's."
            )
        return self._sequences[sequence]

    def _check_step(self, step: Step) -> None:
        """Raise ValueError for a step whose places may be other sequences' by now.

        A traced call skips the check: its guards would fail with every new sequence.
        """
        if torch.compiler.is_compiling():
            return
        wrong = set(zip(step.sequences, step.generations, strict=True)) - self._current
        if wrong:
            raise ValueError(
                f"A step of sequence {min(wrong)[0]} was given, and since it was made the sequence was freed or got a copy of a "
                "page that a fork shares, or it is another cache's: make a step by append for each use."
            )

    def _add(self, sequence: _Sequence) -> int:
        self._sequences[self._next] = sequence
        self._current.add((self._next, sequence.generation))
        self._next += 1
        return self._next - 1

    def _is_split(self, sequence: _Sequence) -> bool:
        """Whether new tokens go to a page that a fork has too."""
        return bool(sequence.length % self.spec.page_size) and self._users[sequence.pages[-1]] > 1

    def _count(self, sequence: int, count: Any) -> int:
        """A number of new tokens as an int, since callers would share a tensor."""
        self._of(sequence)
        number = _as_index(count)
        if not isinstance(number, int) or number < 0:
            raise ValueError(
                f"{count} new tokens of sequence {sequence} were asked for; a sequence only grows, by whole tokens: give 0 or "
                "more, or free it."
            )
        return number

    def _needed(self, counts: Mapping[int, int]) -> int:
        """Pages that new tokens take. Of the sequences that write into a shared page the last keeps it, if all do."""
        growing = [(self._of(sequence), count) for sequence, count in counts.items() if count]
        more = sum(-(-(own.length + count) // self.spec.page_size) - len(own.pages) for own, count in growing)
        writers = Counter(own.pages[-1] for own, _ in growing if self._is_split(own))
        return more + sum(min(number, self._users[page] - 1) for page, number in writers.items())

    def _extend(self, number: int, count: int) -> list[int]:
        """Slots of new tokens."""
        size, sequence = self.spec.page_size, self._of(number)
        if count and self._is_split(sequence):
            shared, own = sequence.pages[-1], self._take()
            self.data[:, own] = self.data[:, shared]
            self._release(shared)
            sequence.pages[-1] = own
            self._current.remove((number, sequence.generation))
            sequence.generation = next(_generations)
            self._current.add((number, sequence.generation))
        places = range(sequence.length, sequence.length + count)
        sequence.length += count
        while len(sequence.pages) * size < sequence.length:
            sequence.pages.append(self._take())
        return [sequence.pages[place // size] * size + place % size for place in places]

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            self._free.append(page)
