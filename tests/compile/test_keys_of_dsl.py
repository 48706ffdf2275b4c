"""One kernel compiled by the CuTe DSL: moved and renamed files compile nothing again, a constant that it reads does."""

from pathlib import Path

from copied import Tree, copy_tree
from gemmill.build.dsl import find_dsl
from gemmill.build.toolchain import ToolchainPaths

_COMPILE = """
import sys
from pathlib import Path
from gemmill.build.compiling import compile_missing, look_again
from gemmill.build.options import BuildObserver, BuildOptions
from gemmill.build.sources import variant_source
from gemmill.build.workshop import open_workshop
from gemmill.space.filters import apply
from gemmill.space.selections import select
smoke = select("smoke")
config = apply(smoke, ["backend=cutedsl", "family=scaled_mm"]).configs[0]
workshop = open_workshop(smoke.arch, BuildOptions(home=Path(sys.argv[1]), jobs=1))
source = variant_source(config, workshop.keys)
missing = workshop.cache.lookup([source]).missing
assert compile_missing(missing, workshop, BuildObserver()) == {}
(entry,) = look_again([source], workshop).entries
print(len(missing), *(facts.sass_digest for facts in entry.facts.values()))
"""


def compiled(tree: Tree, home: Path) -> tuple[str, str]:
    """How many kernels were compiled, and the digest of the machine code."""
    count, code = tree.run(_COMPILE, str(home)).split()
    return count, code


def test_what_is_compiled_again(toolchain: ToolchainPaths, tmp_path: Path) -> None:
    find_dsl(toolchain.cuda_major)
    tree, home = copy_tree(tmp_path / "tree"), tmp_path / "home"
    count, code = compiled(tree, home)
    assert count == "1"
    tree.move("generator/gemmill/families/scaled_mm/config.py", "generator/gemmill/families/scaled_mm/described.py")
    tree.replace("families.scaled_mm.config", "families.scaled_mm.described")
    tree.move("generator/gemmill/gemm/walk.py", "generator/gemmill/gemm/tiles.py")
    tree.replace("gemmill.gemm.walk", "gemmill.gemm.tiles")
    tree.replace('"""One kernel, and the function that launches it.', '"""A kernel, and its launch.')
    assert compiled(tree, home) == ("0", code)
    tree.replace("PREFETCH_SHARE = 4", "PREFETCH_SHARE = 5")
    assert compiled(tree, home) == ("1", code), "compiled again, though this kernel's prefetch is folded to nothing"
