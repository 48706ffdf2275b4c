// Loading kernels that the CuTe DSL compiled, each on each device at its first launch there.
#include "core/cutedsl.h"

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <random>

namespace {

// A graph may be being captured: loading is no work for a stream, but CUDA would take it for some and end the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

cudaError_t init(gemmill_cutedsl_module& module) {
  void** library = &module.library;
  cudaError_t error = cudaSuccess;
  void* packed[] = {&library, &error};
  module.init(packed);
  if (error != cudaSuccess) module.library = nullptr;
  return error;
}

cudaError_t load(gemmill_cutedsl_module& module, int32_t device) {
  void** library = &module.library;
  cudaError_t error = cudaSuccess;
  void* packed[] = {&library, &device, &error};
  module.load(packed);
  return error;
}

}  // namespace

namespace gemmill {
__attribute__((weak)) bool endless_waits();  // the extension's, which programs that `gemmill export` writes have not
}

// SplitMix64 (Steele, Lea and Flood, 2014) from a random beginning.
extern "C" int64_t gemmill_ticket(void) {
  static std::atomic<uint64_t> state{(uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()};
  uint64_t z = state.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  bool const endless = gemmill::endless_waits != nullptr && gemmill::endless_waits();
  return static_cast<int64_t>(((z ^ (z >> 31)) & ~uint64_t{1}) | (endless ? 2 : 1));  // not 0
}

extern "C" int32_t gemmill_cutedsl_load(gemmill_cutedsl_module* module, int32_t device) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> const lock(one_at_a_time);
  RelaxedCapture const relaxed;
  cudaError_t error = module->library == nullptr ? init(*module) : cudaSuccess;
  if (error == cudaSuccess) error = load(*module, device);
  if (error == cudaSuccess && device < 64) {
    __atomic_fetch_or(&module->devices, uint64_t{1} << device, __ATOMIC_RELEASE);
  }
  return error;
}
