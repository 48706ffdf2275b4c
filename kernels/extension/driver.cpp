// The driver functions that the kernels' launch code calls. They are found when first called, so that the extension
// loads where there is no driver.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>

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

}  // namespace

extern "C" CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** parameters, void** extra) {
  static auto const launch = find<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx");
  return launch == nullptr ? CUDA_ERROR_NOT_FOUND : launch(config, function, parameters, extra);
}

// Answers are remembered: a descriptor depends on nothing but its arguments, CUTLASS asks for two or three on every
// launch, and weights keep their address for as long as a model lives.
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                           cuuint64_t const* dims, cuuint64_t const* strides, cuuint32_t const* box,
                                           cuuint32_t const* element_strides, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                           CUtensorMapFloatOOBfill fill) {
  static auto const encode = find<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (rank < 1 || rank > kMostDimensions) return CUDA_ERROR_INVALID_VALUE;
  Question question{reinterpret_cast<uint64_t>(address), {}, {}, {}, {}, rank, uint32_t(type), uint32_t(interleave),
                    uint32_t(swizzle), uint32_t(promotion), uint32_t(fill)};
  std::copy_n(dims, rank, question.dims.begin());
  std::copy_n(strides, rank - 1, question.strides.begin());
  std::copy_n(box, rank, question.box.begin());
  std::copy_n(element_strides, rank, question.element_strides.begin());

  thread_local std::array<Answer, 256> answers;
  Answer& answer = answers[question.slot(answers.size())];
  if (!answer.known || !(answer.question == question)) {
    answer.known = false;
    CUresult result = encode(&answer.map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle, promotion, fill);
    if (result != CUDA_SUCCESS) return result;
    answer.question = question;
    answer.known = true;
  }
  *map = answer.map;
  return CUDA_SUCCESS;
}
