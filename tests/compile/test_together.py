"""How the kernels of one call are launched together (kernels/core/together.cuh), with a CUDA that only records calls."""

import subprocess
from pathlib import Path

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch

_PROGRAM = """
#include <cstdio>
#include "core/together.cuh"

static void first() {}
static void second() { std::printf(" "); }

static CUresult fails_to_capture = CUDA_SUCCESS, fails_to_make = CUDA_SUCCESS, fails_to_tell = CUDA_SUCCESS, fails_to_launch = CUDA_SUCCESS;
static CUresult is_capturing_fails = CUDA_SUCCESS;
static CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
static CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static int graphs = 0, nodes = 2;
static intptr_t foreign = 0;

static int number(void const* x) { return static_cast<int>(reinterpret_cast<intptr_t>(x)); }
template <class T>
static T handle(intptr_t x) { return reinterpret_cast<T>(x); }

extern "C" {
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, void const* symbol) {
  *function = handle<cudaFunction_t>(symbol == reinterpret_cast<void const*>(&first) ? 1 : 2);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int) { return cudaSuccess; }
CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** parameters, void**) {
  std::printf("launch %d with %d on %d, grid %u\\n", number(function), *static_cast<int*>(parameters[0]), number(config->hStream), config->gridDimX);
  return fails_to_launch;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = capturing;
  return is_capturing_fails;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = handle<CUstream>(1000);
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  std::printf("capture %d, relaxed %d\\n", number(stream), thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  return fails_to_capture;
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  *graph = handle<CUgraph>(++graphs);
  return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* found, size_t* count) {
  for (int i = 0; i < 2; ++i) found[i] = handle<CUgraphNode>(10 * number(graph) + 2 - i);  // the last launch's first
  *count = nodes;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  *params = {};
  params->func = handle<CUfunction>(number(node) % 10 + foreign);
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* made, CUgraph graph, unsigned long long) {
  *made = handle<CUgraphExec>(number(graph));
  return fails_to_make;
}
CUresult cuGraphDestroy(CUgraph graph) {
  std::printf("destroy %d\\n", number(graph));
  return CUDA_SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS const* params) {
  std::printf("tell %d's %d: %d with %d, grid %u\\n", number(graph), number(node), number(params->func), *static_cast<int*>(params->kernelParams[0]), params->gridDimX);
  return fails_to_tell;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  std::printf("launch graph %d on %d\\n", number(graph), number(stream));
  return CUDA_SUCCESS;
}
}

static void call(int stream, int parameter, int device = 0, bool programmatic = true) {
  int other = parameter + 1;
  gemmill_launch const how{handle<void*>(stream), nullptr, device, 132, programmatic, 0};
  unsigned const grid = static_cast<unsigned>(parameter);
  gemmill::LaunchShape const one{dim3(grid), dim3(32), dim3(1), 0}, two{dim3(grid + 1), dim3(32), dim3(1), 0};
  std::printf("status %d\\n", gemmill::Together<&first, &second>::launch({{{one, parameter}, {two, other}}}, how));
}

int main() {
  CALLS
  std::printf("mode %d\\n", thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}
"""


def _told(calls: str, toolchain: ToolchainPaths, folder: Path) -> list[str]:
    """The calls of CUDA by a program of these launches, and the status of each."""
    (folder / "main.cpp").write_text(_PROGRAM.replace("CALLS", calls))
    flags = expand(flags_for(Arch.SM90A).host, roots_of(toolchain, kernels_dir()))
    command = [toolchain.gxx, *flags, folder / "main.cpp", "-o", folder / "main"]
    subprocess.run(list(map(str, command)), check=True)
    *told, mode = subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert mode == "mode 1", "the thread's own captures are as strict as they were"
    return told


def _launched(stream: int, parameter: int) -> list[str]:
    return [f"launch {i + 1} with {parameter + i} on {stream}, grid {parameter + i}" for i in range(2)]


def _replayed(graph: int, stream: int, parameter: int) -> list[str]:
    """Parameters of this call for each node of the graph, whatever order nodes are listed in."""
    told = [
        f"tell {graph}'s {10 * graph + i + 1}: {i + 1} with {parameter + i}, grid {parameter + i}" for i in range(2)
    ]
    return [*told, f"launch graph {graph} on {stream}", "status 0"]


