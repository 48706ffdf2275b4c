// The main loop of variants that take everything: any M, N, K, any row stride, any address.
//
// One CTA of four warps computes 64 x 64 of a product with mma.sync, 32 bytes along K at a time. Rows are read in 16-byte pieces where
// address and stride allow it and element by element where they do not; which, is the same for a whole operand, so nothing diverges.
// Threads read the next K step into registers while they multiply this one.
#pragma once

#include <climits>
#include <cuda_runtime.h>
#include <type_traits>

#include "cute/arch/mma_sm80.hpp"
#include "cute/arch/mma_sm89.hpp"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/numeric_types.h"

namespace gemmill {

template <class Element>
struct MmaOf;
template <>
struct MmaOf<cutlass::float_e4m3_t> {
  using Op = cute::SM89_16x8x32_F32E4M3E4M3F32_TN;
};
template <>
struct MmaOf<int8_t> {
  using Op = cute::SM80_16x8x32_S32S8S8S32_TN;
};
template <>
struct MmaOf<cutlass::bfloat16_t> {
  using Op = cute::SM80_16x8x16_F32BF16BF16F32_TN;
};
template <>
struct MmaOf<cutlass::half_t> {
  using Op = cute::SM80_16x8x16_F32F16F16F32_TN;
};

template <class Element_, class Accumulator_, int tile_m, int tile_n, int tile_k>
struct UnalignedLoop {
  using Element = Element_;
  using Accumulator = Accumulator_;
  using Mma = typename MmaOf<Element>::Op;

  static constexpr int kThreads = 128;
  static constexpr int kBytes = sizeof(Element);
  static constexpr int kRow = tile_k * kBytes;
  static constexpr int kPitch = kRow + 16;  // bytes of a row in shared memory: 16-byte rows, banks apart
  static constexpr int kPieces = kRow / 16;
  static constexpr int kPiece = 16 / kBytes;  // elements
  static constexpr int kPiecesPerThread = tile_m * kPieces / kThreads;
  static constexpr int kMmaM = tile_m / 2 / 16, kMmaN = tile_n / 2 / 8;  // of a warp, four warps as 2 x 2
  using Pieces = uint4[kPiecesPerThread];

  static_assert(kBytes == 1 || kBytes == 2, "operands are one or two bytes wide");
  static_assert(kRow % 32 == 0, "a step is whole instructions");
  static_assert(tile_m == tile_n, "both operands are read by the same pattern");
  static_assert(tile_m * kPieces % kThreads == 0, "every thread reads the same number of pieces");

 protected:
  // Adds the products of k columns to a tile's sums. `fetch_a` and `fetch_b` read a thread's pieces of a step along K; `added` learns
  // where a step began whose products are in the sums, and whether it was the last.
  template <class FetchA, class FetchB, class Added>
  static __device__ void accumulate(Accumulator (&sums)[kMmaM][kMmaN][4], int k, FetchA const& fetch_a, FetchB const& fetch_b,
                                    Added const& added) {
    __shared__ alignas(16) uint8_t tile_a[tile_m * kPitch];
    __shared__ alignas(16) uint8_t tile_b[tile_n * kPitch];
    Pieces next_a, next_b;
    fetch_a(next_a, 0);
    fetch_b(next_b, 0);
    for (int left = k; left > 0; left -= tile_k) {
      keep(tile_a, next_a);
      keep(tile_b, next_b);
      __syncthreads();
      if (left > tile_k) {
        fetch_a(next_a, k - left + tile_k);
        fetch_b(next_b, k - left + tile_k);
      }
      multiply(sums, tile_a, tile_b);
      added(k - left, left <= tile_k);
      __syncthreads();
    }
  }

  // The first `count` elements of a piece, and zeros.
  static __device__ uint4 piece(Element const* start, int64_t stride, int count) {
    using Bits = std::conditional_t<kBytes == 1, uint8_t, uint16_t>;
    auto const* from = reinterpret_cast<Bits const*>(start);
    bool const aligned = ((reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(stride * kBytes)) & 15) == 0;
    if (aligned && count >= kPiece) return *reinterpret_cast<uint4 const*>(from);
    constexpr int kOfWord = 4 / kBytes;
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (i < count) words[i / kOfWord] |= static_cast<uint32_t>(from[i]) << (i % kOfWord * 8 * kBytes);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Counts from the tile's corner on: sizes go up to the largest number, behind which there is none.
  static __device__ void fetch(uint4 (&next)[kPiecesPerThread], Element const* data, int64_t stride, int row0, int rows, int k0, int k) {
#pragma unroll
    for (int i = 0; i < kPiecesPerThread; ++i) {
      int const index = threadIdx.x + i * kThreads;
      int const row = index / kPieces, element = index % kPieces * kPiece;
      bool const inside = row < rows - row0 && element < k - k0;
      next[i] = inside ? piece(data + (row0 + row) * stride + k0 + element, stride, k - k0 - element) : make_uint4(0, 0, 0, 0);
    }
  }

  static __device__ void keep(uint8_t* tile, uint4 const (&next)[kPiecesPerThread]) {
#pragma unroll
    for (int i = 0; i < kPiecesPerThread; ++i) {
      int const index = threadIdx.x + i * kThreads;
      *reinterpret_cast<uint4*>(tile + index / kPieces * kPitch + index % kPieces * 16) = next[i];
    }
  }

  // Fragments of m16n8k32 and m16n8k16 (PTX ISA, "Matrix fragments for mma"): lane / 4 is the row, lane % 4 * 4 the byte.
  static __device__ void multiply(Accumulator (&sums)[kMmaM][kMmaN][4], uint8_t const* tile_a, uint8_t const* tile_b) {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t const* a = tile_a + (warp / 2 * (tile_m / 2) + lane / 4) * kPitch + lane % 4 * 4;
    uint8_t const* b = tile_b + (warp % 2 * (tile_n / 2) + lane / 4) * kPitch + lane % 4 * 4;
    auto word = [](uint8_t const* at) { return *reinterpret_cast<uint32_t const*>(at); };
#pragma unroll
    for (int k = 0; k < kRow; k += 32) {
      uint32_t fragment_b[kMmaN][2];
#pragma unroll
      for (int j = 0; j < kMmaN; ++j) {
        fragment_b[j][0] = word(b + j * 8 * kPitch + k);
        fragment_b[j][1] = word(b + j * 8 * kPitch + k + 16);
      }
#pragma unroll
      for (int i = 0; i < kMmaM; ++i) {
        uint8_t const* row = a + i * 16 * kPitch + k;
        uint32_t const a0 = word(row), a1 = word(row + 8 * kPitch), a2 = word(row + 16), a3 = word(row + 8 * kPitch + 16);
#pragma unroll
        for (int j = 0; j < kMmaN; ++j) {
          auto& c = reinterpret_cast<typename std::remove_extent<typename Mma::CRegisters>::type(&)[4]>(sums[i][j]);
          Mma::fma(c[0], c[1], c[2], c[3], a0, a1, a2, a3, fragment_b[j][0], fragment_b[j][1], c[0], c[1], c[2], c[3]);
        }
      }
    }
  }
};

// Host code: CTAs for all of D, in 64 bits: sizes go up to the largest number of 32.
inline int64_t tiles_of(int64_t m, int64_t n, int64_t tile_m, int64_t tile_n) {
  return (m + tile_m - 1) / tile_m * ((n + tile_n - 1) / tile_n);
}

}  // namespace gemmill
