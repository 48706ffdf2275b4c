"""The order in which a variant sums an output element along K, on which alone the element's bits depend."""

from dataclasses import dataclass, replace

from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class Order:
    """Two variants of one order give an element the same bits, whatever their tiles, clusters and schedules, and whatever
    the batch. A variant without an order promises nothing across batches."""

    instruction: str
    """The instruction that multiplies, as `wgmma`; which fixes how many products it adds at a time."""
    accumulator: DType
    """Type of sums."""
    promoted_k: int = 0
    """Elements along K after which a sum moves to an FP32 register; 0: never."""
    slices: int = 1
    """Slices of K with sums of their own."""
    slice_step: int = 0
    """Elements along K of which slices are multiples, the last aside; 0 where there is one slice."""
    joined: str = ""
    """The place where sums of slices meet, in ascending order of K."""
    loop: str = ""
    """The main loop and its parts that divide K among threads, where those of a family differ in them."""

    def __post_init__(self) -> None:
        if (self.slices == 1) != (not self.joined) or bool(self.slice_step) != bool(self.joined):
            raise ValueError(
                f"slices={self.slices} contradicts slice_step={self.slice_step} joined={self.joined!r}: both are given exactly "
                "where there are several slices"
            )

    def over(self, length: int) -> "Order":
        """The same order of sums over `length` elements, in one form for all steps that divide it alike.

        Slices of an equal number of steps are as long in any of them: 4 slices of 16384 are 4096 each in steps of 64 and of
        256. So variants of different depth have one order there.
        """
        steps = -(-length // self.slice_step) if self.slice_step else 0
        if not steps or steps % self.slices:
            return self
        return replace(self, slice_step=steps // self.slices * self.slice_step)

    def __str__(self) -> str:
        parts = [f"{self.instruction} to {self.accumulator}"]
        if self.promoted_k:
            parts.append(f"promoted every {self.promoted_k}")
        if self.joined:
            parts.append(f"{self.slices} slices of whole {self.slice_step} joined in {self.joined}")
        return ", ".join([*parts, *filter(None, [self.loop])])


ALONE = Order(instruction="rows apart", accumulator=DType.F32)
"""Of variants that make each row from that row alone, in one way, where one variant serves each class of calls."""
EXACT = Order(instruction="exact integers", accumulator=DType.S32)
"""Of integer sums over all of K, which are the same in any order."""
