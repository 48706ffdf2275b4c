// The second part of a gated GEMM: activation(gate) up of a stored product, as bf16 or as codes.
//
// A warp has 256 results of a row, and a lane eight of them. The product's columns are packed as weights are (gemmill.formats.gate_up).
// Values, and the order in which they round, are those of the kernels that multiply and activate at once.
#pragma once

#include <algorithm>
#include <climits>
#include <cstring>
#include <cuda_bf16.h>

#include "core/launch.cuh"
#include "coding/coding.cuh"
#include "coding/gating.cuh"
#include "gated_mm/parts.h"

namespace gemmill::gated_mm {

// kCoded: results are codes of e4m3, whose scale kGroup results of a row share; of a given one where it is 0.
template <bool kCoded, int kGroup>
struct ActivatePacked {
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kPiece = 8, kSpan = 32 * kPiece;
  static constexpr int kLanes = kGroup != 0 ? kGroup / kPiece : 1;

  struct Params {
    gemmill_gated_mm_args x;
    void const* product;
  };

  static __device__ void run(Params const& p) {
    // In this order: kernels that follow may read the caller's inputs.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    auto const& x = p.x;
    int const hidden = x.n / 2, spans = (hidden + kSpan - 1) / kSpan;
    int64_t const items = int64_t{x.m} * spans, step = int64_t{gridDim.x} * kWarps;
    for (int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; item < items; item += step) {
      int const row = static_cast<int>(item / spans), span = static_cast<int>(item - int64_t{row} * spans);
      if (has_expert(x, row)) activate(p, row, span * 32 + lane());
    }
  }

 private:
  static __device__ int lane() { return threadIdx.x % 32; }

  static __device__ int offset_at(gemmill_gated_mm_args const& x, int i) { return __ldg(x.offsets + int64_t{i} * x.offset_words); }

  // Whether the product has been made for a row. The whole warp asks.
  static __device__ bool has_expert(gemmill_gated_mm_args const& x, int row) {
    if (x.offsets == nullptr) return true;
    int expert = 0;
    if (x.slot != 0) {
      expert = row / x.slot;
      if (row - expert * x.slot >= offset_at(x, expert)) return false;
    } else {
      int begun = 0;  // experts whose rows begin at this one or before it
      for (int i = lane(); i <= x.experts; i += 32) begun += offset_at(x, i) <= row;
      begun = __reduce_add_sync(~0u, begun);
      if (begun == 0 || begun > x.experts) return false;
      expert = begun - 1;
    }
    return x.expert_map == nullptr || __ldg(x.expert_map + expert) >= 0;
  }

  static __device__ void unpack(uint4 const& words, float (&values)[kPiece]) {
    __nv_bfloat16 elements[kPiece];
    memcpy(elements, &words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = __bfloat162float(elements[i]);
  }

  // Eight results of a row. All lanes come here, those behind the row's end without an effect; groups and pairs of lanes lie within the
  // row. A pair has 32 columns, 16 results: an even lane has loaded the first two of each four, and its neighbour the last two.
  static __device__ void activate(Params const& p, int row, int piece) {
    auto const& x = p.x;
    int const pieces = x.n / 2 / kPiece, at = min(piece, pieces - 1);
    bool const is_odd = lane() % 2;
    uint4 const* const columns = static_cast<uint4 const*>(p.product) + (int64_t{row} * pieces + at) * 2;
    float gates[kPiece], values[kPiece];
    unpack(__ldcg(columns), gates), unpack(__ldcg(columns + 1), values);
    quant::Gating const gating{x.activation, x.alpha, x.limit, x.beta};
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = gating(gates[i], values[i]);
    int64_t const to = int64_t{row} * x.ldd + int64_t{at} * kPiece;
    if constexpr (!kCoded) {
      uint32_t words[kPiece / 2];
#pragma unroll
      for (int i = 0; i < kPiece / 2; ++i) {
        __nv_bfloat16 const pair[] = {__float2bfloat16_rn(values[2 * i]), __float2bfloat16_rn(values[2 * i + 1])};
        memcpy(words + i, pair, sizeof(pair));
      }
      uint32_t const first = other(is_odd ? words[0] : words[2]), second = other(is_odd ? words[1] : words[3]);
      uint4 const results = is_odd ? make_uint4(first, words[2], second, words[3]) : make_uint4(words[0], first, words[1], second);
      if (piece < pieces) *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(x.d) + to) = results;
    } else {
      uint32_t words[kPiece / 4];
      if constexpr (kGroup == 0) {
        float const by = quant::reciprocal_of(__ldg(x.static_scale));
#pragma unroll
        for (int i = 0; i < kPiece; ++i) values[i] = __fmul_rn(values[i], by);
#pragma unroll
        for (int i = 0; i < kPiece; i += 4) words[i / 4] = quant::encode4(values[i], values[i + 1], values[i + 2], values[i + 3], quant::E4M3{});
      } else {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) largest = fmaxf(largest, fabsf(values[i]));  // NaN does not count
        quant::SymmetricCoding<quant::E4M3, quant::Silu> const coding(quant::reduce_lanes<kLanes>(largest, quant::Max{}), INFINITY);
        coding.encode(values, words);
        if (piece < pieces && piece % kLanes == 0) x.out_scales[row * x.out_scale_stride_m + piece / kLanes * x.out_scale_stride_g] = coding.scale;
      }
      uint32_t const found = other(is_odd ? words[0] : words[1]);
      uint32_t const even = is_odd ? found : words[0], odd = is_odd ? words[1] : found;
      uint2 const codes = make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
      if (piece < pieces) *reinterpret_cast<uint2*>(static_cast<uint8_t*>(x.d) + to) = codes;
    }
  }

  // The word of the lane's neighbour in its pair.
  static __device__ uint32_t other(uint32_t word) { return __shfl_xor_sync(~0u, word, 1); }
};

// Host code: the second launch.
template <class Kernel, auto entry>
int32_t launch_activate_packed(gemmill_gated_parts_args const& x, gemmill_launch const& how) {
  constexpr int kCtasOfSm = 8;  // as many as fit
  typename Kernel::Params params{x.call, x.product};
  int64_t const warps = int64_t{x.call.m} * ((x.call.n / 2 + Kernel::kSpan - 1) / Kernel::kSpan);
  int64_t const ctas = std::clamp<int64_t>((warps + Kernel::kWarps - 1) / Kernel::kWarps, 1, int64_t{how.sm_count} * kCtasOfSm);
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(static_cast<unsigned>(ctas)), dim3(Kernel::kThreads), dim3(1), 0};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::gated_mm
