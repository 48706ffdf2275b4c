// Calling a kernel that the CuTe DSL compiled ahead of time: the needs of its emitted launch function. No CUDA headers, so that one
// compiles in no time.
#pragma once

#include <cstdint>

extern "C" {

// The machine code of one kernel, and the devices that have it. Both functions are the DSL's; they take the addresses of
// their arguments, the last one of a cudaError_t that they set.
struct gemmill_cutedsl_module {
  void (*init)(void** library_and_error);
  void (*load)(void** library_device_and_error);
  void* library;
  uint64_t devices;  // bit d: device d, of the first 64
};

// Makes a kernel ready on a device. Thread-safe, also during the capture of a graph. Returns 0 or a cudaError_t.
int32_t gemmill_cutedsl_load(gemmill_cutedsl_module* module, int32_t device);

// A number that no earlier call of any process is likely to have had: 63 bits, then 1 where a wait for other CTAs is to end
// after 20 s, 0 where it may last for ever. Not 0. Thread-safe.
int64_t gemmill_ticket(void);

}  // extern "C"

inline int32_t gemmill_cutedsl_ready(gemmill_cutedsl_module* module, int32_t device) {
  bool const known = device < 64 && __atomic_load_n(&module->devices, __ATOMIC_ACQUIRE) >> device & 1;
  return known ? 0 : gemmill_cutedsl_load(module, device);
}
