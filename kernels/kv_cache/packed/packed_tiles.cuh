// Packed keys and values of any format to tiles of f16 in shared memory, and the products of tensor cores with them.
//
// A tile is [tokens][d] of elements without their token's factor (a norm, a scale): those factors lie next to it in f32, and go into a
// score's column or a weight's. So elements stay small whatever was stored. Tokens behind a sequence's end have zeros. Keys of
// turboquant_prod have two tiles: centroids, which meet rotated queries, and signs, which meet projected ones.
#pragma once

#include "kv_cache/shared/combine_slices.cuh"
#include "kv_cache/shared/mma.cuh"
#include "kv_cache/shared/projection.cuh"
#include "kv_cache/shared/vector_coding.cuh"

namespace gemmill::kv_cache {

constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / 32;
constexpr int kPadding = 8;  // halves behind a row of a tile, so that eight rows lie in different banks

// Warps share the rows and the tokens of a tile.
template <int kElements, int kWarpsOfRows>
struct TileShape {
  static constexpr int kHeadDim = kElements, kSteps = kHeadDim / 16;
  static constexpr int kRowWarps = kWarpsOfRows, kTokenWarps = kTileWarps / kRowWarps;
  static constexpr int kRows = 16 * kRowWarps, kTokens = kTokenWarps == 1 ? 64 : 128;
  static constexpr int kWarpTokens = kTokens / kTokenWarps;
  static constexpr int kStride = kHeadDim + kPadding;  // halves from row to row
  static constexpr int kTileBytes = kTokens * kStride * 2, kQueryBytes = kRows * kStride * 2;
  // Shared memory: lookup tables of keys and values, factors of both, tiles of both, queries for each part of a key.
  static constexpr int kFactors = 4 * kCentroidsBytes, kKeys = kFactors + 2 * kTokens * 4, kValues = kKeys + kTileBytes;
  static constexpr int kQueries = kValues + kTileBytes;
  static constexpr int kSumStride = kHeadDim + 4;
  static constexpr int kSumBytes = kTokenWarps * kRows * (kSumStride + 2) * 4;  // in place of all, at the end

  static int shared_bytes(int key_parts) {
    int const tiles = kQueries + key_parts * kQueryBytes;
    return tiles > kSumBytes ? tiles : kSumBytes;
  }
};

// Where packed vectors of one side are.
struct PackedSide {
  uint8_t const* base;
  int64_t page_stride, token_stride, head_stride;
};

// Which tokens of a sequence they are: pages by a table, or one page for each sequence.
struct PackedPages {
  int32_t const* pages;  // of the sequence; null for none
  int64_t own;           // the page where there is no table
  int page_size;
  int last;              // page that the cache has

  __device__ __forceinline__ uint8_t const* vector(PackedSide const& side, int64_t head, int token) const {
    int64_t const page = pages == nullptr ? own : min(max(pages[token / page_size], 0), last);
    return side.base + page * side.page_stride + token % page_size * side.token_stride + head * side.head_stride;
  }
};

// The value of a side's code, as f16, and its square, as lanes look them up.
struct CodeTables {
  __half* values;
  float* squares;
};

__device__ __forceinline__ void fill_tables(VectorCoding const& coding, CodeTables const& tables) {
  int const code = threadIdx.x;
  if (code >= 16) return;
  float const value = coding.method == kE2m1 ? of_e2m1(code) : coding.book.centroids[code];
  tables.values[code] = __float2half_rn(value);
  tables.squares[code] = value * value;
}

// 2^e for f32 x with 2^e <= |x| < 2^(e + 1): 0 of 0.
__device__ __forceinline__ float power_below(float x) { return __uint_as_float(__float_as_uint(x) & 0x7F800000u); }

// How elements of one stored vector come from codes: `factor` is the token's.
struct Scaling {
  float factor, step, zero;  // uniform: an element is code step + zero

