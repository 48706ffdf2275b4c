// Turning a refused call into its sentence, which Python writes from the same facts that are checked here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "operand.h"

namespace gemmill {

// The arguments of a call in the order of its schema, as numbers.
class Facts {
 public:
  Facts& operand(Operand const& x);
  Facts& integer(int64_t x);
  Facts& real(double x);
  Facts& text(std::string const& x);
  Facts& integers(std::optional<std::vector<int64_t>> const& x);
  std::vector<int64_t> const& numbers() const { return numbers_; }

 private:
  std::vector<int64_t> numbers_;
};

// Throws std::runtime_error with the sentence for a call of `op` (its index in gemmill.runtime.schemas).
[[noreturn]] void refuse(int64_t op, Facts const& facts);
[[noreturn]] void refuse(int64_t op, std::initializer_list<Operand const*> operands);

}  // namespace gemmill

extern "C" {
// Writes the sentence for a refused call. `facts` holds for each tensor: given, dtype, device type, device index, data
// pointer, whether it is differentiated, rank, sizes, strides; for an integer or truth value itself; for a real number the bits of the double; for a
// list of integers: given, length, values; for a text: length, bytes.
typedef void (*gemmill_describe)(int64_t op, int64_t const* facts, int64_t count, char* text, int64_t capacity);
__attribute__((visibility("default"))) void gemmill_set_describe(gemmill_describe describe);
}
