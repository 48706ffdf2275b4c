"""A family whose C++ lies in a folder of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build import sources
from gemmill.build.sources import SourceKind, flags_for, hand_written, kernel_folders
from gemmill.families.quant.family import FAMILY
from gemmill.family import Registry
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch


def test_its_sources_are_compiled_and_its_headers_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "kernels" / "toy"
    own.mkdir(parents=True)
    for name in ("binding.cpp", "kernel.cu", "abi.h"):
        (own / name).write_text("")
    before = hand_written(kernels_dir())
    monkeypatch.setattr(
        sources,
        "REGISTRY",
        Registry((FAMILY, replace(FAMILY, name="toy", kernels=(), asks=replace(FAMILY.asks, ops=()), home=tmp_path))),
    )
    of_quant = [path for path in before if path.parent.name in (sources.BINDING, FAMILY.name)]
    assert hand_written(kernels_dir()) == [*of_quant, own / "binding.cpp", own / "kernel.cu"]
    assert kernel_folders(kernels_dir()) == {sources.OWN_ROOT: kernels_dir(), "toy": tmp_path / "kernels"}
    for kind in SourceKind:
        assert {"-I<gemmill>", "-I<toy>"} <= set(flags_for(Arch.SM90A).for_kind(kind))
