#include "sparse_mm/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::sparse_mm {
namespace {

constexpr double kBeginNs = 799.0, kMemory = 4480.0, kShare = 0.485;

int64_t tiles_of(Facts const& row, int64_t m, int64_t n) {
  int64_t const along_m = ceil_div(m, row.tile_m), along_n = ceil_div(n, row.tile_n);
  int64_t const shorter = std::min(along_m, along_n);
  int64_t const band = std::min<int64_t>(row.swizzle, shorter >= 6 ? 8 : shorter >= 3 ? 4 : shorter >= 2 ? 2 : 1);
  int64_t const of_m = band * row.cluster_m, of_n = band * row.cluster_n;
  return ceil_div(along_m, of_m) * of_m * (ceil_div(along_n, of_n) * of_n);
}

}  // namespace

// Mirrored by gemmill.families.sparse_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = facts_of(of);
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const waves = ceil_div(tiles_of(row, m, n), sm_count), steps = ceil_div(k, row.tile_k);
  double const tile = static_cast<double>(steps) * static_cast<double>(row.step_ps) / 1000.0 + static_cast<double>(row.tile_ns);
  double const working = static_cast<double>(waves) * tile;
  double const kept = static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(row.bits + 2) / 16.0;
  double const memory = (kept + static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(row.bits) / 8.0) / kMemory;
  return kBeginNs + std::max(working, memory) + kShare * std::min(working, memory);
}

}  // namespace gemmill::sparse_mm
