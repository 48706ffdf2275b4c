#include "extension/selection.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "extension/family.h"

namespace gemmill {
namespace {

struct Chooser {
  FamilyRows told;
  Family const* family;
  std::vector<std::pair<int64_t, int64_t>> by_class;  // of its rows, class and index, sorted
};

struct ByModel {
  Choice choice;
  double ns;  // that the model expects of it; infinite where no row takes the call
};

struct Table {
  std::vector<Chooser> families;
  std::vector<Row> rows;
  std::vector<TunedRow> tuned;
  uint64_t generation;
  std::unique_ptr<std::atomic<int64_t>[]> chosen;  // how often, by row and trust
};

// Tables change seldom, and every call reads them: old ones stay, so that readers need no lock.
std::atomic<Table const*> current_table{nullptr};
std::atomic<uint64_t> generations{0};
thread_local int64_t pinned_row = -1;

// Batch invariance: choices are Python's (gemmill.runtime.invariance), and remembered here with the mode that they were made in.
std::atomic<int64_t> held_everywhere{0};
thread_local int64_t held_here = kNotAsked;
std::atomic<void (*)(int64_t, Call const*, int64_t, Choice*)> choose_held{nullptr};
std::atomic<int64_t (*)()> asked_here{nullptr};

bool is_held() {
  if (held_here == kNotAsked) {
    auto const ask = asked_here.load(std::memory_order_acquire);
    if (ask == nullptr) return false;
    held_here = ask();
  }
  return (held_here == kAsProcess ? held_everywhere.load(std::memory_order_relaxed) : held_here) != 0;
}

constexpr int64_t kTrusts = 4;

std::atomic<int64_t> most_noted{0}, least_trust_noted{0};
std::mutex noted_mutex;
std::vector<Noted> noted;

// A process forked while another thread holds the mutex would wait for that thread, which it does not have.
[[maybe_unused]] int const kept_over_forks = pthread_atfork([] { noted_mutex.lock(); }, [] { noted_mutex.unlock(); },
                                                            [] { noted_mutex.unlock(); });

bool accepts(Model const& model, Row const& row, Call const& call) {
  if (row.call_class != call.call_class) return false;
  for (int i = 0; i < kMostAligned; ++i) {
    if (call.alignments[i] < row.alignments[i]) return false;
  }
  for (int i = 0; i < kMostSizes; ++i) {
    if (call.sizes[i] < row.least[i] || call.sizes[i] > row.most) return false;
  }
  return model.takes == nullptr || model.takes(row, call);
}

ByModel choose_by_model(Table const& table, Chooser const& family, Call const& call, int64_t sm_count) {
  Model const& model = family.family->model;
  Choice best{-1, model.nanoseconds == nullptr ? 4 : 3};
  double best_ns = std::numeric_limits<double>::infinity();
  auto const first = std::lower_bound(family.by_class.begin(), family.by_class.end(), std::pair{call.call_class, int64_t{0}});
  for (auto at = first; at != family.by_class.end() && at->first == call.call_class; ++at) {
    int64_t const i = at->second;
    if (table.rows[i].withheld || !accepts(model, table.rows[i], call)) continue;
    if (model.least != nullptr && model.least(table.rows[i], call, sm_count) >= best_ns) continue;
    double ns = model.nanoseconds == nullptr ? 0.0 : model.nanoseconds(table.rows[i], call, sm_count);
    if (ns < best_ns) {
      best_ns = ns;
      best.row = i;
    }
  }
  return {best, best_ns};
}

double distance(FamilyRows const& family, TunedRow const& tuned, Call const& call) {
  double octaves = 0.0;
  for (int64_t i = 0; i < family.near_count; ++i) {
    int64_t const place = family.near[i];
    octaves += std::abs(std::log2(double(tuned.sizes[place]) / double(call.sizes[place])));
  }
  return octaves;
}

bool same_place(FamilyRows const& family, TunedRow const& x, TunedRow const& y) {
  return std::all_of(family.near, family.near + family.near_count, [&](int64_t i) { return x.sizes[i] == y.sizes[i]; });
}

// Whether a measurement applies to a bucketed size. Mirrored by gemmill.family.Reach, which says why.
bool covers(FamilyRows const& family, int64_t measured, int64_t size) {
  if (size > measured) return measured >= family.endless || (measured >= family.many && size <= family.ratio * measured);
  return measured <= std::max(family.few, family.ratio * size);
}

// The measured sizes nearest in logarithm, if they are near; there, the first bucketed size that is not below, else the largest.
// At other sizes than its own, it serves if the model expects nothing faster by the family's margin.
Choice choose_tuned(Table const& table, Chooser const& family, Call const& call, int64_t sm_count) {
  FamilyRows const& told = family.told;
  Model const& model = family.family->model;
  if (model.nanoseconds == nullptr) return {-1, 0};
  int64_t const size = call.sizes[told.bucketed];
  TunedRow const* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity();
  for (TunedRow const& tuned : table.tuned) {
    if (tuned.call_class != call.call_class || tuned.row < told.first || tuned.row >= told.end) continue;
    Row const& row = table.rows[tuned.row];
    if (!covers(told, tuned.sizes[told.bucketed], size) || !accepts(model, row, call)) continue;
    double d = distance(told, tuned, call);
    if (d > told.distance || model.wastes(row, tuned.sizes, call.sizes)) continue;
    bool same = best != nullptr && same_place(told, tuned, *best);
    if (d < best_distance || (same && best->sizes[told.bucketed] < size)) {
      best = &tuned;
      best_distance = d;
    }
  }
  if (best == nullptr) return {-1, 0};
  if (size > told.few && std::isfinite(told.margin) && (best_distance > 0.0 || size != best->sizes[told.bucketed])) {
    ByModel const other = choose_by_model(table, family, call, sm_count);
    if (other.ns * told.margin < model.nanoseconds(table.rows[best->row], call, sm_count)) return other.choice;
  }
  return {best->row, best->exact && best_distance == 0.0 && size <= best->sizes[told.bucketed] ? 1 : 2};
}

// The rows of a pinned variant that serves several classes are neighbours; the pin names the first.
Choice choose_pinned(Table const& table, Chooser const& family, Call const& call) {
  int64_t const kernel = table.rows[pinned_row].kernel;
  for (int64_t i = pinned_row; i < family.told.end && table.rows[i].kernel == kernel; ++i) {
    if (accepts(family.family->model, table.rows[i], call)) return {i, 0};
  }
  return {-1, 0};
}

Choice choose_in_order(Table const& table, Chooser const& family, Call const& call, int64_t sm_count) {
  Choice choice{-1, 3};
  auto const choose = choose_held.load(std::memory_order_acquire);
  if (choose != nullptr) choose(&family - table.families.data(), &call, sm_count, &choice);
  return choice;
}

// For new choices alone: a remembered one, on the hot path, does not come here.
void note(Table const& table, Chooser const& family, Call const& call, Choice const& choice) {
  if (choice.trust >= kTrusts) return;
  table.chosen[choice.row * kTrusts + choice.trust].fetch_add(1, std::memory_order_relaxed);
  if (most_noted.load(std::memory_order_relaxed) == 0 || choice.trust < least_trust_noted.load()) return;
  std::lock_guard lock(noted_mutex);
  if (static_cast<int64_t>(noted.size()) < most_noted.load()) noted.push_back({&family - table.families.data(), call, choice});
}

struct CacheSlot {
  Family const* family = nullptr;
  Call call;
  int64_t sm_count = 0;
  uint64_t generation = 0;
  bool held = false;
  Choice choice;
};

size_t slot_of(Call const& call) {
  uint64_t h = static_cast<uint64_t>(call.call_class) * 0x27D4EB2F165667C5u;
  for (int64_t size : call.sizes) h = (h ^ (h >> 29) ^ static_cast<uint64_t>(size)) * 0x9E3779B97F4A7C15u;
  return (h ^ (h >> 31)) % 512;
}

bool same(Call const& x, Call const& y) { return std::memcmp(&x, &y, sizeof(Call)) == 0; }

// None where the table has no row of the family.
Chooser const* chooser_of(Table const& table, Family const& family) {
  for (Chooser const& chooser : table.families) {
    if (chooser.family == &family) return &chooser;
  }
  return nullptr;
}

Chooser make_chooser(FamilyRows const& told, Row const* rows) {
  Chooser made{told, Family::named(told.name), {}};
  for (int64_t i = told.first; i < told.end; ++i) made.by_class.emplace_back(rows[i].call_class, i);
  std::sort(made.by_class.begin(), made.by_class.end());
  return made;
}

}  // namespace

Row const* row_at(int64_t index) {
  Table const* table = current_table.load(std::memory_order_acquire);
  return &table->rows[index];
}

Choice choose(Family const& family, Call const& call, int64_t sm_count) {
  Table const* table = current_table.load(std::memory_order_acquire);
  if (table == nullptr) return {-1, 0};
  bool const held = is_held();
  if (pinned_row >= 0) {
    Chooser const* chooser = chooser_of(*table, family);
    if (chooser != nullptr && pinned_row >= chooser->told.first && pinned_row < chooser->told.end) {
      return held ? choose_in_order(*table, *chooser, call, sm_count) : choose_pinned(*table, *chooser, call);
    }
  }
  thread_local std::array<CacheSlot, 512> cache;
  CacheSlot& slot = cache[slot_of(call)];
  bool const known = slot.generation == table->generation && slot.family == &family && slot.sm_count == sm_count && slot.held == held;
  if (known && same(slot.call, call)) return slot.choice;
  Chooser const* chooser = chooser_of(*table, family);
  if (chooser == nullptr) return {-1, 0};
  Choice choice = held ? choose_in_order(*table, *chooser, call, sm_count) : choose_tuned(*table, *chooser, call, sm_count);
  if (choice.row < 0 && !held) choice = choose_by_model(*table, *chooser, call, sm_count).choice;
  slot = {&family, call, sm_count, table->generation, held, choice};
  if (choice.row >= 0) note(*table, *chooser, call, choice);
  return choice;
}

}  // namespace gemmill

