// Host code: the plain C boundary between compiled kernels and the code that calls them, whatever the family. Kernels compile without
// torch headers, the extension's binding without CUTLASS.
#pragma once

#include <cstdint>

extern "C" {

// How a kernel is to be launched.
struct gemmill_launch {
  void* stream;
  void* workspace;              // as many bytes as the kernel asks for, contents irrelevant
  int32_t device;
  int32_t sm_count;
  int32_t programmatic_launch;  // whether the kernel may start while its predecessor drains
  int32_t constant_weights;     // whether weights may be read before the predecessor has ended
};

enum { GEMMILL_CANNOT_IMPLEMENT = -1 };

// One compiled kernel of an extension; several variants may launch it with different settings.
struct gemmill_kernel {
  char const* symbol;
  // Enqueues with arguments of its family's own struct. Returns 0, a cudaError_t, or GEMMILL_CANNOT_IMPLEMENT; never throws,
  // synchronises or allocates.
  int32_t (*launch)(void const* args, gemmill_launch const* how);
  // Bytes of workspace that the same call needs; null for a kernel that never needs any.
  int64_t (*workspace)(void const* args, gemmill_launch const* how);
};

}  // extern "C"
