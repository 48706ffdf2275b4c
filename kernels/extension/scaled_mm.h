#pragma once

#include <torch/csrc/stable/library.h>

namespace gemmill {

// Boxed kernels; the stack holds the arguments of the schemas in gemmill.runtime.schemas.
void scaled_mm(StableIValue* stack, uint64_t argument_count, uint64_t output_count);
void scaled_mm_azp(StableIValue* stack, uint64_t argument_count, uint64_t output_count);

}  // namespace gemmill
