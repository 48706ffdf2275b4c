// What the last of three launches ends with where its main loop is that of packed weights: parts of a token's experts are summed by who is
// told of the last of them. FusedExperts has the same for a whole CTA.
#pragma once

#include "fused_moe/params.cuh"

namespace gemmill::fused_moe {

// A token's sum over its experts, of the `columns` columns from n0 on, by a warp.
template <class Half, int columns>
__device__ __forceinline__ void sum_token(Params const& p, int64_t token, int n0, int lane) {
  constexpr int kEach = columns / 32;
  static_assert(kEach == 2 || kEach == 4, "a lane sums two or four columns, which a row has whole pieces of");
  auto const& x = p.x;
  int const n = n0 + lane * kEach;
  float sums[kEach] = {};
  for (int slots = 0; slots < x.topk; slots += 32) {
    int64_t const pairs = token * x.topk + slots;
    unsigned const own = __ballot_sync(~0u, slots + lane < x.topk && p.ws.local[pairs + lane] >= 0);
    if (n >= x.hidden) continue;
#pragma unroll 8
    for (int slot = 0; slot < min(32, x.topk - slots); ++slot) {
      float const* const from = p.ws.parts + (pairs + slot) * x.hidden + n;
      bool const has = own >> slot & 1;
      if constexpr (kEach == 4) {
        float4 part = {};
        if (has) part = __ldcg(reinterpret_cast<float4 const*>(from));
        sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
      } else {
        float2 part = {};
        if (has) part = __ldcg(reinterpret_cast<float2 const*>(from));
        sums[0] += part.x, sums[1] += part.y;
      }
    }
  }
  if (n >= x.hidden) return;
  Half* const out = static_cast<Half*>(x.out) + token * x.ldout + n;
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[i]), sums[i]) : sums[i]);
}

// Says of the `count` rows of a tile that `columns` columns from n0 on are stored, which this warp has been told; sums those of tokens
// that now have all, in the order of their experts.
template <class Half, int columns>
__device__ __forceinline__ void sum_stored(Params const& p, int first, int count, int n0) {
  auto const& x = p.x;
  int const lane = threadIdx.x % 32;
  __threadfence();
  for (int base = 0; base < count; base += 32) {
    int token = -1;
    if (base + lane < count) {
      token = p.ws.order[first + base + lane] / x.topk;
      int const needed = p.ws.needed[token], before = atomicAdd(p.ws.summed + int64_t(token) * p.down.blocks + n0 / columns, 1);
      if (before + 1 < needed) token = -1;
    }
    __threadfence();
    for (unsigned whole = __ballot_sync(~0u, token >= 0); whole != 0; whole &= whole - 1) {
      sum_token<Half, columns>(p, __shfl_sync(~0u, token, __ffs(whole) - 1), n0, lane);
    }
  }
}

}  // namespace gemmill::fused_moe
