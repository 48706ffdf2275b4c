"""Builds that cannot be used: each is refused with a sentence, and the ops stay as they were."""

import os
import shutil
import textwrap
from pathlib import Path

import pytest
import torch

import gemmill
from gemmill.manifest import Manifest, ManifestError, reading
from gemmill.runtime import builds, library, ops
from gemmill.runtime.schemas import OPS
from interpreters import run_script

BUILD = "0123abcd4567"


@pytest.fixture
def refused(monkeypatch):
    """The sentence with which a build is refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def load(build: str | Path | None = None) -> str:
        before = (ops._active, dict(ops._loaded), dict(ops._served))
        with pytest.raises(ManifestError) as caught:
            gemmill.load(build)
        assert (ops._active, ops._loaded, ops._served) == before
        return str(caught.value)

    return load


def on_gpu(monkeypatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def test_no_build_at_all(refused, home) -> None:
    assert refused() == f"no build of gemmill in {home}: run `gemmill build`, or name one with GEMMILL_BUILD"
    assert not home.exists(), "a folder was made"


def test_unknown_build(refused, put_build, monkeypatch) -> None:
    put_build()
    expected = f"no build 'nosuch': it is not the id of one of the builds here ({BUILD}); a folder is named by a path, as ./nosuch"
    assert refused("nosuch") == expected
    monkeypatch.setenv("GEMMILL_BUILD", "nosuch")
    assert refused() == expected


def test_extension_that_is_not_the_manifests(refused, put_build, home) -> None:
    manifest = put_build(content=b"whole extension")
    extension = home / "builds" / BUILD / manifest.extension
    for content in (b"whole exte", b"other extension", b""):  # cut short, changed, emptied
        extension.write_bytes(content)
        message = refused()
        assert message.startswith(f"the extension {extension} is not the one in its manifest: SHA-256 ")
        assert f", expected {manifest.extension_sha256[:12]}; " in message
        assert message.endswith("it was changed or cut short, run `gemmill build`")
    extension.unlink()
    assert refused() == f"the extension {extension} cannot be read (No such file or directory): run `gemmill build`"


def test_extension_that_is_no_library(refused, put_build, home) -> None:
    manifest = put_build(content=b"no ELF file")
    extension = home / "builds" / BUILD / manifest.extension
    message = refused()
    assert message.startswith(f"the extension {extension} cannot be loaded (")
    assert message.endswith("): `gemmill doctor` says what it lacks")


def test_an_id_is_never_a_folder_that_lies_about(refused, put_build, home, monkeypatch, tmp_path) -> None:
    """A build's name never means a file of that name in the working folder."""
    put_build()
    for name in (BUILD, "mine"):
        shutil.copytree(home / "builds" / BUILD, tmp_path / "here" / name)
    monkeypatch.chdir(tmp_path / "here")
    assert builds.resolve(BUILD) == home / "builds" / BUILD
    assert refused("mine").startswith("no build 'mine': it is not the id of one of the builds here (")
    for path in ("./mine", str(tmp_path / "here" / "mine"), Path("mine")):
        assert builds.resolve(path) == tmp_path / "here" / "mine"
    assert refused("./other") == "no build at ./other: it is no folder with a manifest.json"


@pytest.mark.parametrize("what", ["folder", "manifest", "extension"])
def test_what_others_can_write_is_not_loaded(what: str, refused, put_build, home, monkeypatch) -> None:
    manifest = put_build()
    folder = home / "builds" / BUILD
    path = {"folder": folder, "manifest": folder / "manifest.json", "extension": folder / manifest.extension}[what]
    path.chmod(0o777)
    sentence = (
        f"{path} can be written by every user, and its code would run here: `chmod o-w {path}`, "
        "or set GEMMILL_SHARED_HOME=1 to trust them"
    )
    assert refused(BUILD) == sentence
    assert sentence in refused()
    monkeypatch.setenv("GEMMILL_SHARED_HOME", "1")
    assert "cannot be loaded" in refused(BUILD), "it holds no code: it was read"


def test_a_build_of_others_does_not_hide_the_good_ones(put_build, home) -> None:
    age(home, put_build(build_id="good"), 1_000_000)
    put_build(build_id="bad")
    (home / "builds" / "bad").chmod(0o777)
    (home / "builds" / "gone").mkdir()
    (home / "builds" / "gone" / "manifest.json").symlink_to(home / "nowhere")
    assert builds.newest("sm90a")[1].build_id == "good"


