#include "extension/device.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <atomic>
#include <stdexcept>
#include <string>

// A CPU-only torch has no such functions: weak, so that the extension loads there.
extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
__attribute__((weak)) AOTITorchError aoti_torch_create_cuda_guard(int32_t device_index, CUDAGuardHandle* ret_guard);
__attribute__((weak)) AOTITorchError aoti_torch_delete_cuda_guard(CUDAGuardHandle guard);
}

namespace gemmill {
namespace {

constexpr int kMostDevices = 64;
std::atomic<int64_t> known_sm_counts[kMostDevices];
std::atomic<bool> programmatic{true};
std::atomic<bool> weights_are_constant{false};
std::atomic<bool> waits_are_endless{false};

}  // namespace

int64_t sm_count(int32_t device) {
  if (device < 0 || device >= kMostDevices) return 0;
  int64_t known = known_sm_counts[device].load(std::memory_order_relaxed);
  if (known > 0) return known;
  int count = 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  known_sm_counts[device].store(count, std::memory_order_relaxed);
  return count;
}

cudaStream_t current_stream(int32_t device) {
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream != nullptr) aoti_torch_get_current_cuda_stream(device, &stream);
  return static_cast<cudaStream_t>(stream);
}

DeviceScope::DeviceScope(int32_t device) {
  int current = -1;
  if (device < 0 || aoti_torch_create_cuda_guard == nullptr) return;  // in host memory, where no kernel runs
  cudaGetDevice(&current);
  if (current != device && aoti_torch_create_cuda_guard(device, &guard_) != 0) {
    throw std::runtime_error("gemmill: device " + std::to_string(device) + " cannot be made current");
  }
}

DeviceScope::~DeviceScope() {
  if (guard_ != nullptr) aoti_torch_delete_cuda_guard(guard_);
}

bool programmatic_launch() { return programmatic.load(std::memory_order_relaxed); }
bool constant_weights() { return weights_are_constant.load(std::memory_order_relaxed); }
bool endless_waits() { return waits_are_endless.load(std::memory_order_relaxed); }

}  // namespace gemmill

extern "C" __attribute__((visibility("default"))) void gemmill_set_programmatic_launch(int32_t on) {
  gemmill::programmatic.store(on != 0, std::memory_order_relaxed);
}

extern "C" __attribute__((visibility("default"))) void gemmill_set_constant_weights(int32_t on) {
  gemmill::weights_are_constant.store(on != 0, std::memory_order_relaxed);
}

extern "C" __attribute__((visibility("default"))) void gemmill_set_endless_waits(int32_t on) {
  gemmill::waits_are_endless.store(on != 0, std::memory_order_relaxed);
}
