// The gated GEMM that takes every call: any M, hidden, K, row stride and address.
//
// Main loop and tiles are unaligned_mm.cuh's: 64 x 64 of the product, 32 results of each of 64 rows. The order of packed weights
// gives a thread gate and up of four neighbouring results of a row. Where scales are of 128 results, the four CTAs of a cluster
// have them, and tell one another their maxima.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "core/launch.cuh"
#include "gated_mm/abi.h"
#include "coding/coding.cuh"
#include "coding/gating.cuh"
#include "gemm/plain_epilogue.cuh"
#include "gemm/unaligned_mm.cuh"

namespace gemmill::gated_mm {

// The form of the results.
enum class Result { bf16, e4m3static, e4m3group128 };

template <class Element_, Result result>
struct UnalignedGatedMm : UnalignedLoop<Element_, float, 64, 64, 64> {
  using Base = UnalignedLoop<Element_, float, 64, 64, 64>;
  using Element = Element_;
  using Output = std::conditional_t<result == Result::bf16, cutlass::bfloat16_t, uint8_t>;
  static constexpr int kTile = 64, kResults = 4;
  static constexpr int kMmaM = Base::kMmaM, kMmaN = Base::kMmaN;
  static constexpr int kGroup = 128;
  static constexpr int kCluster = result == Result::e4m3group128 ? 2 * kGroup / kTile : 1;

  static_assert(kMmaN == 4, "a warp's columns are one block of packed weights: eight gates, eight ups, and that again");

  struct Params {
    Element const* a;
    Element const* b;
    Output* d;
    EpilogueVectors vectors;
    float const* static_scale;
    float* out_scales;
    int64_t lda, ldb, ldd, out_scale_stride_m, out_scale_stride_g;
    int32_t m, n, k, activation;
    float alpha, limit, beta;
  };

  static __device__ void run(Params const& params) {
    int const tiles_n = (params.n - 1) / kTile + 1;
    int const m0 = blockIdx.x / tiles_n * kTile, n0 = blockIdx.x % tiles_n * kTile;
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    float sums[kMmaM][kMmaN][4] = {};
    using Pieces = typename Base::Pieces;
    Base::accumulate(
        sums, params.k, [&](Pieces& next, int k0) { Base::fetch(next, params.a, params.lda, m0, params.m, k0, params.k); },
        [&](Pieces& next, int k0) { Base::fetch(next, params.b, params.ldb, n0, params.n, k0, params.k); }, [](int, bool) {});

    float values[kMmaM][2][kResults];
    activate(values, params, sums, m0, n0);
    if constexpr (result == Result::e4m3group128) {
      store_groups(params, values, m0, n0);
    } else {
      float const by = result == Result::e4m3static ? quant::reciprocal_of(*params.static_scale) : 1.0f;
#pragma unroll
      for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (result == Result::e4m3static) {
#pragma unroll
            for (int j = 0; j < kResults; ++j) values[i][half][j] = __fmul_rn(values[i][half][j], by);
          }
          store_values(params, values[i][half], m0 + row_of(i, half), n0);
        }
      }
    }
  }

 private:
  // Row of the tile of a thread's `half` of an instruction's rows.
  static __device__ int64_t row_of(int i, int half) {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return warp / 2 * (kTile / 2) + i * 16 + half * 8 + lane / 4;
  }

  // First of the thread's results of a row.
  static __device__ int64_t column_of(int n0) { return (n0 + int64_t(threadIdx.x / 32 % 2) * (kTile / 2)) / 2 + threadIdx.x % 4 * kResults; }

  // Results in float32; zeros beyond D.
  static __device__ void activate(float (&values)[kMmaM][2][kResults], Params const& params, float const (&sums)[kMmaM][kMmaN][4], int m0, int n0) {
    int64_t const column0 = n0 + int64_t(threadIdx.x / 32 % 2) * (kTile / 2) + threadIdx.x % 4 * 2;
    quant::Gating const gating{params.activation, params.alpha, params.limit, params.beta};
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int64_t const m = m0 + row_of(i, half);
#pragma unroll
        for (int j = 0; j < kResults; ++j) {
          int const pair = j / 2 * 2, of_pair = half * 2 + j % 2;
          int64_t const n = column0 + pair * 8 + j % 2;
          values[i][half][j] = 0.0f;
          if (m < params.m && n < params.n) {
            float const gate = product(params, sums[i][pair][of_pair], m, n), up = product(params, sums[i][pair + 1][of_pair], m, n + 8);
            values[i][half][j] = gating(gate, up);
          }
        }
      }
    }
  }

  // The product as a kernel of its own would have stored it.
  static __device__ float product(Params const& params, float sum, int64_t m, int64_t n) {
    return static_cast<float>(finish<EpilogueKind::scaled, cutlass::bfloat16_t>(params.vectors, sum, m, n));
  }

  // Codes and scales: the largest value of a row is known when all of the cluster's CTAs have told theirs.
  static __device__ void store_groups(Params const& params, float (&values)[kMmaM][2][kResults], int64_t m0, int n0) {
    __shared__ alignas(8) float maxima[kTile][2];  // of a row, of the two warps that share it
    int const lane = threadIdx.x % 32, side = threadIdx.x / 32 % 2;
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < kResults; ++j) largest = fmaxf(largest, fabsf(values[i][half][j]));  // NaN does not count
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        if (lane % 4 == 0) maxima[row_of(i, half)][side] = largest;
      }
    }
    cute::cluster_arrive();
    cute::cluster_wait();
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int64_t const row = row_of(i, half), m = m0 + row;
        float largest = 0.0f;
#pragma unroll
        for (int rank = 0; rank < kCluster; ++rank) largest = fmaxf(largest, remote_maximum(maxima[row], rank));
        quant::SymmetricCoding<quant::E4M3, quant::Silu> const coding(largest, INFINITY);
        uint32_t word[1];
        coding.encode(values[i][half], word);
        if (m < params.m) {
          int64_t const first = column_of(n0), group = first / kGroup;
          store_codes(params.d + m * params.ldd + first, word[0]);
          if (first % kGroup == 0) params.out_scales[m * params.out_scale_stride_m + group * params.out_scale_stride_g] = coding.scale;
        }
      }
    }
    cute::cluster_arrive_relaxed();  // nobody leaves while others still read its maxima
    cute::cluster_wait();
  }

  // The larger one of a row's two maxima in a CTA of the cluster.
  static __device__ float remote_maximum(float const* of_row, int rank) {
    uint32_t remote;
    float first, second;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(cute::cast_smem_ptr_to_uint(of_row)), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(remote) : "memory");
    return fmaxf(first, second);
  }

  static __device__ void store_values(Params const& params, float const (&values)[kResults], int64_t m, int n0) {
    int64_t const first = column_of(n0);
    if (m >= params.m || first >= params.n / 2) return;  // a row has whole blocks of 16 results
    Output* const to = params.d + m * params.ldd + first;
    if constexpr (result == Result::bf16) {
#pragma unroll
      for (int j = 0; j < kResults; ++j) to[j] = cutlass::bfloat16_t(values[j]);
    } else {
      store_codes(to, quant::encode4(values[0], values[1], values[2], values[3], quant::E4M3{}));
    }
  }

  static __device__ void store_codes(uint8_t* to, uint32_t word) {
#pragma unroll
    for (int j = 0; j < kResults; ++j) to[j] = static_cast<uint8_t>(word >> 8 * j);
  }
};

// Host code: a launch.
template <class Kernel, auto entry>
int32_t launch_unaligned_gated(gemmill_gated_mm_args const& x, gemmill_launch const& how) {
  using Element = typename Kernel::Element;
  typename Kernel::Params params{static_cast<Element const*>(x.a), static_cast<Element const*>(x.b),
                                 static_cast<typename Kernel::Output*>(x.d), {x.a_scales, x.b_scales, x.a_scale_per_row, x.b_scale_per_column}, x.static_scale, x.out_scales,
                                 x.lda, x.ldb, x.ldd, x.out_scale_stride_m, x.out_scale_stride_g,
                                 x.m, x.n, x.k, x.activation, x.alpha, x.limit, x.beta};
  int64_t const tiles = tiles_of(x.m, x.n, Kernel::kTile, Kernel::kTile);
  if (tiles > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(tiles), dim3(Kernel::kThreads), dim3(Kernel::kCluster), 0};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::gated_mm
