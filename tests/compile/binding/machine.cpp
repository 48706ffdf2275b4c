// Functions of CUDA and torch that the linker puts in the place of the real ones (--wrap): what the binding asks of a
// machine, answered as by one with GPUs, and noted.
#include "machine.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstring>

#include "probe.h"

extern "C" {
PROBE_EXPORT probe_machine_state probe_machine{-1};

AOTITorchError __real_aoti_torch_get_device_index(AtenTensorHandle, int32_t*);
AOTITorchError __real_aoti_torch_get_device_type(AtenTensorHandle, int32_t*);
AOTITorchError __real_aoti_torch_delete_tensor_object(AtenTensorHandle);
AOTITorchError __real_aoti_torch_empty_strided(int64_t, int64_t const*, int64_t const*, int32_t, int32_t, int32_t, AtenTensorHandle*);

AOTITorchError __wrap_aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index) {
  if (probe_machine.device < 0) return __real_aoti_torch_get_device_index(tensor, index);
  void* data = nullptr;
  aoti_torch_get_data_ptr(tensor, &data);
  *index = probe_machine.device + (data != nullptr && data == probe_machine.elsewhere);
  return 0;
}

AOTITorchError __wrap_aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type) {
  if (probe_machine.device < 0) return __real_aoti_torch_get_device_type(tensor, type);
  *type = aoti_torch_device_type_cuda();
  return 0;
}

AOTITorchError __wrap_aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  ++probe_machine.tensors_let_go;
  return __real_aoti_torch_delete_tensor_object(tensor);
}

AOTITorchError __wrap_aoti_torch_empty_strided(int64_t rank, int64_t const* sizes, int64_t const* strides, int32_t dtype,
                                               int32_t type, int32_t device, AtenTensorHandle* result) {
  probe_machine.allocated_bytes = sizes[0], probe_machine.allocated_type = type, probe_machine.allocated_on = device;
  if (probe_machine.out_of_memory) return 1;
  return __real_aoti_torch_empty_strided(rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, result);
}

AOTITorchError __wrap_aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  *stream = reinterpret_cast<void*>(0x1000 + 16 * static_cast<intptr_t>(device));
  return 0;
}

AOTITorchError __wrap_aoti_torch_create_cuda_guard(int32_t device, CUDAGuardHandle* guard) {
  ++probe_machine.guards;
  *guard = reinterpret_cast<CUDAGuardHandle>(new int32_t(probe_machine.current));
  probe_machine.current = device;
  return 0;
}

AOTITorchError __wrap_aoti_torch_delete_cuda_guard(CUDAGuardHandle guard) {
  --probe_machine.guards;
  auto* before = reinterpret_cast<int32_t*>(guard);
  probe_machine.current = *before;
  delete before;
  return 0;
}

cudaError_t __wrap_cudaGetDevice(int* device) { return *device = probe_machine.current, cudaSuccess; }
cudaError_t __wrap_cudaSetDevice(int device) {
  ++probe_machine.devices_set;
  return probe_machine.current = device, cudaSuccess;
}
cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  ++probe_machine.attributes_asked;
  return *value = 100 + device, cudaSuccess;
}

// As the driver does: strides are multiples of 16 bytes. The map begins with its arguments.
static CUresult describe(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address, cuuint64_t const* dims,
                         cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const*, CUtensorMapInterleave,
                         CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  ++probe_machine.described;
  for (cuuint32_t i = 0; i + 1 < rank; ++i) {
    if (strides[i] % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t const told[4] = {reinterpret_cast<uint64_t>(address), dims[0], strides[0], box[0]};
  std::memcpy(map, told, sizeof told);
  return CUDA_SUCCESS;
}

static CUresult launch(CUlaunchConfig const*, CUfunction, void**, void**) { return ++probe_machine.launched, CUDA_SUCCESS; }

cudaError_t __wrap_cudaGetDriverEntryPointByVersion(char const* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
  *found = cudaDriverEntryPointSuccess;
  *function = std::strcmp(name, "cuTensorMapEncodeTiled") == 0 ? reinterpret_cast<void*>(&describe) : reinterpret_cast<void*>(&launch);
  return cudaSuccess;
}

// A descriptor of rank 2 as kernels ask for it, at these numbers; its first words, or the error.
PROBE_EXPORT int32_t probe_describe(uint64_t address, uint64_t const* dims, uint64_t stride, uint32_t const* box,
                                    uint32_t const* element_strides, uint32_t const* kinds, uint64_t* told) {
  CUtensorMap map{};
  CUresult const result = cuTensorMapEncodeTiled(
      &map, CUtensorMapDataType(kinds[0]), 2, reinterpret_cast<void*>(address), reinterpret_cast<cuuint64_t const*>(dims),
      reinterpret_cast<cuuint64_t const*>(&stride), box, element_strides, CUtensorMapInterleave(kinds[1]),
      CUtensorMapSwizzle(kinds[2]), CUtensorMapL2promotion(kinds[3]), CUtensorMapFloatOOBfill(kinds[4]));
  std::memcpy(told, &map, 4 * sizeof(uint64_t));
  return result;
}
}
