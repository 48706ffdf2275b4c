"""The process that runs kernels for a report. It may crash, hang or be killed at any time.

`python -m gemmill.report.child SPEC` answers commands as `gemmill.tuner.bench.serve` does. With `--once BUILD NAME` it
makes one small call of a variant, for compute-sanitizer.
"""

import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

import gemmill
from gemmill.numerics.cases import cases_of
from gemmill.numerics.verify import device_words, verify_variants
from gemmill.runtime.schemas import NAMESPACE
from gemmill.tuner.bench import DEAD_CONTEXT, run

ONCE = "--once"


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """The arguments of the process."""

    build: str
    """The folder of the build."""


class Child:
    """The commands that a report gives."""

    def __init__(self, spec: ChildSpec) -> None:
        self._build = gemmill.load(spec.build)

    def hello(self) -> str:
        """The device, in words."""
        return device_words()

    def verify(self, name: str) -> dict[str, Any]:
        """All cases of a variant: a `Verdict`'s fields. Raises RuntimeError where the CUDA context died in them."""
        found = next(verify_variants(self._build, frozenset({name})), None)
        if found is None:
            raise RuntimeError(f"{name} does not run {device_words()}")
        for text in found.failures:
            if any(words in text for words in DEAD_CONTEXT):
                raise RuntimeError(text)
        torch.cuda.synchronize()
        return asdict(found)


def once(build: str, name: str) -> None:
    """Make the first call of a variant, which is its family's smallest, and wait for it."""
    entry = next(entry for entry in gemmill.load(build).manifest.entries if entry.name == name)
    case = next(iter(cases_of(entry.config).of_config(entry.config)))
    with gemmill.use_variant(name):
        getattr(getattr(torch.ops, NAMESPACE), case.op).default(*case.arguments("cuda"))
    torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1] == ONCE:
        once(*sys.argv[2:])
    else:
        run(lambda **spec: Child(ChildSpec(**spec)))
