// The randomised Hadamard rotation R = H D / sqrt(d): D are signs of a seed.
#pragma once

#include <cstdint>

#include "kv_cache/shared/hadamard_tile.cuh"

namespace gemmill::kv_cache {

// Bit j of word w: the negative of element 32 w + j.
template <int kHeadDim>
struct Signs {
  static_assert(kHeadDim % 32 == 0, "Words are whole.");
  uint32_t words[kHeadDim / 32];

  __device__ __forceinline__ bool operator()(int element) const { return words[element / 32] >> (element % 32) & 1; }
};

// 1 / sqrt(d), rounded once.
template <int kHeadDim>
inline constexpr float kInverseRoot = kHeadDim == 64    ? 0.125f
                                      : kHeadDim == 96  ? 0.10206207261596577f
                                      : kHeadDim == 128 ? 0.08838834764831845f
                                      : kHeadDim == 192 ? 0.07216878364870322f
                                      : kHeadDim == 256 ? 0.0625f
                                                        : 0.04419417382415922f;

// H y of a vector of a warp: element 32 k + l is y[k] of lane l.
template <int kColumns>
__device__ __forceinline__ void hadamard_of_warp(float (&y)[kColumns / 32]) {
  using Split = HadamardSplit<kColumns>;
  constexpr int kOwn = kColumns / 32, kLanes = Split::kIsPaley ? Split::kPiece : 32;
  int const lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      float const other = __shfl_xor_sync(0xFFFFFFFFu, y[k], distance);
      y[k] = lane & distance ? other - y[k] : other + y[k];
    }
  }
  if constexpr (!Split::kIsPaley) {
    butterflies(y);
  } else {  // piece kApart k + l / kLanes meets Paley's matrix
    constexpr int kApart = 32 / kLanes;
    float sum[kOwn] = {};
#pragma unroll
    for (int from = 0; from < kApart; ++from) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        float const other = __shfl_sync(0xFFFFFFFFu, y[k], from * kLanes + lane % kLanes);
        uint32_t const negative = paley_row(kApart * k + from);  // of the column, as the matrix is symmetric
#pragma unroll
        for (int row = 0; row < kOwn; ++row) sum[row] += negative >> (kApart * row + lane / kLanes) & 1 ? -other : other;
      }
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k) y[k] = sum[k];
  }
}

// Host code: SplitMix64, as generator/gemmill/families/kv_cache/seeds.py has it.
inline uint64_t split_mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

// The signs are the highest bits of the stream that begins at the seed's first output.
template <int kHeadDim>
Signs<kHeadDim> signs_of(uint64_t seed) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  uint64_t const stream = split_mix(seed + kGolden);
  Signs<kHeadDim> signs{};
  for (uint64_t k = 0; k < kHeadDim; ++k) {
    signs.words[k / 32] |= static_cast<uint32_t>(split_mix(stream + (k + 1) * kGolden) >> 63) << (k % 32);
  }
  return signs;
}

}  // namespace gemmill::kv_cache
