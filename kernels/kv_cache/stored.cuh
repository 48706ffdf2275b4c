// Codebooks as the kernels get them, and what is common to stored vectors.
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

constexpr int kNormBytes = 2;
constexpr int kVectorsOfWarp = 8;  // that are stored or restored at a time

// Centroids of keys and of values, ascending, as bits of f16; of fewer than 16 the rest is 0.
struct Centroids {
  uint16_t bits[2][16];
};

}  // namespace gemmill::kv_cache
