// The arguments of the toy's kernels.
#pragma once

#include "core/abi.h"

extern "C" struct gemmill_toy_args {
  float const* pages;
  uint8_t* codes;
  float* peaks;
  int64_t length, page, pages_stride, codes_stride;
  int64_t low;
};
