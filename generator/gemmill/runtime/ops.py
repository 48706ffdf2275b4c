"""The torch ops: schemas, fakes, the CPU reference, and, from the first loaded build on, CUDA kernels."""

import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gemmill import settings
from gemmill.family import Config, Family, Op
from gemmill.manifest import KernelEntry, Manifest
from gemmill.registry import REGISTRY
from gemmill.runtime import agreement, builds, checks, handing, operands
from gemmill.runtime.around import Around, Wrapper
from gemmill.runtime.asking import given_to
from gemmill.runtime.chosen import ChoiceLog, Chosen, chosen_in
from gemmill.runtime.dumps import Dumps
from gemmill.runtime.invariance import order_of
from gemmill.runtime.library import Build
from gemmill.runtime.misses import MissFile
from gemmill.runtime.noted import Listener, Notes
from gemmill.runtime.notices import show_choices
from gemmill.runtime.on_cpu import allocated, by_reference, returned
from gemmill.runtime.ranges import Ranges
from gemmill.runtime.schemas import BY_NAME, NAMESPACE, OpSchema
from gemmill.runtime.schemas import add as add_schema
from gemmill.runtime.select import Choice
from gemmill.runtime.tuned import Machine, load_tuned
from gemmill.space.names import alias_of, current_name, is_alias
from gemmill.vocab import Arch, DType, arch_of

_lock = threading.RLock()
# A fork waits until no other thread loads a build: the child would have the half of one, and a lock that nobody gives back.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_loaded: dict[Path, Build] = {}
_active: Build | None = None
_constant_weights = settings.constant_weights()
_notes: Notes | None = None
_around: list[Around] = []
_dumps: Dumps | None = None
_served: dict[str, int | None] = {}
"""Namespaces whose ops have the active build's kernels, with its registration; None while there is no active build."""
_libraries: list[torch.library.Library] = []
_bootstrap: list[torch.library.Library] = []
"""The target of CUDA calls until the first build is loaded."""


def load(build: str | Path | None = None) -> Build:
    """Load a build and give the ops its kernels.

    `build` is a build id or a folder. None means the one that GEMMILL_BUILD names, else the current one for this GPU
    (`gemmill builds`), else the newest.

    Builds loaded earlier stay in the process, with their ops under `torch.ops.gemmill_<build id>`. Raises ManifestError
    with one sentence if there is no such build, or it cannot be used here.
    """
    global _active
    with _lock, _uncollected():
        folder, manifest = _found(build)
        if folder not in _loaded:
            loaded = Build(folder, _arch_here(), manifest)
            loaded.assume_constant_weights(_constant_weights)
            _listen_to(loaded)
            _loaded[folder] = loaded
            _define(f"{NAMESPACE}_{loaded.build_id}")
            loaded.register(f"{NAMESPACE}_{loaded.build_id}")
            _define_everywhere(loaded.brought)
        if _loaded[folder] is not _active:
            _replace_kernels(_loaded[folder])
            _active = _loaded[folder]
        return _active


def read_ahead() -> None:
    """Read manifest and tables of the build, without a GPU: a load in this process, or in one forked from it, takes a third of the time then.

    Of several architectures' builds it is the first one's. Raises ManifestError where there is none.
    """
    with _lock, _uncollected():
        named = settings.build()
        manifest = builds.serving(None)[1] if named is None else builds.read_build(builds.resolve(named))
        load_tuned(manifest.entries, Machine(arch=manifest.arch, device=None, driver=None))
        for _, op in REGISTRY.ops.values():
            _ = op.program


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's collector: a build's tables are hundreds of thousands of objects, all of which stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _replace_kernels(build: Build) -> None:
    """Give all served namespaces a build's kernels, then take the old ones away.

    A call of another thread finds the one or the other.
    """
    _spend_warning()
    before = dict(_served)
    for namespace in before:
        _served[namespace] = build.register(namespace)
    for registration in before.values():
        if _active is not None and registration is not None:
            _active.unregister(registration)
    while _bootstrap:
        _bootstrap.pop()._destroy()
    while _around:
        _around.pop().end()
    if wrappers := _wrappers():
        _around.extend(Around(namespace, build.build_id, wrappers) for namespace in _served)


def _wrappers() -> list[Wrapper]:
    """The wrappers that settings put around calls. Limits on saved calls hold for the whole process."""
    global _dumps
    found: list[Wrapper] = [Ranges(explain)] if settings.ranges() else []
    if (folder := settings.dump()) is not None:
        calls, most_bytes = settings.dump_limits()
        _dumps = _dumps or Dumps(folder, lambda op, args: (active().build_id, explain(op, *args)), calls, most_bytes)
        found.append(_dumps)
    return found


def _spend_warning() -> None:
    """torch warns when a kernel takes another's place, once in a process and, out of C++, on stderr. Here it is
    meant."""
    namespace = f"{NAMESPACE}_replaced"
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define("op() -> ()")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for implementation in (library, torch.library.Library(namespace, "IMPL", "CUDA")):
            implementation.impl("op", lambda: None, "CUDA", allow_override=True)


