// The grouped GEMM that takes every call: any N, K, row stride and address, rows in order or gathered by their numbers.
//
// Main loop and tiles are unaligned_mm.cuh's. CTAs take tiles in turn, of expert after expert; which expert's a tile is, each warp
// finds out by itself, 32 experts at a time.
#pragma once

#include <algorithm>

#include "core/launch.cuh"
#include "gemm/experts.cuh"
#include "gemm/unaligned_mm.cuh"

namespace gemmill::moe {

// The factors of sums.
enum class Factors { none, of_channels, of_groups };
// Their further factors and addends.
enum class Ends { none, alpha_bias };

// Scales in groups are of `group_size` elements along K, those of weights of `group_rows` of their rows, too. A step lies in one group.
template <class Element_, class Accumulator_, class Output_, Factors factors, Ends ends = Ends::none, int group_size = 128, int group_rows = group_size>
struct UnalignedGroupedMm
    : UnalignedLoop<Element_, Accumulator_, 64, 64, std::min(64 / static_cast<int>(sizeof(Element_)), group_size)> {
  static constexpr int kTile = 64, kTileK = std::min(64 / static_cast<int>(sizeof(Element_)), group_size), kGroup = group_size, kGroupRows = group_rows;
  using Base = UnalignedLoop<Element_, Accumulator_, kTile, kTile, kTileK>;
  using Element = Element_;
  using Accumulator = Accumulator_;
  using Output = Output_;
  using Params = gemmill_grouped_mm_args;
  using Pieces = typename Base::Pieces;
  static constexpr int kMmaM = Base::kMmaM, kMmaN = Base::kMmaN;

  static __device__ void run(Params const& params) {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    for (int64_t index = blockIdx.x;; index += gridDim.x) {
      Tile const tile = find(params, index);
      if (tile.weights < 0) return;
      multiply_tile(params, tile);
    }
  }

 private:
  struct Tile {
    int32_t weights;  // below 0 behind the last tile
    int32_t m0, end;  // its first row, and the end of its expert's
    int32_t n0;
  };

  // The tile of a number, of all experts'. Asked by whole warps.
  static __device__ Tile find(Params const& x, int64_t index) {
    int const lane = threadIdx.x % 32;
    int64_t const tiles_n = (x.n - 1) / kTile + 1;
    for (int base = 0; base < x.experts; base += 32) {
      Span const span = base + lane < x.experts ? span_of(x, base + lane) : Span{};
      int64_t const own = (int64_t(span.end) - span.begin + kTile - 1) / kTile * tiles_n;
      int64_t up_to = own;
#pragma unroll
      for (int i = 1; i < 32; i *= 2) {
        int64_t const other = __shfl_up_sync(~0u, up_to, i);
        if (lane >= i) up_to += other;
      }
      int const whose = __popc(__ballot_sync(~0u, up_to <= index));
      if (whose < 32) {
        int64_t const inside = index - __shfl_sync(~0u, up_to - own, whose);
        int const begin = __shfl_sync(~0u, span.begin, whose), end = __shfl_sync(~0u, span.end, whose);
        int const weights = __shfl_sync(~0u, span.weights, whose);
        return {weights, begin + static_cast<int>(inside / tiles_n) * kTile, end, static_cast<int>(inside % tiles_n) * kTile};
      }
      index -= __shfl_sync(~0u, up_to, 31);
    }
    return {-1, 0, 0, 0};
  }

  static __device__ void multiply_tile(Params const& x, Tile const& tile) {
    auto const* a = static_cast<Element const*>(x.a);
    auto const* b = static_cast<Element const*>(x.b) + tile.weights * x.b_stride_expert;
    int64_t sources[Base::kPiecesPerThread];
#pragma unroll
    for (int i = 0; i < Base::kPiecesPerThread; ++i) {
      sources[i] = source_of(x, int64_t(tile.m0) + (threadIdx.x + i * Base::kThreads) / Base::kPieces, tile.end);
    }
    auto const fetch_a = [&](Pieces& next, int k0) {
#pragma unroll
      for (int i = 0; i < Base::kPiecesPerThread; ++i) {
        int const element = (threadIdx.x + i * Base::kThreads) % Base::kPieces * Base::kPiece;
        bool const inside = sources[i] >= 0 && element < x.k - k0;
        next[i] = inside ? Base::piece(a + sources[i] * x.lda + k0 + element, x.lda, x.k - k0 - element) : make_uint4(0, 0, 0, 0);
      }
    };
    auto const fetch_b = [&](Pieces& next, int k0) { Base::fetch(next, b, x.ldb, tile.n0, x.n, k0, x.k); };

    Accumulator sums[kMmaM][kMmaN][4] = {};
    if constexpr (factors == Factors::of_groups) {
      float scaled[kMmaM][kMmaN][4] = {};
      Base::accumulate(sums, x.k, fetch_a, fetch_b, [&](int k0, bool is_last) {
        if (is_last || k0 % kGroup == kGroup - kTileK) promote(x, tile, scaled, sums, k0 / kGroup);
      });
      store(x, tile, scaled);
    } else {
      Base::accumulate(sums, x.k, fetch_a, fetch_b, [](int, bool) {});
      store(x, tile, sums);
    }
  }

  // Where element e of fragment (i, j) of this thread lies: see UnalignedLoop::multiply.
  static __device__ int64_t row_of(Tile const& tile, int i, int e) {
    return int64_t(tile.m0) + threadIdx.x / 64 * (kTile / 2) + threadIdx.x % 32 / 4 + i * 16 + e / 2 * 8;
  }
  static __device__ int64_t column_of(Tile const& tile, int j, int e) {
    return int64_t(tile.n0) + threadIdx.x / 32 % 2 * (kTile / 2) + threadIdx.x % 4 * 2 + j * 8 + e % 2;
  }

  // Adds the group's sums times its scales, and leaves zeros in their place.
  static __device__ void promote(Params const& x, Tile const& tile, float (&scaled)[kMmaM][kMmaN][4], Accumulator (&sums)[kMmaM][kMmaN][4],
                                 int group) {
    float const* const of_expert = x.b_scales + tile.weights * x.b_scale_stride_expert + group * x.b_scale_stride_k;
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int64_t const source = source_of(x, row_of(tile, i, half * 2), tile.end);
        float const of_row = source >= 0 ? x.a_scales[source * x.a_scale_stride_m + group * x.a_scale_stride_k] : 0.0f;
#pragma unroll
        for (int j = 0; j < kMmaN; ++j) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            int64_t const n = column_of(tile, j, e);
            float const scale = n < x.n ? of_row * of_expert[n / kGroupRows * x.b_scale_stride_n] : 0.0f;
            scaled[i][j][e] = fmaf(scale, static_cast<float>(sums[i][j][e]), scaled[i][j][e]);
            sums[i][j][e] = 0;
          }
        }
      }
    }
  }

  template <class Sum>
  static __device__ void store(Params const& x, Tile const& tile, Sum const (&sums)[kMmaM][kMmaN][4]) {
    auto* d = static_cast<Output*>(x.d);
    auto const* bias = static_cast<Output const*>(x.bias);
    float alpha = 1.0f;
    if constexpr (ends == Ends::alpha_bias) {
      if (x.alpha != nullptr) alpha = x.alpha[tile.weights];
      if (bias != nullptr) bias += int64_t(tile.weights) * x.n;
    }
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int64_t const m = row_of(tile, i, half * 2);
        if (m >= tile.end) continue;
        float a_scale = 1.0f;
        if constexpr (factors == Factors::of_channels) a_scale = scale_of(x, m, tile.end);
#pragma unroll
        for (int j = 0; j < kMmaN; ++j) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            int64_t const n = column_of(tile, j, e);
            if (n >= x.n) continue;
            float value = static_cast<float>(sums[i][j][e]), b_scale = 1.0f;
            if constexpr (factors == Factors::of_channels) b_scale = x.b_scales[tile.weights * x.b_scale_stride_expert + n * x.b_scale_per_column];
            if constexpr (ends == Ends::alpha_bias) {
              float const added = bias != nullptr ? static_cast<float>(bias[n]) : 0.0f;
              value = factors == Factors::of_channels ? fmaf(a_scale, value * (alpha * b_scale), added) : fmaf(alpha, value, added);
            } else if constexpr (factors == Factors::of_channels) {
              value = a_scale * (value * b_scale);
            }
            d[m * x.ldd + n] = Output(value);
          }
        }
      }
    }
  }
};

// Host code: a launch.
template <class Kernel, auto entry>
int32_t launch_unaligned_grouped(gemmill_grouped_mm_args const& x, gemmill_launch const& how) {
  constexpr int kCtasOfSm = 8;
  int64_t const of_rows = x.slot != 0 ? (int64_t(x.slot) + Kernel::kTile - 1) / Kernel::kTile * x.experts
                                      : x.m / Kernel::kTile + std::min(x.m, x.experts);
  int64_t const tiles = of_rows * ((int64_t(x.n) + Kernel::kTile - 1) / Kernel::kTile);
  gemmill_grouped_mm_args params = x;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(std::min<int64_t>(tiles, int64_t(how.sm_count) * kCtasOfSm)), dim3(Kernel::kThreads), dim3(1), 0};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::moe
