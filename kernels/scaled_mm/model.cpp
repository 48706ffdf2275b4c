#include "scaled_mm/model.h"

#include <algorithm>
#include <cmath>

#include "scaled_mm/boosted.h"
#include "scaled_mm/classes.h"

namespace gemmill {
namespace {

constexpr int64_t kMostCtas = int64_t{1} << 30;  // kernels count them in 32 bits, some past the last

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

// Tiles that a variant computes, among them the empty ones of clusters that lie partly beyond the result, and those by which
// CUTLASS's scheduler fills bands in both directions (get_log_swizzle_size in cutlass/gemm/kernel/tile_scheduler_params.h).
// Mirrored by gemmill.families.scaled_mm.model.
int64_t tiles_of(GemmFacts const& row, int64_t m, int64_t n) {
  int64_t const tiles_m = round_up(ceil_div(m, row.tile_m), row.sharers_b);
  int64_t const tiles_n = round_up(ceil_div(n, row.tile_n), row.sharers_a);
  if (!row.pads) return tiles_m * tiles_n;
  int64_t const fewest = std::min(tiles_m, tiles_n);
  int64_t const band = row.swizzle >= 8 && fewest >= 6   ? 8
                       : row.swizzle >= 4 && fewest >= 3 ? 4
                       : row.swizzle >= 2 && fewest >= 2 ? 2
                                                         : 1;
  return round_up(tiles_m, band * row.sharers_b) * round_up(tiles_n, band * row.sharers_a);
}

// CTAs that divide a tile's K among them.
int64_t ctas_of_tile(GemmFacts const& row) { return row.meets == kInRegisters ? 1 : std::max<int64_t>(row.splits, 1); }

// CTAs that a call would take if each computed one tile.
int64_t ctas_of(GemmFacts const& row, Call const& call) {
  return tiles_of(row, call.sizes[kSizeM], call.sizes[kSizeN]) * ctas_of_tile(row);
}

}  // namespace

bool takes(Row const& row, Call const& call) { return ctas_of(gemm_facts(row), call) <= kMostCtas; }

// Whether empty tiles would add a quarter or more to their share of the tiles of the measured row.
bool pads_more(Row const& of, int64_t const* then, int64_t const* now) {
  GemmFacts const& row = gemm_facts(of);
  auto const full_tiles = [&](int64_t const* sizes) { return ceil_div(sizes[kSizeM], row.tile_m) * ceil_div(sizes[kSizeN], row.tile_n); };
  auto const tiles = [&](int64_t const* sizes) { return tiles_of(row, sizes[kSizeM], sizes[kSizeN]); };
  return 4 * tiles(now) * full_tiles(then) > 5 * tiles(then) * full_tiles(now);
}

namespace {

constexpr int64_t kL2Kept = 40'000'000;  // the part of the L2 for operands

// Bytes of A and B that come from memory, for rows of `k` bytes and `resident` CTAs at a time. Mirrored by
// gemmill.families.scaled_mm.model, which says why.
int64_t bytes_read(GemmFacts const& row, int64_t m, int64_t n, int64_t k, int64_t resident) {
  int64_t const of_m = row.tile_m * row.sharers_b, of_n = row.tile_n * row.sharers_a;
  int64_t const clusters_m = ceil_div(m, of_m), clusters_n = ceil_div(n, of_n);
  bool const along_m = row.raster_order == 1 || (row.raster_order == 0 && clusters_n > clusters_m);
  int64_t const along = along_m ? clusters_m : clusters_n, along_bytes = (along_m ? of_m : of_n) * k;
  int64_t const across = along_m ? clusters_n : clusters_m, across_bytes = (along_m ? of_n : of_m) * k;
  int64_t const clusters = std::max<int64_t>(1, resident / (row.sharers_a * row.sharers_b));
  int64_t const width = std::min(across, std::max(row.swizzle, ceil_div(clusters, along)));
  bool const stays = along * along_bytes + width * across_bytes < kL2Kept;
  return across * across_bytes + (stays ? 1 : ceil_div(across, width)) * along * along_bytes;
}

// SMs in which clusters of a variant find room. Mirrored by gemmill.families.scaled_mm.model, which says why.
int64_t room_of(GemmFacts const& row, int64_t sm_count) {
  int64_t const cluster = row.sharers_a * row.sharers_b * (row.meets == kInCluster ? row.splits : 1);
  int64_t const of_132 = cluster >= 5 ? 120 : cluster == 4 ? 124 : cluster == 3 ? 117 : 132;
  return std::max<int64_t>(1, sm_count * of_132 / 132);
}

double fourth(double x) { return (x * x) * (x * x); }

// Fitted (tools/fit_model.py). Mirrors gemmill.families.scaled_mm.model.Constants, which describes each.
constexpr double kProducts = 6232.0;
constexpr double kSharedBytes = 241.7;
constexpr double kPromoting = 1.091;
constexpr double kPromotion = 0.8044;
constexpr double kScaleColumn = 0.75;
constexpr double kWideColumn = 2.0;
constexpr double kPromotedLatency = 86.01;
constexpr double kPromotedUnit = 14.46;
constexpr double kPromotedColumn = 0.7334;
constexpr double kL2Bytes = 11470.0;
constexpr double kStraddling = 1.136;
constexpr double kParting = 0.6285;
constexpr double kFilling = 3.178;
constexpr double kFetchedBytes = 58.77;
constexpr double kMemoryBytes = 6868.0;
constexpr double kLatency = 1433.0;
constexpr double kBegin = 1291.0;
constexpr double kStoreElement = 0.06785;
constexpr double kStoredLate = 0.04915;
constexpr double kMeeting = 2107.0;
constexpr double kMeetingElement = 0.1512;
constexpr double kJoining = 2400.0;
constexpr double kJoiningElement = 0.12;
constexpr double kRestartingElement = 0.015;

// The model without the trees' correction, and their inputs. Mirrored by gemmill.families.scaled_mm.model, which says where the
// constants come from. Nanoseconds.
TreeInputs inputs_of(GemmFacts const& row, Call const& call, int64_t sm_count) {
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN];
  int64_t const splits = ctas_of_tile(row), tiles = ctas_of(row, call), room = room_of(row, sm_count);
  int64_t const k = call.sizes[kSizeK] * operand_bytes(call.call_class);  // bytes, as tile_k
  int64_t const per_sm = std::min(row.ctas_of_sm, ceil_div(tiles, room));
  int64_t const all_waves = ceil_div(tiles, room * per_sm), steps_of_one = ceil_div(ceil_div(k, row.tile_k), splits);
  double const waves = static_cast<double>(all_waves), steps = static_cast<double>(all_waves * steps_of_one);
  double const elements = static_cast<double>(row.tile_m * row.tile_n);