def serve(namespace: str) -> None:
    """Offer the ops in another namespace too, with the same kernels. Ops that exist there keep their schema."""
    with _lock:
        if namespace in _served:
            return
        _define(namespace)
        if _active is not None:
            _served[namespace] = _active.register(namespace)
            if wrappers := _wrappers():
                _spend_warning()
                _around.append(Around(namespace, _active.build_id, wrappers))
            return
        _served[namespace] = None
        library = torch.library.Library(namespace, "IMPL", "CUDA")
        for op in BY_NAME.values():
            library.impl(op.name, _first_cuda_call(op), allow_override=True)
        _bootstrap.append(library)


def add(family: Family, op: Op) -> None:
    """Define an op that no family declares, such as that of a traced epilogue. Raises ValueError where another op has
    its name."""
    with _lock:
        is_new = op.schema.name not in BY_NAME
        add_schema(family, op)
        if is_new:
            _define_everywhere([(family, op)])


def _define_everywhere(added: Iterable[tuple[Family, Op]]) -> None:
    """Define ops that came late, in all namespaces, and have all builds answer them."""
    added = tuple(added)
    if not added:
        return
    for namespace in (*_served, *(f"{NAMESPACE}_{build.build_id}" for build in _loaded.values())):
        _define(namespace)
    for build in _loaded.values():
        for family, op in added:
            build.declare(family, op)
        _spend_warning()
        build.register(f"{NAMESPACE}_{build.build_id}")
    if _active is not None:
        _replace_kernels(_active)
    for library in _bootstrap:
        for _, op in added:
            library.impl(op.schema.name, _first_cuda_call(op.schema), allow_override=True)


def active() -> Build:
    """The build whose kernels the ops have, loaded if none is yet."""
    return _active or load()


def variants(*, op: str | None = None, arch: str | None = None) -> list[KernelEntry]:
    """The loaded variants, those of one op or architecture if named. Raises ValueError for an op that there is not."""
    if op is not None:
        _schema(op)
    entries = active().manifest.entries
    return [e for e in entries if (op is None or op in e.ops) and (arch is None or arch == e.config.arch)]


def supports(
    op: str,
    *,
    dtype: torch.dtype | str | None = None,
    out_dtype: torch.dtype | str | None = None,
    arch: str | None = None,
    group_size: int | None = None,
    batch_invariant: bool = False,
) -> bool:
    """Whether the build has a variant for an op, operand (input) dtype, output dtype, architecture and group size.

    batch_invariant: whether one is that can answer under `gemmill.batch_invariant`.

    dtype, out_dtype: torch's dtypes, their names, or gemmill's short ones, such as "e4m3". The group size is that of a quantisation op
    or of a GEMM's scales. 0 means per tensor or channel. Raises ValueError for an op or a name of a dtype that there is not.
    """
    operand_name, out_name = _dtype_name(dtype), _dtype_name(out_dtype)

    def fits(config: Config) -> bool:
        operand, out = config.operand_dtype, config.out_dtype
        return (
            operand_name in (None, operand, operand.torch_name)
            and out_name in (None, out, out.torch_name)
            and group_size in (None, config.group_size)
        )

    offered = (entry for entry in variants(op=op, arch=arch) if fits(entry.config))
    return any(not batch_invariant or order_of(entry) is not None for entry in offered)


def explain(op: str, *args: Any, **named: Any) -> Choice:
    """The variant that a call would get and, for every other one, the first rule that rejected it.

    Arguments are those of the function of this name in `gemmill`, or of the op, which takes its outputs too. Raises
    RuntimeError where the op itself would refuse the call, TypeError where neither takes such arguments.
    """
    return _choice(op, args, named, traced=True)


def choice_of(op: str, *args: Any) -> Choice:
    """The same without the reasons for the other variants, which take most of the time."""
    return _choice(op, args, {}, traced=False)


def _choice(op: str, args: Sequence[Any], named: Mapping[str, Any], *, traced: bool) -> Choice:
    schema = _schema(op)
    given = given_to(schema, args, named)
    call = operands.of_arguments(schema, given)
    return active().explain(schema, call, _sm_count(given[0]), traced=traced)


@contextlib.contextmanager
def use_variant(name: str) -> Iterator[KernelEntry]:
    """Pin a variant by its name, of this release or an earlier one, or by the alias that `gemmill list` prints, for the calling thread.

    Inside the block, an op of the variant's family raises RuntimeError for a call that the variant cannot take. Each
    block pins one variant. An inner block replaces the pinned variant, of whatever family, until it ends. Raises
    ValueError if no loaded build has the variant.
    """
    build = active()
    if is_alias(name):
        name = next((entry.name for entry in build.manifest.entries if alias_of(entry.name) == name), name)
    rows = build.table.rows_of(current_name(name))
    if not rows:
        raise ValueError(
            f"variant {name!r} is not in build {build.build_id}: gemmill.variants() lists its {len(build.manifest.entries)}"
        )
    before = build.pin(rows[0])
    try:
        yield build.table.entries[rows[0]]
    finally:
        build.pin(before)


