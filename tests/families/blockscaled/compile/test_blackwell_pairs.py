"""Promises of builds for Blackwell: block-scaled products on the tensor core, and no spills. Builds are read, none is made: a kernel
takes a minute to compile. `gemmill build --arch sm100a --filter 'sm100a_blockscaled_*' --no-use` makes one to be read."""

from contextlib import suppress

import pytest

from gemmill.families.blockscaled.config import PairConfig
from gemmill.manifest import ManifestError
from gemmill.manifest.reading import read_manifest
from gemmill.runtime.builds import find_builds
from gemmill.vocab import Arch

PRODUCTS = {Arch.SM100A: ("UTCOMMA", "UTCQMMA"), Arch.SM120F: ("OMMA", "QMMA")}
"""Of 4-bit codes on both sides, and of codes of which one has 8 bits."""


@pytest.mark.parametrize("arch", PRODUCTS, ids=str)
def test_every_pair_reaches_the_tensor_core_by_block(arch: Arch) -> None:
    entries = []
    for folder in find_builds():
        with suppress(ManifestError):  # a build of an older gemmill
            entries += [entry for entry in read_manifest(folder / "manifest.json").entries if entry.config.arch is arch]
    pairs = [entry for entry in entries if isinstance(entry.config, PairConfig)]
    if not pairs:
        pytest.skip(f"no build for {arch} has pairs")
    of_four_bits, mixed = PRODUCTS[arch]
    for entry in pairs:
        wanted = mixed if entry.config.mixes else of_four_bits
        assert entry.sass.get(wanted, 0) > 0, f"{entry.name} has no {wanted}: {entry.sass}"
        assert entry.spill_bytes == 0 and not {"LDL", "STL"} & entry.sass.keys(), f"{entry.name} spills"
