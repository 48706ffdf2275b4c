// A contract interpreted, and the parts of its verdict that depend on more than the layouts of tensors.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "extension/call.h"

namespace gemmill {

// The tests of a run that ask for whole addresses or for gradients, by their places in the program.
class OfAddresses {
 public:
  void add(int64_t place, bool is_done) {
    all_held_ &= is_done && count_ < places_.size();
    if (all_held_) places_[count_++] = static_cast<int32_t>(place);
  }
  // Whether there are no more than these and none failed: then a call of the same facts takes the same way while they hold.
  bool all_held() const { return all_held_; }
  int32_t const* begin() const { return places_.data(); }
  int32_t const* end() const { return places_.data() + count_; }

 private:
  std::array<int32_t, 16> places_;
  size_t count_ = 0;
  bool all_held_ = true;
};

// Whether the call keeps to its op's contract; its values go to the call.
bool interpreted(OpCall& call, OfAddresses& tests);
// Whether tests that held for another call of the op hold for this one.
bool still_hold(OpCall& call, OfAddresses const& tests);

}  // namespace gemmill
