// Host code: the workspace in which slices of K meet (generator/gemmill/gemm/parallel.py): a counter for each tile, then sums.
#pragma once

#include <cstdint>

struct gemmill_split_k {
  int64_t m, n, splits;
  int64_t tile_m, tile_n;  // of a cluster

  int64_t clusters() const { return (m + tile_m - 1) / tile_m * ((n + tile_n - 1) / tile_n); }
  // As many counters as there could be CTAs: a cluster of the DSL's kernels has eight at most. In whole lines of 256 bytes.
  int64_t counter_bytes() const { return (clusters() * 8 * 4 + 255) / 256 * 256; }
  int64_t bytes() const { return counter_bytes() + clusters() * (splits > 1 ? splits : 1) * tile_m * tile_n * 4; }
};