def test_reading_ahead_touches_no_gpu_and_leaves_a_load_less_to_do(refused, put_build, monkeypatch) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("a GPU was asked for")

    put_build()
    read, loaded = [], dict(ops._loaded)
    of_data = reading._manifest_of
    monkeypatch.setattr(reading, "_manifest_of", lambda *given: read.append(given) or of_data(*given))
    with monkeypatch.context() as patch:
        for name in ("is_available", "get_device_capability", "get_device_name", "current_device"):
            patch.setattr(torch.cuda, name, touched)
        ops.read_ahead()
        monkeypatch.setenv("GEMMILL_BUILD", BUILD)
        ops.read_ahead()
    assert "cannot be loaded" in refused() and len(read) == 1 and ops._loaded == loaded
    monkeypatch.setenv("GEMMILL_BUILD", "nosuch")
    with pytest.raises(ManifestError, match="no build 'nosuch'"):
        ops.read_ahead()


def test_what_is_loaded_is_what_was_checked(refused, put_build, home, monkeypatch) -> None:
    """Whoever puts another file in its place after it was hashed is too late."""
    manifest = put_build(content=b"as it was built")
    path, loaded = home / "builds" / BUILD / manifest.extension, []

    def load(name: str, **_: object) -> None:
        (home / "other").write_bytes(b"another")
        (home / "other").replace(path)
        loaded.append(Path(name).read_bytes())
        raise OSError(f"{name}: invalid ELF header")

    monkeypatch.setattr(library.ctypes, "CDLL", load)
    reason = f"{path.name}: invalid ELF header"
    assert refused(BUILD) == f"the extension {path} cannot be loaded ({reason}): `gemmill doctor` says what it lacks"
    assert loaded == [b"as it was built"]


