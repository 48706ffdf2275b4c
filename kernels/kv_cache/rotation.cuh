// The randomised Hadamard rotation R = H D / sqrt(d): D are signs of a seed.
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

// Bit j of word w: element 32 w + j is negated.
template <int kHeadDim>
struct Signs {
  static_assert(kHeadDim == 64 || kHeadDim == 128 || kHeadDim == 256, "Sylvester's matrices have powers of two.");
  uint32_t words[kHeadDim / 32];

  __device__ __forceinline__ bool operator()(int element) const { return words[element / 32] >> (element % 32) & 1; }
};

// 1 / sqrt(d), rounded once.
template <int kHeadDim>
inline constexpr float kInverseRoot = kHeadDim == 64 ? 0.125f : kHeadDim == 256 ? 0.0625f : 0.08838834764831845f;

// H y of a vector of which each of kLanes lanes holds kOwn elements in a row; other lanes of the warp hold other vectors.
template <int kLanes, int kOwn>
__device__ __forceinline__ void hadamard_across(float (&y)[kOwn]) {
#pragma unroll
  for (int distance = 1; distance < kOwn; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i & distance) continue;
      float const low = y[i], high = y[i + distance];
      y[i] = low + high, y[i + distance] = low - high;
    }
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    bool const is_upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float const other = __shfl_xor_sync(0xFFFFFFFFu, y[i], distance);
      y[i] = is_upper ? other - y[i] : other + y[i];
    }
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