def _made(parameter: int) -> list[str]:
    return ["capture 1000, relaxed 1", *_launched(1000, parameter)]


def test_a_streams_first_call_makes_a_graph_and_later_calls_replay_it(toolchain, tmp_path) -> None:
    assert _told("call(5, 7); call(5, 70); call(6, 9); call(5, 3); call(5, 4, 1);", toolchain, tmp_path) == [
        *(*_made(7), *_replayed(1, 5, 7), *_replayed(1, 5, 70)),
        *(*_made(9), *_replayed(2, 6, 9), *_replayed(1, 5, 3)),
        *(*_made(4), *_replayed(3, 5, 4)),
    ]


def test_what_is_as_in_the_call_before_is_not_told_again(toolchain, tmp_path) -> None:
    again = ["launch graph 1 on 5", "status 0"]
    told = _told(
        "call(5, 7); call(5, 7); fails_to_tell = CUDA_ERROR_INVALID_VALUE; call(5, 8); fails_to_tell = CUDA_SUCCESS; call(5, 8);",
        toolchain,
        tmp_path,
    )
    refused = ["tell 1's 11: 1 with 8, grid 8", "status 1"]
    assert told == [*_made(7), *_replayed(1, 5, 7), *again, *refused, *_replayed(1, 5, 8)]


def test_captured_calls_are_launched_one_by_one(toolchain, tmp_path) -> None:
    calls = """capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE; call(5, 7);
      capturing = CU_STREAM_CAPTURE_STATUS_NONE; is_capturing_fails = CUDA_ERROR_INVALID_CONTEXT; call(5, 8);
      is_capturing_fails = CUDA_SUCCESS; call(5, 9, 0, false);"""
    plain = [[*_launched(5, i), "status 0"] for i in (7, 8, 9)]
    assert _told(calls, toolchain, tmp_path) == [line for lines in plain for line in lines]


def test_a_stream_more_takes_the_graph_that_was_launched_longest_ago(toolchain, tmp_path) -> None:
    calls = "for (int i = 1; i <= 8; ++i) call(i, 7); call(1, 6); call(9, 5); call(2, 4); call(1, 3); call(4, 2, 1);"
    told = _told(calls, toolchain, tmp_path)
    moved = [*_replayed(1, 1, 6), *_replayed(2, 9, 5), *_replayed(3, 2, 4), *_replayed(1, 1, 3)]
    assert told[-len(moved) - 7 :] == [*moved, *_made(2), *_replayed(9, 4, 2)]  # another device has graphs of its own


def test_a_graph_that_could_not_be_made_is_tried_again(toolchain, tmp_path) -> None:
    calls = """fails_to_make = CUDA_ERROR_OUT_OF_MEMORY; call(5, 7); fails_to_make = CUDA_SUCCESS;
      for (int i = 0; i < 64; ++i) call(5, 8);"""
    told = _told(calls, toolchain, tmp_path)
    alone = [*_launched(5, 8), "status 0"]
    assert told == [*_made(7), "destroy 1", *_launched(5, 7), "status 0", *alone * 63, *_made(8), *_replayed(2, 5, 8)]


def test_launches_go_on_where_there_can_be_no_graph(toolchain, tmp_path) -> None:
    faults = ("fails_to_capture = CUDA_ERROR_UNKNOWN", "fails_to_make = CUDA_ERROR_UNKNOWN", "nodes = 3", "foreign = 5")
    for i, fault in enumerate(faults):
        (tmp_path / str(i)).mkdir()
        told = _told(f"{fault}; call(5, 7); call(5, 8);", toolchain, tmp_path / str(i))
        assert told[-6:] == [*_launched(5, 7), "status 0", *_launched(5, 8), "status 0"]


def test_errors_are_returned(toolchain, tmp_path) -> None:
    calls = "call(5, 7); fails_to_tell = CUDA_ERROR_INVALID_VALUE; call(5, 8); capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE; fails_to_launch = CUDA_ERROR_NOT_FOUND; call(5, 9);"
    told = _told(calls, toolchain, tmp_path)
    assert told[-4:] == ["tell 1's 11: 1 with 8, grid 8", "status 1", _launched(5, 9)[0], "status 500"]
