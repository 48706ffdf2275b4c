// The variant that takes everything: any M, N, K, any row stride, any address. It ends as plain_epilogue.cuh says.
#pragma once

#include "core/launch.cuh"
#include "gemm/plain_epilogue.cuh"
#include "gemm/unaligned_mm.cuh"
#include "scaled_mm/abi.h"

namespace gemmill {

template <class Element_, class Accumulator_, class Output_, int tile_m, int tile_n, int tile_k, EpilogueKind kind>
struct UnalignedMm : UnalignedLoop<Element_, Accumulator_, tile_m, tile_n, tile_k> {
  using Loop = UnalignedLoop<Element_, Accumulator_, tile_m, tile_n, tile_k>;
  using Element = Element_;
  using Accumulator = Accumulator_;
  using Output = Output_;

  struct Params {
    Element const* a;
    Element const* b;
    Output* d;
    EpilogueVectors vectors;
    int64_t lda, ldb, ldd;
    int32_t m, n, k;
  };

  static __device__ void run(Params const& params) {
    int const tiles_n = (params.n - 1) / tile_n + 1;
    int const m0 = blockIdx.x / tiles_n * tile_m, n0 = blockIdx.x % tiles_n * tile_n;
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    Accumulator sums[Loop::kMmaM][Loop::kMmaN][4] = {};
    using Pieces = typename Loop::Pieces;
    Loop::accumulate(
        sums, params.k, [&](Pieces& next, int k0) { Loop::fetch(next, params.a, params.lda, m0, params.m, k0, params.k); },
        [&](Pieces& next, int k0) { Loop::fetch(next, params.b, params.ldb, n0, params.n, k0, params.k); }, [](int, bool) {});
    store(params, sums, m0, n0);
  }

 private:
  static __device__ void store(Params const& params, Accumulator const (&sums)[Loop::kMmaM][Loop::kMmaN][4], int m0, int n0) {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t const row0 = int64_t(m0) + warp / 2 * (tile_m / 2) + lane / 4;
    int64_t const column0 = int64_t(n0) + warp % 2 * (tile_n / 2) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Loop::kMmaM; ++i) {
#pragma unroll
      for (int j = 0; j < Loop::kMmaN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int64_t const m = row0 + i * 16 + e / 2 * 8, n = column0 + j * 8 + e % 2;
          if (m < params.m && n < params.n) {
            params.d[m * params.ldd + n] = finish<kind, Output>(params.vectors, sums[i][j][e], m, n);
          }
        }
      }
    }
  }
};

// Host code: a launch.
template <class Kernel, auto entry, int tile_m, int tile_n>
int32_t launch_unaligned(gemmill_scaled_mm_args const& x, gemmill_launch const& how) {
  typename Kernel::Params params{static_cast<typename Kernel::Element const*>(x.a), static_cast<typename Kernel::Element const*>(x.b),
                                 static_cast<typename Kernel::Output*>(x.d), EpilogueVectors(x), x.lda, x.ldb, x.ldd, x.m, x.n, x.k};
  int64_t const tiles = tiles_of(x.m, x.n, tile_m, tile_n);
  if (tiles > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(tiles), dim3(Kernel::kThreads), dim3(1), 0};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill
