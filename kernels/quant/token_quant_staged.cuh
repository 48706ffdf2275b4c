// Dynamic quantisation with one scale a row, for many rows: CTAs stay, and rows come to them through shared memory.
#pragma once

#include "quant/staged_rows.cuh"
#include "quant/token_quant_params.cuh"

namespace gemmill::quant {

template <class Variant, class In, class Activation, class Coding, int kChunks>
__global__ void __launch_bounds__(kStagedThreads, staged_ctas(kChunks, Activation::kGated)) token_quant_staged_kernel(TokenQuantParams const p) {
  constexpr int kElements = kChunkElements<In>;
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ uint64_t arrived[kMostStages];
  __shared__ RowReduction<typename Coding::Extent, false> reductions[2];  // in turn: one may still be read as the next is written
  StagedRows<1> rows{staged, arrived, p.chunks * 16 * (Activation::kGated ? 2 : 1), p.stages};
  rows.prepare();
  auto const fetch = [&](uint32_t stage, uint32_t row) {
    if (row < p.rows) rows.fetch(stage, {static_cast<In const*>(p.in) + row * p.in_stride});
  };
  wait_for_predecessor();
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < p.stages; ++s) fetch(s, blockIdx.x + s * gridDim.x);
  }
  float const scale_ub = p.scale_ub == nullptr ? __int_as_float(0x7f800000) : *p.scale_ub;

  uint32_t turn = 0;
  for (uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    uint4 const* const chunks = rows.wait();
    uint4 raw[Activation::kGated ? 1 : kChunks];
    float products[Activation::kGated ? kChunks : 1][kElements];
    RawExtent<In, typename Coding::Extent> of_raw;
    float of_products = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = threadIdx.x + c * blockDim.x;
      if (index < p.chunks) {
        if constexpr (Activation::kGated) {
          float ups[kElements];
          unpack<In>(chunks[index], products[c]);
          unpack<In>(chunks[p.chunks + index], ups);
          gate_and_multiply<Activation>(products[c], ups);
          of_products = fmaxf(of_products, absolute_maximum(products[c]));
        } else {
          raw[c] = chunks[index];
          of_raw.extend(raw[c]);
        }
      }
    }
    typename Coding::Extent extent;
    if constexpr (Activation::kGated) {
      extent = of_products;
    } else {
      extent = of_raw.value();
    }
    Coding const coding(reductions[turn](extent, typename Coding::Reduction{}), scale_ub);
    if (threadIdx.x == 0) {
      fetch(rows.stage, row + p.stages * gridDim.x);
      coding.store(p.scales, p.azps, row);
    }
    uint8_t* const out = p.out + row * p.out_stride;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = threadIdx.x + c * blockDim.x;
      if (index < p.chunks) {
        float loaded[kElements];
        auto& values = Activation::kGated ? products[Activation::kGated ? c : 0] : loaded;
        if constexpr (!Activation::kGated) unpack<In>(raw[c], values);
        uint32_t words[kElements / 4];
        coding.encode(values, words);
        store_codes<true, kElements>(out, int64_t{index} * kElements, p.hidden, words);
      }
    }
    rows.advance();
  }
}

template <class Variant, class In, class Activation, class Coding>
int32_t launch_token_quant_staged(TokenQuantParams p, StagedShape const& shape, int64_t rows, gemmill_quant_launch const& how) {
  p.rows = static_cast<uint32_t>(rows), p.stages = shape.stages;
  int64_t const grid = staged_grid(shape, rows, how.sm_count);
  return shape.chunks == 2   ? launch<&token_quant_staged_kernel<Variant, In, Activation, Coding, 2>>(p, grid, shape.threads, how, 1, shape.shared_bytes)
         : shape.chunks == 4 ? launch<&token_quant_staged_kernel<Variant, In, Activation, Coding, 4>>(p, grid, shape.threads, how, 1, shape.shared_bytes)
                             : launch<&token_quant_staged_kernel<Variant, In, Activation, Coding, 8>>(p, grid, shape.threads, how, 1, shape.shared_bytes);
}

}  // namespace gemmill::quant
