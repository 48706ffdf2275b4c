#include "scaled_mm/model.h"

#include <algorithm>
#include <cmath>

#include "scaled_mm/classes.h"

namespace gemmill {
namespace {

constexpr int64_t kMostCtas = int64_t{1} << 30;  // kernels count them in 32 bits, some past the last

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

// Tiles that a variant computes, among them the empty ones by which CUTLASS's scheduler fills bands in both directions
// (get_log_swizzle_size in cutlass/gemm/kernel/tile_scheduler_params.h). Mirrored by gemmill.families.scaled_mm.model.
int64_t tiles_of(GemmFacts const& row, int64_t m, int64_t n) {
  int64_t const tiles_m = ceil_div(m, row.tile_m), tiles_n = ceil_div(n, row.tile_n);
  if (!row.pads) return tiles_m * tiles_n;
  int64_t const fewest = std::min(tiles_m, tiles_n);
  int64_t const band = row.swizzle >= 8 && fewest >= 6   ? 8
                       : row.swizzle >= 4 && fewest >= 3 ? 4
                       : row.swizzle >= 2 && fewest >= 2 ? 2
                                                         : 1;
  return round_up(tiles_m, band * row.sharers_b) * round_up(tiles_n, band * row.sharers_a);
}

// CTAs that a call would take if each computed one tile.
int64_t ctas_of(GemmFacts const& row, Call const& call) {
  return tiles_of(row, call.sizes[kSizeM], call.sizes[kSizeN]) * std::max<int64_t>(row.splits, 1);
}

}  // namespace

bool takes(Row const& row, Call const& call) { return ctas_of(gemm_facts(row), call) <= kMostCtas; }

// Whether empty tiles would add a quarter or more to what they were of the tiles when the row was measured.
bool pads_more(Row const& of, int64_t const* then, int64_t const* now) {
  GemmFacts const& row = gemm_facts(of);
  auto const full_tiles = [&](int64_t const* sizes) { return ceil_div(sizes[kSizeM], row.tile_m) * ceil_div(sizes[kSizeN], row.tile_n); };
  auto const tiles = [&](int64_t const* sizes) { return tiles_of(row, sizes[kSizeM], sizes[kSizeN]); };
  return 4 * tiles(now) * full_tiles(then) > 5 * tiles(then) * full_tiles(now);
}

namespace {

constexpr int64_t kL2Kept = 40'000'000;  // what of the L2 operands can keep

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

// Fitted (tools/fit_model.py). Mirrors gemmill.families.scaled_mm.model.Constants, which says what each is.
constexpr double kProducts = 5000.0;
constexpr double kSharedBytes = 200.6;
constexpr double kPromoting = 1.146;
constexpr double kPromotion = 115.8;
constexpr double kL2Bytes = 11890.0;
constexpr double kFilledBytes = 50.0;
constexpr double kStep = 10.8;
constexpr double kStore = 525.3;
constexpr double kStoreElement = 0.01419;
constexpr double kMemoryBytes = 2154.0;
constexpr double kMeeting = 52.7;
constexpr double kMeetingSlice = 402.4;
constexpr double kMeetingElement = 0.3515;

}  // namespace

// The model, mirrored by gemmill.families.scaled_mm.model, which says where the constants come from. Nanoseconds.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  GemmFacts const& row = gemm_facts(of);
  int64_t const m = call.sizes[kSizeM], n = call.sizes[kSizeN];
  double const splits = static_cast<double>(std::max<int64_t>(row.splits, 1));
  int64_t const tiles = ctas_of(row, call);
  int64_t const k = call.sizes[kSizeK] * operand_bytes(call.problem);  // bytes, as tile_k
  double const steps = static_cast<double>(ceil_div(ceil_div(k, row.tile_k), std::max<int64_t>(row.splits, 1)));
  int64_t const per_sm = std::min(row.ctas_of_sm, ceil_div(tiles, sm_count));
  double const resident = static_cast<double>(std::min(tiles, sm_count * per_sm));
  double const waves = static_cast<double>(ceil_div(tiles, sm_count * per_sm));

  double const columns = static_cast<double>(row.columns);
  double const instructions = static_cast<double>(row.tile_m * row.tile_n / row.columns) / 64.0 * (row.tile_k / 32.0);
  double multiply = instructions * std::max(64.0 * columns * 32.0 / kProducts, (2048.0 + 32.0 * columns) / kSharedBytes);
  if (row.promotes) multiply = kPromoting * multiply + kPromotion * (row.tile_k / 128.0);
  double const rows = static_cast<double>(std::min(row.tile_m, m));
  double const traffic = (rows / row.sharers_a + static_cast<double>(row.tile_n) / row.sharers_b) * row.tile_k;
  double const filled = (row.tile_m - rows) * row.tile_k;
  double const step = std::max(multiply * per_sm, traffic * resident / kL2Bytes + filled * per_sm / kFilledBytes) + kStep;
  double const store = (kStore + kStoreElement * (row.tile_m * row.tile_n)) * per_sm;
  double const body = waves * steps * step + (row.overlaps ? store : waves * store);
  int64_t const at_a_time = sm_count * per_sm / std::max<int64_t>(row.splits, 1);
  double const memory = static_cast<double>(bytes_read(row, m, n, k, at_a_time)) / kMemoryBytes;
  double const both = std::sqrt(std::sqrt(body * body * body * body + memory * memory * memory * memory));
  double const meeting = row.divides_k ? kMeeting + kMeetingSlice * splits + kMeetingElement * (row.tile_m * row.tile_n) : 0.0;
  return (both + waves * meeting) * (row.cost_permille / 1000.0);
}

}  // namespace gemmill
