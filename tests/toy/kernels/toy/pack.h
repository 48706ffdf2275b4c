// A kernel of the toy that runs where it is called: on the CPU.
#pragma once

#include <algorithm>
#include <cmath>

#include "toy/abi.h"

template <int kPagesAtATime>
int32_t toy_pack(gemmill_toy_args const& x) {
  auto code = [&](float value) {
    return static_cast<uint8_t>(std::clamp(std::nearbyint(std::isnan(value) ? 0.0f : value), static_cast<float>(x.low), 15.0f));
  };
  for (int64_t first = 0; first < x.length; first += kPagesAtATime) {
    for (int64_t at = first; at < std::min<int64_t>(first + kPagesAtATime, x.length); ++at) {
      float const* page = x.pages + at * x.pages_stride;
      x.peaks[at] = 0.0f;
      for (int64_t i = 0; i < x.page; ++i) x.peaks[at] = std::fmax(x.peaks[at], page[i]);
      for (int64_t i = 0; i < x.page / 2; ++i) {
        x.codes[at * x.codes_stride + i] = static_cast<uint8_t>(code(page[2 * i]) | code(page[2 * i + 1]) << 4);
      }
    }
  }
  return 0;
}
