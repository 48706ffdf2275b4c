// The work that a persistent CTA of a grouped GEMM takes together.
#pragma once

#include "gemm/experts.cuh"
#include "gemm/pipeline.cuh"

namespace gemmill::moe {

// Rows of an expert by rows of its weights.
struct WorkTile {
  int32_t weights;  // below 0 behind the last tile
  int32_t m0, end;  // its first row of D, and the end of its rows, or of its expert's
  int32_t n0;       // its first row of weights

  __device__ int rows() const { return end - m0; }
};

// The index-th tile of all, which has `rows`. Tiles of the same rows are neighbours: `tiles_n` of them, of `tile_n` rows of weights each.
__device__ inline WorkTile work_tile_of(Span const& rows, int index, int tiles_n, int tile_n) {
  return {rows.weights, rows.begin, rows.end, index % tiles_n * tile_n};
}

// To L2: the scales of a tile's rows of weights.
template <int tile_n>
__device__ inline void prefetch_scales(gemmill_grouped_mm_args const& x, WorkTile const& tile) {
  for (int n = tile.n0; n < min(tile.n0 + tile_n, x.n); n += 32) prefetch_to_l2(x.b_scales + int64_t{tile.weights} * x.n + n);
}

// The group-th 64 rows of a tile's packed weights: a row of `blocks` blocks. Beyond the last 64 they are that 64's again, and not stored.
template <class Block>
__device__ inline char const* packed_rows(gemmill_grouped_mm_args const& x, WorkTile const& tile, int group, int blocks) {
  int64_t const row = min(tile.n0 / 64 + group, (x.n + 63) / 64 - 1);
  return static_cast<char const*>(x.b) + tile.weights * x.b_stride_expert + row * blocks * Block::kBytes;
}

}  // namespace gemmill::moe
