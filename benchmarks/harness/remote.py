"""A contender whose library does not bear sharing a process with gemmill's: it runs in its own process, and rounds still alternate."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from gemmill.numerics.cases import cases_of_family
from gemmill.numerics.measured import ROTATED_BYTES, Maker, Operands
from gemmill.registry import REGISTRY
from gemmill.tuner.peers import vllm_takes
from gemmill.tuner.workloads import Workload
from harness.contenders import Contender, vllm_contender
from harness.statistics import Sample
from harness.timers import GraphTimer, Prepared, Timer

START_SECONDS = 120


class RemoteError(RuntimeError):
    """An error of the other process."""


class RemoteContender:
    """vLLM's kernels in a process of their own, which makes its own operands and takes its own times."""

    def __init__(self, library: str, family: str) -> None:
        self.name = "vllm"
        self.complete = True
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        context.Process(target=serve_vllm, args=(other, library, family), daemon=True).start()
        other.close()
        self._ask("ready")

    def takes(self, workload: Workload) -> bool:
        return vllm_takes(workload)

    def prepare(self, operands: Operands, timer: Timer, fewest: int) -> Prepared:
        self._ask("prepare", operands.workload, fewest)
        return _RemoteGraph(self._ask)

    def host_us(self, operands: Operands, timer: Timer) -> Sample:
        return self._ask("host_us", operands.workload)

    def _ask(self, command: str, *arguments: object) -> object:
        try:
            self._pipe.send((command, *arguments))
            if not self._pipe.poll(START_SECONDS):
                raise RemoteError(f"vllm's process did not answer {command!r} within {START_SECONDS} s")
            ok, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise RemoteError(
                f"vllm's process ended at {command!r}: is its library made for this torch and GPU?"
            ) from None
        if not ok:
            raise RemoteError(answer)
        return answer


class _RemoteGraph:
    def __init__(self, ask: Callable[..., object]) -> None:
        self._ask = ask

    def round(self) -> float:
        return self._ask("round")

    def close(self) -> None:
        self._ask("close")


def serve_vllm(pipe: Connection, library: str, family: str) -> None:
    """The other process's main function."""
    import torch

    maker = cases_of_family(REGISTRY.named(family)).measured(torch.device("cuda"), ROTATED_BYTES)
    serve(pipe, lambda: vllm_contender(library), maker, GraphTimer())


def serve(pipe: Connection, contender_of: Callable[[], Contender], maker: Maker, timer: Timer) -> None:
    """Answer (command, arguments...) with (True, answer) or (False, sentence) until the pipe closes."""
    prepared: Prepared | None = None
    contender: Contender | None = None
    while True:
        try:
            command, *arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: object = None
            contender = contender or contender_of()
            if command == "prepare":
                workload, fewest = arguments
                prepared = contender.prepare(maker.make(workload), timer, fewest)
            elif command == "host_us":
                answer = contender.host_us(maker.make(arguments[0]), timer)
            elif command == "round":
                answer = prepared.round()
            elif command == "close":
                prepared.close()
            pipe.send((True, answer))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))
