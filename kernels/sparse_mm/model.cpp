#include "sparse_mm/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::sparse_mm {
namespace {

constexpr double kBeginNs = 3000.0, kTileNs = 1200.0, kMemory = 4200.0;
constexpr int64_t kStep = 128;

}  // namespace

// Mirrored by gemmill.families.sparse_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = facts_of(of);
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const tiles = ceil_div(m, row.tile_m) * ceil_div(n, row.tile_n);
  int64_t const waves = ceil_div(tiles, sm_count), steps = ceil_div(k, kStep);
  double const tile = static_cast<double>(steps) * static_cast<double>(row.step_ps) / 1000.0 + kTileNs;
  double const working = static_cast<double>(waves) * tile;
  double const kept = static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(row.bits + 2) / 16.0;
  double const memory = (kept + static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(row.bits) / 8.0) / kMemory;
  return kBeginNs + std::max(working, memory) + 0.1 * std::min(working, memory);
}

}  // namespace gemmill::sparse_mm
