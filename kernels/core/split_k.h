// Host code: the workspace in which slices of K meet (generator/gemmill/gemm/parallel.py): flags, then sums.
#pragma once

#include <cstdint>

struct gemmill_split_k {
  int64_t m, n, splits;
  int64_t tile_m, tile_n;  // of a cluster, which has eight CTAs at most

  int64_t clusters() const { return (m + tile_m - 1) / tile_m * ((n + tile_n - 1) / tile_n); }
  int64_t slices() const { return splits > 1 ? splits : 1; }
  int64_t flag_bytes() const { return (clusters() * 8 * slices() * slices() * 8 + 255) / 256 * 256; }
  int64_t bytes() const { return flag_bytes() + clusters() * slices() * tile_m * tile_n * 4; }
};
