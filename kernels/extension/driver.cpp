// The driver functions that the kernels' launch code calls. They are found when first called, so that the extension
// loads where there is no driver.
#include "extension/driver.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <string>

#ifdef GEMMILL_EMULATION
#include "emulation/packed_map.h"
#endif

namespace {

constexpr int kMostDimensions = 5;

template <class Function>
Function find(char const* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kSince = 12000;
  if (cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<Function>(function);
}

// The arguments, without padding, so that they compare as bytes.
struct Question {
  uint64_t address;
  std::array<uint64_t, kMostDimensions> dims{}, strides{};
  std::array<uint32_t, kMostDimensions> box{}, element_strides{};
  uint32_t rank, type, interleave, swizzle, promotion, fill;

  bool operator==(Question const& other) const { return std::memcmp(this, &other, sizeof(Question)) == 0; }
  size_t slot(size_t slots) const {
    uint64_t h = (address >> 4) * 0x9E3779B97F4A7C15u ^ dims[0] * 0xC2B2AE3D27D4EB4Fu ^ dims[1] * 0x165667B19E3779F9u ^ box[1];
    return (h ^ (h >> 29)) % slots;
  }
};
static_assert(sizeof(Question) == 8 + 2 * 40 + 2 * 20 + 24);

struct Answer {
  bool known = false;
  Question question;
  CUtensorMap map;
};

// CUTLASS goes on where a descriptor could not be made, and a kernel that uses such a one ends the CUDA context.
struct Failure {
  CUresult result = CUDA_SUCCESS;
  std::string what;
};
thread_local Failure failure;

CUresult fail(CUresult result, Question const& question) {
  std::ostringstream what;
  what << "TMA takes no tensor of " << question.dims[0];
  for (uint32_t i = 1; i < question.rank; ++i) what << " x " << question.dims[i];
  what << " elements";
  for (uint32_t i = 1; i < question.rank; ++i) what << (i == 1 ? " with strides of " : " x ") << question.strides[i - 1];
  what << (question.rank > 1 ? " bytes" : "") << " at address 0x" << std::hex << question.address << std::dec
       << " (CUDA error " << result << ")";
  failure = {result, what.str()};
  return result;
}

}  // namespace

std::string gemmill::take_descriptor_failure() {
  if (failure.result == CUDA_SUCCESS) return {};
  std::string const what = failure.what;
  failure = {};
  return what;
}

extern "C" CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** parameters, void** extra) {
  static auto const launch = find<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx");
  if (failure.result != CUDA_SUCCESS) return failure.result;
  return launch == nullptr ? CUDA_ERROR_NOT_FOUND : launch(config, function, parameters, extra);
}

// The cache keeps answers: a descriptor depends on nothing but its arguments, CUTLASS asks for two or three on every launch, and weights
// keep their address for as long as a model lives.
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                           cuuint64_t const* dims, cuuint64_t const* strides, cuuint32_t const* box,
                                           cuuint32_t const* element_strides, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                           CUtensorMapFloatOOBfill fill) {
  static auto const encode = find<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  uint32_t const known_rank = rank < 1 || rank > kMostDimensions ? 0 : rank;
  Question question{reinterpret_cast<uint64_t>(address), {}, {}, {}, {}, known_rank, uint32_t(type), uint32_t(interleave),
                    uint32_t(swizzle), uint32_t(promotion), uint32_t(fill)};
  if (known_rank == 0) return fail(CUDA_ERROR_INVALID_VALUE, question);
  std::copy_n(dims, rank, question.dims.begin());
  std::copy_n(strides, rank - 1, question.strides.begin());
  std::copy_n(box, rank, question.box.begin());
  std::copy_n(element_strides, rank, question.element_strides.begin());

  if (encode == nullptr) return fail(CUDA_ERROR_NOT_FOUND, question);

  thread_local std::array<Answer, 256> answers;
  Answer& answer = answers[question.slot(answers.size())];
  if (!answer.known || !(answer.question == question)) {
    answer.known = false;
    auto make = encode;
#ifdef GEMMILL_EMULATION
    if (gemmill::emulation::is_packed(type)) make = gemmill::emulation::encode_packed;
#endif
    CUresult result = make(&answer.map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle, promotion, fill);
    if (result != CUDA_SUCCESS) return fail(result, question);
    answer.question = question;
    answer.known = true;
  }
  *map = answer.map;
  return CUDA_SUCCESS;
}

// Graphs of kernels with a common launch.
extern "C" CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  static auto const found = find<decltype(&cuStreamIsCapturing)>("cuStreamIsCapturing");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(stream, status);
}

extern "C" CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  static auto const found = find<decltype(&cuThreadExchangeStreamCaptureMode)>("cuThreadExchangeStreamCaptureMode");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(mode);
}

extern "C" CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  static auto const found = find<decltype(&cuStreamCreate)>("cuStreamCreate");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(stream, flags);
}

extern "C" CUresult cuStreamDestroy(CUstream stream) {
  static auto const found = find<decltype(&cuStreamDestroy)>("cuStreamDestroy");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(stream);
}

extern "C" CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  static auto const found = find<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(stream, mode);
}

extern "C" CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  static auto const found = find<decltype(&cuStreamEndCapture)>("cuStreamEndCapture");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(stream, graph);
}

extern "C" CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  static auto const found = find<decltype(&cuGraphGetNodes)>("cuGraphGetNodes");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(graph, nodes, count);
}

extern "C" CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  static auto const found = find<decltype(&cuGraphKernelNodeGetParams)>("cuGraphKernelNodeGetParams");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(node, params);
}

extern "C" CUresult cuGraphInstantiate(CUgraphExec* made, CUgraph graph, unsigned long long flags) {
  static auto const found = find<decltype(&cuGraphInstantiate)>("cuGraphInstantiateWithFlags");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(made, graph, flags);
}

extern "C" CUresult cuGraphDestroy(CUgraph graph) {
  static auto const found = find<decltype(&cuGraphDestroy)>("cuGraphDestroy");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(graph);
}

extern "C" CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS const* params) {
  static auto const found = find<decltype(&cuGraphExecKernelNodeSetParams)>("cuGraphExecKernelNodeSetParams");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(graph, node, params);
}

extern "C" CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  static auto const found = find<decltype(&cuGraphLaunch)>("cuGraphLaunch");
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : found(graph, stream);
}
