// Choosing a variant: a flat table, filled by Python from manifest and tuned table, read here without Python.
#pragma once

#include <cstdint>

namespace gemmill {

// What a call asks for, as far as the choice depends on it.
struct Call {
  int64_t problem;  // operand, output and epilogue class (problem.h); the same code as in Row::problem
  int64_t m, n, k;
  int64_t align_a, align_b, align_d;  // bytes that data and row stride are multiples of, 16 at most
};

// One variant. Mirrored by gemmill.runtime.table.Row: the order of fields is the interface.
struct Row {
  int64_t kernel;   // index into gemmill_kernels
  int64_t problem;  // the class that it serves; a variant that serves several has a row for each
  int64_t align_a, align_b, align_d;  // bytes
  int64_t min_k;
  int64_t max_mnk;  // of M, N and K
  int64_t raster_order, swizzle, splits;
  int64_t workspace;  // whether the kernel must be asked how much it needs
  int64_t tile_m, tile_n, tile_k;  // along M, N and K of the op; tile_k in bytes
  int64_t columns;          // of the tile, as the tensor core sees it: tile_n, or tile_m of a transposed kernel
  int64_t sharers_a, sharers_b;  // CTAs of a cluster that load a tile of A, of B, together
  int64_t pads;             // whether it rounds the tiles of a call up to whole bands, as CUTLASS's scheduler does
  int64_t ctas_of_sm;       // that fit on an SM
  int64_t overlaps;         // whether a tile is stored while the next is multiplied
  int64_t promotes;         // whether sums leave the tensor core's accumulator before the end of K
  int64_t divides_k;        // whether slices of K are added up in the shared memory of a cluster
  int64_t cost_permille;  // how much longer than the model's time this schedule takes, 1000 for the same
};

// A measured choice: at (n, k) for `m` rows, `row` was the fastest. It serves calls of fewer rows too, as far as `covers`
// says. Sorted by (problem, n, k, m).
struct TunedRow {
  int64_t problem;
  int64_t n, k, m;
  int64_t row;
  int64_t exact;  // whether it was the fastest: 0 where that one has changed since, and this was nearly as fast
};

struct Choice {
  int64_t row;    // index of the row, or -1 if no row takes the call
  int64_t trust;  // 0 pinned, 1 tuned at this (n, k) for no fewer rows, 2 tuned near it or not exact, 3 by the model
};

// A call whose choice was not exact, noted when the choice was first made.
struct Miss {
  Call call;
  int64_t trust;
};

// Thread-safe; the second and later calls with the same arguments cost a look-up in a small cache.
Choice choose(Call const& call, int64_t sm_count);
Row const* row_at(int64_t index);
bool accepts(Row const& row, Call const& call);

}  // namespace gemmill

extern "C" {
// Replaces the table. Called once after load; calls under way keep the table they began with.
__attribute__((visibility("default"))) void gemmill_set_table(gemmill::Row const* rows, int64_t row_count,
                                                              gemmill::TunedRow const* tuned, int64_t tuned_count);
// Pins a row for the calling thread; -1 ends that. Returns the row pinned before.
__attribute__((visibility("default"))) int64_t gemmill_pin(int64_t row);
// The choice for a call, without making it; for tests and for `explain`.
__attribute__((visibility("default"))) void gemmill_choose(gemmill::Call const* call, int64_t sm_count, gemmill::Choice* choice);
// Notes misses from now on, `most` of them until they are taken; 0 ends that.
__attribute__((visibility("default"))) void gemmill_record_misses(int64_t most);
// Moves up to `capacity` misses out and returns how many.
__attribute__((visibility("default"))) int64_t gemmill_take_misses(gemmill::Miss* misses, int64_t capacity);
}
