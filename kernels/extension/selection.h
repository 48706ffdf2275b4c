// Choosing a variant: a flat table, filled by Python from manifest and tuned table, read here without Python.
#pragma once

#include <cstdint>

namespace gemmill {

// The capacity of a call and of a row. Mirrored by gemmill.family.tuning, as the structures are by gemmill.runtime.packed.
constexpr int kMostSizes = 6, kMostAligned = 4, kMostFacts = 19;

// The inputs of a choice in a call. Sizes and aligned operands are in the order in which its family names them, and 0 beyond them.
struct Call {
  int64_t call_class;  // the number of its class, which its family gives; the same as in Row::call_class
  int64_t sizes[kMostSizes];
  int64_t alignments[kMostAligned];  // bytes that data and row stride are multiples of, 16 at most, 32 of codes that TMA spreads
};

// One variant for one class of calls; a variant that serves several has a row for each.
struct Row {
  int64_t kernel;  // index into the extension's kernels
  int64_t call_class;
  int64_t withheld;                  // whether a free choice passes it over
  int64_t most;                      // of each size
  int64_t alignments[kMostAligned];  // bytes that it needs
  int64_t least[kMostSizes];
  int64_t facts[kMostFacts];  // the inputs of the family's model and launch: a struct of its own
};

// A measured choice: at these sizes, `row` was the fastest. It serves calls of a smaller bucketed size too, as far as `covers`
// says. Sorted by class of calls, near sizes and bucketed size.
struct TunedRow {
  int64_t call_class;
  int64_t sizes[kMostSizes];
  int64_t row;
  int64_t exact;  // whether it was the fastest: 0 where that one has changed since, and this was nearly as fast
};

// Python's facts of a family: where its rows are, and how far its measured choices reach (gemmill.family.Reach).
struct FamilyRows {
  char const* name;
  int64_t first, end;
  int64_t near_count;
  int64_t near[kMostSizes];  // places of the sizes that a row must match nearly
  int64_t bucketed;          // place of the size along which sweeps measure weights in steps
  int64_t few, many, endless, ratio;
  double distance, margin;
};

// The functions of a family's own file on its variants; none where a single variant serves each class of calls.
struct Model {
  bool (*takes)(Row const&, Call const&) = nullptr;  // in addition to the limits in the row
  double (*nanoseconds)(Row const&, Call const&, int64_t sm_count) = nullptr;
  bool (*wastes)(Row const&, int64_t const* measured, int64_t const* sizes) = nullptr;  // see gemmill.family.Tuning
  double (*least)(Row const&, Call const&, int64_t sm_count) = nullptr;  // a bound of `nanoseconds` that takes less time
};
struct Family;

// A thread's request; the value for threads that follow the process; and that for a thread that Python has not answered yet. See
// gemmill.runtime.holding.
constexpr int64_t kAsProcess = -1, kNotAsked = -2;

struct Choice {
  int64_t row;    // index of the row, or -1 if no row takes the call
  int64_t trust;  // 0 pinned, 1 tuned at these sizes or a step above, 2 tuned near them or not exact, 3 by the model, 4 the only one of its class
};

// A choice, noted when it was first made.
struct Noted {
  int64_t family;  // its place in the table
  Call call;
  Choice choice;
};

// Thread-safe; the second and later calls with the same arguments cost a look-up in a small cache.
Choice choose(Family const& family, Call const& call, int64_t sm_count);
Row const* row_at(int64_t index);

}  // namespace gemmill

extern "C" {
// Replaces the table. Called once after load; calls under way keep the table they began with.
__attribute__((visibility("default"))) void gemmill_set_table(gemmill::FamilyRows const* families, int64_t family_count,
                                                              gemmill::Row const* rows, int64_t row_count,
                                                              gemmill::TunedRow const* tuned, int64_t tuned_count);
// Pins a row for the calling thread; -1 ends that. Returns the row pinned before.
__attribute__((visibility("default"))) int64_t gemmill_pin(int64_t row);
// Asks for batch invariance in the calling thread (1), not (0), or as the process does (kAsProcess).
__attribute__((visibility("default"))) void gemmill_hold(int64_t asks);
// The same for threads that do not say.
__attribute__((visibility("default"))) void gemmill_hold_everywhere(int64_t asks);
// The function that makes choices under that contract, for the family at a place in the table, and the one with a thread's request.
__attribute__((visibility("default"))) void gemmill_set_holding(void (*choose)(int64_t family, gemmill::Call const*, int64_t sm_count,
                                                                               gemmill::Choice*),
                                                                int64_t (*asked)());
// The choice for a call of the family at a place in the table, without making it; for tests.
__attribute__((visibility("default"))) void gemmill_choose(int64_t family, gemmill::Call const* call, int64_t sm_count,
                                                           gemmill::Choice* choice);
// Notes choices from now on whose trust is `least_trust` or a higher number, `most` of them until they are taken; 0 ends that.
__attribute__((visibility("default"))) void gemmill_note_choices(int64_t most, int64_t least_trust);
// Moves up to `capacity` of the notes out and returns how many.
__attribute__((visibility("default"))) int64_t gemmill_take_noted(gemmill::Noted* noted, int64_t capacity);
// The number of choices of a row of the table with a trust of 1 to 3; calls whose choice it remembers do not count.
__attribute__((visibility("default"))) int64_t gemmill_times_chosen(int64_t row, int64_t trust);
}
