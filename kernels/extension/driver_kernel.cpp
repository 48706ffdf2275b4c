// Kernels that gemmill loads and launches by itself.
#include "core/driver_kernel.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <mutex>

namespace gemmill {
namespace {

constexpr int kMostRemembered = 64;

// A graph may be being captured: loading is no work for a stream, but CUDA would take it for some and end the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

cudaError_t load(gemmill_driver_kernel& kernel, int32_t device) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> const lock(one_at_a_time);
  RelaxedCapture const relaxed;
  auto handle = static_cast<cudaKernel_t>(kernel.handle);
  if (handle == nullptr) {
    cudaLibrary_t library = nullptr;
    cudaError_t error = cudaLibraryLoadData(&library, kernel.code, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error == cudaSuccess) error = cudaLibraryGetKernel(&handle, library, kernel.name);
    if (error != cudaSuccess) {
      if (library != nullptr) cudaLibraryUnload(library);
      return error;
    }
    __atomic_store_n(&kernel.handle, static_cast<void*>(handle), __ATOMIC_RELEASE);
  }
  // Clusters may have more CTAs than every GPU of the architecture has to run.
  cudaError_t error = cudaKernelSetAttributeForDevice(handle, cudaFuncAttributeNonPortableClusterSizeAllowed, 1, device);
  if (error == cudaSuccess) {
    error = cudaKernelSetAttributeForDevice(handle, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes, device);
  }
  if (error == cudaSuccess && device < kMostRemembered) {
    __atomic_fetch_or(&kernel.devices, uint64_t{1} << device, __ATOMIC_RELEASE);
  }
  return error;
}

CUtensorMapDataType type_of(MapType type) {
  switch (type) {
    case MapType::kF16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case MapType::kBf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

CUtensorMapSwizzle swizzle_of(int32_t row_bytes) {
  switch (row_bytes) {
    case 128: return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    default: return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

int32_t make_map(TensorMap& map, MapShape const& shape) {
  int32_t const bytes = shape.type == MapType::kBytes ? 1 : 2;
  cuuint32_t const rank = shape.matrices > 0 ? 3 : 2;
  cuuint64_t const dims[] = {static_cast<cuuint64_t>(shape.columns), static_cast<cuuint64_t>(shape.rows), static_cast<cuuint64_t>(shape.matrices)};
  cuuint64_t const strides[] = {static_cast<cuuint64_t>(shape.row_stride * bytes), static_cast<cuuint64_t>(shape.matrix_stride * bytes)};
  cuuint32_t const box[] = {static_cast<cuuint32_t>(shape.box_columns), static_cast<cuuint32_t>(shape.box_rows), 1};
  cuuint32_t const every[] = {1, 1, 1};
  return cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), type_of(shape.type), rank, const_cast<void*>(shape.address), dims,
                                strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(shape.box_columns * bytes),
                                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

int32_t launch(gemmill_driver_kernel& kernel, int64_t ctas, int32_t cluster, gemmill_launch const& how, void** parameters) {
  bool const loaded = how.device < kMostRemembered && __atomic_load_n(&kernel.devices, __ATOMIC_ACQUIRE) >> how.device & 1;
  if (!loaded) {
    if (cudaError_t error = load(kernel, how.device); error != cudaSuccess) return error;
  }
  CUlaunchAttribute attributes[2];
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig const config{static_cast<unsigned>(ctas), 1, 1, static_cast<unsigned>(kernel.threads), 1, 1,
                              static_cast<unsigned>(kernel.shared_bytes), static_cast<CUstream>(how.stream), attributes,
                              how.programmatic_launch ? 2u : 1u};
  // A kernel's handle stands for its function in the current context.
  auto const function = reinterpret_cast<CUfunction>(__atomic_load_n(&kernel.handle, __ATOMIC_ACQUIRE));
  CUresult result = cuLaunchKernelEx(&config, function, parameters, nullptr);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {  // the thread's first call: the runtime makes the context current
    if (cudaError_t error = cudaSetDevice(how.device); error != cudaSuccess) return error;
    result = cuLaunchKernelEx(&config, function, parameters, nullptr);
  }
  return static_cast<int32_t>(result);
}

}  // namespace gemmill
