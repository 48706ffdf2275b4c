"""Machine code of the CuTe DSL's objects is linked compressed, by a stand-in for fatbinary."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmill.build.cubins import embedded_cubins, embedded_fatbins
from gemmill.build.driver import build
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.space.names import symbol_of

from .conftest import FakeToolkit
from .test_dsl_build import FakeDsl, Make, fake_dsl, make_both

__all__ = ["fake_dsl", "make_both"]

_FATBINARY = """\
import struct, sys
from pathlib import Path
told = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
with Path(__file__).with_name("asked").open("a") as asked:
    asked.write(told["ident"] + "\\n")
assert told["compress-mode"] == "size" and "-64" in sys.argv
kind, sm, file = (word.partition("=")[2] for word in told["image3"].split(","))
assert (kind, sm) == ("elf", "90a") and Path(file).read_bytes()[:4] == b"\\x7fELF"
body = b"packed " + told["ident"].encode()
Path(told["create"]).write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
"""


@pytest.fixture
def asked(toolkit: FakeToolkit, fake_dsl: FakeDsl) -> Iterator[Path]:
    """A DSL whose objects can be compressed, and the file with a line for each compressed one."""
    fake_dsl.set("wrapped")
    path = toolkit.home / "bin" / "fatbinary"
    path.write_text(f"#!{sys.executable}\n{_FATBINARY}")
    path.chmod(0o755)
    return path.with_name("asked")


def _extension(result: BuildResult) -> bytes:
    return (result.folder / result.manifest.extension).read_bytes()


def test_code_is_compressed_once(asked: Path, options: BuildOptions, make_both: Make) -> None:
    first, kernel = make_both(64), symbol_of(make_both(64).configs[1])
    held = _extension(build(first, options))
    assert list(embedded_cubins(held)) == [], "none is left as it was"
    assert [fatbin[16:].decode() for fatbin in embedded_fatbins(held)] == [f"packed {kernel}_kernel"]
    result = build(make_both(64, 128), options)
    assert len(asked.read_text().split()) == 2, "one for each kernel, kept in the cache"
    assert len(list(embedded_fatbins(_extension(result)))) == 2
    assert [entry.registers for entry in result.manifest.entries] == [168] * 3, "what was read of the code before"


def test_one_that_was_damaged_is_made_again(asked: Path, options: BuildOptions, make_both: Make) -> None:
    build(make_both(64), options)
    for path in options.home_dir.glob("cache/objects/*/object.o"):
        if b"packed " in path.read_bytes():
            path.write_bytes(path.read_bytes()[:-1])
    assert len(list(embedded_fatbins(_extension(build(make_both(64, 128), options))))) == 2
    assert len(asked.read_text().split()) == 3


def test_code_that_is_not_alone_in_its_section_stays(
    asked: Path, fake_dsl: FakeDsl, options: BuildOptions, make_both: Make
) -> None:
    fake_dsl.set("wrapped", "a constant")
    assert len(list(embedded_cubins(_extension(build(make_both(64), options))))) == 1
    assert not asked.exists()


def test_a_program_that_fails_is_named(asked: Path, options: BuildOptions, make_both: Make) -> None:
    program = asked.with_name("fatbinary")
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no room\\nmore')\n")
    with pytest.raises(BuildError) as caught:
        build(make_both(64), options)
    assert str(caught.value) == f"{program} failed: no room"
    program.unlink()
    with pytest.raises(BuildError) as caught:
        build(make_both(64), options)
    assert str(caught.value) == (
        f"cannot run {program} (No such file or directory): reinstall it, or name a toolkit with GEMMILL_CUDA_HOME"
    )
    assert not list(options.home_dir.glob("work/*")), "nothing half-made is left"
