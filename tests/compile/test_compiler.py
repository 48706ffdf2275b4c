"""Properties of the real nvcc on which the build relies, tried on small sources."""

from pathlib import Path

import pytest

from gemmill.build.compiling import compile_missing, look_again
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildObserver, BuildOptions
from gemmill.build.sources import Source, SourceKind, text_source
from gemmill.build.workshop import Workshop, open_workshop
from gemmill.vocab import Arch

_KERNEL = """\
#include <cuda/std/utility>
#include "scale.h"
extern "C" __global__ void gemmill_{name}_kernel(float* x) {{ x[threadIdx.x] *= kScale; }}
extern "C" int gemmill_{name}(float* x) {{ {body} return 0; }}
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir(parents=True)
    (folder / "scale.h").write_text("constexpr float kScale = 3.0f;\n")
    return folder


@pytest.fixture
def workshop(tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("GEMMILL_COMPILER_LAUNCHER", "none")
    return open_workshop(Arch.SM90A, BuildOptions(home=tmp_path / "home", jobs=1, kernels=kernels))


def _source(workshop: Workshop, name: str, body: str = "") -> Source:
    text = _KERNEL.format(name=name, body=body)
    return text_source(SourceKind.KERNELS, f"quant/{name}.cu", text, workshop.keys)


def test_object_and_what_is_known_of_it(workshop: Workshop, kernels: Path) -> None:
    source = _source(workshop, "twice")
    assert compile_missing([source], workshop, BuildObserver()) == {}
    (entry,) = look_again([source], workshop).entries
    facts = entry.facts["gemmill_twice_kernel"]
    assert facts.registers > 0 and facts.spill_bytes == 0 and facts.code_bytes >= 128
    assert entry.cpu_seconds > 0.1 and entry.peak_memory_bytes > 10 << 20
    assert workshop.cache.object_path(entry).read_bytes()[:4] == b"\x7fELF"
    (kernels / "scale.h").write_text("constexpr float kScale = 5.0f;\n")
    later = open_workshop(Arch.SM90A, workshop.options)
    changed = _source(later, "twice")
    assert later.cache.lookup([changed]).missing == (changed,), "the header's code is not in the key"


def test_wrong_source(workshop: Workshop) -> None:
    source = _source(workshop, "wrong", body="nothing();")
    with pytest.raises(BuildError) as caught:
        compile_missing([source], workshop, BuildObserver())
    assert (
        str(caught.value)
        == 'kernels/quant/wrong.cu does not compile: quant/wrong.cu(4): error: identifier "nothing" is undefined'
    )
