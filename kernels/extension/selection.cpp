#include "selection.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "problem.h"

namespace gemmill {
namespace {

struct Table {
  std::vector<Row> rows;
  std::vector<TunedRow> tuned;
  uint64_t generation;
};

// Tables are replaced seldom and read on every call: old ones are kept, so that readers need no lock.
std::atomic<Table const*> current_table{nullptr};
std::atomic<uint64_t> generations{0};
thread_local int64_t pinned_row = -1;

std::atomic<int64_t> most_misses{0};
std::mutex misses_mutex;
std::vector<Miss> misses;

// A process that is forked while another thread holds the mutex would wait for that thread, which it does not have.
[[maybe_unused]] int const kept_over_forks = pthread_atfork([] { misses_mutex.lock(); }, [] { misses_mutex.unlock(); },
                                                            [] { misses_mutex.unlock(); });

// How far a measured choice reaches, mirrored by gemmill.runtime.select. Tiles are as wide as fills the SMs for one shape, so the
// choice of another is a worse guide than the model (docs/notes/tables.md).
constexpr int64_t kDecodeM = 16;
constexpr int64_t kPrefillM = 512;
constexpr int64_t kManyM = 4096;  // from here on waves are so many that more of them change nothing
constexpr int64_t kMostRatio = 2;
constexpr double kMostDistance = 0.1;  // of binary logarithms of n and k together

constexpr int64_t kMostCtas = int64_t{1} << 30;  // kernels count them in 32 bits, some past the last

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

// Tiles that a variant computes, among them the empty ones by which CUTLASS's scheduler fills bands in both directions
// (get_log_swizzle_size in cutlass/gemm/kernel/tile_scheduler_params.h). Mirrored by gemmill.runtime.model.
int64_t tiles_of(Row const& row, int64_t m, int64_t n) {
  int64_t const tiles_m = ceil_div(m, row.tile_m), tiles_n = ceil_div(n, row.tile_n);
  if (!row.pads) return tiles_m * tiles_n;
  int64_t const fewest = std::min(tiles_m, tiles_n);
  int64_t const band = row.swizzle >= 8 && fewest >= 6   ? 8
                       : row.swizzle >= 4 && fewest >= 3 ? 4
                       : row.swizzle >= 2 && fewest >= 2 ? 2
                                                         : 1;
  return round_up(tiles_m, band * row.sharers_b) * round_up(tiles_n, band * row.sharers_a);
}

// CTAs that a call would take if each computed one tile. Mirrored by gemmill.runtime.model.
int64_t ctas_of(Row const& row, Call const& call) { return tiles_of(row, call.m, call.n) * std::max<int64_t>(row.splits, 1); }

// Whether empty tiles would add a quarter or more to what they were of the tiles when the row was measured.
bool pads_more(Row const& row, TunedRow const& tuned, Call const& call) {
  auto const full_tiles = [&](int64_t m, int64_t n) { return ceil_div(m, row.tile_m) * ceil_div(n, row.tile_n); };
  int64_t const here = tiles_of(row, call.m, call.n), then = tiles_of(row, tuned.m, tuned.n);
  return 4 * here * full_tiles(tuned.m, tuned.n) > 5 * then * full_tiles(call.m, call.n);
}

constexpr int64_t kL2Bytes = 40'000'000;  // what of the L2 operands can keep

// Bytes of A and B that come from memory, for rows of `k` bytes and `resident` CTAs at a time. Mirrored by gemmill.runtime.model,
// which says why.
int64_t bytes_read(Row const& row, int64_t m, int64_t n, int64_t k, int64_t resident) {
  int64_t const of_m = row.tile_m * row.sharers_b, of_n = row.tile_n * row.sharers_a;
  int64_t const clusters_m = ceil_div(m, of_m), clusters_n = ceil_div(n, of_n);
  bool const along_m = row.raster_order == 1 || (row.raster_order == 0 && clusters_n > clusters_m);
  int64_t const along = along_m ? clusters_m : clusters_n, along_bytes = (along_m ? of_m : of_n) * k;
  int64_t const across = along_m ? clusters_n : clusters_m, across_bytes = (along_m ? of_n : of_m) * k;
  int64_t const clusters = std::max<int64_t>(1, resident / (row.sharers_a * row.sharers_b));
  int64_t const width = std::min(across, std::max(row.swizzle, ceil_div(clusters, along)));
  bool const stays = along * along_bytes + width * across_bytes < kL2Bytes;
  return across * across_bytes + (stays ? 1 : ceil_div(across, width)) * along * along_bytes;
}

// The model, mirrored by gemmill.runtime.model, which says where the constants come from. Nanoseconds.
double model_ns(Row const& row, Call const& call, int64_t sm_count) {
  double const splits = static_cast<double>(std::max<int64_t>(row.splits, 1));
  int64_t const tiles = ctas_of(row, call);
  int64_t const k = call.k * operand_bytes(call.problem);  // bytes, as tile_k
  double const steps = static_cast<double>(ceil_div(ceil_div(k, row.tile_k), std::max<int64_t>(row.splits, 1)));
  int64_t const per_sm = std::min(row.ctas_of_sm, ceil_div(tiles, sm_count));
  double const resident = static_cast<double>(std::min(tiles, sm_count * per_sm));
  double const waves = static_cast<double>(ceil_div(tiles, sm_count * per_sm));

  double const columns = static_cast<double>(row.columns);
  double const instructions = static_cast<double>(row.tile_m * row.tile_n / row.columns) / 64.0 * (row.tile_k / 32.0);
  double multiply = instructions * std::max(64.0 * columns * 32.0 / 5000.0, (2048.0 + 32.0 * columns) / 200.6);
  if (row.promotes) multiply = 1.146 * multiply + 115.8 * (row.tile_k / 128.0);
  double const rows = static_cast<double>(std::min(row.tile_m, call.m));
  double const traffic = (rows / row.sharers_a + static_cast<double>(row.tile_n) / row.sharers_b) * row.tile_k;
  double const filled = (row.tile_m - rows) * row.tile_k;
  double const step = std::max(multiply * per_sm, traffic * resident / 11890.0 + filled * per_sm / 50.0) + 10.8;
  double const store = (525.3 + 0.01419 * (row.tile_m * row.tile_n)) * per_sm;
  double const body = waves * steps * step + (row.overlaps ? store : waves * store);
  int64_t const at_a_time = sm_count * per_sm / std::max<int64_t>(row.splits, 1);
  double const memory = static_cast<double>(bytes_read(row, call.m, call.n, k, at_a_time)) / 2154.0;
  double const both = std::sqrt(std::sqrt(body * body * body * body + memory * memory * memory * memory));
  double const meeting = row.divides_k ? 52.7 + 402.4 * splits + 0.3515 * (row.tile_m * row.tile_n) : 0.0;
  return (both + waves * meeting) * (row.cost_permille / 1000.0);
}

Choice choose_by_model(Table const& table, Call const& call, int64_t sm_count) {
  Choice best{-1, 3};
  double best_ns = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < table.rows.size(); ++i) {
    if (!accepts(table.rows[i], call)) continue;
    double ns = model_ns(table.rows[i], call, sm_count);
    if (ns < best_ns) {
      best_ns = ns;
      best.row = static_cast<int64_t>(i);
    }
  }
  return best;
}

double distance(TunedRow const& tuned, Call const& call) {
  return std::abs(std::log2(double(tuned.n) / double(call.n))) + std::abs(std::log2(double(tuned.k) / double(call.k)));
}

// Whether what was measured for tuned.m rows says something about m rows.
bool covers(TunedRow const& tuned, int64_t m) {
  if (m > tuned.m) return tuned.m >= kManyM || (tuned.m >= kPrefillM && m <= kMostRatio * tuned.m);
  return tuned.m <= std::max(kDecodeM, kMostRatio * m);
}

// The measured (n, k) nearest in logarithm, if it is near; there, the first measured m that is not below, else the largest.
Choice choose_tuned(Table const& table, Call const& call) {
  TunedRow const* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity();
  for (TunedRow const& tuned : table.tuned) {
    if (tuned.problem != call.problem || !covers(tuned, call.m) || !accepts(table.rows[tuned.row], call)) continue;
    double d = distance(tuned, call);
    if (d > kMostDistance || pads_more(table.rows[tuned.row], tuned, call)) continue;
    bool same_place = best != nullptr && tuned.n == best->n && tuned.k == best->k;
    if (d < best_distance || (same_place && best->m < call.m)) {
      best = &tuned;
      best_distance = d;
    }
  }
  if (best == nullptr) return {-1, 0};
  return {best->row, best->exact && best_distance == 0.0 && call.m <= best->m ? 1 : 2};
}

// Only where a choice is made, not where one is remembered: the hot path does not come here.
void note_miss(Call const& call, int64_t trust) {
  if (trust <= 1 || most_misses.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(misses_mutex);
  if (static_cast<int64_t>(misses.size()) < most_misses.load()) misses.push_back({call, trust});
}

struct CacheSlot {
  Call call;
  int64_t sm_count = 0;
  uint64_t generation = 0;
  Choice choice;
};

size_t slot_of(Call const& call) {
  uint64_t h = static_cast<uint64_t>(call.m) * 0x9E3779B97F4A7C15u;
  h ^= static_cast<uint64_t>(call.n) * 0xC2B2AE3D27D4EB4Fu + (h >> 29);
  h ^= static_cast<uint64_t>(call.k) * 0x165667B19E3779F9u + (h << 7);
  h ^= static_cast<uint64_t>(call.problem) * 0x27D4EB2F165667C5u;
  return (h ^ (h >> 31)) % 512;
}

bool same(Call const& x, Call const& y) {
  return x.problem == y.problem && x.m == y.m && x.n == y.n && x.k == y.k && x.align_a == y.align_a &&
         x.align_b == y.align_b && x.align_d == y.align_d;
}

}  // namespace

bool accepts(Row const& row, Call const& call) {
  return row.problem == call.problem && call.align_a >= row.align_a && call.align_b >= row.align_b &&
         call.align_d >= row.align_d && call.k >= row.min_k && std::max({call.m, call.n, call.k}) <= row.max_mnk &&
         ctas_of(row, call) <= kMostCtas;
}

Row const* row_at(int64_t index) {
  Table const* table = current_table.load(std::memory_order_acquire);
  return &table->rows[index];
}

Choice choose(Call const& call, int64_t sm_count) {
  Table const* table = current_table.load(std::memory_order_acquire);
  if (table == nullptr) return {-1, 0};
  if (pinned_row >= 0) {
    // A variant that serves several classes has neighbouring rows; the pin names the first.
    auto const& rows = table->rows;
    int64_t kernel = rows[pinned_row].kernel;
    for (size_t i = pinned_row; i < rows.size() && rows[i].kernel == kernel; ++i) {
      if (accepts(rows[i], call)) return {static_cast<int64_t>(i), 0};
    }
    return {-1, 0};
  }
  thread_local std::array<CacheSlot, 512> cache;
  CacheSlot& slot = cache[slot_of(call)];
  if (slot.generation == table->generation && slot.sm_count == sm_count && same(slot.call, call)) return slot.choice;
  Choice choice = choose_tuned(*table, call);
  if (choice.row < 0) choice = choose_by_model(*table, call, sm_count);
  slot = {call, sm_count, table->generation, choice};
  if (choice.row >= 0) note_miss(call, choice.trust);
  return choice;
}

}  // namespace gemmill

void gemmill_set_table(gemmill::Row const* rows, int64_t row_count, gemmill::TunedRow const* tuned, int64_t tuned_count) {
  auto* table = new gemmill::Table{{rows, rows + row_count}, {tuned, tuned + tuned_count}, ++gemmill::generations};
  gemmill::current_table.store(table, std::memory_order_release);
}

int64_t gemmill_pin(int64_t row) {
  int64_t before = gemmill::pinned_row;
  gemmill::pinned_row = row;
  return before;
}

void gemmill_choose(gemmill::Call const* call, int64_t sm_count, gemmill::Choice* choice) {
  *choice = gemmill::choose(*call, sm_count);
}

void gemmill_record_misses(int64_t most) { gemmill::most_misses.store(most); }

int64_t gemmill_take_misses(gemmill::Miss* out, int64_t capacity) {
  std::lock_guard lock(gemmill::misses_mutex);
  auto& noted = gemmill::misses;
  int64_t taken = std::min<int64_t>(capacity, noted.size());
  std::copy_n(noted.end() - taken, taken, out);
  noted.resize(noted.size() - taken);
  return taken;
}
