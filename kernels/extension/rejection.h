// Turning a refused call into its sentence, which Python writes from the same facts that are checked here.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "operand.h"

namespace gemmill {

// Throws std::runtime_error with the sentence for a call of `op` (its index in gemmill.runtime.schemas).
[[noreturn]] void refuse(int64_t op, std::initializer_list<Operand const*> operands);

}  // namespace gemmill

extern "C" {
// Writes the sentence for a refused call. `facts` holds for each operand: given, dtype, device type, device index, data
// pointer, rank, sizes, strides.
typedef void (*gemmill_describe)(int64_t op, int64_t const* facts, int64_t count, char* text, int64_t capacity);
__attribute__((visibility("default"))) void gemmill_set_describe(gemmill_describe describe);
}
