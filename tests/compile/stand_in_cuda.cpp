// In place of CUDA: records the arguments of launches, by the runtime's call and by the driver's.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

extern "C" {

int sizes[64], count = 0;  // of the kernel's parameters, in bytes: its machine code says them

struct Launch {
  int launches;
  unsigned grid[3], block[3], shared_bytes, cluster[3], programmatic;
  uint64_t stream;
  int most_shared_bytes, non_portable;
  unsigned char parameters[64][128];
} launched;

static void record(unsigned attributes, CUlaunchAttribute const* all, void** parameters) {
  ++launched.launches;
  launched.programmatic = 0;
  for (unsigned i = 0; i < attributes; ++i) {
    if (all[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) std::memcpy(launched.cluster, &all[i].value.clusterDim, 12);
    if (all[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      launched.programmatic = all[i].value.programmaticStreamSerializationAllowed;
    }
  }
  for (int i = 0; i < count; ++i) std::memcpy(launched.parameters[i], parameters[i], sizes[i]);
}

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* x, void const*, void** parameters) {
  unsigned const shape[] = {x->gridDim.x, x->gridDim.y, x->gridDim.z, x->blockDim.x, x->blockDim.y, x->blockDim.z};
  std::memcpy(launched.grid, shape, sizeof shape);
  launched.shared_bytes = x->dynamicSmemBytes;
  launched.stream = reinterpret_cast<uint64_t>(x->stream);
  record(x->numAttrs, reinterpret_cast<CUlaunchAttribute const*>(x->attrs), parameters);
  return cudaSuccess;
}

CUresult cuLaunchKernelEx(CUlaunchConfig const* x, CUfunction, void** parameters, void**) {
  unsigned const shape[] = {x->gridDimX, x->gridDimY, x->gridDimZ, x->blockDimX, x->blockDimY, x->blockDimZ};
  std::memcpy(launched.grid, shape, sizeof shape);
  launched.shared_bytes = x->sharedMemBytes;
  launched.stream = reinterpret_cast<uint64_t>(x->hStream);
  record(x->numAttrs, x->attrs, parameters);
  return CUDA_SUCCESS;
}

// The fields of a tensor map, where the DSL's host code puts them. A map of more than two dimensions has more sizes and strides.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, cuuint64_t const* dims,
                                cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const*, CUtensorMapInterleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill) {
  uint32_t words[32] = {};
  std::memcpy(words, &address, 8);
  uint32_t const kind = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ? 3 : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 5 : 0;
  words[2] = 2 | (rank - 1) << 4 | kind << 8 | swizzle << 13 | promotion << 17;
  for (cuuint32_t i = 0; i + 1 < rank; ++i) words[3 + i] = static_cast<uint32_t>(strides[i] / 16);
  for (cuuint32_t i = 0; i < rank; ++i) words[8 + i] = static_cast<uint32_t>(dims[i] - 1);
  unsigned char* const boxes = reinterpret_cast<unsigned char*>(words) + 55;
  for (cuuint32_t i = 0; i < rank; ++i) boxes[i] = static_cast<unsigned char>(box[i] - 1);
  std::memcpy(map, words, sizeof words);
  return CUDA_SUCCESS;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute attribute, int value, int) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) launched.most_shared_bytes = value;
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) launched.non_portable = value;
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, void const*, cudaJitOption*, void**, unsigned, cudaLibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<cudaLibrary_t>(&launched);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, char const*) {
  *kernel = reinterpret_cast<cudaKernel_t>(&launched);
  return cudaSuccess;
}
static CUresult nothing(int* value, CUfunction_attribute, CUkernel, CUdevice) { return *value = 0, CUDA_SUCCESS; }
cudaError_t cudaGetDriverEntryPointByVersion(char const*, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&nothing);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 227 * 1024, cudaSuccess; }
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorName(cudaError_t) { return ""; }
char const* cudaGetErrorString(cudaError_t) { return ""; }
}
