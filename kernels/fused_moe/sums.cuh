// What the last of three launches ends with where its main loop is that of packed weights: parts of a token's experts are summed by who is
// told of the last of them. FusedExperts has the same for a whole CTA.
#pragma once

#include "fused_moe/params.cuh"

namespace gemmill::fused_moe {

// A token's weighed sum over its experts, of the `columns` columns from n0 on, by a warp.
template <class Half, int columns>
__device__ __forceinline__ void sum_token(Params const& p, int64_t token, int n0, int lane) {
  constexpr int kEach = columns / 32;
  static_assert(kEach == 2 || kEach == 4, "a lane sums two or four columns, which a row has whole pieces of");
  auto const& x = p.x;
  int const n = n0 + lane * kEach;
  bool const inside = n < x.hidden;
  float sums[kEach] = {};
  for (int slots = 0; slots < x.topk; slots += 32) {
    int64_t const pairs = token * x.topk + slots;
    bool const is_slot = slots + lane < x.topk;
    float const weights = is_slot && !x.weight_on_input ? x.topk_weights[token * x.ld_weights + slots + lane] : 1.0f;
    unsigned const own = __ballot_sync(~0u, is_slot && p.ws.local[pairs + lane] >= 0);
#pragma unroll 8
    for (int slot = 0; slot < min(32, x.topk - slots); ++slot) {
      float const* const from = p.ws.parts + (pairs + slot) * x.hidden + n;
      bool const has = inside && own >> slot & 1;
      float const weight = __shfl_sync(~0u, weights, slot);
      if constexpr (kEach == 4) {
        float4 part = {};
        if (has) part = __ldcg(reinterpret_cast<float4 const*>(from));
        sums[0] += __fmul_rn(part.x, weight), sums[1] += __fmul_rn(part.y, weight);
        sums[2] += __fmul_rn(part.z, weight), sums[3] += __fmul_rn(part.w, weight);
      } else {
        float2 part = {};
        if (has) part = __ldcg(reinterpret_cast<float2 const*>(from));
        sums[0] += __fmul_rn(part.x, weight), sums[1] += __fmul_rn(part.y, weight);
      }
    }
  }
  if (!inside) return;
  Half* const out = static_cast<Half*>(x.out) + token * x.ldout + n;
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[i]), sums[i]) : sums[i]);
}

// Rows of a tile, at most `rows`, as a warp counts them: whose they are, and how many pairs their tokens have, asked for before they are stored.
template <int rows>
struct CountedRows {
  static constexpr int kEach = (rows + 31) / 32;
  int tokens[kEach], needed[kEach];

  __device__ CountedRows(Params const& p, int first, int count) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int const row = i * 32 + static_cast<int>(threadIdx.x % 32);
      tokens[i] = row < count ? p.ws.order[first + row] / p.x.topk : -1;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) needed[i] = tokens[i] >= 0 ? p.ws.needed[tokens[i]] : 0;
  }

  // Says that `columns` columns from n0 on are stored, which this warp has been told; sums those of tokens that now have all, in the
  // order of their experts.
  template <class Half, int columns>
  __device__ void sum(Params const& p, int n0) const {
    __threadfence();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int token = tokens[i];
      if (token >= 0 && atomicAdd(p.ws.summed + int64_t(token) * p.down.blocks + n0 / columns, 1) + 1 < needed[i]) token = -1;
      __threadfence();
      for (unsigned whole = __ballot_sync(~0u, token >= 0); whole != 0; whole &= whole - 1) {
        sum_token<Half, columns>(p, __shfl_sync(~0u, token, __ffs(whole) - 1), n0, threadIdx.x % 32);
      }
    }
  }
};

}  // namespace gemmill::fused_moe
