"""The process that makes calls: `python -m gemmill.fuzz.child SPEC`. It may crash, hang or be killed at any time.

Commands and answers are those of `gemmill.tuner.bench.serve`. A batch of calls waits for the device once, at its end.
The device counts the faults of each call, in a row of one tensor. Calls with a fault are made again, alone.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill.fuzz.breakages import Arguments, BrokenCall, break_call, draw_call
from gemmill.fuzz.findings import FaultKind, FuzzSpec
from gemmill.numerics.batches import Campaign, Limits
from gemmill.numerics.call import CPU_LIMITS, GPU_LIMITS, LegalCall
from gemmill.numerics.cases import cases_of_op
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Memory
from gemmill.numerics.values import Pools
from gemmill.registry import REGISTRY
from gemmill.runtime.invariance import ASKED
from gemmill.runtime.schemas import BY_NAME, NAMESPACE
from gemmill.tuner.bench import DEAD_CONTEXT, run
from gemmill.tuner.protocol import first_line

Found = dict[str, Any]
HELD_SHARE = 8
"""Of so many calls one holds the order of batch invariance."""
PAIRED_SHARE = 1024
"""On a GPU, of so many calls one is hundreds: rows alone and in batches, beside NaN and infinity, whose bits are compared."""
PAIRS = Limits(pairs=1, seconds=5.0, most_rows=4096, most_columns=2048, batches=16)
"""One subject, or several where the first has no row of its own."""


class _Found(Exception):  # noqa: N818  (it is what happened)
    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


class _LeftOut(Exception):  # noqa: N818
    """The build has no variant for such calls."""


class Child:
    """The commands that a campaign may give."""

    def __init__(self, spec: FuzzSpec) -> None:
        self._spec = spec
        self._device = torch.device("cuda" if spec.gpu else "cpu")
        self._limits = GPU_LIMITS if spec.gpu else CPU_LIMITS
        if spec.gpu:
            gemmill.load(spec.build)
        else:
            torch.set_num_threads(1)  # calls are small, and several processes share the cores
        self._pools = Pools(self._device)
        self._tally: Counter[str] = Counter()

    def hello(self) -> str:
        """The device of the calls, in words."""
        if not self._spec.gpu:
            return "on the CPU, where the ops run the reference"
        return f"on {torch.cuda.get_device_name()} with build {gemmill.load(self._spec.build).build_id}"

    def run(self, first: int, count: int) -> dict[str, Any]:
        """Make `count` calls. Returns the findings, and how many calls of each kind there were."""
        counts = torch.zeros((count, 2), dtype=torch.int64, device=self._device)
        self._tally = Counter()
        found: list[Found] = []
        for i in range(count):
            with self._noting(first + i, found):
                self._make(first + i, counts[i])
        tally = dict(self._tally)
        for i, counted in enumerate(counts.tolist()):
            if any(counted):
                found += self.only(first + i)["found"] or self._not_repeated(first + i, counted)
        return {"tally": tally, "found": found}

    def only(self, index: int) -> dict[str, Any]:
        """Make one call alone. Returns the findings, and the call in words."""
        self._tally = Counter()
        found: list[Found] = []
        with self._noting(index, found):
            self._make(index, None)
        self._see_whether_alive()
        if self._is_paired(index):
            return {
                "tally": self._tally,
                "found": found,
                "call": f"rows alone and in batches, of {self._family_of(index)}",
                "broken": False,
            }
        call, breakage = self._draw(index)
        return {"tally": self._tally, "found": found, "call": str(call), "broken": breakage is not None}

    def _draw(self, index: int) -> tuple[LegalCall, Draw | None]:
        return draw_call(self._spec.op_of(index), self._spec.seed, index, self._limits)

    def _make(self, index: int, counts: Tensor | None) -> None:
        """Make a call. Counts its faults or, without `counts`, raises the first."""
        if self._is_paired(index):
            self._compare_batches(index)
            return
        call, breakage = self._draw(index)
        memory = Memory(call.slots, self._device)
        self._pools.fill(memory, call.offsets)
        before = memory.bytes.clone()
        arguments = self._arguments(call, memory)
        broken = None if breakage is None else break_call(call.op, arguments, memory, breakage)
        if broken is not None:
            self._call_broken(index, call.op, broken, memory)
        else:
            self._call_legal(index, call, arguments, memory)
        changed = memory.changed(before, written=broken is None)
        if counts is not None:
            counts[1].copy_(changed.sum())
        elif changed.any():
            raise _Found(FaultKind.OUT_OF_BOUNDS if broken is None else FaultKind.TOUCHED, memory.places(changed))
        if broken is not None:
            return
        judge = cases_of_op(call.op).judge(call, memory, before)
        if counts is not None:
            counts[0].copy_(judge.wrong())
        elif report := judge.report():
            raise _Found(FaultKind.WRONG, report)

    def _is_paired(self, index: int) -> bool:
        return self._spec.gpu and index % PAIRED_SHARE == PAIRED_SHARE - 1

    def _family_of(self, index: int) -> str:
        return REGISTRY.ops[self._spec.op_of(index)][0].name

    def _compare_batches(self, index: int) -> None:
        """Compare rows of a random call of the op's family alone with the same rows in batches, under batch invariance."""
        self._tally["legal"] += 1
        seed = self._spec.seed * PAIRED_SHARE + index
        try:
            pairs = Campaign(PAIRS, seed=seed, families=(self._family_of(index),), tell=lambda _: None).run()
        except ValueError:  # no variant of the family has an order
            raise _LeftOut from None
        self._see_whether_alive()
        if pairs.different:
            raise _Found(FaultKind.BATCH, pairs.examples[0])
        if not pairs.total:
            raise _LeftOut

    def _arguments(self, call: LegalCall, memory: Memory) -> Arguments:
        return {
            name: memory.tensor(name) if name in call.slots else call.plain.get(name)
            for name in BY_NAME[call.op].arguments
        }

    def call(self, index: int, op: str, arguments: Arguments, memory: Memory) -> None:
        """Call an op with arguments in this memory."""
        getattr(getattr(torch.ops, NAMESPACE), op).default(*arguments.values())

    def _call_legal(self, index: int, call: LegalCall, arguments: Arguments, memory: Memory) -> None:
        try:
            with gemmill.batch_invariant(index % HELD_SHARE == 0):
                self.call(index, call.op, arguments, memory)
        except Exception as error:
            self._see_whether_alive()
            if index % HELD_SHARE == 0 and ASKED in str(error):
                raise _LeftOut from None
            if self._spec.gpu and cases_of_op(call.op).is_lacking(call, str(error)):
                raise _LeftOut from None
            raise _Found(
                FaultKind.REFUSED, f"a legal call raised {type(error).__name__}: {first_line(error)}"
            ) from None
        finally:
            self._tally["legal"] += 1

    def _call_broken(self, index: int, op: str, broken: BrokenCall, memory: Memory) -> None:
        self._tally["broken"] += 1
        try:
            self.call(index, op, broken.arguments, memory)
        except Exception as error:
            if broken.sentence is None or broken.sentence in str(error):
                return
            self._see_whether_alive()
            found, wanted = f"{type(error).__name__}: {first_line(error)!r}", repr(broken.sentence)
            raise _Found(FaultKind.SENTENCE, f"{broken.what}; the error is {found}, the checks' {wanted}") from None
        raise _Found(
            FaultKind.ACCEPTED, f"{broken.what}, and the call raised nothing; the checks say {broken.sentence!r}"
        )

    def _see_whether_alive(self) -> None:
        """Raise the CUDA context's own error if it is dead. An op that cannot launch anything then is not at fault."""
        if self._spec.gpu:
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def _noting(self, index: int, found: list[Found]) -> Iterator[None]:
        """Keep a call's error as a finding. The error of a dead CUDA context ends this process instead."""
        try:
            yield
        except _LeftOut:
            self._tally.update({"legal": -1, "left_out": 1})
        except _Found as error:
            found.append({"kind": error.kind, "index": index, "detail": error.detail})
        except Exception as error:
            if _is_dead(error):
                raise
            detail = f"making or judging the call raised {type(error).__name__}: {first_line(error)}"
            found.append({"kind": FaultKind.UNJUDGED, "index": index, "detail": detail})

    def _not_repeated(self, index: int, counted: list[int]) -> list[Found]:
        if counted[1] == 0 and not cases_of_op(self._spec.op_of(index)).counts_are_final:
            return []  # other bits than the reference's, within the error bound of the arithmetic
        detail = f"{counted[0]} elements were wrong and {counted[1]} bytes changed that are no output's, and none when called alone"
        return [{"kind": FaultKind.NOT_REPEATABLE, "index": index, "detail": detail}]


def _is_dead(error: Exception) -> bool:
    """Whether the CUDA context is of no more use."""
    return any(words in str(error) for words in DEAD_CONTEXT)


if __name__ == "__main__":
    run(lambda **spec: Child(FuzzSpec(**spec)))
