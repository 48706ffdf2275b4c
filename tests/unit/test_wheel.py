"""The wheel: contents, metadata, refusals, and that it runs alone."""

import base64
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gemmill import __version__
from gemmill.doctor import examine_builds
from gemmill.doctor.elf import Library, read_library
from gemmill.manifest import ManifestError
from gemmill.registry import REGISTRY
from gemmill.runtime import builds
from gemmill.space.filters import apply
from gemmill.space.selections import select
from gemmill.vocab import Backend, Compiler
from gemmill.wheel import Abi, WheelError, abi, package
from gemmill.wheel.abi import audit

ROOT = Path(__file__).parents[2]
FITS = Library(
    needed=("libtorch_cpu.so", "libstdc++.so.6", "libc.so.6"),
    required=frozenset({"aoti_torch_empty_strided", "memcpy", "_Znwm"}),
    optional=frozenset({"_ZN5torch8autograd3fooEv"}),
    machine="EM_X86_64",
    versions=frozenset({"GLIBC_2.34", "GLIBC_2.2.5", "GLIBCXX_3.4.21", "CXXABI_1.3.9"}),
)

ABI = Abi(machine="x86_64", glibc=(2, 34))


def audited(monkeypatch, **changes: object) -> Abi:
    monkeypatch.setattr(abi, "read_library", lambda path: replace(FITS, **changes))
    return audit(Path("x.so"))


def test_the_tag_names_the_oldest_machine(monkeypatch) -> None:
    assert audited(monkeypatch).tag == "py3-none-manylinux_2_34_x86_64"
    assert audited(monkeypatch, versions=frozenset({"GLIBC_2.17"}), machine="EM_AARCH64").tag == (
        "py3-none-manylinux_2_28_aarch64"
    )
    assert audited(monkeypatch, versions=frozenset({"GLIBC_2.28", "GLIBCXX_3.4.30"})).glibc == (2, 35)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"needed": ("libcudart.so.13", "libc.so.6", "libtorch.so")},
            "x.so needs libcudart.so.13, which neither torch nor every Linux has: link without, and build again",
        ),
        (
            {"required": frozenset({"_ZN3c105ErrorC1Ev", "_ZNK2at6Tensor3fooEv", "_ZN2at3barEv"})},
            "x.so needs _ZN2at3barEv and 2 more of torch's C++ interface, which differs between releases: use the stable one, "
            "and build again",
        ),
        ({"machine": "EM_ARM"}, "x.so is for ELF machine EM_ARM: wheels are for x86_64, aarch64"),
        (
            {"versions": frozenset({"GLIBCXX_3.4.99"})},
            "a symbol of GLIBCXX_3.4.99 is needed, of a C++ library later than GLIBCXX_3.4.33: build with g++ 14 or earlier",
        ),
    ],
)
def test_what_asks_for_more_is_refused(monkeypatch, changes, sentence) -> None:
    with pytest.raises(WheelError) as caught:
        audited(monkeypatch, **changes)
    assert str(caught.value) == sentence


def test_what_is_no_library_is_refused(tmp_path) -> None:
    (tmp_path / "x.so").write_bytes(b"no ELF")
    with pytest.raises(WheelError, match=r"x.so cannot be audited \(.*\): build again with `gemmill build`$"):
        audit(tmp_path / "x.so")


def test_versions_and_machine_are_read_from_the_file() -> None:
    library = read_library(Path(torch.__file__).parent / "lib" / "libc10.so")
    assert library.machine in ("EM_X86_64", "EM_AARCH64")
    assert {"GLIBC_2.17" if library.machine == "EM_AARCH64" else "GLIBC_2.2.5", "GLIBCXX_3.4"} <= library.versions
    assert all(version.partition("_")[0] in ("GLIBC", "GLIBCXX", "CXXABI", "GCC") for version in library.versions)


@pytest.fixture
def fits(monkeypatch) -> None:
    monkeypatch.setattr(package, "audit", lambda path: ABI)


