#include "sparse_mm/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::sparse_mm {
namespace {

constexpr double kBeginNs = 656.0, kMemory = 5466.0, kShare = 0.347, kSlowed = 0.407;
constexpr int64_t kLeastSteps = 8;

int64_t tiles_of(Facts const& row, int64_t m, int64_t n) {
  int64_t const along_m = ceil_div(m, row.tile_m), along_n = ceil_div(n, row.tile_n);
  int64_t const shorter = std::min(along_m, along_n);
  int64_t const band = std::min<int64_t>(row.swizzle, shorter >= 6 ? 8 : shorter >= 3 ? 4 : shorter >= 2 ? 2 : 1);
  int64_t const of_m = band * row.cluster_m, of_n = band * row.cluster_n;
  return ceil_div(along_m, of_m) * of_m * (ceil_div(along_n, of_n) * of_n);
}

double steps_ns(Facts const& row, int64_t steps) { return static_cast<double>(steps) * static_cast<double>(row.step_ps) / 1000.0; }

// Nanoseconds of the multiprocessors.
double working_ns(Facts const& row, int64_t tiles, int64_t steps, int64_t sm_count) {
  double const main = steps_ns(row, steps), tile = main + static_cast<double>(row.tile_ns);
  if (!row.join_ns || tiles % sm_count == 0 || steps <= kLeastSteps) {
    int64_t const ctas = std::min(row.ctas_of_sm, std::max<int64_t>(ceil_div(tiles, sm_count), 1));
    int64_t const waves = ceil_div(tiles, sm_count * ctas);
    double const whole = static_cast<double>(waves) * tile * (1.0 + kSlowed * static_cast<double>(ctas - 1));
    return row.turn_ns ? std::max(whole, static_cast<double>(ceil_div(waves, 2)) * (main + static_cast<double>(row.turn_ns))) : whole;
  }
  int64_t const waves = std::max<int64_t>(tiles / sm_count - 1, 0), sliced = tiles - waves * sm_count;
  int64_t const ctas = std::min(sm_count, sliced * steps / kLeastSteps);
  double const last = steps_ns(row, ceil_div(sliced * steps, ctas)) + static_cast<double>(row.tile_ns);
  return static_cast<double>(waves) * tile + last + static_cast<double>(row.join_ns);
}

}  // namespace

// Mirrored by gemmill.families.sparse_mm.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = facts_of(of);
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN], k = call.sizes[kSizeK];
  double const working = working_ns(row, tiles_of(row, m, n), ceil_div(k, row.tile_k), sm_count);
  double const kept = static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(row.bits + 2) / 16.0;
  double const memory = (kept + static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(row.bits) / 8.0) / kMemory;
  return kBeginNs + std::max(working, memory) + kShare * std::min(working, memory);
}

}  // namespace gemmill::sparse_mm
