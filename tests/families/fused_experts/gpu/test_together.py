"""Three kernels launched as one (kernels/core/together.cuh): from threads, in more streams than have graphs, and captured after."""

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families import fused_experts
from gemmill.families.fused_experts.cases.calls import arguments_of, make_given
from gemmill.families.fused_experts.cases.checked import of_config
from gemmill.families.fused_experts.selections import smoke
from gemmill.manifest import KernelEntry
from gemmill.vocab import Arch
from gpu.routings import once

THREADS, STREAMS, CALLS = 5, 2, 60
"""Ten streams, where a kernel has graphs for eight."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    match, dry = metafunc.config.getoption("--match"), metafunc.config.getoption("--dry-run")
    entries = gemmill.variants() if torch.cuda.is_available() and not dry else []
    chosen = [entry for entry in entries if entry.family == fused_experts.NAME and match in entry.name]
    metafunc.parametrize("variant", chosen or [None] * dry, ids=lambda entry: entry.name if entry else "reference")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of any output, and its result."""

    into: Callable[[Tensor], None]
    like: Tensor
    result: Tensor

    def poisoned(self) -> Tensor:
        return torch.full_like(self.like, torch.nan)

    def is_result(self, out: Tensor) -> bool:
        return torch.equal(out.view(torch.int16), self.result.view(torch.int16))


def call_of(given: dict[str, Any], op: str, device: torch.device) -> Call:
    """The call with its result when it is captured: then its kernels are launched one by one."""
    like = given["x"].contiguous()
    _, *rest = arguments_of(given | {"out": like})
    into = lambda out: getattr(torch.ops.gemmill, op).default(out, *rest)  # noqa: E731
    out = torch.full_like(like, torch.nan)
    once(partial(into, out), device)()
    return Call(into=into, like=like, result=out.clone())


def calls_of(variant: KernelEntry | None, device: torch.device) -> list[Call]:
    """Of several numbers of tokens, so that grids differ."""
    config = next(smoke(Arch.SM90A)) if variant is None else variant.config
    specs = [case.spec for case in of_config(config) if case.spec.data == "random" and not case.spec.adds]
    assert len({spec.tokens for spec in specs}) > 2
    return [call_of(make_given(spec, device), spec.op, device) for spec in specs]


def test_calls_of_threads_in_streams_are_those_one_by_one(variant: KernelEntry | None, device: torch.device) -> None:
    on_gpu, faults, ready = device.type == "cuda", [], threading.Barrier(THREADS)
    pinned: Callable[[], AbstractContextManager[object]]
    pinned = nullcontext if variant is None else partial(gemmill.use_variant, variant.name)
    with pinned():
        calls = calls_of(variant, device)

    def work(seed: int) -> None:
        order = random.Random(seed).choices(calls, k=CALLS if on_gpu else 6)
        outs = [call.poisoned() for call in order]
        streams = [torch.cuda.stream(torch.cuda.Stream(device)) if on_gpu else nullcontext() for _ in range(STREAMS)]
        if on_gpu:
            torch.cuda.synchronize()
        ready.wait()
        with pinned():
            for call, out, stream in zip(order, outs, islice(cycle(streams), len(outs)), strict=True):
                with stream:
                    call.into(out)
        if on_gpu:
            torch.cuda.synchronize()
        faults.extend(f"thread {seed}, call {i}" for i, call in enumerate(order) if not call.is_result(outs[i]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    with pinned():
        for call in calls:
            out = call.poisoned()
            replay = once(partial(call.into, out), device)
            out.fill_(torch.nan)
            replay()
            assert call.is_result(out)
