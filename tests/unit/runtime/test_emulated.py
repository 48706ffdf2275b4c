"""Builds whose machine code emulates another architecture: they serve where they are named, on the GPUs that run them, and nowhere else."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import gemmill
from gemmill.build.options import BuildOptions
from gemmill.build.sources import flags_for
from gemmill.build.workshop import BuildError, keys_for, open_workshop
from gemmill.manifest import EMULATION, Manifest, ManifestError
from gemmill.numerics import verify
from gemmill.runtime import builds
from gemmill.vocab import Arch, arch_of
from gemmill.wheel.package import WheelError, read_builds

BUILD = "0123abcd4567"
ONLY_NAMED = f"build {BUILD} is for sm120f, emulated on sm90a, so it never serves by itself: name it with GEMMILL_BUILD={BUILD} or --build {BUILD}"


@pytest.fixture
def emulated(put_build, make_manifest) -> Manifest:
    """A build for sm120f that emulates, the only one there is."""
    toolchain = dataclasses.replace(make_manifest().toolchain, flags=(EMULATION,))
    return put_build(arch="sm120f", toolchain=toolchain)


def sentence(call, *arguments, **options) -> str:
    with pytest.raises(ManifestError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def test_a_manifest_says_what_it_is(emulated, make_manifest) -> None:
    assert (emulated.is_emulated, emulated.runs_on, emulated.made_for) == (True, "sm90a", "sm120f, emulated on sm90a")
    plain = make_manifest(arch="sm120f")
    assert (plain.is_emulated, plain.runs_on, plain.made_for) == (False, "sm120f", "sm120f")


@pytest.mark.parametrize("arch", ["sm120f", None])
def test_it_never_serves_by_itself(emulated, home: Path, arch: str | None) -> None:
    wanted = f" for {arch}" if arch else ""
    assert sentence(builds.serving, arch) == (
        f"no build of gemmill{wanted} in {home} ({BUILD} is for sm120f, emulated on sm90a): "
        "run `gemmill build`, or name one with GEMMILL_BUILD"
    )


def test_it_cannot_be_made_current(emulated, home: Path, gemmill) -> None:
    folder = home / "builds" / BUILD
    assert sentence(builds.use, folder) == ONLY_NAMED
    for wanted in (None, True):
        assert builds.settle(folder, emulated, None, filtered=False, wanted=wanted, home=home) == ONLY_NAMED
    assert not (home / "current").exists()
    (home / "current").mkdir()
    (home / "current" / "sm120f").write_text(f"{BUILD}\n")
    assert sentence(builds.serving, "sm120f") == ONLY_NAMED
    outcome = gemmill("builds", "use", BUILD)
    assert (outcome.code, outcome.err) == (3, f"gemmill: {ONLY_NAMED}\n")


def test_it_is_listed_as_emulated(emulated, gemmill) -> None:
    assert gemmill("builds", "list").out.splitlines()[4].split()[-1] == "emulated"
    (told,) = json.loads(gemmill("builds", "list", "--json").out)
    assert (told["emulated"], told["serves"], told["arch"]) == (True, False, "sm120f")


def test_one_that_is_no_emulation_serves_beside_it(emulated, put_build) -> None:
    put_build(arch="sm120f", build_id="real")
    assert builds.serving("sm120f")[1].build_id == "real"


def test_it_is_loaded_where_it_is_named_on_hopper(emulated, monkeypatch) -> None:
    """The next thing that is looked at is the driver, which is not there: so the architecture was taken."""
    on_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr("gemmill.runtime.library.driver_cuda", lambda: (1, 0))
    assert sentence(gemmill.load, BUILD).startswith(f"build {BUILD} is of CUDA 13, the driver runs up to 1.0: ")
    monkeypatch.setenv("GEMMILL_BUILD", BUILD)
    assert sentence(gemmill.load).startswith(f"build {BUILD} is of CUDA 13")
    monkeypatch.delenv("GEMMILL_BUILD")
    assert sentence(gemmill.load).startswith("no build of gemmill for sm90a in ")


@pytest.mark.parametrize("capability", [(10, 0), (12, 0), (12, 1)])
def test_other_gpus_do_not_run_it(emulated, monkeypatch, capability: tuple[int, int]) -> None:
    """Not even the one that it emulates."""
    on_gpu(monkeypatch, capability)
    arch = arch_of(capability)
    assert sentence(gemmill.load, BUILD) == (
        f"build {BUILD} is for sm120f, emulated on sm90a, this GPU is {arch}: its kernels cannot run here; "
        f"run `gemmill build --arch {arch}`"
    )


def test_verify_says_so_on_other_gpus(emulated, monkeypatch, gemmill) -> None:
    on_gpu(monkeypatch, (12, 0))
    outcome = gemmill("verify", "--build", BUILD)
    assert (outcome.code, outcome.err) == (
        3,
        f"gemmill: build {BUILD} is for sm120f, emulated on sm90a, this GPU is sm120f: its kernels cannot run here; "
        "run `gemmill build --arch sm120f`\n",
    )


def test_a_gpu_without_kernels_is_told_so(emulated, monkeypatch) -> None:
    on_gpu(monkeypatch, (8, 0))
    told = sentence(gemmill.load, BUILD)
    assert told.startswith(f"build {BUILD} is for sm120f, emulated on sm90a: gemmill has no kernels for this GPU, ")
    assert "\n" not in told


def test_verify_runs_its_variants_on_hopper_alone(emulated, monkeypatch) -> None:
    class Loaded:
        manifest = emulated

    for capability, count in (((9, 0), len(emulated.entries)), ((12, 0), 0)):
        on_gpu(monkeypatch, capability)
        monkeypatch.setattr(verify, "use_variant", lambda name: torch.no_grad())
        monkeypatch.setattr(verify, "verdict", lambda name, cases, device: name)
        assert len(list(verify.verify_variants(Loaded()))) == count  # type: ignore[arg-type]


def test_its_times_are_not_taken_and_it_is_not_shipped(emulated, gemmill, home: Path) -> None:
    said = f"gemmill: build {BUILD} is for sm120f, emulated on sm90a: its times say nothing of sm120f, name another build with --build\n"
    outcome = gemmill("time", "-m", "16", "-n", "256", "-k", "256", "--build", BUILD)
    assert (outcome.code, outcome.err) == (2, said)
    with pytest.raises(WheelError) as caught:
        read_builds([home / "builds" / BUILD])
    assert str(caught.value) == (
        f"build {BUILD} is for sm120f, emulated on sm90a, to be tested with: it is not shipped, leave it out"
    )


def test_flags_of_an_emulated_build() -> None:
    plain, flags = flags_for(Arch.SM120F), flags_for(Arch.SM120F, emulate=True)
    assert (
        "-gencode=arch=compute_90a,code=sm_90a" in flags.cuda
        and "-gencode=arch=compute_120f,code=sm_120f" in plain.cuda
    )
    assert EMULATION in flags.cuda and EMULATION in flags.host and EMULATION not in (*plain.cuda, *plain.host)
    headers = flags.cuda.index("-I<gemmill>/emulation/include")
    assert headers < flags.cuda.index("-isystem=<cutlass>"), "CUTLASS's header is found first"
    assert "-DCUTLASS_ENABLE_GDC_FOR_SM90=1" not in flags.cuda
    assert {"-DCUTLASS_GDC_ENABLED=1"} <= set(flags.cuda) & set(plain.cuda), (
        "kernels begin while others end, and wait for them"
    )
    assert flags_for(Arch.SM90A, emulate=True) == flags_for(Arch.SM90A)
    assert keys_for(Arch.SM120F, BuildOptions(emulate=True)).flags == flags


CANNOT = "{} cannot be emulated: only sm120f on sm90a can be; leave --emulate out, or name --arch sm120f"


@pytest.mark.parametrize("arch", ["sm90a", "sm100a"])
def test_architectures_that_cannot_be_emulated(arch: str, gemmill, home: Path) -> None:
    outcome = gemmill("build", "--arch", arch, "--emulate")
    assert (outcome.code, outcome.err) == (2, f"gemmill: {CANNOT.format(arch)}\n")
    with pytest.raises(BuildError) as caught:
        open_workshop(Arch(arch), BuildOptions(home=home, emulate=True))
    assert str(caught.value) == CANNOT.format(arch)


def test_an_emulated_build_is_not_made_to_serve(gemmill) -> None:
    outcome = gemmill("build", "--arch", "sm120f", "--emulate", "--use")
    said = "gemmill: --use with --emulate: an emulated build serves only where it is named, leave --use out\n"
    assert (outcome.code, outcome.err) == (2, said)
