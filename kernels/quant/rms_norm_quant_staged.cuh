// RMS norm and quantisation for many rows: CTAs stay, and rows come to them through shared memory.
#pragma once

#include "quant/rms_norm_quant_params.cuh"
#include "quant/staged_rows.cuh"

namespace gemmill::quant {

// kGroup 0: one scale a row. Rows and, but for the widest with a residual, weights stay in registers.
template <class Variant, class In, class Out, int kGroup, int kChunks, bool kResidual>
__global__ void __launch_bounds__(kStagedThreads, staged_ctas(kChunks, true)) rms_norm_quant_staged_kernel(RmsNormParams const p) {
  constexpr int kElements = kChunkElements<In>;
  constexpr int kLanes = kGroup == 0 ? 32 : kGroup / kElements;
  constexpr bool kKeepWeights = !(kResidual && kChunks > 2);
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ uint64_t arrived[kMostStages];
  // In turn: one may still be read as the next is written.
  __shared__ RowReduction<double, false> sums[2];
  __shared__ RowReduction<float, false> maxima[2];
  StagedRows<kResidual ? 2 : 1> rows{staged, arrived, p.chunks * 16, p.stages};
  rows.prepare();
  In const* const in = static_cast<In const*>(p.in);
  In* const residual = static_cast<In*>(p.residual);
  auto const fetch = [&](uint32_t stage, uint32_t row) {
    if (row >= p.rows) return;
    if constexpr (kResidual) {
      rows.fetch(stage, {in + row * p.in_stride, residual + row * p.residual_stride});
    } else {
      rows.fetch(stage, {in + row * p.in_stride});
    }
  };
  auto const load_weight = [&](uint32_t index) {
    return index < p.chunks ? load_reused(static_cast<In const*>(p.weight) + int64_t{index} * kElements) : make_uint4(0, 0, 0, 0);
  };
  wait_for_predecessor();
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < p.stages; ++s) fetch(s, blockIdx.x + s * gridDim.x);
  }
  float const scale_ub = p.scale_ub == nullptr ? __int_as_float(0x7f800000) : *p.scale_ub;
  uint4 weights[kKeepWeights ? kChunks : 1];
  if constexpr (kKeepWeights) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) weights[c] = load_weight(threadIdx.x + c * blockDim.x);
  }

  auto const x_of = [](uint4 chunk, [[maybe_unused]] uint4 other, float(&x)[kElements]) {
    unpack<In>(chunk, x);
    if constexpr (kResidual) {
      float added[kElements];
      unpack<In>(other, added);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = __fadd_rn(x[i], added[i]);
    }
  };

  uint32_t turn = 0;
  for (uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    uint4 const* const arrived_chunks = rows.wait();
    uint4 chunks[kChunks], others[kResidual ? kChunks : 1]{};
    double sum = 0.0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = threadIdx.x + c * blockDim.x;
      bool const inside = index < p.chunks;
      chunks[c] = inside ? arrived_chunks[index] : make_uint4(0, 0, 0, 0);
      if constexpr (kResidual) others[c] = inside ? arrived_chunks[p.chunks + index] : make_uint4(0, 0, 0, 0);
      float x[kElements];
      x_of(chunks[c], others[kResidual ? c : 0], x);
      sum += sum_of_squares(x);
      if constexpr (kResidual) {
        if (inside) store_chunk<true>(residual + row * p.residual_stride, int64_t{index} * kElements, p.hidden, pack<In>(x));
      }
    }
    float const inverse_rms = inverse_rms_of(sums[turn](sum, Sum{}), p);
    if (threadIdx.x == 0) fetch(rows.stage, row + p.stages * gridDim.x);

    RawExtent<In, float> of_row;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float x[kElements];
      x_of(chunks[c], others[kResidual ? c : 0], x);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = __fmul_rn(x[i], inverse_rms);
      chunks[c] = multiply<In>(pack<In>(x), kKeepWeights ? weights[kKeepWeights ? c : 0] : load_weight(threadIdx.x + c * blockDim.x));
      if constexpr (kGroup == 0) of_row.extend(chunks[c]);
    }
    float amax = 0.0f, scale = 0.0f;
    if constexpr (kGroup == 0) {
      amax = maxima[turn](of_row.value(), Max{});
      scale = normed_scale<Out>(amax, scale_ub);
      if (threadIdx.x == 0) p.scales[row * p.scale_stride_m] = scale;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = threadIdx.x + c * blockDim.x;
      bool const inside = index < p.chunks;
      if constexpr (kGroup != 0) {
        RawExtent<In, float> of_group;
        of_group.extend(chunks[c]);
        amax = reduce_lanes<kLanes>(of_group.value(), Max{});
        scale = normed_scale<Out>(amax, scale_ub);
        if (threadIdx.x % kLanes == 0 && inside) p.scales[row * p.scale_stride_m + index / kLanes * p.scale_stride_g] = scale;
      }
      float y[kElements];
      unpack<In>(chunks[c], y);
      uint32_t words[kElements / 4];
      encode_normed<Out>(y, scale, amax, words);
      if (inside) store_codes<true, kElements>(p.out + row * p.out_stride, int64_t{index} * kElements, p.hidden, words);
    }
    rows.advance();
  }
}

template <class Variant, class In, class Out, int kGroup, int kChunks>
int32_t launch_rms_norm_quant_staged_chunks(RmsNormParams const& p, StagedShape const& shape, int64_t rows, gemmill_quant_launch const& how) {
  int64_t const grid = staged_grid(shape, rows, how.sm_count);
  if (p.residual != nullptr) {
    return launch<&rms_norm_quant_staged_kernel<Variant, In, Out, kGroup, kChunks, true>>(p, grid, shape.threads, how, 1, shape.shared_bytes);
  }
  return launch<&rms_norm_quant_staged_kernel<Variant, In, Out, kGroup, kChunks, false>>(p, grid, shape.threads, how, 1, shape.shared_bytes);
}

template <class Variant, class In, class Out, int kGroup>
int32_t launch_rms_norm_quant_staged(RmsNormParams p, StagedShape const& shape, int64_t rows, gemmill_quant_launch const& how) {
  p.rows = static_cast<uint32_t>(rows), p.stages = shape.stages;
  return shape.chunks == 2   ? launch_rms_norm_quant_staged_chunks<Variant, In, Out, kGroup, 2>(p, shape, rows, how)
         : shape.chunks == 4 ? launch_rms_norm_quant_staged_chunks<Variant, In, Out, kGroup, 4>(p, shape, rows, how)
                             : launch_rms_norm_quant_staged_chunks<Variant, In, Out, kGroup, 8>(p, shape, rows, how);
}

}  // namespace gemmill::quant
