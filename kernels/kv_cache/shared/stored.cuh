// Codebooks as the kernels get them, and the common parts of stored vectors.
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

constexpr int kNormBytes = 2;
constexpr int kVectorsOfWarp = 8;  // in one store or load

// Centroids of keys and of values, ascending, as bits of f16; of fewer than 16 the rest is 0.
struct Centroids {
  uint16_t bits[2][16];
};

// By how much vectors [tokens, heads] are gone on: a division is made once.
struct VectorStep {
  uint32_t tokens, heads, of_token;
  __device__ __forceinline__ VectorStep(uint32_t vectors, uint32_t of_token)
      : tokens(vectors / of_token), heads(vectors % of_token), of_token(of_token) {}
};

// Which vector a lane is at.
struct VectorCursor {
  uint32_t token, head;
  __device__ __forceinline__ VectorCursor(uint32_t vector, uint32_t heads) : token(vector / heads), head(vector % heads) {}
  __device__ __forceinline__ void advance(VectorStep const& by) {
    token += by.tokens, head += by.heads;
    if (head >= by.of_token) head -= by.of_token, ++token;
  }
};

}  // namespace gemmill::kv_cache
