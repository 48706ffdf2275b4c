#include "grouped_mm/model.h"

#include <algorithm>
#include <cmath>

#include "extension/layout.h"

namespace gemmill::moe {
namespace {

constexpr double kBeginNs = 191.0, kMemory = 13860.0;
constexpr int64_t kBand = 16;
constexpr double kQuantiles[] = {-1.6449, -1.0364, -0.6745, -0.3853, -0.1257, 0.1257, 0.3853, 0.6745, 1.0364, 1.6449};

double tiles_of(double rows, int64_t tile_m) {
  double tiles = 0.0;
  for (double const quantile : kQuantiles) {
    tiles += std::max(std::ceil((rows + quantile * std::sqrt(rows)) / static_cast<double>(tile_m)), 1.0);
  }
  return tiles / 10.0;
}

}  // namespace

bool takes(Row const& of, Call const& call) {
  return call.sizes[kSizeN] % reinterpret_cast<Facts const&>(of.facts).n_multiple == 0;
}

// Mirrored by gemmill.families.grouped_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const active = std::max<int64_t>(std::min(m, call.sizes[kSizeExperts]), 1);
  double const tiles_of_expert = tiles_of(static_cast<double>(m) / static_cast<double>(active), row.tile_m);
  int64_t const across = ceil_div(n, row.tile_n * row.tiles_together) * row.tiles_together;
  double of_sm = std::ceil(static_cast<double>(active) * tiles_of_expert * static_cast<double>(across) / static_cast<double>(sm_count));
  if (std::fmod(of_sm, 2.0) != 0.0) of_sm += static_cast<double>(row.alone_permille - 1000) / 1000.0;
  int64_t const step_ps = tiles_of_expert >= kBand ? row.step_of_band_ps : row.step_ps;
  double const tile = static_cast<double>(ceil_div(k, row.tile_k)) * static_cast<double>(step_ps) / 1000.0 + static_cast<double>(row.end_ns);
  double const memory = static_cast<double>(active) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(row.bits) / 8.0 / kMemory;
  return kBeginNs + static_cast<double>(row.first_ns) + of_sm * tile + memory;
}

}  // namespace gemmill::moe
