"""Random calls, for which the extension's checks, choices and launches are compared with Python's."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from compile.binding.probes import Probe
from gemmill.family import Judged, Row, ShapedCall
from gemmill.fuzz.breakages import break_call, draw_call
from gemmill.manifest import KernelEntry
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.memory import Memory
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import select

SMS_OF_NONE = 1
"""The extension's number of multiprocessors where there is no device."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Outcomes of an op's calls."""

    refused: set[str]
    """Sentences."""
    lacking: list[Judged]
    """Legal calls without a variant."""
    launched: list[tuple[KernelEntry, Judged]]


def drawn_call(op: str, seed: int, index: int) -> list[Any] | None:
    """Arguments of a random call in the schema's order, broken in some; None where torch itself refuses it, as no fake is there."""
    call, breakage = draw_call(op, seed, index, CPU_LIMITS)
    memory = Memory(call.slots, torch.device("cpu"))
    names = BY_NAME[op].arguments
    arguments = {name: memory.tensor(name) if name in call.slots else call.plain.get(name) for name in names}
    if breakage is not None and (broken := break_call(op, arguments, memory, breakage)) is not None:
        arguments = broken.arguments
    given = list(arguments.values())
    return None if any(isinstance(x, torch.Tensor) and x.is_meta for x in given) else given


def compare(
    probe: Probe,
    op: str,
    shaped_call_of: Callable[[Judged], ShapedCall],
    wanted_of: Callable[[Judged, Row], dict[str, Any]] | None = None,
    *,
    rounds: int,
    sizes: Iterable[str] = "MN",
    seed: int = 3,
    lacking: str = r"none of \d+ variants? of ",
    every_field: bool = True,
) -> Compared:
    """Both refuse the same calls with the same sentence, and a legal one launches the selected kernel.

    A call with one of `sizes` at zero launches none. `wanted_of` gives fields of a kernel's arguments, all of abi.h
    or some, by a call and its row of the table. Without a row the extension raises an error that matches `lacking`.
    """
    found = Compared(refused=set(), lacking=[], launched=[])
    for given in filter(None, (drawn_call(op, seed, index) for index in range(rounds))):
        try:
            judged = check(BY_NAME[op], of_arguments(BY_NAME[op], given))
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                probe.run(op, *given)
            assert str(error) in str(caught.value)
            found.refused.add(str(error))
            continue
        if not all(judged[size] for size in sizes):
            assert probe.run(op, *given) is None
            continue
        row = select(probe.build.table, shaped_call_of(judged), SMS_OF_NONE).row
        if row < 0:
            with pytest.raises(RuntimeError, match=lacking):
                probe.run(op, *given)
            found.lacking.append(judged)
            continue
        launch, entry = probe.run(op, *given), probe.build.table.entries[row]
        assert launch is not None and launch[0] == entry.symbol
        if wanted_of is not None:
            wanted = wanted_of(judged, probe.build.table.rows[row])
            fields = [name for name, _ in launch[1]._fields_ if every_field or name in wanted]
            assert {name: getattr(launch[1], name) for name in fields} == wanted
        found.launched.append((entry, judged))
    return found
