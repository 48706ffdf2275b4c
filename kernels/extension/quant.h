// The quantisation ops on CUDA tensors, and the table that says which kernel serves a call.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>

namespace gemmill {

// One kernel and the calls that it serves. Mirrored by gemmill.runtime.quant_table.QuantRow: the order of fields is the
// interface; the numbers stand for members of the enumerations in gemmill.space.quant, in their order there.
struct QuantRow {
  int64_t kernel;  // index into gemmill_quant_kernels
  int64_t family, in_dtype, out_dtype, activation, group_size, scale_format, symmetric, truncated;
};

// A boxed kernel; the stack holds the arguments of the op's schema in gemmill.runtime.schemas.
struct QuantOp {
  char const* name;
  void (*kernel)(StableIValue* stack, uint64_t argument_count, uint64_t output_count);
};
inline constexpr int kQuantOps = 19;
extern QuantOp const quant_ops[kQuantOps];

}  // namespace gemmill

extern "C" {
// Replaces the table. Called once after load.
__attribute__((visibility("default"))) void gemmill_set_quant_table(gemmill::QuantRow const* rows, int64_t count);
// Pins a kernel for the calling thread, by its index; -1 ends that. Returns the kernel pinned before.
__attribute__((visibility("default"))) int64_t gemmill_pin_quant(int64_t kernel);
}
