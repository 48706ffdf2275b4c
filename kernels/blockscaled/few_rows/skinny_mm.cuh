// Block-scaled codes on Hopper, small M: D[m, n] = alpha * sum over k of A[m, k] B[n, k] + bias[n], with codes upcast to bf16,
// or f16, in registers.
//
// A warp multiplies 64 rows of weights, by mma.sync, by a tile's rows of A. Lanes read codes where they lie: a sum over
// K may be taken in any order, so the four lanes that share a row take 32 columns each, and both operands agree on which columns
// make a step. Nothing lies in shared memory and no warp waits for another, until the partial sums of a CTA's warps meet there,
// and then those of a cluster, in the order of their parts.
#pragma once

#include "blockscaled/shared/operands.cuh"
#include "gemm/partial_sums.cuh"
#include "gemm/warp_products.cuh"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/array.h"

namespace gemmill::blockscaled {

// `warps` divide the columns of K that a CTA has. A and B are of one kind: words, or in order.
template <class A, class B, class Wide, class Output_, int tile_m, int warps, Factors factors, int ctas>
struct SkinnyMm {
  using Output = Output_;
  using X = typename Wide::Element;

  static constexpr int kTileM = tile_m, kRows = 64, kTileN = kRows;
  static constexpr bool kSliced = true;  // K may be
  static constexpr int kThreads = 32 * warps;
  static constexpr int kStep = 4 * kPieceOfRow;  // columns that the four lanes of a row take together
  static constexpr int kEights = tile_m / 8;     // of rows of A
  static constexpr int kPitch = kRows + 4;
  static constexpr int kSharedBytes = warps * tile_m * kPitch * 4;
  static constexpr int kCtas = ctas;  // on a multiprocessor
  static constexpr float kShort = A::kShort * B::kShort;
  static constexpr int kColumnMultiple = B::kColumnMultiple;  // of K

  static_assert(tile_m % 8 == 0 && tile_m <= 32, "sums of more rows of A do not fit beside the codes that are on their way");
  static_assert(factors != Factors::OfGroups, "sums are not multiplied before all columns are added");

  using Params = UpcastParams<Output>;
  using Sums = float[4][kEights][4];  // 16 rows of B each

  __device__ static void run(Params const& params, char* shared) {
    int const rank = cute::block_rank_in_cluster(), splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (static_cast<unsigned>(params.m) - 1) / tile_m + 1;  // neighbours share weights
    int const m0 = static_cast<int>(tile % tiles_m) * tile_m, n0 = static_cast<int>(tile / tiles_m) * kRows;
    int const steps = (params.k - 1) / kStep + 1;
    int const first = static_cast<int>(int64_t{steps} * rank / splits), end = static_cast<int>(int64_t{steps} * (rank + 1) / splits);
    int const warp = threadIdx.x / 32;

    cutlass::arch::launch_dependent_grids();
    B weights[8];
    if (params.constant_weights && first + warp < end) load_weights(params, weights, first + warp, n0);
    cutlass::arch::wait_on_dependent_grids();
    Sums sums{};
    for (int step = first + warp; step < end; step += warps) {
      if (!params.constant_weights || step != first + warp) load_weights(params, weights, step, n0);
      A rows[kEights];
      load_rows(params, rows, step, m0);
      multiply_eight<0>(sums, weights, rows);
      multiply_eight<1>(sums, weights, rows);
      multiply_eight<2>(sums, weights, rows);
      multiply_eight<3>(sums, weights, rows);
    }
    auto* const buffer = reinterpret_cast<float*>(shared);
    put_sums<kPitch>(sums, buffer + warp * tile_m * kPitch);
    store(params, buffer, rank, splits, n0, m0);
  }

  // Lane 4 r + c has columns 32 c to 32 c + 31 of rows r, r + 8, r + 16 and so on. Rows beyond the last are the last again, and not stored.
  __device__ static void load_weights(Params const& params, B (&weights)[8], int step, int n0) {
    int const lane = threadIdx.x % 32, k0 = step * kStep + lane % 4 * kPieceOfRow;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) {
      weights[i].load(params.b, params.b_sf, params.ldb, min(n0 + i * 8 + lane / 4, params.n - 1), k0, params.k, params.k - k0);
    }
  }
  __device__ static void load_rows(Params const& params, A (&rows)[kEights], int step, int m0) {
    int const lane = threadIdx.x % 32, k0 = step * kStep + lane % 4 * kPieceOfRow;
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) {
      int const row = m0 + e * 8 + lane / 4;
      rows[e].load(params.a, params.a_sf, params.lda, row, k0, params.k, row < params.m ? params.k - k0 : 0);
    }
  }

  // Two steps of the tensor core, 16 columns each: of a lane's eight four.
  template <int eight>
  __device__ static void multiply_eight(Sums& sums, B const (&weights)[8], A const (&rows)[kEights]) {
    uint32_t b[kEights][4];
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) rows[e].template widen<Wide, eight>(b[e]);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t upper[4], lower[4];
      weights[2 * i].template widen<Wide, eight>(upper);
      weights[2 * i + 1].template widen<Wide, eight>(lower);
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2; ++step) {
        uint32_t const a[4] = {upper[2 * step], lower[2 * step], upper[2 * step + 1], lower[2 * step + 1]};
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < kEights; ++e) multiply_warp<X>(sums[i][e], a, b[e][2 * step], b[e][2 * step + 1]);
      }
    }
  }

  __device__ static void store(Params const& params, float const* buffer, int rank, int splits, int n0, int m0) {
    if (splits > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }
    float const alpha = (params.alpha == nullptr ? 1.0f : *params.alpha) * kShort;
    add_up<warps, tile_m, kRows, kPitch, kThreads>(buffer, rank, splits, [&](int row, int column, float const(&quad)[4]) {
      int const m = m0 + row, n = n0 + column;
      if (m >= params.m) return;
      float const factor = factors == Factors::OfRows && params.scales != nullptr ? params.scales[m] : alpha;
      Output* const to = params.d + m * params.ldd + n;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i >= params.n) return;
        float const scaled = (factors == Factors::OfRows ? quad[i] * params.base[n + i] : quad[i]) * factor;
        to[i] = Output(params.bias == nullptr ? scaled : scaled + static_cast<float>(params.bias[n + i]));
      }
    });
    if (splits > 1) {
      cute::cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cute::cluster_wait();
    }
  }
};

}  // namespace gemmill::blockscaled
