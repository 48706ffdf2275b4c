// H of eight rows by a warp: the factor of 16, or 12, on the tensor core, the other in registers.
//
// H of f p is a matrix of f = 16 (Sylvester's) or 12 (Paley's) times Sylvester's of p: element p i + j meets the first by i and
// the second by j. The sum over i has products by 1 and -1, which are exact; the one over j is butterflies in f32. A lane
// loads and stores whole pieces of p elements, so nothing goes through shared memory and no lane asks another.
#pragma once

#include "kv_cache/shared/mma.cuh"

namespace gemmill::kv_cache {

// Elements of a vector in `kPieces` of `kPiece`.
template <int kColumns>
struct HadamardSplit {
  static constexpr bool kIsPaley = kColumns % 3 == 0;
  static constexpr int kPieces = kIsPaley ? 12 : 16, kPiece = kColumns / kPieces;
  static_assert(kPieces * kPiece == kColumns && (kPiece == 4 || kPiece == 8 || kPiece == 16 || kPiece == 32), "Vectors have 64 to 512 elements.");
};

// Paley's matrix of 12: which entries of a row are -1, as generator/gemmill/families/kv_cache/hadamard.py has it. Symmetric.
__device__ __forceinline__ uint32_t paley_row(int row) {
  uint32_t negative = 0;
#pragma unroll
  for (int column = 0; column < 12; ++column) {
    int const i = row / 2, j = column / 2, distance = (i - j + 5) % 5;
    bool const is_square = i == 0 || j == 0 || distance == 1 || distance == 4;  // of the conference matrix, i != j
    bool const is_lower = row % 2 == 1, is_right = column % 2 == 1;
    bool const of_one = is_lower && is_right, of_zero = is_lower || is_right;
    negative |= static_cast<uint32_t>(i == j ? of_zero : of_one == is_square) << column;
  }
  return negative;
}

// Two entries of a row of the tensor core's factor: 1 or -1, or 0 where 12 pieces are fewer than 16.
template <class Element, bool kIsPaley>
__device__ __forceinline__ uint32_t two_signs(int row, int first, int second) {
  constexpr uint32_t kOne = std::is_same_v<Element, __half> ? 0x3C00u : 0x3F80u;
  uint32_t entries[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int const column = i == 0 ? first : second;
    if constexpr (kIsPaley) {
      entries[i] = row < 12 && column < 12 ? kOne | ((paley_row(row) >> column & 1) << 15) : 0u;
    } else {
      entries[i] = kOne | ((__popc(row & column) & 1) << 15);
    }
  }
  return entries[0] | (entries[1] << 16);
}

// The same of the identity, by which pieces come as they are to the lanes that a rotation's would come to.
template <class Element>
__device__ __forceinline__ uint32_t two_of_identity(int row, int first, int second) {
  constexpr uint32_t kOne = std::is_same_v<Element, __half> ? 0x3C00u : 0x3F80u;
  return (row == first ? kOne : 0u) | (row == second ? kOne << 16 : 0u);
}

// H of so many registers.
template <int kCount>
__device__ __forceinline__ void butterflies(float (&x)[kCount]) {
#pragma unroll
  for (int distance = 1; distance < kCount; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i & distance) continue;
      float const low = x[i], high = x[i + distance];
      x[i] = low + high;
      x[i + distance] = low - high;
    }
  }
}

// Neighbouring elements in memory, two in a word. Each has one read or write, so they need not stay in L2.
template <class Element, int kElements>
struct Piece {
  uint32_t words[kElements / 2];

  template <bool kAligned>
  __device__ __forceinline__ void load(Element const* from) {
    if constexpr (!kAligned) {
      uint16_t const* const bits = reinterpret_cast<uint16_t const*>(from);
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i) words[i] = bits[2 * i] | static_cast<uint32_t>(bits[2 * i + 1]) << 16;
    } else if constexpr (kElements == 4) {
      uint2 const two = __ldcs(reinterpret_cast<uint2 const*>(from));
      words[0] = two.x, words[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint4 const four = __ldcs(reinterpret_cast<uint4 const*>(from) + i);
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
      }
    }
  }

  template <bool kAligned>
  __device__ __forceinline__ void store(Element* to) const {
    if constexpr (!kAligned) {
      uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i) bits[2 * i] = words[i] & 0xFFFF, bits[2 * i + 1] = words[i] >> 16;
    } else if constexpr (kElements == 4) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
    } else {
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint4 const four = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        __stcs(reinterpret_cast<uint4*>(to) + i, four);
      }
    }
  }
};

// A warp's rows. The lane loads pieces t, t + 4, t + 8 and t + 12 of row g, and gets pieces g and g + 8 of rows 2 t and 2 t + 1.
template <class Element, int kColumns>
struct HadamardTile {
  static constexpr int kPieces = HadamardSplit<kColumns>::kPieces, kPiece = HadamardSplit<kColumns>::kPiece;
  static constexpr int kLoaded = kPieces / 4;
  uint32_t signs[4];

  // Summed places 2t, 2t + 1, 2t + 8, 2t + 9 are the lane's pieces: four lanes load side by side.
  __device__ __forceinline__ HadamardTile(int g, int t) {
    constexpr bool kIsPaley = HadamardSplit<kColumns>::kIsPaley;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      signs[i] = two_signs<Element, kIsPaley>(g + 8 * (i % 2), t + 8 * (i / 2), t + 4 + 8 * (i / 2));
    }
  }

  // Instead of a rotation's. Then `meet_pieces` is all that is to be done.
  __device__ __forceinline__ void keep_pieces(int g, int t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      signs[i] = two_of_identity<Element>(g + 8 * (i % 2), t + 8 * (i / 2), t + 4 + 8 * (i / 2));
    }
  }

  // sum[i]: H x, not scaled, of row 2 t + i % 2, piece g + 8 (i / 2).
  __device__ __forceinline__ void operator()(float (&sum)[4][kPiece], Piece<Element, kPiece> const (&piece)[4]) const {
    meet_pieces(sum, piece);
#pragma unroll
    for (int i = 0; i < 4; ++i) butterflies(sum[i]);
  }

  // The tensor core's factor of it.
  __device__ __forceinline__ void meet_pieces(float (&sum)[4][kPiece], Piece<Element, kPiece> const (&piece)[4]) const {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      uint32_t const select = j % 2 ? 0x7632 : 0x5410;
      float d[4] = {};
      mma_16x8x16<Element>(d, signs, __byte_perm(piece[0].words[j / 2], piece[1].words[j / 2], select),
                           __byte_perm(piece[2].words[j / 2], piece[3].words[j / 2], select));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i][j] = d[i];
    }
  }
};

}  // namespace gemmill::kv_cache