def test_a_home_that_cannot_be_looked_into(refused, home, monkeypatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    (home / "builds").mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert refused() == f"cannot look for builds in {home} (Permission denied): name another folder with GEMMILL_HOME"


def test_truncated_manifest(refused, put_build, home) -> None:
    put_build()
    path = home / "builds" / BUILD / "manifest.json"
    path.write_text(path.read_text()[:-100])
    expected = f"{path} is not a readable manifest ("
    assert refused(BUILD).startswith(expected)
    message = refused()
    assert message.startswith(f"no build of gemmill in {home} ({expected}") and "run `gemmill build`" in message


@pytest.mark.parametrize("version", ["2.10.3", "2.9.0+cu128", "1.13.1"])
def test_torch_that_is_too_old(version: str, refused, put_build, monkeypatch) -> None:
    put_build()
    monkeypatch.setattr(torch, "__version__", version)
    assert refused() == (f"build {BUILD} needs torch 2.11 or later, torch {version} is installed: upgrade torch")


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0", "3.0.0a0+git1234"])
def test_torch_that_is_new_enough(version: str, make_manifest, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    library._check_torch(make_manifest())


def test_build_for_another_gpu(refused, put_build, home, monkeypatch) -> None:
    put_build(arch="sm100a")
    on_gpu(monkeypatch, (9, 0))
    assert refused(BUILD) == (
        f"build {BUILD} is for sm100a, this GPU is sm90a: its kernels cannot run here; run `gemmill build --arch sm90a`"
    )
    assert refused() == (
        f"no build of gemmill for sm90a in {home} ({BUILD} is for sm100a): "
        "run `gemmill build`, or name one with GEMMILL_BUILD"
    )


def test_build_of_another_cuda_than_the_drivers(refused, put_build, monkeypatch) -> None:
    put_build()
    on_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(library, "driver_cuda", lambda: (12, 8))
    assert refused() == (
        f"build {BUILD} is of CUDA 13, the driver runs up to 12.8: upgrade the driver, or build with a CUDA 12 toolkit"
    )
    for fits in ((13, 0), (14, 1), None):
        monkeypatch.setattr(library, "driver_cuda", lambda: fits)  # noqa: B023
        assert "CUDA" not in refused()


@pytest.mark.parametrize(
    ("capability", "told"),
    [
        ((8, 0), "sm80a (A100)"),
        ((8, 9), "sm89a (L4, L40S and RTX 4090)"),
        ((10, 3), "sm103a (B300)"),
        ((13, 7), "sm137a"),
    ],
)
def test_a_gpu_that_no_build_is_made_for(
    capability: tuple[int, int], told: str, refused, put_build, monkeypatch
) -> None:
    why = (
        f"gemmill has no kernels for this GPU, {told}: it builds for sm90a (H100, H200 and GH200); sm100a (B200); sm120f (RTX 5090, "
        "RTX PRO 6000 and DGX Spark); an engine's plugin leaves all layers to the engine, and CPU tensors run the reference"
    )
    on_gpu(monkeypatch, capability)
    assert refused() == why
    put_build()
    assert refused(BUILD) == f"build {BUILD} is for sm90a: {why}"
    assert refused() == why


def age(home: Path, build: Manifest, seconds: float) -> None:
    path = home / "builds" / build.build_id / "manifest.json"
    os.utime(path, (seconds, seconds))


def test_newest_build_that_fits(put_build, home) -> None:
    for order, (build_id, arch) in enumerate([("old", "sm90a"), ("new", "sm90a"), ("other", "sm120f")]):
        age(home, put_build(build_id=build_id, arch=arch), 1_000_000 + order)
    assert [folder.name for folder in builds.find_builds()] == ["other", "new", "old"]
    assert builds.newest("sm90a")[1].build_id == "new"
    assert builds.newest(None)[1].build_id == "other"
    assert builds.resolve("old") == builds.resolve(home / "builds" / "old") == home / "builds" / "old"


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
def test_one_build_serves_the_capabilities_of_a_family(capability, put_build, refused, monkeypatch) -> None:
    put_build(build_id="of120", arch="sm120f")
    on_gpu(monkeypatch, capability)
    assert ops._found(None)[0].name == "of120"
    monkeypatch.setattr(library, "driver_cuda", lambda: (1, 0))
    assert refused("of120").startswith("build of120 is of CUDA 13"), "its architecture was not taken"


def test_folders_without_manifest_are_no_builds(put_build, home) -> None:
    put_build()
    (home / "builds" / "half").mkdir()
    assert [folder.name for folder in builds.find_builds()] == [BUILD]


def run_python(code: str, home: Path) -> str:
    """The output of a new interpreter that runs this code in an empty folder."""
    folder = home.parent / "empty"
    folder.mkdir()
    source = Path(gemmill.__file__).parent.parent
    environment = os.environ | {"GEMMILL_HOME": str(home), "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_script(textwrap.dedent(code), environment=environment, folder=folder)
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [] and not home.exists(), "import made files"
    return done.stdout


def test_import_makes_no_folder_and_touches_no_gpu(home) -> None:
    code = """
        import sys, torch
        def touched(*_): raise AssertionError("CUDA was initialised")
        torch.cuda._lazy_init = touched
        import gemmill
        assert not torch.cuda.is_initialized()
        assert not [name for name in sys.modules if name.split(".")[0] in ("jinja2", "typer", "rich", "ninja")]
        assert not [name for name in sys.modules if name.startswith(("gemmill.emit", "gemmill.build"))]
        from gemmill.runtime.schemas import OPS
        for op in OPS:
            print(getattr(torch.ops.gemmill, op.name).default._schema)
    """
    schemas = run_python(code, home).splitlines()
    assert schemas == [str(torch._C.parse_schema(f"gemmill::{op.schema}")) for op in OPS]


def test_a_fork_while_another_thread_loads_a_build(home) -> None:
    """The child loads one too: the fork waited, so it has all or nothing of the other thread's."""
    code = """
        import os, signal, threading, time
        from pathlib import Path
        import gemmill
        from gemmill.manifest import ManifestError
        from gemmill.runtime import builds, ops
        under_way, ended = threading.Event(), []
        class Slow:
            def __init__(self, folder, *_):
                under_way.set()
                time.sleep(0.5)
                ended.append(folder)
                raise ManifestError("slow")
        ops.Build, builds.resolve = Slow, Path
        def load():
            try:
                gemmill.load("a")
            except ManifestError as error:
                assert str(error) == "slow"
        thread = threading.Thread(target=load)
        thread.start()
        assert under_way.wait(60)
        if (child := os.fork()) == 0:
            signal.alarm(30)  # ends a child that hangs
            assert len(ended) == 1
            load()
            os._exit(len(ended))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        thread.join()
        load()
        assert len(ended) == 2
    """
    run_python(code, home)


def test_no_moment_without_kernels(home) -> None:
    """Loading a build, then another: the ops have kernels whenever one is put in or taken away, and nothing is warned of."""
    code = """
        import warnings
        from pathlib import Path
        import torch, gemmill
        from gemmill.runtime import builds, ops

        def missing():
            has = torch._C._dispatch_has_kernel_for_dispatch_key
            return [op.name for ns in ops._served for op in ops.BY_NAME.values() if not has(f"{ns}::{op.name}", "CUDA")]

        class Build:
            brought = ()
            def __init__(self, folder, *_):
                self.build_id = folder.name
            def assume_constant_weights(self, assumed):
                pass
            def register(self, namespace):
                library = torch.library.Library(namespace, "IMPL", "CUDA")
                for op in ops.BY_NAME.values():
                    library.impl(op.name, lambda *_: print(self.build_id), allow_override=True)
                seen.append(missing() if namespace in ops._served else [])
                return library
            def unregister(self, registration):
                registration._destroy()
                seen.append(missing())

        seen = []
        ops.Build, builds.resolve = Build, Path
        ops._arch_here = lambda: None
        ops.serve("other_names")
        warnings.simplefilter("error")
        for name in ("a", "b", "a"):
            gemmill.load(name)
            assert not missing() and not ops._bootstrap
            print(gemmill.active().build_id, len(seen))
        assert not any(seen), seen
    """
    assert run_python(code, home).splitlines() == ["a 3", "b 8", "a 12"]


def test_vllms_names(home) -> None:
    code = """
        import torch
        import gemmill.compat.vllm.ops
        from gemmill.runtime.schemas import OPS
        names = {op.name for op in OPS}
        for op in OPS:
            if f"vllm_{op.name}" not in names:
                print(str(getattr(torch.ops._C, op.name.removeprefix("vllm_")).default._schema).partition("(")[2])
        out = torch.zeros(2, 3, dtype=torch.bfloat16)
        a, b, one = torch.ones(2, 4, dtype=torch.int8), torch.ones(3, 4, dtype=torch.int8).t(), torch.ones(1)
        torch.ops._C.cutlass_scaled_mm(out, a, b, one, one, None)
        print(out.tolist())
        for query in ("scaled_mm_supports_fp8", "scaled_mm_supports_block_fp8", "group_gemm_supported"):
            print(*map(getattr(torch.ops._C, f"cutlass_{query}"), (89, 90, 100)))
    """
    names = {op.name for op in OPS}
    assert run_python(code, home).splitlines() == [
        *(str(torch._C.parse_schema(op.schema)).partition("(")[2] for op in OPS if f"vllm_{op.name}" not in names),
        "[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]",
        *["False False False"] * 3,
    ]


def test_under_vllms_name_int8_codes_of_groups_are_vllms(home) -> None:
    code = """
        import gemmill, torch
        import gemmill.compat.vllm.ops
        x = torch.tensor([[127.0, 1.6, -1.6, 0.9] * 16])
        for op in (torch.ops._C.per_token_group_quant_int8, torch.ops.gemmill.per_token_group_quant_int8):
            codes = torch.empty(1, 64, dtype=torch.int8)
            op(x, codes, torch.empty(1, 1), 64, 1e-10, -128.0, 127.0)
            print(codes[0, :4].tolist())
    """
    assert run_python(code, home).splitlines() == ["[127, 1, -1, 0]", "[127, 2, -2, 1]"]


@pytest.mark.parametrize("is_installed", [False, True])
def test_vllms_python_gives_its_fake_of_fp4_quantisation(is_installed: bool, home, tmp_path) -> None:
    """It asks the namespace, and names the op in full. The library that may come must be able to define it."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    if is_installed:
        (tmp_path / "vllm" / "_C_stable_libtorch.abi3.so").touch()
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        import gemmill.compat.vllm.ops
        print(torch._C._jit_get_operation("_C::scaled_fp4_quant")[0] is not None)
        library = torch.library.Library("_C", "FRAGMENT")
        if {is_installed}:
            library.define("scaled_fp4_quant(Tensor input, Tensor input_scale, bool swizzled) -> (Tensor, Tensor)")
        torch.library.register_fake("_C::scaled_fp4_quant", lambda *given: None, lib=library, allow_override=True)
        print([x.shape[0] for x in torch.ops._C.scaled_fp4_quant(torch.zeros(1, 64).bfloat16(), torch.ones(1), True)])
    """
    assert run_python(code, home).splitlines() == [str(not is_installed), "[1, 128]"]
