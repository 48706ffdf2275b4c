#include "gated_mm/model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/layout.h"

namespace gemmill::gated_mm {
namespace {

struct Times {
  double begin_ns, tile_ns, overlapped_tile_ns, padded_row_ns, memory, tall_memory, unhidden, alone, products;
};
constexpr Times kOfRows{1234.0, 449.0, 1144.0, 83.0, 5496.0, 5003.0, 0.252, 0.556, 5108.0};
constexpr Times kOfExperts{3000.0, 1200.0, 1200.0, 40.0, 4800.0, 4800.0, 0.1, 0.7, std::numeric_limits<double>::infinity()};
constexpr int64_t kStep = 128, kTall = 256;

constexpr double kPlainBeginNs = 1929.0, kPlainMemory = 4500.0, kPlainHidden = 0.216;
constexpr double kPlainProducts = 5103.0, kPlainLoaded = 223.0, kPlainStepNs = 23.0, kJoiningNs = 1404.0;
constexpr int64_t kSlices = 8, kStepsOfSlice = 4;
constexpr int64_t kPlainTiles[][2] = {{16, 64}, {16, 128}, {32, 64}, {32, 128}, {64, 64}, {64, 128}, {96, 64},
                                      {96, 128}, {128, 64}, {128, 128}, {160, 128}, {192, 128}, {256, 128}};

constexpr double kMoved = 2.5, kActivationNs = 882.0, kMoving = 2229.0, kActivationOfExpertsNs = 1700.0, kMovingOfExperts = 2200.0;
constexpr Facts kTilesOfGrouped[] = {
    {16, 64, 1, 136000, 0, 0, 1}, {32, 128, 1, 273000, 0, 0, 1}, {64, 128, 1, 327000, 0, 0, 1}, {128, 128, 1, 437000, 1, 0, 1}, {128, 192, 1, 629000, 1, 0, 1}};

double plain_ns(int64_t rows, int64_t columns, Call const& call, int64_t sm_count) {
  int64_t const n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const tiles = ceil_div(call.sizes[kSizeM], rows) * ceil_div(n, columns), steps = ceil_div(k, kStep);
  int64_t const slices = std::max<int64_t>(std::min({kSlices, sm_count / std::max<int64_t>(tiles, 1), steps / kStepsOfSlice}), 1);
  int64_t const waves = ceil_div(tiles, sm_count);
  double const products = static_cast<double>(rows * columns * kStep), loaded = static_cast<double>((rows + columns) * kStep);
  double const step = std::max({products / kPlainProducts, loaded / kPlainLoaded, kPlainStepNs});
  double const working = static_cast<double>(waves * ceil_div(steps, slices)) * step + (slices > 1 ? kJoiningNs : 0.0);
  double const memory = static_cast<double>(n) * static_cast<double>(k) / kPlainMemory;
  return kPlainBeginNs + std::max(working, memory) + kPlainHidden * std::min(working, memory);
}

double product_ns(Facts const& row, Call const& call, int64_t sm_count, Times const& times) {
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  int64_t const experts = call.sizes[kSizeExperts], active = std::max<int64_t>(std::min(m, experts), 1), rows = ceil_div(m, active);
  int64_t const most = experts ? rows + rows / 4 : rows;
  int64_t const tiles = active * ceil_div(most, row.tile_m * row.cluster) * row.cluster * ceil_div(n, row.tile_n);
  int64_t const waves = ceil_div(tiles, sm_count * row.ctas_of_sm);
  double step = static_cast<double>(row.step_ps) / 1000.0;
  if (2 * tiles < sm_count) {
    step *= std::max(times.alone, std::sqrt(static_cast<double>(tiles) / static_cast<double>(sm_count)));
    step = std::max(step, static_cast<double>(row.tile_m * row.tile_n * kStep) / times.products);
  }
  double const tile = static_cast<double>(ceil_div(k, kStep)) * step * static_cast<double>(row.ctas_of_sm);
  double const ends = row.overlaps ? times.overlapped_tile_ns : static_cast<double>(waves) * times.tile_ns;
  double const working = static_cast<double>(waves) * tile + ends;
  double memory = static_cast<double>(active) * static_cast<double>(n) * static_cast<double>(k) / (row.tile_n >= kTall ? times.tall_memory : times.memory);
  if (row.tile_n >= kTall && 2 * tiles >= sm_count) {
    memory /= std::sqrt(static_cast<double>(tiles) / static_cast<double>(ceil_div(tiles, sm_count) * sm_count));
  }
  double const padded = times.padded_row_ns * static_cast<double>(std::max<int64_t>(row.tile_m - rows, 0));
  return times.begin_ns + std::max(working, memory) + times.unhidden * std::min(working, memory) + padded;
}

}  // namespace

// Mirrored by gemmill.families.gated_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  int64_t const experts = call.sizes[kSizeExperts];
  if (!row.parts) return product_ns(row, call, sm_count, experts ? kOfExperts : kOfRows);
  double const moved = kMoved * static_cast<double>(call.sizes[kSizeM]) * static_cast<double>(call.sizes[kSizeN]);
  double product = std::numeric_limits<double>::infinity();
  if (experts) {
    for (Facts const& of_tile : kTilesOfGrouped) product = std::min(product, product_ns(of_tile, call, sm_count, kOfExperts));
    return product + kActivationOfExpertsNs + moved / kMovingOfExperts;
  }
  for (auto const& tile : kPlainTiles) product = std::min(product, plain_ns(tile[0], tile[1], call, sm_count));
  return product + kActivationNs + moved / kMoving;
}

}  // namespace gemmill::gated_mm
