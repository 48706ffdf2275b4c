// What the last of three launches ends with where its main loop is that of packed weights: parts of a token's experts are summed by who is
// told of the last of them. FusedExperts has the same for a whole CTA.
#pragma once

#include "fused_moe/params.cuh"

namespace gemmill::fused_moe {

// Weighed sums of some tokens over their experts, of the `columns` columns from n0 on, by a warp: loads of one do not wait for another's.
// A token below 0 is none.
template <class Half, int columns, int count>
__device__ __forceinline__ void sum_tokens(Params const& p, int const (&tokens)[count], int n0, int lane) {
  constexpr int kEach = columns / 32;
  static_assert(kEach == 2 || kEach == 4, "a lane sums two or four columns, which a row has whole pieces of");
  auto const& x = p.x;
  int const n = n0 + lane * kEach;
  bool const inside = n < x.hidden;
  float sums[count][kEach] = {};
  for (int slots = 0; slots < x.topk; slots += 32) {
    float weights[count];
    unsigned own[count];
#pragma unroll
    for (int t = 0; t < count; ++t) {
      bool const is_slot = tokens[t] >= 0 && slots + lane < x.topk;
      weights[t] = is_slot && !x.weight_on_input ? x.topk_weights[tokens[t] * x.ld_weights + slots + lane] : 1.0f;
      own[t] = __ballot_sync(~0u, is_slot && p.ws.local[int64_t(tokens[t]) * x.topk + slots + lane] >= 0);
    }
#pragma unroll 4
    for (int slot = 0; slot < min(32, x.topk - slots); ++slot) {
#pragma unroll
      for (int t = 0; t < count; ++t) {
        float const weight = __shfl_sync(~0u, weights[t], slot);
        if (!inside || !(own[t] >> slot & 1)) continue;
        float const* const from = p.ws.parts + (int64_t(tokens[t]) * x.topk + slots + slot) * x.hidden + n;
        float part[kEach];
        if constexpr (kEach == 4) {
          float4 const four = __ldcg(reinterpret_cast<float4 const*>(from));
          part[0] = four.x, part[1] = four.y, part[2] = four.z, part[3] = four.w;
        } else {
          float2 const two = __ldcg(reinterpret_cast<float2 const*>(from));
          part[0] = two.x, part[1] = two.y;
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) sums[t][i] += __fmul_rn(part[i], weight);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < count; ++t) {
    if (!inside || tokens[t] < 0) continue;
    Half* const out = static_cast<Half*>(x.out) + tokens[t] * x.ldout + n;
#pragma unroll
    for (int i = 0; i < kEach; ++i) out[i] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[i]), sums[t][i]) : sums[t][i]);
  }
}

// Rows of a tile, at most `rows`, as a warp counts them: whose they are, and how many pairs their tokens have, asked for before they are stored.
template <int rows>
struct CountedRows {
  static constexpr int kEach = (rows + 31) / 32;
  static constexpr int kTogether = rows > 8 ? 2 : 1;  // tokens that are summed at a time
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
      for (unsigned whole = __ballot_sync(~0u, token >= 0); whole != 0;) {
        int together[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
          int const found = __shfl_sync(~0u, token, (__ffs(whole) - 1) & 31);
          together[t] = whole != 0 ? found : -1;
          whole &= whole - 1;
        }
        sum_tokens<Half, columns>(p, together, n0, threadIdx.x % 32);
      }
    }
  }
};

}  // namespace gemmill::fused_moe
