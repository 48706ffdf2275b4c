// Sums of s8 for kernels that work on sums in float32: exact integers, converted once after all of K.
#pragma once

#include "gemm/unaligned_mm.cuh"

namespace gemmill {

template <int tile_m, int tile_n, int tile_k>
struct UnalignedLoop<int8_t, float, tile_m, tile_n, tile_k> : UnalignedLoop<int8_t, int32_t, tile_m, tile_n, tile_k> {
  using Whole = UnalignedLoop<int8_t, int32_t, tile_m, tile_n, tile_k>;

 protected:
  // Adds the products of k columns to a tile's sums, as `UnalignedLoop` does.
  template <class FetchA, class FetchB, class Added>
  static __device__ void accumulate(float (&sums)[Whole::kMmaM][Whole::kMmaN][4], int k, FetchA const& fetch_a, FetchB const& fetch_b,
                                    Added const& added) {
    int32_t whole[Whole::kMmaM][Whole::kMmaN][4] = {};
    Whole::accumulate(whole, k, fetch_a, fetch_b, added);
#pragma unroll
    for (int i = 0; i < Whole::kMmaM; ++i) {
#pragma unroll
      for (int j = 0; j < Whole::kMmaN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] += static_cast<float>(whole[i][j][e]);
      }
    }
  }
};

}  // namespace gemmill