@pytest.fixture
def written(gemmill, put_build, fits, tmp_path) -> Path:
    put_build(build_id="hopper")
    put_build(build_id="blackwell", arch="sm100a")
    outcome = gemmill("wheel", "--experimental", "--out", tmp_path / "dist")
    (path,) = (tmp_path / "dist").iterdir()
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{path} (") and outcome.out.endswith("): hopper for sm90a, blackwell for sm100a\n")
    return path


def test_contents(written, home) -> None:
    assert written.name == "gemmill-0.1.0+cu13-py3-none-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(written) as archive:
        names = archive.namelist()
        files = {name: archive.read(name) for name in names}
    info = "gemmill-0.1.0+cu13.dist-info"
    assert len(set(names)) == len(names) and names[-1] == f"{info}/RECORD"
    assert {
        "gemmill/build/driver.py",
        "gemmill/tuner/program.py",
        "gemmill/_data/templates/export/build.sh.jinja",
    } <= files.keys()
    assert {"gemmill/_data/kernels/core/abi.h", "gemmill/_data/pyproject.toml"} <= files.keys()
    assert not [name for name in names if "__pycache__" in name]
    assert "gemmill/runtime/tables/nvidia-h200.json" in names and "gemmill/py.typed" in names
    for build in ("hopper", "blackwell"):
        for file in (home / "builds" / build).iterdir():
            assert files[f"gemmill/_builds/{build}/{file.name}"] == file.read_bytes()
    for name in ("LICENSE", "NOTICE", "THIRD_PARTY.md"):
        assert files[f"{info}/licenses/{name}"] == (ROOT / name).read_bytes()
    assert b"\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_34_x86_64\n" in files[f"{info}/WHEEL"]
    assert files[f"{info}/entry_points.txt"].decode().split("\n\n") == [
        "[console_scripts]\ngemmill = gemmill.cli:main\n".strip(),
        "[vllm.general_plugins]\ngemmill = gemmill.compat.vllm.plugin:register",
        "[sglang.srt.plugins]\ngemmill = gemmill.compat.sglang.plugin:register\n",
    ]
    metadata = email.message_from_bytes(files[f"{info}/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("gemmill", "0.1.0+cu13")
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit"
    assert "Private :: Do Not Upload" not in metadata.get_all("Classifier")
    assert metadata.get_all("Requires-Dist")[0] == "torch>=2.11"
    assert "Homepage, https://" in metadata.get_all("Project-URL")[0] and "](docs/" not in metadata.get_payload()
    assert {"cli", "tune", "toolchain"} <= set(metadata.get_all("Provides-Extra"))
    assert "nvidia-ml-py>=12; extra == 'tune'" in metadata.get_all("Requires-Dist")
    for line in files[f"{info}/RECORD"].decode().splitlines()[:-1]:
        name, digest, size = line.rsplit(",", 2)
        found = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={found}", len(files[name]))


def test_the_same_builds_give_the_same_bytes(written, gemmill) -> None:
    before = written.read_bytes()
    gemmill("wheel", "--experimental", "--out", written.parent)
    assert written.read_bytes() == before and len(list(written.parent.iterdir())) == 1


def test_it_runs_alone(written, tmp_path) -> None:
    """In an empty folder without a home: the reference on the CPU, the shipped builds, and verbs that read templates."""
    site = tmp_path / "site"
    with zipfile.ZipFile(written) as archive:
        archive.extractall(site)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEMMILL_")}
    environment |= {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "none"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site, check=False)

    readme = (ROOT / "README.md").read_text()
    example = readme[readme.index("import gemmill\nimport torch") : readme.index("torch.bfloat16)\n```") + 15]
    done = run("-c", example.replace("8192", "64") + "\nprint(out.shape, gemmill.__file__)")
    assert (done.stdout, done.stderr) == (f"torch.Size([16, 64]) {site}/gemmill/__init__.py\n", "")
    listed = run("-m", "gemmill", "builds", "list", "--json")
    assert listed.stdout.count('"serves": true') == 2, listed.stderr
    name = "sm90a_quant_rmstoken_bf16_e4m3_none_f32_sym"
    made = run("-m", "gemmill", "generate", "--filter", name, "--out", str(tmp_path / "sources"))
    assert made.returncode == 0, made.stderr
    (source,) = (tmp_path / "sources").rglob("*.cu")
    assert source.read_bytes() == (ROOT / "emitted" / "sm90a" / "quant" / f"{name}.cu").read_bytes()
    assert not (tmp_path / "none").exists()


def test_a_package_of_kernels(gemmill, put_build, fits, home, tmp_path) -> None:
    """Of gemmill's version, with the build alone, which an entry point names."""
    put_build(build_id="hopper")
    put_build(build_id="blackwell", arch="sm100a")
    outcome = gemmill("wheel", "--kernels", "--experimental", "--out", tmp_path)
    names = [f"gemmill_{arch}_cu13-{__version__}-py3-none-manylinux_2_34_x86_64.whl" for arch in ("sm90a", "sm100a")]
    assert (outcome.code, sorted(names)) == (0, sorted(path.name for path in tmp_path.glob("*.whl")))
    assert [line.partition(" ")[0] for line in outcome.out.splitlines()] == [f"{tmp_path}/{name}" for name in names]
    with zipfile.ZipFile(tmp_path / names[0]) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    info = f"gemmill_sm90a_cu13-{__version__}.dist-info"
    assert {name for name in files if not name.startswith(info)} == {
        "gemmill_sm90a_cu13/__init__.py",
        *(f"gemmill_sm90a_cu13/builds/hopper/{path.name}" for path in (home / "builds" / "hopper").iterdir()),
    }
    assert files[f"{info}/entry_points.txt"].decode() == "[gemmill.builds]\nsm90a-cu13 = gemmill_sm90a_cu13\n"
    metadata = email.message_from_bytes(files[f"{info}/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("gemmill-sm90a-cu13", __version__)
    assert metadata.get_all("Requires-Dist") == [f"gemmill=={__version__}", "torch>=2.11"]
    assert metadata.get_all("Provides-Extra") is None


@pytest.fixture
def installed(gemmill, put_build, fits, home, tmp_path, monkeypatch) -> Path:
    """A folder of sys.path with a package of kernels; nothing is left in the home."""
    put_build(build_id="hopper")
    gemmill("wheel", "--kernels", "--out", tmp_path)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    shutil.rmtree(home)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def test_an_installed_package_of_kernels_serves(installed, home) -> None:
    folder, manifest = builds.serving("sm90a")
    assert (folder, manifest.build_id) == (installed / "gemmill_sm90a_cu13" / "builds" / "hopper", "hopper")
    assert builds.find_builds() == [folder]
    builds.use(folder)
    assert builds.serving("sm90a")[0] == folder
    with pytest.raises(ManifestError) as caught:
        builds.remove(folder)
    assert str(caught.value) == (
        "build hopper is part of an installed package: `pip uninstall gemmill-sm90a-cu13` removes it"
    )


def test_a_package_of_kernels_of_another_version(gemmill, installed, put_build, monkeypatch) -> None:
    (info,) = installed.glob("*.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gemmill-sm90a-cu13\nVersion: 0.0.9\n")
    sentence = (
        f"gemmill-sm90a-cu13 0.0.9 belongs to gemmill 0.0.9, and gemmill {__version__} is installed: "
        f"`pip install gemmill==0.0.9`, or install gemmill-sm90a-cu13 {__version__}"
    )
    for arch in ("sm90a", None):
        with pytest.raises(ManifestError) as caught:
            builds.serving(arch)
        assert str(caught.value) == sentence
    assert gemmill("builds", "list").err == f"gemmill: {sentence}\n"
    assert [(finding.subject, finding.found) for finding in examine_builds()] == [("build", sentence)]
    put_build(build_id="own")
    assert builds.serving("sm90a")[1].build_id == "own", "a build of one's own serves all the same"


def test_kernels_that_no_gpu_has_run_stay(gemmill, put_build, fits, tmp_path) -> None:
    put_build(build_id="blackwell", arch="sm100a")
    sentence = (
        "gemmill: no GPU has run the kernels of blackwell for sm100a: add --experimental to ship them all the same\n"
    )
    for arguments in (("wheel",), ("wheel", "blackwell"), ("wheel", "--kernels", "blackwell"), ("export", "--hub")):
        outcome = gemmill(*arguments, "--out", tmp_path / "dist")
        assert (outcome.code, outcome.out, outcome.err) == (2, "", sentence) and not (tmp_path / "dist").exists()
    put_build(build_id="hopper")
    outcome = gemmill("wheel", "--out", tmp_path / "dist")
    assert outcome.code == 0 and outcome.out.endswith("): hopper for sm90a\n")
    assert outcome.err == (
        "gemmill: left out: blackwell for sm100a, whose kernels no GPU has run; --experimental adds them\n"
    )


def test_what_does_not_go_together(gemmill, put_build, fits, monkeypatch, tmp_path) -> None:
    toolchain = put_build(build_id="one").toolchain
    put_build(build_id="two")
    put_build(build_id="old", arch="sm100a", toolchain=replace(toolchain, cuda_major=12))

    def refused(*named: str) -> str:
        outcome = gemmill("wheel", *named, "--experimental", "--out", tmp_path / "dist")
        assert (outcome.code, outcome.out) == (3, "")
        return outcome.err

    assert refused("one", "two") == (
        "gemmill: builds one and two are both for sm90a: a wheel has one for each architecture, name one of them\n"
    )
    assert refused("one", "old") == (
        "gemmill: the builds are of several CUDA releases (old of CUDA 12, one of CUDA 13): build all with one toolkit\n"
    )
    other = iter(["x86_64", "aarch64"])
    monkeypatch.setattr(package, "audit", lambda path: Abi(machine=next(other), glibc=(2, 34)))
    put_build(build_id="new", arch="sm120f")
    assert refused("one", "new") == (
        "gemmill: the builds are for several machines (aarch64, x86_64): make a wheel for each\n"
    )
    assert not (tmp_path / "dist").exists()


def test_an_extension_that_was_tampered_with_is_not_shipped(gemmill, put_build, home, tmp_path) -> None:
    manifest = put_build()
    (home / "builds" / manifest.build_id / manifest.extension).write_bytes(b"changed")
    outcome = gemmill("wheel", "--out", tmp_path / "dist")
    assert outcome.code == 3 and "is not the one in its manifest: SHA-256 " in outcome.err
    with pytest.raises(WheelError, match=r"^no build is named: `gemmill build` makes one, `gemmill builds list` lists"):
        package.write_wheel([], tmp_path)


def test_no_build_at_all(gemmill, home) -> None:
    assert gemmill("wheel").err.startswith(f"gemmill: no build of gemmill in {home}: run `gemmill build`")
    assert not builds.find_builds()


def test_the_filter_of_third_party_leaves_no_variant_of_the_cute_dsl() -> None:
    (pattern,) = re.findall(r"gemmill build --filter (\S+)", (ROOT / "THIRD_PARTY.md").read_text())
    compilers = {REGISTRY.kernels_of(config).compiler for config in apply(select("default"), [pattern]).configs}
    assert compilers == {Compiler.NVCC}


def test_a_wheel_with_variants_of_the_cute_dsl_is_private(gemmill, put_build, fits, make_config, tmp_path) -> None:
    """Their terms do not let it be given on: the verb says so, and an index refuses the upload."""
    put_build(make_config(), make_config(backend=Backend.CUTEDSL))
    outcome = gemmill("wheel", "--out", tmp_path)
    assert outcome.code == 0
    assert outcome.err == (
        "gemmill: it has 1 variant of the CuTe DSL, whose licence names no library that may be distributed: read THIRD_PARTY.md "
        "before you give it to others\n"
    )
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        metadata = email.message_from_bytes(archive.read("gemmill-0.1.0+cu13.dist-info/METADATA"))
    assert metadata["License-Expression"].endswith(" AND LicenseRef-NVIDIA-CUTLASS-DSL")
    assert "Private :: Do Not Upload" in metadata.get_all("Classifier")
