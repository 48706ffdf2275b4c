// Instances of kernels/blockscaled/fp4_weight_mm.cuh for time_fp4_weights.py, as a table.
#include "blockscaled/fp4_weight_mm.cuh"
#include "cutlass/bfloat16.h"

namespace {

using namespace gemmill::blockscaled;

struct Call {
  void const* tokens;
  void const* weights;
  float const* alpha;
  float const* base;
  void* d;
  int32_t m, n, k, blocks, splits, constant_weights;
};

struct Instance {
  char const* name;
  char const* format;
  int32_t rows, tile_k, tile_m;
  int32_t (*launch)(Call const*, cudaStream_t);
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kCtas) entry(__grid_constant__ typename Kernel::Params const params) {
  extern __shared__ char shared_memory[];
  Kernel::run(params, shared_memory);
}

int32_t encode(CUtensorMap* map, Call const& call, unsigned tile_m) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (auto error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found)) return error;
  cuuint64_t const sizes[2] = {static_cast<cuuint64_t>(call.k), static_cast<cuuint64_t>(call.m)};
  cuuint64_t const strides[1] = {static_cast<cuuint64_t>(call.k) * 2};
  cuuint32_t const box[2] = {64, tile_m}, steps[2] = {1, 1};
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(call.tokens), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <class Kernel, class Format>
int32_t launch(Call const* call, cudaStream_t stream) {
  typename Kernel::Params params{};
  if (auto error = encode(&params.tokens, *call, Kernel::kTileM)) return error;
  params.weights = static_cast<char const*>(call->weights);
  params.alpha = call->alpha;
  params.base = call->base;
  params.d = static_cast<cutlass::bfloat16_t*>(call->d);
  params.ldd = params.n = call->n;
  params.m = call->m;
  params.blocks = call->blocks;
  params.spread = Format::kSpread;
  params.constant_weights = call->constant_weights;
  if (auto error = cudaFuncSetAttribute(entry<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::kSharedBytes)) return error;
  unsigned const tiles = (call->n + Kernel::kRows - 1) / Kernel::kRows * ((call->m + Kernel::kTileM - 1) / Kernel::kTileM);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(call->splits), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = tiles * call->splits;
  config.blockDim = Kernel::kThreads;
  config.dynamicSmemBytes = Kernel::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, entry<Kernel>, params);
}

template <class Format, int row_groups, int k_groups, int each, int tile_m, int stages>
Instance instance(char const* name, char const* format) {
  using Kernel = Fp4WeightMm<Format, row_groups, k_groups, each, tile_m, stages>;
  return {name, format, Kernel::kRows, Kernel::kTileK, tile_m, &launch<Kernel, Format>};
}

// Row groups, K groups, blocks of each in a stage, tokens, stages.
#define INSTANCE(format, ...) instance<format, __VA_ARGS__>(#format " " #__VA_ARGS__, #format)

Instance const kInstances[] = {
    INSTANCE(NvFp4, 2, 2, 2, 8, 4),  INSTANCE(NvFp4, 2, 2, 1, 8, 9),  INSTANCE(NvFp4, 1, 4, 1, 8, 8),
    INSTANCE(NvFp4, 2, 2, 2, 16, 4), INSTANCE(NvFp4, 2, 2, 1, 16, 8), INSTANCE(NvFp4, 1, 4, 1, 16, 6),
    INSTANCE(NvFp4, 2, 2, 2, 32, 3), INSTANCE(NvFp4, 2, 2, 2, 32, 5), INSTANCE(NvFp4, 1, 4, 1, 32, 4),
    INSTANCE(NvFp4, 2, 2, 2, 64, 4), INSTANCE(NvFp4, 2, 2, 1, 64, 8), INSTANCE(NvFp4, 2, 1, 2, 64, 4),
    INSTANCE(NvFp4, 2, 1, 2, 128, 4),
    INSTANCE(MxFp4, 2, 2, 2, 8, 4),  INSTANCE(MxFp4, 2, 2, 2, 16, 4), INSTANCE(MxFp4, 2, 2, 2, 32, 3),
    INSTANCE(MxFp4, 2, 2, 2, 64, 4),
};

}  // namespace

extern "C" void const* instances(int32_t* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}
