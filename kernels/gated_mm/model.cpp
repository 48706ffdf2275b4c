#include "gated_mm/model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/layout.h"

namespace gemmill::gated_mm {
namespace {

constexpr double kBeginNs = 3000.0, kTileNs = 1200.0, kPaddedRowNs = 40.0, kMemory = 4200.0;
constexpr int64_t kStep = 128, kTall = 256, kSlices = 8, kStepsOfSlice = 4;

constexpr double kActivationNs = 1300.0, kMoved = 2.5, kMoving = 3000.0, kAlone = 0.7, kJoiningNs = 2000.0;
constexpr Facts kTilesOfPlain[] = {
    {16, 64, 1, 136000, 0, 0, 1}, {32, 128, 1, 273000, 0, 0, 1}, {64, 128, 1, 327000, 0, 0, 1}, {128, 128, 1, 437000, 1, 0, 1}, {128, 192, 1, 629000, 1, 0, 1}};

double product_ns(Facts const& row, Call const& call, int64_t sm_count, int64_t most_slices = 1) {
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const experts = call.sizes[kSizeExperts], active = std::max<int64_t>(std::min(m, experts), 1), rows = ceil_div(m, active);
  int64_t const most = experts ? rows + rows / 4 : rows;
  int64_t const tiles = active * ceil_div(most, row.tile_m * row.cluster) * row.cluster * ceil_div(n, row.tile_n), steps = ceil_div(k, kStep);
  int64_t const slices = std::max<int64_t>(std::min({most_slices, sm_count / std::max<int64_t>(tiles, 1), steps / kStepsOfSlice}), 1);
  int64_t const ctas = tiles * slices, waves = ceil_div(ctas, sm_count * row.ctas_of_sm);
  double tile =
      static_cast<double>(ceil_div(steps, slices)) * static_cast<double>(row.step_ps) / 1000.0 * static_cast<double>(row.ctas_of_sm);
  if (2 * ctas < sm_count) tile *= std::max(kAlone, std::sqrt(static_cast<double>(ctas) / static_cast<double>(sm_count)));
  double const working = static_cast<double>(waves) * tile + static_cast<double>(row.overlaps ? 1 : waves) * kTileNs + (slices > 1 ? kJoiningNs : 0.0);
  double memory = static_cast<double>(active) * static_cast<double>(n) * static_cast<double>(k) / kMemory;
  if (row.tile_n >= kTall && 2 * tiles >= sm_count) {
    memory /= std::sqrt(static_cast<double>(tiles) / static_cast<double>(ceil_div(tiles, sm_count) * sm_count));
  }
  double const padded = kPaddedRowNs * static_cast<double>(std::max<int64_t>(row.tile_m - rows, 0));
  return kBeginNs + std::max(working, memory) + 0.1 * std::min(working, memory) + padded;
}

}  // namespace

// Mirrored by gemmill.families.gated_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  if (!row.parts) return product_ns(row, call, sm_count);
  int64_t const most_slices = call.sizes[kSizeExperts] ? 1 : kSlices;
  double product = std::numeric_limits<double>::infinity();
  for (Facts const& of_tile : kTilesOfPlain) product = std::min(product, product_ns(of_tile, call, sm_count, most_slices));
  return product + kActivationNs + kMoved * static_cast<double>(call.sizes[kSizeM]) * static_cast<double>(call.sizes[kSizeN]) / kMoving;
}

}  // namespace gemmill::gated_mm
