// What the kernels with one scale a row are given.
#pragma once

#include <cstdint>

#include "quant/activation.cuh"
#include "quant/coding.cuh"
#include "quant/extent.cuh"
#include "quant/launch.cuh"
#include "quant/memory.cuh"
#include "quant/reduce.cuh"

namespace gemmill::quant {

struct TokenQuantParams {
  void const* in;
  uint8_t* out;
  float* scales;
  int32_t* azps;
  float const* scale_ub;
  int64_t hidden, in_stride, out_stride;
  uint32_t chunks;            // of a row
  uint32_t rows, stages;      // where rows are staged
};

}  // namespace gemmill::quant
