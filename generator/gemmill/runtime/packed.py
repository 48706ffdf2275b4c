"""The values that cross between a table and the extension that selects from it. Mirrors
kernels/extension/selection.h."""

import ctypes
from collections.abc import Iterator

from gemmill.family import MOST_ALIGNED, MOST_FACTS, MOST_SIZES, Row, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust
from gemmill.runtime.select import Noted
from gemmill.runtime.variant_table import TunedRow, VariantTable

_NUMBER = ctypes.c_int64
_Sizes, _Alignments, _Facts = _NUMBER * MOST_SIZES, _NUMBER * MOST_ALIGNED, _NUMBER * MOST_FACTS


class PackedCall(ctypes.Structure):
    """`Call` of the extension."""

    _fields_ = [("call_class", _NUMBER), ("sizes", _Sizes), ("alignments", _Alignments)]


class PackedChoice(ctypes.Structure):
    """`Choice` of the extension."""

    _fields_ = [("row", _NUMBER), ("trust", _NUMBER)]


class _Noted(ctypes.Structure):
    _fields_ = [("family", _NUMBER), ("call", PackedCall), ("choice", PackedChoice)]


class _Row(ctypes.Structure):
    _fields_ = [
        *((name, _NUMBER) for name in ("kernel", "call_class", "withheld", "most")),
        ("alignments", _Alignments),
        ("least", _Sizes),
        ("facts", _Facts),
    ]


class _TunedRow(ctypes.Structure):
    _fields_ = [("call_class", _NUMBER), ("sizes", _Sizes), ("row", _NUMBER), ("exact", _NUMBER)]


class _Family(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        *((name, _NUMBER) for name in ("first", "end", "near_count")),
        ("near", _Sizes),
        *((name, _NUMBER) for name in ("bucketed", "few", "many", "endless", "ratio")),
        *((name, ctypes.c_double) for name in ("distance", "margin")),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Declare the arguments and results of the extension's functions."""
    library.gemmill_set_table.argtypes = [ctypes.c_void_p, _NUMBER] * 3
    library.gemmill_choose.argtypes = [_NUMBER, ctypes.POINTER(PackedCall), _NUMBER, ctypes.POINTER(PackedChoice)]
    library.gemmill_note_choices.argtypes = [_NUMBER, _NUMBER]
    library.gemmill_take_noted.argtypes = [ctypes.c_void_p, _NUMBER]
    library.gemmill_take_noted.restype = _NUMBER
    library.gemmill_times_chosen.argtypes = [_NUMBER, _NUMBER]
    library.gemmill_times_chosen.restype = _NUMBER


def send(library: ctypes.CDLL, table: VariantTable) -> None:
    """Have the extension select from the table."""
    families = [_family(name, rows) for name, rows in table.families.items()]
    packed = (
        (_Family * len(families))(*families),
        (_Row * len(table.rows))(*map(_row, table.rows)),
        (_TunedRow * len(table.tuned))(*map(_tuned_row, table.tuned)),
    )
    library.gemmill_set_table(*(argument for array in packed for argument in (array, len(array))))


def choose(library: ctypes.CDLL, table: VariantTable, call: ShapedCall, sm_count: int) -> tuple[int, Trust]:
    """The extension's own choice for a call: index of the row, or -1."""
    choice, packed = PackedChoice(), packed_call(call)
    family = list(table.families).index(call.family)
    library.gemmill_choose(family, ctypes.byref(packed), sm_count, ctypes.byref(choice))
    return choice.row, Trust(choice.trust)


def noted(library: ctypes.CDLL, table: VariantTable, most: int) -> Iterator[Noted]:
    """Take the choices that the extension noted."""
    room = (_Noted * most)()
    names = list(table.families)
    for found in room[: library.gemmill_take_noted(room, most)]:
        call = shaped_call(names[found.family], found.call)
        yield Noted(call=call, variant=table.entries[found.choice.row].name, trust=Trust(found.choice.trust))


def packed_call(call: ShapedCall) -> PackedCall:
    """A shaped call as the extension reads it."""
    return PackedCall(call.call_class, _Sizes(*call.sizes), _Alignments(*call.alignments))


def shaped_call(family: str, call: PackedCall) -> ShapedCall:
    """The call that the extension wrote so."""
    tuning = REGISTRY.choices[family]
    sizes, alignments = call.sizes[: len(tuning.sizes)], call.alignments[: len(tuning.aligned)]
    return ShapedCall(family=family, call_class=call.call_class, sizes=tuple(sizes), alignments=tuple(alignments))


def _family(name: str, rows: range) -> _Family:
    tuning = REGISTRY.choices[name]
    near = [tuning.sizes.index(size) for size in tuning.near]
    reach = tuning.reach
    bucketed = tuning.sizes.index(tuning.bucketed) if tuning.is_measured else 0
    steps = (bucketed, reach.few, reach.many, reach.endless, reach.ratio)
    return _Family(name.encode(), rows.start, rows.stop, len(near), _Sizes(*near), *steps, reach.distance, reach.margin)


def _row(row: Row) -> _Row:
    parts = (_Alignments(*row.alignments), _Sizes(*row.least), _Facts(*row.facts))
    return _Row(row.kernel, row.call_class, row.is_withheld, row.most, *parts)


def _tuned_row(tuned: TunedRow) -> _TunedRow:
    return _TunedRow(tuned.call_class, _Sizes(*tuned.sizes), tuned.row, tuned.exact)
