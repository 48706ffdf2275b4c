// The toy's op: the inputs of its choice, and a kernel's arguments.
#include "extension/family.h"
#include "toy/abi.h"

namespace gemmill {
namespace {

enum Role { kCodes, kPeaks, kPages };
enum Value { kLength, kPage, kPagesStride, kCodesStride, kLow };
enum Size { kSizeLength, kSizePage };

bool asks(OpCall const& x, Call& asked) {
  if (x.value(kLength) == 0) return false;
  asked.sizes[kSizeLength] = x.value(kLength), asked.sizes[kSizePage] = x.value(kPage);
  uint64_t const bits = reinterpret_cast<uintptr_t>(x.tensor(kPages).data) | 4 * x.value(kPagesStride) | 16;
  asked.alignments[0] = static_cast<int64_t>(bits & -bits);
  return true;
}

void launch(OpCall const& x, Chosen const& chosen) {
  gemmill_toy_args const args{static_cast<float const*>(x.tensor(kPages).data), static_cast<uint8_t*>(x.tensor(kCodes).data),
                              static_cast<float*>(x.tensor(kPeaks).data), x.value(kLength), x.value(kPage),
                              x.value(kPagesStride), x.value(kCodesStride), x.value(kLow)};
  chosen.launch(&args);
}

double model_ns(Row const& row, Call const& call, int64_t) {
  int64_t const at_a_time = row.facts[0];
  return static_cast<double>((call.sizes[kSizeLength] + at_a_time - 1) / at_a_time * call.sizes[kSizePage]);
}

Family const toy{"toy",
                 {"codes", "peaks", "pages"},
                 {"length", "page", "pages_stride", "codes_stride", "low"},
                 {},
                 asks,
                 launch,
                 {[](Row const&, Call const&) { return true; }, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }}};

}  // namespace
}  // namespace gemmill
