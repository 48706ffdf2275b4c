// Warps that share vectors: each takes as many elements of the same tokens, so a score is the sum of theirs.
//
// Their parts meet in shared memory, in two places in turn: who writes the one has seen that all have read the other. All add in the
// same order, so they go on with equal bits, and nobody waits but at one barrier a tile.
#pragma once

#include "kv_cache/shared/bulk_copy.cuh"
#include "kv_cache/shared/mma.cuh"

namespace gemmill::kv_cache {

constexpr int kFirstShareBarrier = 2;  // of the barriers that `sync_threads` takes
constexpr int kPartBytes = 32 * 16 + 8 * 8;  // of a warp: four sums of each lane, and two squares of each of eight tokens

// `kShares` warps of a block that follow one another.
template <int kShares>
struct Shares {
  static constexpr int bytes(int warps) { return kShares > 1 ? 2 * warps * kPartBytes : 0; }
  uint8_t* parts;  // of these warps, [2][kShares]
  int share, barrier, turn;

  __device__ __forceinline__ Shares(uint8_t* shared, int warp)
      : parts(shared + warp / kShares * 2 * kShares * kPartBytes), share(warp % kShares), barrier(kFirstShareBarrier + warp / kShares), turn(0) {}

  // Sums of all warps in place of a warp's own. Squares are alike in the four lanes of a token.
  template <bool kHasSquares>
  __device__ __forceinline__ void add(float (&s)[4], float (&square)[2], int lane) {
    if constexpr (kShares > 1) {
      uint8_t* const at = parts + turn * kShares * kPartBytes;
      turn ^= 1;
      reinterpret_cast<float4*>(at + share * kPartBytes)[lane] = make_float4(s[0], s[1], s[2], s[3]);
      if (kHasSquares && lane % 4 == 0) {
        reinterpret_cast<float2*>(at + share * kPartBytes + 32 * 16)[lane / 4] = make_float2(square[0], square[1]);
      }
      sync_threads(barrier, 32 * kShares);
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      float2 squares = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < kShares; ++i) {
        float4 const part = reinterpret_cast<float4 const*>(at + i * kPartBytes)[lane];
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        if constexpr (kHasSquares) {
          float2 const of_part = reinterpret_cast<float2 const*>(at + i * kPartBytes + 32 * 16)[lane / 4];
          squares.x += of_part.x, squares.y += of_part.y;
        }
      }
      s[0] = sum.x, s[1] = sum.y, s[2] = sum.z, s[3] = sum.w;
      if constexpr (kHasSquares) square[0] = squares.x, square[1] = squares.y;
    }
  }
};

}  // namespace gemmill::kv_cache