def assume_constant_weights(assumed: bool = True) -> None:
    """Promise that no kernel still under way writes the `b` of a GEMM; kernels for a small M then read it early.

    Under programmatic dependent launch a kernel begins while its predecessors drain. With this promise it loads its
    weights in that time, which in a chain of GEMMs hides most of the latency that decoding consists of. The promise
    holds for the weights of a model that serves, and for any `b` written by ordinary kernels. It does not hold for a
    `b` that is still being written by a kernel which itself lets its successors start early. Off by default; also
    GEMMILL_CONSTANT_WEIGHTS=1.
    """
    global _constant_weights
    with _lock:
        _constant_weights = assumed
        for build in _loaded.values():
            build.assume_constant_weights(assumed)


def read_tables() -> None:
    """Have the loaded builds choose by the tables that there are now."""
    with _lock:
        for build in _loaded.values():
            build.read_tables()


def stats() -> list[Chosen]:
    """Return how often each variant was chosen in this process, by class of calls and by the evidence for the choice.

    These are numbers of choices, not of calls: see `Chosen.times`. A quantisation op has one kernel for a call, so
    there is no choice to count. GEMMILL_LOG=choices logs each shape's choice, within seconds.
    """
    return chosen_in(_loaded.values())


def table_digest() -> str:
    """A digest of the measured choices of the active build, loaded if none is yet.

    Processes that have the same build and digest choose the same variant for the same call on the same kind of GPU. So
    the ranks of a server can compare this one text.
    """
    return active().tuned.digest


def check_ranks() -> None:
    """Check that this process chooses as the other ranks of torch.distributed's default group that have called it.

    It compares build and table digest with those of the first rank that called it, and waits for none. Plugins of
    engines ask when they take their first layer, and log a warning. Raises RuntimeError, which names both.
    """
    build = active()
    if (sentence := agreement.disagreement(build.build_id, build.tuned.digest)) is not None:
        raise RuntimeError(sentence)


def _listen_to(build: Build) -> None:
    global _notes
    if _notes is None and (listeners := _listeners()):
        _notes = Notes(*listeners)
    if _notes is not None:
        _notes.add(build)


def _listeners() -> list[Listener]:
    listeners: list[Listener] = []
    if (path := settings.record_misses()) is not None:
        listeners.append(MissFile(path))
    if settings.logs_choices():
        show_choices()
        listeners.append(ChoiceLog())
    return listeners


def overload(op: str) -> Callable[..., Any]:
    """The overload of an op that the functions which allocate results call. It is bound once: finding it takes as long
    as much of a call."""
    found: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), op).default
    return found


def define_in_python(schema: str, answer: Callable[..., Any]) -> None:
    """Define an op that a function answers on every device. It is for ops whose result only their data decides, as no
    contract can.
    """
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(schema)
    library.impl(OpSchema(schema).name, answer, "CompositeExplicitAutograd")
    _libraries.append(library)


def _schema(op: str) -> OpSchema:
    try:
        return BY_NAME[op]
    except KeyError:
        raise ValueError(f"no op {op!r}: there are {', '.join(BY_NAME)}") from None


def _dtype_name(kind: torch.dtype | str | None) -> str | None:
    """torch's or gemmill's name of a dtype. Raises ValueError for a word that is neither."""
    if kind is None:
        return None
    name = str(kind).removeprefix("torch.")
    if name not in set(DType) and not isinstance(getattr(torch, name, None), torch.dtype):
        raise ValueError(f"no dtype {name!r}: there are {', '.join(DType)}, and torch's names, such as float8_e4m3fn")
    return name


def _found(build: str | Path | None) -> tuple[Path, Manifest | None]:
    """The folder of a build, and its manifest where the search has read it."""
    named = build if build is not None else settings.build()
    if named is not None:
        return builds.resolve(named), None
    return builds.serving(_arch_here())


def _arch_here() -> str | None:
    if not torch.cuda.is_available():
        return None
    return arch_of(torch.cuda.get_device_capability())


def _sm_count(tensor: torch.Tensor | None) -> int:
    if tensor is not None and tensor.is_cuda:
        return torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return Arch(active().manifest.arch).sm_count


def _first_cuda_call(op: OpSchema) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        load()
        return getattr(getattr(torch.ops, NAMESPACE), op.name).default(*args)

    return run


def _fake(op: OpSchema) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        call = operands.of_fake_arguments(op, args)
        if call is not None and not handing.may_go_on(op.name):
            checks.check(op, call)
        return returned(allocated(checks.judged(op, operands.of_symbolic_arguments(op, args)), args))

    return run


def define(library: torch.library.Library, op: OpSchema) -> None:
    """Define an op with its CPU path and its fake."""
    library.define(op.schema)
    library.impl(op.name, lambda *args: by_reference(op, args), "CPU")
    library._register_fake(op.name, _fake(op))


def _define(namespace: str) -> None:
    library = torch.library.Library(namespace, "FRAGMENT")
    for op in BY_NAME.values():
        if hasattr(getattr(torch.ops, namespace), op.name):
            continue
        define(library, op)
    _libraries.append(library)


serve(NAMESPACE)