  __device__ __forceinline__ Scaling(VectorCoding const& coding, uint8_t const* vector, int groups) : step(0.0f), zero(0.0f) {
    if (coding.has_centroids()) {
      factor = scalar_at(vector + coding.scalars);
    } else if (coding.method == kUniform) {
      step = scalar_at(vector + coding.scalars), zero = scalar_at(vector + coding.scalars + 2);
      float const largest = fabsf(step) * static_cast<float>((1 << coding.bits) - 1) + fabsf(zero);
      factor = power_below(largest);
      float const inverse = factor > 0.0f && factor < INFINITY ? 1.0f / factor : 0.0f;
      step = inverse > 0.0f ? step * inverse : 0.0f, zero = inverse > 0.0f ? zero * inverse : 0.0f;
      if (!(largest < INFINITY)) factor = NAN;
    } else if (coding.method == kE2m1) {
      uint32_t largest = 0;
      for (int i = 0; i < groups; ++i) largest = max(largest, static_cast<uint32_t>(vector[coding.scalars + i]));
      factor = of_ue8m0(largest);
    } else {
      factor = kE4m3Factor;
    }
  }
  // Of a group of 32 of e2m1, in addition to the factor.
  __device__ __forceinline__ float of_group(uint32_t scale) const {
    return factor > 0.0f ? of_ue8m0(scale) / factor : 0.0f;
  }
};

// Eight elements from their codes, two in a word. NaN of e4m3 is 0, and NaN in `square`: rows that do not see the token have a weight of
// 0, which takes part all the same.
__device__ __forceinline__ uint4 eight_elements(VectorCoding const& coding, Scaling const& scaling, CodeTables const& tables,
                                                uint8_t const* vector, int unit, float& square) {
  uint16_t halves[8];
  uint8_t const* const codes = vector + unit * coding.bits;
  if (coding.method == kE4m3) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      bool const is_nan = is_nan_of_e4m3(codes[i]);
      halves[i] = is_nan ? 0 : half_of_e4m3(codes[i]), square += is_nan ? NAN : 0.0f;
    }
  } else {
    uint32_t word = codes[0];
    for (int i = 1; i < coding.bits; ++i) word |= static_cast<uint32_t>(codes[i]) << 8 * i;
    uint32_t const mask = (1u << coding.bits) - 1;
    float const group = coding.method == kE2m1 ? scaling.of_group(vector[coding.scalars + unit / 4]) : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t const code = word & mask;
      word >>= coding.bits;
      __half value = tables.values[code];
      if (coding.method == kUniform) value = __float2half_rn(static_cast<float>(code) * scaling.step + scaling.zero);
      if (coding.method == kE2m1) value = __float2half_rn(to_float(value) * group);
      if (coding.method == kUnitCentroids) square += tables.squares[code];
      memcpy(&halves[i], &value, sizeof value);
    }
  }
  return make_uint4(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16, halves[4] | halves[5] << 16, halves[6] | halves[7] << 16);
}

// 1 and -1 of eight signs.
__device__ __forceinline__ uint4 eight_signs(uint32_t byte) {
  constexpr uint32_t kOnes = 0x3C003C00u;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = kOnes | (~byte >> (2 * i) & 1) << 15 | (~byte >> (2 * i + 1) & 1) << 31;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// A tile of tokens from `first` on, by the whole block, four threads a token. Of signs instead of codes if `of_signs`.
template <class Shape>
__device__ __forceinline__ void decode_tile(VectorCoding const& coding, CodeTables const& tables, PackedSide const& side,
                                            PackedPages const& pages, int64_t head, int first, int end, bool of_signs,
                                            __half* tile, float* factors) {
  constexpr int kHeadDim = Shape::kHeadDim, kUnits = kHeadDim / 32;
  int const quarter = threadIdx.x % 4;
#pragma unroll 1
  for (int token = threadIdx.x / 4; token < Shape::kTokens; token += kTileThreads / 4) {
    uint4* const to = reinterpret_cast<uint4*>(tile + token * Shape::kStride) + quarter * kUnits;
    bool const exists = first + token < end;
    float factor = 0.0f, square = 0.0f;
    if (exists) {
      uint8_t const* const vector = pages.vector(side, head, first + token);
      if (of_signs) {
        uint8_t const* const signs = vector + coding.code_bytes + quarter * kUnits;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) to[i] = eight_signs(signs[i]);
        factor = scalar_at(vector + coding.scalars + 2) * kSignShare<kHeadDim>;
      } else {
        Scaling const scaling(coding, vector, kHeadDim / kE2m1Group);
#pragma unroll 1  // the sums' registers leave no room for more at a time
        for (int i = 0; i < kUnits; ++i) to[i] = eight_elements(coding, scaling, tables, vector, quarter * kUnits + i, square);
        factor = scaling.factor;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) to[i] = make_uint4(0, 0, 0, 0);
    }
    if (coding.method == kUnitCentroids || coding.method == kE4m3) {
      square += __shfl_xor_sync(0xFFFFFFFFu, square, 1);
      square += __shfl_xor_sync(0xFFFFFFFFu, square, 2);
      if (exists) factor = coding.method == kE4m3 ? factor + square : factor / sqrtf(square + kUnitSquareFloor);
    }
    if (quarter == 0) factors[token] = factor;
  }
}

