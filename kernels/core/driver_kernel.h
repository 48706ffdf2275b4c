// Host code: a kernel whose machine code gemmill loads and launches by itself, without the host code of the compiler that made it. No
// CUDA headers, so that generated code compiles in no time.
#pragma once

#include <cstdint>

#include "core/abi.h"

extern "C" {

// Machine code of one kernel, and the devices that have it.
struct gemmill_driver_kernel {
  void const* code;  // a file as fatbinary makes it, of one kernel
  char const* name;  // the kernel's in it
  int32_t threads;
  int32_t shared_bytes;  // dynamic
  void* handle;
  uint64_t devices;  // bit d: device d, of the first 64
};

}  // extern "C"

namespace gemmill {

enum class MapType : int32_t { kBytes, kF16, kBf16 };

// A tensor map of [rows, columns], or of several such, in boxes: a kernel's parameter.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

struct MapShape {
  void const* address;
  int64_t rows, columns, row_stride;  // elements
  int32_t box_rows, box_columns;      // a box's row is 16, 32, 64 or 128 bytes, the span of its swizzle
  MapType type;
  int64_t matrices = 0, matrix_stride = 0;  // of several, from one to the next in elements; 0 for a map of two dimensions
};

// Makes a tensor map. Returns 0 or an error code; the next launch of the thread fails too where one could not be made.
int32_t make_map(TensorMap& map, MapShape const& shape);

// Enqueues a kernel with its parameters' addresses, in clusters of `cluster` CTAs along x; loads it on a device at its first launch
// there. Thread-safe, also during the capture of a graph. Returns 0 or an error code, whose numbers driver and runtime share.
int32_t launch(gemmill_driver_kernel& kernel, int64_t ctas, int32_t cluster, gemmill_launch const& how, void** parameters);

}  // namespace gemmill
