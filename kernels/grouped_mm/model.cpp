#include "grouped_mm/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::moe {
namespace {

constexpr double kBeginNs = 3000.0, kMemory = 4200.0;
constexpr int64_t kStep = 128, kBand = 16;

}  // namespace

bool takes(Row const& of, Call const& call) {
  return call.sizes[kSizeN] % reinterpret_cast<Facts const&>(of.facts).n_multiple == 0;
}

// Mirrored by gemmill.families.grouped_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const active = std::max<int64_t>(std::min(m, call.sizes[kSizeExperts]), 1), rows = ceil_div(m, active);
  int64_t const tiles_of_expert = ceil_div(rows + rows / 4, row.tile_m);
  int64_t const clusters = active * tiles_of_expert * ceil_div(n, row.tile_n * row.tiles_together);
  int64_t const tiles = clusters * row.tiles_together;
  int64_t const waves = ceil_div(tiles, sm_count * row.ctas_of_sm), steps = ceil_div(k, kStep);
  int64_t const step_ps = tiles_of_expert >= kBand ? row.step_of_band_ps : row.step_ps;
  double const tile = static_cast<double>(steps) * static_cast<double>(step_ps) / 1000.0 * static_cast<double>(row.ctas_of_sm) + static_cast<double>(row.end_ns);
  double const working = static_cast<double>(waves) * tile;
  double const memory = static_cast<double>(active) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(row.bits) / 8.0 / kMemory;
  return kBeginNs + std::max(working, memory) + 0.1 * std::min(working, memory);
}

}  // namespace gemmill::moe
