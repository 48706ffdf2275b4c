// Boosted trees that correct the model's times. Mirrors gemmill.families.scaled_mm.boosted, which says how.
#pragma once

#include <array>
#include <cstddef>

namespace gemmill {

constexpr std::size_t kTreeInputs = 22;
constexpr std::size_t kTreeTotal = 6;  // the place of the model's time
constexpr double kLeastLog = -0.25;    // of the largest reduction

using TreeInputs = std::array<double, kTreeInputs>;

// The natural logarithm of the correction.
double log_of(TreeInputs const& inputs);

}  // namespace gemmill
