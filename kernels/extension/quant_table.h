// The table that says which quantisation kernel serves a call.
#pragma once

#include <cstdint>

namespace gemmill {

// One kernel and the calls that it serves. Mirrored by gemmill.runtime.quant_table.QuantRow: the order of fields is the
// interface; the numbers stand for members of the enumerations in gemmill.families.quant.config, in their order there.
struct QuantRow {
  int64_t kernel;  // index into gemmill_quant_kernels
  int64_t family, in_dtype, out_dtype, activation, group_size, scale_format, symmetric, vllm;
};

}  // namespace gemmill

extern "C" {
// Replaces the table. Called once after load.
__attribute__((visibility("default"))) void gemmill_set_quant_table(gemmill::QuantRow const* rows, int64_t count);
// Pins a kernel for the calling thread, by its index; -1 ends that. Returns the kernel pinned before.
__attribute__((visibility("default"))) int64_t gemmill_pin_quant(int64_t kernel);
}