  double const columns = static_cast<double>(row.columns);
  double const instructions = static_cast<double>(row.tile_m * row.tile_n / row.columns) / 64.0 * (row.tile_k / 32.0);
  double const written = static_cast<double>((row.tile_m + row.tile_n) * row.tile_k);
  double multiply = std::max(instructions * (64.0 * columns * 32.0) / kProducts,
                             (instructions * (2048.0 + 32.0 * columns) + written) / kSharedBytes);
  int64_t const slabs = row.tile_m * row.tile_n / row.columns;
  bool const is_fine = row.promotes > 2, is_scaled = row.box_rows > 0 && row.promotes > 0 && row.promotes <= 2;
  double const scales = kScaleColumn * columns + kWideColumn * std::max(columns - 128.0, 0.0);
  double const promotion = kPromotion + (is_scaled ? scales * row.promotes * (static_cast<double>(slabs) / 128.0) : 0.0);
  if (row.promotes) multiply = kPromoting * multiply + promotion * (row.tile_k / 128.0);
  double const promotions = static_cast<double>(row.promotes) * (row.tile_k / 128.0), partials = static_cast<double>(row.partials);
  double const issue = kPromotedUnit + kPromotedColumn * columns;
  double const by_turns = std::max(issue, (kPromotedLatency + issue) / partials);
  double const unit = row.by_turns ? by_turns : kPromotedLatency / partials + issue;
  double const waited = is_fine ? static_cast<double>(std::max<int64_t>(slabs / 128, 1)) * promotions * unit : 0.0;
  double const issued = is_fine ? static_cast<double>(slabs / 64) * promotions * issue : 0.0;
  double const step = std::max(std::max(multiply, issued) * per_sm, waited);
  double const store = kStoreElement * elements * per_sm;
  double const multiplied = steps * step;
  double const stored = store * (row.overlaps ? 1.0 + (waves - 1.0) * kStoredLate : waves);
  double const body = multiplied + stored;
  double const pipeline = steps * kLatency / static_cast<double>(row.stages);
  double const rows = static_cast<double>(std::min(row.tile_m, m));
  double const traffic = (rows / row.sharers_a + static_cast<double>(row.tile_n) / row.sharers_b) * row.tile_k;
  bool const boxed = row.box_rows > 0 && m <= row.tile_m - row.box_rows;
  double const filled = (static_cast<double>(boxed ? round_up(m, row.box_rows) : row.tile_m) - rows) * row.tile_k;
  double const crossing = (k % 128 != 0 ? kStraddling : 1.0) + (k % 32 != 0 ? kParting : 0.0);
  double const l2 = static_cast<double>(tiles * steps_of_one) * (traffic * crossing + kFilling * filled) / kL2Bytes;
  double const from_memory = static_cast<double>(bytes_read(row, m, n, k, sm_count * per_sm / splits));
  double const fetchers = static_cast<double>(std::min(ceil_div(tiles, per_sm), sm_count));
  double const fetched = from_memory / (fetchers * kFetchedBytes);
  double const memory = from_memory / kMemoryBytes;
  double const joined =
      std::sqrt(std::sqrt(fourth(body) + fourth(pipeline) + fourth(l2) + fourth(fetched) + fourth(memory)));
  double const met = row.meets == kInCluster ? kMeeting + kMeetingElement * elements : 0.0;
  double const restarted = row.meets == kInRegisters ? static_cast<double>(row.splits) * kRestartingElement * elements : 0.0;
  double const waited_for = row.splits > 1 && row.meets == kInMemory ? kJoining + kJoiningElement * elements : 0.0;
  double const slices = waves * met + waves * restarted + waves * waves * waited_for;
  double const total = (kBegin + joined + slices) * (row.cost_permille / 1000.0);
  double const occupancy = static_cast<double>(tiles) / static_cast<double>(all_waves * sm_count * per_sm);
  auto const number = [](int64_t x) { return static_cast<double>(x); };
  return {multiplied / total, stored / total, pipeline / total, l2 / total, fetched / total, memory / total,
          total, occupancy, waves, fetchers, number(per_sm),
          number(row.tile_m), number(row.tile_n), number(row.tile_k), number(row.stages), number(splits),
          number(row.overlaps), columns, number(row.sharers_a), number(row.sharers_b),
          filled, rows / number(row.tile_m)};
}

}  // namespace

double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  GemmFacts const& row = gemm_facts(of);
  TreeInputs const inputs = inputs_of(row, call, sm_count);
  return row.promotes <= 2 ? inputs[kTreeTotal] * std::exp(log_of(inputs)) : inputs[kTreeTotal];
}

double least_ns(Row const& of, Call const& call, int64_t sm_count) {
  return inputs_of(gemm_facts(of), call, sm_count)[kTreeTotal] * std::exp(kLeastLog);
}

}  // namespace gemmill
