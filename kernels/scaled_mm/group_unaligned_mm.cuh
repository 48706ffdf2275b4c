// The variant with scales in groups that takes everything: any M, N, K, any row stride, any address.
//
// The main loop is unaligned_mm.cuh's, and so are its tiles; at the end of each group the kernel multiplies its sum by its scales and
// adds it in FP32.
#pragma once

#include "core/launch.cuh"
#include "gemm/unaligned_mm.cuh"
#include "scaled_mm/group_scales.cuh"

namespace gemmill {

template <class Element_, class Accumulator_, class Output_, int tile_m, int tile_n, int tile_k, bool takes_bias, class Scales_>
struct GroupUnalignedMm : UnalignedLoop<Element_, Accumulator_, tile_m, tile_n, tile_k> {
  using Base = UnalignedLoop<Element_, Accumulator_, tile_m, tile_n, tile_k>;
  using Element = Element_;
  using Accumulator = Accumulator_;
  using Output = Output_;
  using Scales = Scales_;
  static constexpr int kMmaM = Base::kMmaM, kMmaN = Base::kMmaN;

  static_assert(Scales::kGroup % tile_k == 0, "a group is whole steps along K");

  struct Params {
    Element const* a;
    Element const* b;
    Output* d;
    Output const* bias;
    Scales scales;
    int64_t lda, ldb, ldd;
    int32_t m, n, k;
  };

  static __device__ void run(Params const& params) {
    int const tiles_n = (params.n - 1) / tile_n + 1;
    int const m0 = blockIdx.x / tiles_n * tile_m, n0 = blockIdx.x % tiles_n * tile_n;
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();

    float sums[kMmaM][kMmaN][4] = {};
    Accumulator group_sums[kMmaM][kMmaN][4] = {};
    using Pieces = typename Base::Pieces;
    Base::accumulate(
        group_sums, params.k, [&](Pieces& next, int k0) { Base::fetch(next, params.a, params.lda, m0, params.m, k0, params.k); },
        [&](Pieces& next, int k0) { Base::fetch(next, params.b, params.ldb, n0, params.n, k0, params.k); },
        [&](int k0, bool is_last) {
          if (is_last || k0 % Scales::kGroup == Scales::kGroup - tile_k) promote(params.scales, sums, group_sums, m0, n0, k0 / Scales::kGroup);
        });
    store(params, sums, m0, n0);
  }

 private:
  // Where element e of fragment (i, j) of this thread lies: see UnalignedLoop::multiply.
  static __device__ int64_t row_of(int64_t m0, int i, int e) {
    return m0 + threadIdx.x / 64 * (tile_m / 2) + threadIdx.x % 32 / 4 + i * 16 + e / 2 * 8;
  }
  static __device__ int64_t column_of(int64_t n0, int j, int e) {
    return n0 + threadIdx.x / 32 % 2 * (tile_n / 2) + threadIdx.x % 4 * 2 + j * 8 + e % 2;
  }

  // Adds the group's sums, and leaves zeros in their place.
  static __device__ void promote(Scales const& scales, float (&sums)[kMmaM][kMmaN][4],
                                 Accumulator (&group_sums)[kMmaM][kMmaN][4], int m0, int n0, int group) {
    float of_row[kMmaM][2];
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
      of_row[i][0] = scales.of_row(row_of(m0, i, 0), group);
      of_row[i][1] = scales.of_row(row_of(m0, i, 2), group);
    }
#pragma unroll
    for (int j = 0; j < kMmaN; ++j) {
      float const of_column[2] = {scales.of_column(column_of(n0, j, 0), group), scales.of_column(column_of(n0, j, 1), group)};
#pragma unroll
      for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float const scale = of_row[i][e / 2] * of_column[e % 2];
          sums[i][j][e] = fmaf(scale, static_cast<float>(group_sums[i][j][e]), sums[i][j][e]);
          group_sums[i][j][e] = 0;
        }
      }
    }
  }

  static __device__ void store(Params const& params, float const (&sums)[kMmaM][kMmaN][4], int m0, int n0) {
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int j = 0; j < kMmaN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int64_t const m = row_of(m0, i, e), n = column_of(n0, j, e);
          if (m < params.m && n < params.n) {
            params.d[m * params.ldd + n] = with_bias<takes_bias>(sums[i][j][e], params.bias, n);
          }
        }
      }
    }
  }
};

// Host code: a launch.
template <class Kernel, auto entry, int tile_m, int tile_n>
int32_t launch_group_unaligned(gemmill_scaled_mm_args const& x, gemmill_launch const& how) {
  typename Kernel::Params params{static_cast<typename Kernel::Element const*>(x.a),
                                 static_cast<typename Kernel::Element const*>(x.b),
                                 static_cast<typename Kernel::Output*>(x.d),
                                 static_cast<typename Kernel::Output const*>(x.bias),
                                 typename Kernel::Scales(x), x.lda, x.ldb, x.ldd, x.m, x.n, x.k};
  int64_t const tiles = tiles_of(x.m, x.n, tile_m, tile_n);
  if (tiles > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(tiles), dim3(Kernel::kThreads), dim3(1), 0};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill
