// The end of the last of three launches with the main loop of packed weights: the warp that hears of the last of a token's parts sums
// them. FusedExperts has the same for a whole CTA.
#pragma once

#include "fused_experts/params.cuh"

namespace gemmill::fused_moe {

// A lane's columns of a part, in float32.
template <int each>
__device__ __forceinline__ void load_part(float const* from, float (&values)[each]) {
  static_assert(each == 2 || each == 4, "a lane has a whole piece of a row");
  using Piece = std::conditional_t<each == 4, float4, float2>;
  Piece const piece = __ldcg(reinterpret_cast<Piece const*>(from));
  memcpy(values, &piece, sizeof(piece));
}
template <int each>
__device__ __forceinline__ void load_part(__nv_bfloat16 const* from, float (&values)[each]) {
  static_assert(each == 4, "a lane has 8 bytes of a row");
  uint2 const piece = __ldcg(reinterpret_cast<uint2 const*>(from));
  values[0] = __uint_as_float(piece.x << 16), values[1] = __uint_as_float(piece.x & 0xFFFF0000u);
  values[2] = __uint_as_float(piece.y << 16), values[3] = __uint_as_float(piece.y & 0xFFFF0000u);
}

// A token's sum over its experts, of the `columns` columns from n0 on, by a warp. It loads parts of some experts together: in place of a
// missing one another's, for of conditional loads nvcc 13.0 has each wait for the one before. `all`: whether all experts have weights.
template <class Half, int columns, int together = 20 / (columns / 32), class Part = float>
__device__ __forceinline__ void sum_token(Params const& p, int64_t token, bool all, int n0, int lane) {
  constexpr int kEach = columns / 32, kTogether = together;
  auto const& x = p.x;
  int const n = n0 + lane * kEach;
  float sums[kEach] = {};
  for (int slots = 0; slots < x.topk; slots += 32) {
    int64_t const pairs = token * x.topk + slots;
    uint64_t const own = __ballot_sync(~0u, slots + lane < x.topk && (all || p.ws.local[pairs + lane] >= 0));
    if (own == 0 || n >= x.hidden) continue;
    int const some = __ffsll(static_cast<long long>(own)) - 1;
    Part const* const from = reinterpret_cast<Part const*>(p.ws.parts) + pairs * x.hidden + n;
#pragma unroll 1
    for (int first = 0; own >> first != 0; first += kTogether) {
      float parts[kTogether][kEach];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) load_part(from + int64_t{own >> (first + i) & 1 ? first + i : some} * x.hidden, parts[i]);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        bool const has = own >> (first + i) & 1;
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[j] += has ? parts[i][j] : 0.0f;
      }
    }
  }
  if (n >= x.hidden) return;
  Half* const out = static_cast<Half*>(x.out) + token * x.ldout + n;
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[i]), sums[i]) : sums[i]);
}

// Of one of a tile's rows: its token, -1 for none, and how many experts of that have weights.
struct AskedRow {
  int token, needed;
};
__device__ __forceinline__ AskedRow ask_row(Params const& p, int first, int count) {
  int const lane = threadIdx.x % 32;
  if (lane >= count) return {-1, 0};
  int const token = p.ws.order[first + lane] / p.x.topk;
  return {token, p.ws.needed[token]};
}

// Counts `columns` columns from n0 on as stored for the `count` rows of a tile, which this warp knows; sums those of tokens that now have
// all, in the order of their experts. `asked`: the answer for the first 32.
template <class Half, int columns>
__device__ __forceinline__ void sum_stored(Params const& p, int first, int count, int n0, AskedRow const& asked) {
  auto const& x = p.x;
  int const lane = threadIdx.x % 32;
  __threadfence();
  for (int base = 0; base < count; base += 32) {
    AskedRow const row = base == 0 ? asked : ask_row(p, first + base, count - base);
    int token = row.token;
    if (token >= 0 && atomicAdd(p.ws.summed + int64_t(token) * p.down.blocks + n0 / columns, 1) + 1 < row.needed) token = -1;
    __threadfence();
    for (unsigned whole = __ballot_sync(~0u, token >= 0); whole != 0; whole &= whole - 1) {
      int const of = __ffs(whole) - 1;
      sum_token<Half, columns>(p, __shfl_sync(~0u, token, of), __shfl_sync(~0u, row.needed, of) == x.topk, n0, lane);
    }
  }
}

}  // namespace gemmill::fused_moe
