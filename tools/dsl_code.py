"""Compile a sample of the CuTe DSL's kernels, without a GPU, and compare their code with another commit's.

    python tools/dsl_code.py --out before.json                # at one commit
    python tools/dsl_code.py --out after.json --against before.json   # at another one: the same kernels

The machine code is the whole file of it, with the kernel's parameters. The launch is the object with the host's code, and
its C header. Of each kind of config the sample has every pair of values of facts that some kernel has, as far as --count
allows. A kernel takes a second or two. Exits with 1 where the code of one differs, and names it.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cached_property
from importlib import import_module
from itertools import combinations
from json import dumps, loads
from pathlib import Path
from typing import Any

from gemmill.build.cubins import embedded_cubins
from gemmill.build.files import digest
from gemmill.build.sources import is_of_dsl
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.space.selections import select

SELECTIONS = ("smoke", "default", "sweep")
Fact = tuple[str, str]


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file to write: a digest of each kernel's code")
    parser.add_argument("--against", type=Path, help="a file of another commit, whose kernels are compiled")
    parser.add_argument("--count", type=int, default=24, help="kernels of each kind of config (%(default)s)")
    options = parser.parse_args(arguments)
    before = loads(options.against.read_text()) if options.against else {}
    names = list(before) or [name for kind in kinds() for name in sample(kind, options.count)]
    found = {name: code_of(name) for name in names}
    options.out.write_text(dumps(found, indent=1) + "\n")
    differ = [name for name in before if before[name] != found[name]]
    for name in differ:
        parts = [part for part in before[name] if before[name][part] != found[name][part]]
        print(f"{name}: another {', another '.join(parts)}")
    print(f"{len(names)} kernels" + (f", {len(differ)} differ" if before else ""))
    return bool(differ)


def kinds() -> list[dict[str, set[Fact]]]:
    """The facts of each kernel by its name, for each class of configs."""
    of_kind: dict[type, dict[str, set[Fact]]] = {}
    for selection in SELECTIONS:
        for config in select(selection).configs:
            if is_of_dsl(config):
                of_kind.setdefault(type(config), {})[to_name(config.compiled)] = set()
    for named in of_kind.values():
        for name in named:
            named[name] = set(facts_of(name))
    return list(of_kind.values())


def facts_of(name: str) -> Iterator[Fact]:
    """The facts of a kernel by which its code differs in more than numbers: those that are true or false, or named."""
    config = parse_name(name)
    dsl = REGISTRY.kernels_of(config).dsl
    assert dsl is not None  # it is the DSL's
    for about in (dsl.facts(config), config, *vars(config).values()):
        kind = type(about)
        names = {name for name in dir(kind) if isinstance(getattr(kind, name), property | cached_property)}
        for fact in sorted(names | set(getattr(about, "__dict__", {}))):
            value: Any = None
            try:
                value = getattr(about, fact)
            except ArithmeticError:
                continue  # of groups, where there are none
            if fact.startswith("cluster_") or isinstance(value, bool | Enum):
                yield f"{kind.__name__}.{fact}", str(value)


def sample(kernels: dict[str, set[Fact]], count: int) -> Sequence[str]:
    """Names of up to `count` kernels that have the most pairs of facts between them."""
    pairs = {name: set(combinations(sorted(facts), 2)) for name, facts in kernels.items()}
    chosen: list[str] = []
    while pairs and len(chosen) < count:
        best = max(pairs, key=lambda name: len(pairs[name]))
        if not (had := pairs.pop(best)):
            break
        chosen.append(best)
        for left in pairs.values():
            left -= had
    return chosen


def code_of(name: str) -> dict[str, str]:
    """Digests of a kernel's machine code and of its launch."""
    config = parse_name(name)
    dsl = REGISTRY.kernels_of(config).dsl
    assert dsl is not None  # it is the DSL's
    with tempfile.TemporaryDirectory() as folder:
        made, header = import_module(dsl.entry).export(config, symbol_of(config), Path(folder))
        whole = made.read_bytes()
        (cubin,) = embedded_cubins(whole)
        return {"machine code": digest(cubin.hex()), "launch": digest(whole.hex(), header.read_text())}


if __name__ == "__main__":
    sys.exit(main())