// Queries as f16 in the keys' basis, [parts][rows][d]: a warp takes a row at a time. Flat row r * group + h is query row r of head h.
struct QueryRows {
  void const* q;
  int64_t row_stride, head_stride;  // `q` is of the sequence and of the first of the KV head's query heads
  int64_t rows, first;
  int group;
};

template <class Element, class Shape>
__device__ __forceinline__ void load_queries(QueryRows const& from, VectorCoding const& coding, Signs<Shape::kHeadDim> const& signs,
                                             Projection const& projection, bool is_rotated, __half* queries) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32;
  int const lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < Shape::kRows; row += kTileWarps) {
    int64_t const flat = from.first + row;
    float x[kOwn] = {}, y[kOwn];
    if (flat < from.rows * from.group) {
      Element const* const q =
          static_cast<Element const*>(from.q) + flat / from.group * from.row_stride + flat % from.group * from.head_stride + lane;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) x[k] = to_float(q[32 * k]);
    }
    __half* const to = queries + row * Shape::kStride + lane;
    float const scale = coding.rotation == kNone || is_rotated ? 1.0f : kInverseRoot<kHeadDim>;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) y[k] = x[k];
    if (!is_rotated) turn<kHeadDim>(y, coding.rotation, signs);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) to[32 * k] = to_element<__half>(y[k] * scale);
    if (coding.has_signs()) {
      projected_of_warp<kHeadDim>(y, projection.columns, x);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) to[Shape::kRows * Shape::kStride + 32 * k] = to_element<__half>(y[k]);
    }
  }
}

// Inner products of the warp's 16 rows and 16 of its tokens: s[i] are rows g and g + 8 of tokens 8 i + 2 t and the next.
template <class Shape>
__device__ __forceinline__ void multiply_pair(float (&first)[4], float (&second)[4], __half const* queries, __half const* keys) {
  int const matrix = threadIdx.x % 32 / 8, i = threadIdx.x % 8;
  __half const* const of_rows = queries + (matrix % 2 * 8 + i) * Shape::kStride + matrix / 2 * 8;
  __half const* const of_tokens = keys + (matrix / 2 * 8 + i) * Shape::kStride + matrix % 2 * 8;
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    uint32_t a[4], b[4];
    load_matrices<false>(a, of_rows + 16 * step);
    load_matrices<false>(b, of_tokens + 16 * step);
    mma_16x8x16<__half>(first, a, b[0], b[1]);
    mma_16x8x16<__half>(second, a, b[2], b[3]);
  }
}

// Of all its tokens: s[n] are those of tokens 8 n + 2 t and the next. One load of the queries serves all.
template <class Shape>
__device__ __forceinline__ void multiply_keys(float (&s)[Shape::kWarpTokens / 8][4], __half const* queries, __half const* keys) {
  int const matrix = threadIdx.x % 32 / 8, i = threadIdx.x % 8;
  __half const* const of_rows = queries + (matrix % 2 * 8 + i) * Shape::kStride + matrix / 2 * 8;
  __half const* const of_tokens = keys + (matrix / 2 * 8 + i) * Shape::kStride + matrix % 2 * 8;
#pragma unroll
  for (auto& each : s) each[0] = each[1] = each[2] = each[3] = 0.0f;
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    uint32_t a[4];
    load_matrices<false>(a, of_rows + 16 * step);
#pragma unroll
    for (int n = 0; n < Shape::kWarpTokens / 8; n += 2) {
      uint32_t b[4];
      load_matrices<false>(b, of_tokens + 8 * n * Shape::kStride + 16 * step);
      mma_16x8x16<__half>(s[n], a, b[0], b[1]);
      mma_16x8x16<__half>(s[n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace gemmill::kv_cache
