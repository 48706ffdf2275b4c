// Host code: the common launch of one call's kernels.
//
// A launch takes the host 2.8 us, and a graph of three kernels with parameters of their own 1.9 (docs/notes/host_time.md). So a graph is
// kept for each of a few streams of a device. Where there are more, the graph with the oldest launch becomes another stream's: CUDA has a
// graph begin behind its own launch before, in whatever stream that was. During a capture kernels launch one by one, since no graph can
// launch there.
#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "core/launch.cuh"

namespace gemmill {

struct Launch {
  LaunchShape shape;
  void* parameter;  // the kernel's only one
  size_t bytes;

  template <class Parameter>
  Launch(LaunchShape const& shape, Parameter& parameter) : shape(shape), parameter(&parameter), bytes(sizeof(Parameter)) {}
};

template <auto... entries>
class Together {
 public:
  static constexpr size_t kCount = sizeof...(entries);
  using Launches = std::array<Launch, kCount>;

  // Enqueues the kernels, each of which may begin while the one before drains. Returns 0 or an error code.
  static int32_t launch(Launches const& launches, gemmill_launch const& how) {
    auto const stream = static_cast<CUstream>(how.stream);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    bool const is_known = how.programmatic_launch && cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS;
    if (!is_known || status != CU_STREAM_CAPTURE_STATUS_NONE) return one_by_one(launches, how);
    static std::mutex mutex;
    std::lock_guard const lock(mutex);  // until the graph has left: its parameters are one call's
    Kept& kept = kept_of(launches, how);
    if (kept.graph == nullptr) return one_by_one(launches, how);
    for (size_t i = 0; i < kCount; ++i) {
      if (CUresult const error = tell(kept, i, launches[i]); error != CUDA_SUCCESS) return static_cast<int32_t>(error);
    }
    return static_cast<int32_t>(cuGraphLaunch(kept.graph, stream));
  }

 private:
  static constexpr size_t kMostStreams = 8;    // of a device
  static constexpr uint32_t kCallsOfATry = 64;  // without a graph, of which the first tries to make one

  struct Kept {
    int device;
    void* stream;
    uint64_t used;       // the number of the last call
    uint32_t without;    // calls without a graph
    CUgraphExec graph;   // null where none could be made
    std::array<CUgraphNode, kCount> nodes;
    std::array<CUDA_KERNEL_NODE_PARAMS, kCount> told;
    std::array<std::vector<unsigned char>, kCount> parameters;  // of the last update
  };

  using Places = std::make_index_sequence<kCount>;

  static int32_t one_by_one(Launches const& launches, gemmill_launch const& how) { return one_by_one(launches, how, Places{}); }

  template <size_t... i>
  static int32_t one_by_one(Launches const& launches, gemmill_launch const& how, std::index_sequence<i...>) {
    int32_t error = 0;
    static_cast<void>((((error = launch_one<entries>(launches[i], how)) == 0) && ...));
    return error;
  }

  template <auto entry>
  static int32_t launch_one(Launch const& launch, gemmill_launch const& how) {
    void* parameters[] = {launch.parameter};
    return launch_kernel<entry>(launch.shape, how, parameters);
  }

  // It updates only parameters that differ from the call before; a repeated call spares the host 0.2 us a kernel.
  static CUresult tell(Kept& kept, size_t i, Launch const& launch) {
    auto& told = kept.told[i];
    auto& before = kept.parameters[i];
    dim3 const& grid = launch.shape.grid;
    bool const same_grid = told.gridDimX == grid.x && told.gridDimY == grid.y && told.gridDimZ == grid.z;
    if (same_grid && before.size() == launch.bytes && std::memcmp(before.data(), launch.parameter, launch.bytes) == 0) return CUDA_SUCCESS;
    auto const* const bytes = static_cast<unsigned char const*>(launch.parameter);
    before.assign(bytes, bytes + launch.bytes);
    void* parameters[] = {launch.parameter};
    told.gridDimX = grid.x, told.gridDimY = grid.y, told.gridDimZ = grid.z;
    told.kernelParams = parameters;
    CUresult const error = cuGraphExecKernelNodeSetParams(kept.graph, kept.nodes[i], &told);
    if (error != CUDA_SUCCESS) before.clear();
    return error;
  }

  // The graph of a stream, made at its first call; where that fails, at one of its next calls again.
  static Kept& kept_of(Launches const& launches, gemmill_launch const& how) {
    static uint64_t calls = 0;
    Kept& kept = place_of(how);
    kept.used = ++calls;
    if (kept.graph != nullptr || kept.without++ % kCallsOfATry != 0) return kept;
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // the captures of other threads go on
    if (cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return kept;
    make(kept, launches, how);
    cuThreadExchangeStreamCaptureMode(&mode);
    return kept;
  }

  // A stream's own place, a new one, or that which was used longest ago of the device's.
  static Kept& place_of(gemmill_launch const& how) {
    static std::deque<Kept> all;
    Kept* oldest = nullptr;
    size_t count = 0;
    for (Kept& kept : all) {
      if (kept.device != how.device) continue;
      if (kept.stream == how.stream) return kept;
      if (++count == 1 || kept.used < oldest->used) oldest = &kept;
    }
    if (count < kMostStreams) return all.emplace_back(Kept{how.device, how.stream, 0, 0, nullptr, {}, {}, {}});
    oldest->stream = how.stream;
    return *oldest;
  }

  // By capturing the launches in a stream of its own.
  static void make(Kept& kept, Launches const& launches, gemmill_launch const& how) {
    CUstream own = nullptr;
    if (cuStreamCreate(&own, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return;
    gemmill_launch captured = how;
    captured.stream = own;
    CUgraph graph = nullptr;
    if (cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS) {
      int32_t const error = one_by_one(launches, captured);
      if (cuStreamEndCapture(own, &graph) != CUDA_SUCCESS || error != 0) graph = nullptr;
    }
    cuStreamDestroy(own);
    if (graph == nullptr) return;
    if (find_nodes(kept, graph, how.device, Places{}) && cuGraphInstantiate(&kept.graph, graph, 0) == CUDA_SUCCESS) return;
    kept.graph = nullptr;
    cuGraphDestroy(graph);
  }

  template <size_t... i>
  static bool find_nodes(Kept& kept, CUgraph graph, int device, std::index_sequence<i...>) {
    std::array<CUgraphNode, kCount> nodes;
    size_t count = kCount;
    if (cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS || count != kCount) return false;
    return (find_node<entries>(kept, i, nodes, device) && ...);
  }

  template <auto entry>
  static bool find_node(Kept& kept, size_t i, std::array<CUgraphNode, kCount> const& nodes, int device) {
    CUfunction function = nullptr;
    if (function_on<entry>(device, function) != cudaSuccess) return false;
    for (CUgraphNode node : nodes) {
      kept.nodes[i] = node;
      if (cuGraphKernelNodeGetParams(node, &kept.told[i]) == CUDA_SUCCESS && kept.told[i].func == function) return true;
    }
    return false;
  }
};

}  // namespace gemmill
