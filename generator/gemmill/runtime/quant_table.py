"""The flat table from which the extension takes the kernel of a quantisation op, and the same choice with its reasons."""

import ctypes
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmill.families import quant
from gemmill.families.quant.config import IN_DTYPES, OUT_DTYPES, Activation, QuantConfig, QuantFamily, ScaleFormat
from gemmill.manifest import KernelEntry
from gemmill.runtime.select import Choice, Rejected, Trust


class QuantRow(ctypes.Structure):
    """Mirrors `QuantRow` in kernels/extension/quant.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in "kernel family in_dtype out_dtype activation group_size scale_format symmetric vllm".split()
    ]


@dataclass(frozen=True, kw_only=True)
class QuantTable:
    """A row for each kernel, with the entry that it stands for."""

    rows: tuple[QuantRow, ...]
    entries: tuple[KernelEntry, ...]

    def kernel_of(self, name: str) -> int | None:
        """The kernel of a variant by its index in the extension; None where there is none of this name."""
        return next(
            (row.kernel for row, entry in zip(self.rows, self.entries, strict=True) if entry.name == name), None
        )

    def entry_of(self, kernel: int) -> KernelEntry:
        """The variant of a kernel."""
        return next(entry for row, entry in zip(self.rows, self.entries, strict=True) if row.kernel == kernel)


def make_quant_table(entries: Iterable[KernelEntry], kernels: Sequence[str]) -> QuantTable:
    """The table for the kernels of an extension, `kernels` being their symbols in its order."""
    index = {symbol: i for i, symbol in enumerate(kernels)}
    own = tuple(entry for entry in entries if entry.family == quant.NAME)
    return QuantTable(rows=tuple(_row(entry.config, index[entry.symbol]) for entry in own), entries=own)


def _row(config: QuantConfig, kernel: int) -> QuantRow:
    return QuantRow(
        kernel=kernel,
        family=list(QuantFamily).index(config.family),
        in_dtype=IN_DTYPES.index(config.in_dtype),
        out_dtype=OUT_DTYPES.index(config.out_dtype),
        activation=list(Activation).index(config.activation),
        group_size=config.group_size,
        scale_format=list(ScaleFormat).index(config.scale_format),
        symmetric=int(config.symmetric),
        vllm=int(config.vllm),
    )


def select_quant(table: QuantTable, wanted: QuantConfig, pinned: str | None = None) -> Choice:
    """The variant of this config, or none where another is pinned; every other one with what it lacks."""
    chosen = next((entry for entry in table.entries if entry.config == wanted), None)
    if pinned is not None and (chosen is None or chosen.name != pinned):
        entry = next(entry for entry in table.entries if entry.name == pinned)
        first = Rejected(name=pinned, reason=_difference(entry.config, wanted))
        others = (Rejected(name=e.name, reason=f"{pinned} is pinned") for e in table.entries if e is not entry)
        return Choice(entry=None, trust=Trust.PINNED, trace=(first, *others))
    trace = (
        Rejected(name=entry.name, reason=_difference(entry.config, wanted))
        for entry in table.entries
        if entry is not chosen
    )
    return Choice(entry=chosen, trust=Trust.ONLY if pinned is None else Trust.PINNED, trace=tuple(trace))


def _difference(config: QuantConfig, wanted: QuantConfig) -> str:
    name, has, needs = next(
        (field.name, getattr(config, field.name), getattr(wanted, field.name))
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(wanted, field.name)
    )
    return f"it has {name}={has}, the call needs {needs}"