void gemmill_set_table(gemmill::FamilyRows const* families, int64_t family_count, gemmill::Row const* rows, int64_t row_count,
                       gemmill::TunedRow const* tuned, int64_t tuned_count) {
  auto* table = new gemmill::Table{{}, {rows, rows + row_count}, {tuned, tuned + tuned_count}, ++gemmill::generations,
                                   std::make_unique<std::atomic<int64_t>[]>(row_count * gemmill::kTrusts)};
  for (int64_t i = 0; i < family_count; ++i) table->families.push_back(gemmill::make_chooser(families[i], rows));
  gemmill::current_table.store(table, std::memory_order_release);
}

int64_t gemmill_pin(int64_t row) {
  int64_t before = gemmill::pinned_row;
  gemmill::pinned_row = row;
  return before;
}

void gemmill_hold(int64_t asks) { gemmill::held_here = asks; }

void gemmill_hold_everywhere(int64_t asks) { gemmill::held_everywhere.store(asks); }

void gemmill_set_holding(void (*choose)(int64_t, gemmill::Call const*, int64_t, gemmill::Choice*), int64_t (*asked)()) {
  gemmill::choose_held.store(choose, std::memory_order_release);
  gemmill::asked_here.store(asked, std::memory_order_release);
}

void gemmill_choose(int64_t family, gemmill::Call const* call, int64_t sm_count, gemmill::Choice* choice) {
  auto const* table = gemmill::current_table.load(std::memory_order_acquire);
  *choice = gemmill::choose(*table->families[family].family, *call, sm_count);
}

void gemmill_note_choices(int64_t most, int64_t least_trust) {
  gemmill::least_trust_noted.store(least_trust);
  gemmill::most_noted.store(most);
}

int64_t gemmill_take_noted(gemmill::Noted* out, int64_t capacity) {
  std::lock_guard lock(gemmill::noted_mutex);
  auto& noted = gemmill::noted;
  int64_t taken = std::min<int64_t>(capacity, noted.size());
  std::copy_n(noted.end() - taken, taken, out);
  noted.resize(noted.size() - taken);
  return taken;
}

int64_t gemmill_times_chosen(int64_t row, int64_t trust) {
  auto const* table = gemmill::current_table.load(std::memory_order_acquire);
  return table->chosen[row * gemmill::kTrusts + trust].load(std::memory_order_relaxed);
}
