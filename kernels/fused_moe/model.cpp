#include "fused_moe/model.h"

#include <algorithm>
#include <limits>

#include "extension/layout.h"

namespace gemmill::fused_moe {
namespace {

constexpr double kMemory = 4000.0, kApartTileEnd = 1200.0, kApartLaunch = 6000.0, kMoved = 2500.0;
constexpr int64_t kStep = 128;
struct {
  int64_t rows, step_ns;
} constexpr kApartTiles[] = {{64, 122}, {128, 209}};

double product_ns(Call const& call, int64_t n, int64_t k, int64_t sm_count, int64_t bits) {
  int64_t const pairs = call.sizes[kSizePairs], active = std::max<int64_t>(std::min(pairs, call.sizes[kSizeExperts]), 1);
  int64_t const rows = ceil_div(pairs, active);
  double working = std::numeric_limits<double>::infinity();
  for (auto const& of : kApartTiles) {
    int64_t const tiles = active * ceil_div(rows + rows / 4, of.rows) * ceil_div(n, kStep), waves = ceil_div(tiles, sm_count);
    double const steps = static_cast<double>(ceil_div(k, kStep) * of.step_ns * bits) / 8.0;
    working = std::min(working, static_cast<double>(waves) * (steps + kApartTileEnd));
  }
  double const memory = static_cast<double>(active) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(bits) / 8.0 / kMemory;
  return kApartLaunch + std::max(working, memory) + 0.1 * std::min(working, memory);
}

double apart_ns(Call const& call, int64_t sm_count, int64_t bits) {
  int64_t const inner = call.sizes[kSizeInner], hidden = call.sizes[kSizeHidden];
  double const moved = static_cast<double>(call.sizes[kSizePairs]) * (3.5 * static_cast<double>(hidden) + 5.0 * static_cast<double>(inner)) / kMoved;
  double const products = product_ns(call, 2 * inner, hidden, sm_count, bits) + product_ns(call, hidden, inner, sm_count, bits);
  return 3.0 * kApartLaunch + moved + products;
}

}  // namespace

// Mirrored by gemmill.families.fused_moe.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  if (row.apart != 0) return apart_ns(call, sm_count, row.bits);
  int64_t const pairs = call.sizes[kSizePairs], active = std::max<int64_t>(std::min(pairs, call.sizes[kSizeExperts]), 1);
  int64_t const tiles = active + pairs / row.tile_tokens;
  double const read = 3.0 * static_cast<double>(call.sizes[kSizeInner]) * static_cast<double>(call.sizes[kSizeHidden]) * static_cast<double>(row.bits) / 8.0;
  double const memory = static_cast<double>(active) * read / kMemory;
  double const working = static_cast<double>(tiles) * read / 1024.0 * static_cast<double>(row.tile_ps) / 1000.0 * 132.0 / static_cast<double>(sm_count);
  return static_cast<double>(row.begin_ns) + std::max(memory, working) + 0.1 * std::min(memory, working);
}

}  // namespace gemmill::fused_moe
