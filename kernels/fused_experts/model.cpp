#include "fused_experts/model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/layout.h"

namespace gemmill::fused_moe {
namespace {

constexpr double kMemory = 4000.0, kApartMemory = 3740.0, kStreamedTurn = 2900.0, kStreamedParts = 1340.0, kApartLaunches = 17000.0, kApartMoved = 2600.0, kFewTimes = 1.4, kWaitedRows = 40.0;
constexpr double kBoxedBegin = 10500.0, kBoxedTurn = 800.0, kBoxedMemory = 3200.0, kBoxedMoved = 2800.0;
constexpr int64_t kStep = 128, kStreamedRows = 256, kFewPairs = 48, kBox = 8;
struct {
  int64_t rows;
  double step_ns;
} constexpr kApartTiles[] = {{64, 340.0}, {128, 550.0}};

// Experts that have rows, and tiles of so many rows of them.
struct Dealt {
  double active, tiles;
  Dealt(Call const& call, int64_t rows) {
    double const pairs = static_cast<double>(call.sizes[kSizePairs]), weights = static_cast<double>(call.sizes[kSizeExperts]);
    active = std::max(weights * (1.0 - std::exp(-pairs / std::max(weights, 1.0))), 1.0);
    tiles = std::max(active, pairs / static_cast<double>(rows) + 0.5 * active);
  }
};

double waves_of(double tiles, int64_t columns, int64_t sm_count) {
  return std::ceil(tiles * static_cast<double>(columns) / static_cast<double>(sm_count));
}

double streamed_ns(Facts const& row, Call const& call, int64_t sm_count) {
  double const inner = static_cast<double>(call.sizes[kSizeInner]), hidden = static_cast<double>(call.sizes[kSizeHidden]);
  Dealt const dealt(call, row.tile_tokens);
  double const step = static_cast<double>(row.tile_ps) * 132.0 * 32.0 / 1000.0;
  struct {
    int64_t rows, k, share;
  } const products[] = {{2 * call.sizes[kSizeInner], call.sizes[kSizeHidden], row.tile_tokens == 8 ? 2 : 1},
                        {call.sizes[kSizeHidden], call.sizes[kSizeInner], 1}};
  double working = 0.0;
  for (auto const& of : products) {
    double const steps = static_cast<double>(ceil_div(of.k, kStep)) * step / static_cast<double>(of.share);
    working += waves_of(dealt.tiles, ceil_div(of.rows * of.share, kStreamedRows), sm_count) * (steps + kStreamedTurn);
  }
  double const memory = dealt.active * 3.0 * inner * hidden * static_cast<double>(row.bits) / 8.0 / kMemory;
  double const parts = static_cast<double>(call.sizes[kSizePairs]) * 8.0 * hidden / kStreamedParts;
  return static_cast<double>(row.begin_ns) + parts + std::max(memory, working) + 0.1 * std::min(memory, working);
}

double boxed_ns(Facts const& row, Call const& call, int64_t sm_count) {
  int64_t const inner = call.sizes[kSizeInner], hidden = call.sizes[kSizeHidden];
  double const pairs = static_cast<double>(call.sizes[kSizePairs]);
  Dealt const dealt(call, row.tile_tokens);
  double const full = std::min(std::max((pairs / dealt.tiles - static_cast<double>(kBox)) / static_cast<double>(row.tile_tokens - kBox), 0.0), 1.0);
  double const column_ns = (static_cast<double>(row.few_ps) + static_cast<double>(row.many_ps - row.few_ps) * full) / 1000.0;
  double taken = kBoxedBegin + pairs * (8.0 * static_cast<double>(hidden) + 4.0 * static_cast<double>(inner)) / kBoxedMoved;
  struct {
    int64_t rows, k;
  } const products[] = {{2 * inner, hidden}, {hidden, inner}};
  for (auto const& of : products) {
    double const memory = dealt.active * static_cast<double>(of.rows) * static_cast<double>(of.k) * static_cast<double>(row.bits) / 8.0 / kBoxedMemory;
    double const waves = dealt.tiles * static_cast<double>(ceil_div(of.rows, row.tile_n)) / static_cast<double>(sm_count * row.ctas_of_sm);
    double const working = std::max(0.5 * (waves + std::ceil(waves)), 1.0) * (static_cast<double>(of.k) * column_ns + kBoxedTurn);
    taken += std::max(memory, working) + 0.1 * std::min(memory, working);
  }
  return taken;
}

double product_ns(Call const& call, int64_t n, int64_t k, int64_t sm_count, int64_t bits) {
  double working = std::numeric_limits<double>::infinity(), active = 1.0;
  for (auto const& of : kApartTiles) {
    Dealt const dealt(call, of.rows);
    active = dealt.active;
    working = std::min(working, waves_of(dealt.tiles, ceil_div(n, kStep), sm_count) * static_cast<double>(ceil_div(k, kStep)) * of.step_ns * static_cast<double>(bits) / 8.0);
  }
  double memory = active * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(bits) / 8.0 / kApartMemory;
  if (call.sizes[kSizePairs] < kFewPairs) memory *= kFewTimes;
  return std::max(working, memory) + 0.1 * std::min(working, memory);
}

double apart_ns(Call const& call, int64_t sm_count, int64_t bits) {
  int64_t const inner = call.sizes[kSizeInner], hidden = call.sizes[kSizeHidden];
  double const element = static_cast<double>(bits) / 8.0, of_hidden = (2.5 + element) * static_cast<double>(hidden), of_inner = (4.0 + element) * static_cast<double>(inner);
  double const moved = static_cast<double>(call.sizes[kSizePairs]) * (of_hidden + of_inner) / kApartMoved;
  double const products = product_ns(call, 2 * inner, hidden, sm_count, bits) + product_ns(call, hidden, inner, sm_count, bits);
  return kApartLaunches + moved + products;
}

double coding_ns(Facts const& row, Call const& call, double active) {
  int64_t const inner = call.sizes[kSizeInner];
  if (row.code_ps == 0) return 0.0;
  double const pairs = static_cast<double>(call.sizes[kSizePairs]), coders = static_cast<double>(row.coders);
  double const fullest = std::min(static_cast<double>(row.tile_tokens), 2.0 * pairs / active - 1.0);
  double const rows = std::max(1.0, fullest / coders) + pairs / (kWaitedRows * coders);
  return static_cast<double>(row.code_ps) / 1000.0 * static_cast<double>(inner) * rows;
}

}  // namespace

// Mirrored by gemmill.families.fused_experts.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  if (row.apart != 0) return apart_ns(call, sm_count, row.bits);
  if (row.streamed != 0) return streamed_ns(row, call, sm_count);
  if (row.many_ps != 0) return boxed_ns(row, call, sm_count);
  int64_t const pairs = call.sizes[kSizePairs];
  Dealt const dealt(call, row.tile_tokens);
  double const active = dealt.active, tiles = row.bits < 8 ? dealt.tiles : active + static_cast<double>(pairs / row.tile_tokens);
  double taken = static_cast<double>(row.begin_ns) + coding_ns(row, call, active);
  struct {
    int64_t rows, k;
  } const products[] = {{2 * call.sizes[kSizeInner], call.sizes[kSizeHidden]}, {call.sizes[kSizeHidden], call.sizes[kSizeInner]}};
  for (auto const& of : products) {
    double const read = static_cast<double>(of.rows) * static_cast<double>(of.k) * static_cast<double>(row.bits) / 8.0;
    double const memory = active * read / kMemory;
    double const working = tiles * read / 1024.0 * static_cast<double>(row.tile_ps) / 1000.0 * 132.0 / static_cast<double>(sm_count);
    double const alone = static_cast<double>(of.k) * static_cast<double>(row.alone_ps) / 1000.0;
    taken += std::max({memory, working, alone}) + 0.1 * std::min(memory, working);
  }
  return taken;
}

}  // namespace gemmill::fused_moe
