// Products of a format's keys and values, for 16 tokens by a warp: lane 4 g + t has rows g and g + 8 of the tensor core's tiles.
//
// A reader of keys says which element of a query stands at which summed place and how many follow one another (`kQueryUnit`, of one part
// alone), makes raw scores of the warp's share of the elements and
// then the keys' factors; one of values adds weights times values, and says which element a lane's sums are of. Elements have numbers
// within the share.
#pragma once

#include "kv_cache/shared/vector_coding.cuh"
#include "kv_cache/slots/slot_codes.cuh"
#include "kv_cache/slots/slot_two_bits.cuh"

namespace gemmill::kv_cache {

// Where 16 tokens of a head lie in shared memory, and which share of their elements is the warp's.
struct SlotTile {
  uint8_t const* shared;
  int begin, stride;  // of token 0, from token to token
  int share;
  __device__ __forceinline__ int row(int token) const { return begin + token * stride; }
};

template <int kHeadDim>
constexpr int kSlotSteps = kSlotShare<kHeadDim> / 16;
template <int kHeadDim>
using SlotQuery = uint2[kSlotSteps<kHeadDim>];  // of a step, at places 2t and 2t + 1, then 2t + 8 and 2t + 9

// Centroids times a norm: ours, and vLLM's, which their own norm divides as well. The tensor core sums the squares: of a tile times its
// own transpose the diagonal.
template <int kHeadDim, int kBits, bool kIsUnit>
struct CentroidKeys {
  static constexpr int kDim = kHeadDim, kShare = kSlotShare<kHeadDim>, kShareBytes = kShare * kBits / 8;
  static constexpr int kTableBits = kBits, kCodeBytes = kHeadDim * kBits / 8, kBytes = kCodeBytes + kNormBytes;
  static constexpr int kParts = 1, kRotation = kIsUnit ? kHadamardOnly : kHadamardOfSigns, kAlignment = 2;
  static constexpr bool kHasSquares = kIsUnit;
  using Codes = LaneCodes<kBits, 4, kShare>;
  static constexpr int kQueryUnit = Codes::kUnit;

  static __device__ __forceinline__ int element(int, int t, int step, int i) { return Codes::element(t, 4 * step + i); }

  static __device__ __forceinline__ void score(float (&s)[4], float (&square)[2], SlotTile const& tile,
                                               SlotQuery<kHeadDim> const (&q)[kParts], uint32_t table, int g, int t) {
    Codes of_low, of_high;
    of_low.load(tile.shared, tile.row(token_of(g)) + tile.share * kShareBytes, t);
    of_high.load(tile.shared, tile.row(8 + token_of(g)) + tile.share * kShareBytes, t);
    float squares[2][4] = {};
#pragma unroll
    for (int step = 0; step < kSlotSteps<kHeadDim>; ++step) {
      uint32_t const a[4] = {of_low.pair(table, 2 * step), of_high.pair(table, 2 * step), of_low.pair(table, 2 * step + 1),
                             of_high.pair(table, 2 * step + 1)};
      mma_16x8x16<__half>(s, a, q[0][step].x, q[0][step].y);
      if constexpr (kIsUnit) {
#pragma unroll
        for (int i = 0; i < 4; ++i) mma_16x8x8(squares[i % 2], a[i / 2 * 2], a[i / 2 * 2 + 1], a[i]);
      }
    }
    if constexpr (kIsUnit) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float const own = g % 2 == 0 ? squares[i][2 * i] : squares[i][2 * i + 1];  // of column g, in lanes 4 g + g / 2
        square[i] = __shfl_sync(0xFFFFFFFFu, own, 4 * g + g / 2);
      }
    }
  }
  static __device__ __forceinline__ void factor(float (&of_key)[2], float const (&square)[2], SlotTile const& tile, int g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of_key[i] *= scalar_of(tile.shared, tile.row(8 * i + token_of(g)) + kCodeBytes);
      if constexpr (kIsUnit) of_key[i] *= inverse_root(square[i] + kUnitSquareFloor);
    }
  }
};

// Centroids of a bit fewer and signs, which meet projected queries. A word of signs has those of elements i and i + 16 in one pair.
template <int kHeadDim, int kBits>
struct ProdKeys {
  static constexpr int kDim = kHeadDim, kShare = kSlotShare<kHeadDim>;
  static_assert(kBits == 3, "Codes without their signs have two bits.");
  using Codes = TwoBitTokens<4, kShare>;
  static constexpr int kTableBits = kBits - 1, kCodeBytes = kHeadDim * kTableBits / 8, kSignBytes = kHeadDim / 8;
  static constexpr int kShareBytes = kShare * kTableBits / 8, kShareSigns = kShare / 8;
  static constexpr int kScalars = kCodeBytes + kSignBytes, kBytes = kScalars + 2 * kNormBytes;
  static constexpr int kParts = 2, kRotation = kHadamardOfSigns, kAlignment = 2;
  static constexpr bool kHasSquares = false;
  static_assert(kShareSigns == 16, "A lane has a word of signs.");

  static __device__ __forceinline__ int element(int part, int t, int step, int i) {
    return part == 0 ? Codes::element(t, 4 * step + i) : 32 * t + 2 * step + i / 2 + 16 * (i % 2);
  }
  // A set bit is 1, another -1.
  static __device__ __forceinline__ uint32_t two_signs_of(uint32_t word, int bit) { return masked_xor(word << (15 - bit), 0x80008000u, 0xBC00BC00u); }
  static __device__ __forceinline__ void score(float (&s)[4], float (&)[2], SlotTile const& tile,
                                               SlotQuery<kHeadDim> const (&q)[kParts], uint32_t table, int g, int t) {
    int const low = tile.row(token_of(g)), high = tile.row(8 + token_of(g)), own_signs = kCodeBytes + tile.share * kShareSigns + 4 * t;
    Codes codes;
    codes.load(tile.shared, low + tile.share * kShareBytes, high + tile.share * kShareBytes, t);
    uint32_t const low_signs = four_bytes(tile.shared, low + own_signs);
    uint32_t const high_signs = four_bytes(tile.shared, high + own_signs);
    float of_signs[4] = {};
#pragma unroll
    for (int step = 0; step < kSlotSteps<kHeadDim>; ++step) {
      uint2 const first = codes.pairs(table, 2 * step), second = codes.pairs(table, 2 * step + 1);
      uint32_t const a[4] = {first.x, first.y, second.x, second.y};
      mma_16x8x16<__half>(s, a, q[0][step].x, q[0][step].y);
      uint32_t const signs[4] = {two_signs_of(low_signs, 2 * step), two_signs_of(high_signs, 2 * step),
                                 two_signs_of(low_signs, 2 * step + 1), two_signs_of(high_signs, 2 * step + 1)};
      mma_16x8x16<__half>(of_signs, signs, q[1][step].x, q[1][step].y);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = i < 2 ? low : high;
      float const share = scalar_of(tile.shared, row + kScalars + kNormBytes) * kShareOfSign;
      s[i] = s[i] * scalar_of(tile.shared, row + kScalars) + of_signs[i] * share;
    }
  }
  static __device__ __forceinline__ void factor(float (&)[2], float const (&)[2], SlotTile const&, int) {}
  static constexpr float kShareOfSign = 1.2533141373155003f / kHeadDim;  // of the residual's norm: sqrt(pi / 2) / d
};

// e4m3 without a scale.
template <int kHeadDim>
struct E4m3Keys {
  static constexpr int kDim = kHeadDim, kTableBits = 0, kBytes = kHeadDim, kParts = 1, kRotation = kNone, kAlignment = 4;
  static constexpr bool kHasSquares = false;
  static constexpr int kQueryUnit = 4;

  static __device__ __forceinline__ int element(int, int t, int step, int i) { return 4 * (4 * step + t) + i; }

  static __device__ __forceinline__ void score(float (&s)[4], float (&)[2], SlotTile const& tile,
                                               SlotQuery<kHeadDim> const (&q)[kParts], uint32_t, int g, int t) {
    uint8_t const* const own = tile.shared + tile.share * kSlotShare<kHeadDim> + 4 * t;
    uint8_t const *const low = own + tile.row(token_of(g)), *const high = own + tile.row(8 + token_of(g));
#pragma unroll
    for (int step = 0; step < kSlotSteps<kHeadDim>; ++step) {
      uint32_t const of_low = *reinterpret_cast<uint32_t const*>(low + 16 * step);
      uint32_t const of_high = *reinterpret_cast<uint32_t const*>(high + 16 * step);
      uint32_t const a[4] = {two_of_e4m3(of_low & 0xFFFF), two_of_e4m3(of_high & 0xFFFF), two_of_e4m3(of_low >> 16),
                             two_of_e4m3(of_high >> 16)};
      mma_16x8x16<__half>(s, a, q[0][step].x, q[0][step].y);
    }
  }
  static __device__ __forceinline__ void factor(float (&)[2], float const (&)[2], SlotTile const&, int) {}
};

// ue8m0 scales of up to four of a vector's groups, as powers of two apart from NaN.
template <int kGroups>
struct GroupScales {
  uint32_t word;  // zeros beyond the groups
  __device__ __forceinline__ GroupScales(uint8_t const* shared, int at)
      : word(kGroups > 2 ? four_bytes(shared, at) : half_word(shared, at)) {
    static_assert(kGroups == 2 || kGroups == 4, "Scales are a word, or half of it.");
  }
  __device__ __forceinline__ float operator[](int i) const {
    return __uint_as_float((i < 3 ? word << (23 - 8 * i) : word >> 1) & 0x7F800000u);
  }
  __device__ __forceinline__ bool has_nan() const { return ((word & 0x7F7F7F7Fu) + 0x01010101u & word & 0x80808080u) != 0; }
};

// e2m1 with a power of two for each 32 elements, which are two steps.
template <int kHeadDim>
struct E2m1Keys {
  static constexpr int kDim = kHeadDim, kShare = kSlotShare<kHeadDim>, kGroups = kShare / kE2m1Group;
  using Codes = LaneCodes<4, 4, kShare>;
  static constexpr int kTableBits = 4, kCodeBytes = kHeadDim / 2, kBytes = kCodeBytes + kHeadDim / kE2m1Group;
  static constexpr int kParts = 1, kRotation = kHadamardOnly, kAlignment = 2;
  static constexpr bool kHasSquares = false;
  static constexpr int kQueryUnit = Codes::kUnit;

  static __device__ __forceinline__ int element(int, int t, int step, int i) { return Codes::element(t, 4 * step + i); }

  static __device__ __forceinline__ void score(float (&s)[4], float (&)[2], SlotTile const& tile,
                                               SlotQuery<kHeadDim> const (&q)[kParts], uint32_t table, int g, int t) {
    int const low = tile.row(token_of(g)), high = tile.row(8 + token_of(g)), own_scales = kCodeBytes + tile.share * kGroups;
    Codes of_low, of_high;
    of_low.load(tile.shared, low + tile.share * kShare / 2, t);
    of_high.load(tile.shared, high + tile.share * kShare / 2, t);
    GroupScales<kGroups> const scales[2] = {{tile.shared, low + own_scales}, {tile.shared, high + own_scales}};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float of_group[4] = {};
#pragma unroll
      for (int step = 2 * group; step < 2 * group + 2; ++step) {
        uint32_t const a[4] = {of_low.pair(table, 2 * step), of_high.pair(table, 2 * step), of_low.pair(table, 2 * step + 1),
                               of_high.pair(table, 2 * step + 1)};
        mma_16x8x16<__half>(of_group, a, q[0][step].x, q[0][step].y);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] += of_group[i] * scales[i / 2][group];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = scales[i / 2].has_nan() ? NAN : s[i];
  }
  static __device__ __forceinline__ void factor(float (&)[2], float const (&)[2], SlotTile const&, int) {}
};

// The common part of readers of values: lane g's elements, and the places of its four tokens, those of operand B's places.
template <int kHeadDim, int kBits>
struct LaneValues {
  static constexpr bool kIsScaled = false;
  static constexpr int kDim = kHeadDim, kShare = kSlotShare<kHeadDim>, kSteps = kSlotSteps<kHeadDim>, kShareBytes = kShare * kBits / 8;
  using Codes = LaneCodes<kBits, 8, kShare>;
  // Of a step's sums: of its row g, and then of row g + 8.
  static __device__ __forceinline__ int element(int g, int step) { return Codes::element(g, 2 * step); }
  static __device__ __forceinline__ int row_of_place(SlotTile const& tile, int t, int i) {
    return tile.row(token_of(2 * t + i % 2) + 8 * (i / 2));
  }
  // O += V^T P, with a P for the first steps and others behind it.
  template <class Shape, int kCount>
  static __device__ __forceinline__ void add_centroids(Running<Shape>& running, uint32_t const (&p)[kCount][2], SlotTile const& tile,
                                                       uint32_t table, int g, int t) {
    auto const row = [&](int i) { return row_of_place(tile, t, i) + tile.share * kShareBytes; };
    auto const multiply = [&](int step, uint32_t const (&a)[4]) {
      uint32_t const(&own)[2] = p[step * kCount / kSteps];
      mma_16x8x16<__half>(running.out[0][step], a, own[0], own[1]);
    };
    if constexpr (kBits == 2) {
      TwoBitTokens<8, kShare> of_tokens[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) of_tokens[i].load(tile.shared, row(2 * i), row(2 * i + 1), g);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint2 const first = of_tokens[0].pairs(table, step), second = of_tokens[1].pairs(table, step);
        multiply(step, {first.x, first.y, second.x, second.y});
      }
    } else {
      Codes of_token[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_token[i].load(tile.shared, row(i), g);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[i] = of_token[i].pair(table, step);
        multiply(step, {__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[0], pair[1], 0x7632),
                        __byte_perm(pair[2], pair[3], 0x5410), __byte_perm(pair[2], pair[3], 0x7632)});
      }
    }
  }
};

// Ours: centroids times a norm.
template <int kHeadDim, int kBits>
struct CentroidValues : LaneValues<kHeadDim, kBits> {
  static constexpr int kTableBits = kBits, kCodeBytes = kHeadDim * kBits / 8, kBytes = kCodeBytes + kNormBytes;
  static constexpr bool kHasZeros = false, kIsRotated = true;

  __device__ __forceinline__ float factor(int) const { return 1.0f; }

  template <bool kPlain, class Shape>
  __device__ __forceinline__ void add(Running<Shape>& running, float const (&weight)[1][4], Seen<Shape> const& seen, int token,
                                      SlotTile const& tile, uint32_t table, int g, int t) {
    float of_value[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) of_value[half] = scalar_of(tile.shared, tile.row(token_of(g) + 8 * half) + kCodeBytes);
    uint32_t p[1][2];
    pack_weights<kPlain>(p, weight, of_value, seen, token, g);
    this->add_centroids(running, p, tile, table, g, t);
  }
};

// vLLM's: code scale + zero. Codes multiply as they lie. The middle of the steps joins separately, together with the remainder of the
// weights' rounding, so that a value's error is that of its distance from the middle.
template <int kHeadDim, int kBits>
struct UniformValues : LaneValues<kHeadDim, kBits> {
  using Codes = TwoTokens<kBits, kSlotShare<kHeadDim> / 8>;
  static constexpr int kTableBits = 0, kCodeBytes = kHeadDim * kBits / 8, kBytes = kCodeBytes + 4;
  static constexpr bool kHasZeros = true, kIsRotated = false;
  static constexpr float kMiddle = ((1 << kBits) - 1) * 0.5f;

  __device__ __forceinline__ float factor(int n) const { return Codes::factor(n); }

  template <bool kPlain, class Shape>
  __device__ __forceinline__ void add(Running<Shape>& running, float const (&weight)[1][4], Seen<Shape> const& seen, int token,
                                      SlotTile const& tile, uint32_t, int g, int t) {
    int const own = token_of(g);
    uint32_t p[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const scalars = tile.row(own + 8 * half) + kCodeBytes;
      float const scale = scalar_of(tile.shared, scalars), middle = scalar_of(tile.shared, scalars + 2) + kMiddle * scale;
      float of_codes[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        bool const used = kPlain || seen(0, row, token + own + 8 * half);
        of_codes[row] = used ? weight[0][2 * half + row] * scale : 0.0f;
        running.zeros[0][row] += used ? weight[0][2 * half + row] * middle : 0.0f;
      }
      uint32_t const rounded = two_elements<__half>(of_codes[0], of_codes[1]);
      running.zeros[0][0] -= kMiddle * of_half(rounded & 0xFFFF), running.zeros[0][1] -= kMiddle * of_half(rounded >> 16);
      p[half] = transpose_8x8(rounded);
    }
    Codes codes[2];
    int const begin = tile.share * LaneValues<kHeadDim, kBits>::kShareBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      codes[i].load(tile.shared, this->row_of_place(tile, t, 2 * i) + begin, this->row_of_place(tile, t, 2 * i + 1) + begin, g);
    }
#pragma unroll
    for (int step = 0; step < kSlotSteps<kHeadDim>; ++step) {
      uint32_t const a[4] = {codes[0][2 * step], codes[0][2 * step + 1], codes[1][2 * step], codes[1][2 * step + 1]};
      mma_16x8x16<__half>(running.out[0][step], a, p[0], p[1]);
    }
  }
};

// UltraQuant's: a weight for each group of 32 elements. Sums are of a unit, a power of two that keeps weights within f16.
template <int kHeadDim>
struct E2m1Values : LaneValues<kHeadDim, 4> {
  static constexpr int kTableBits = 4, kCodeBytes = kHeadDim / 2, kGroups = kSlotShare<kHeadDim> / kE2m1Group;
  static constexpr int kBytes = kCodeBytes + kHeadDim / kE2m1Group;
  static constexpr bool kHasZeros = false, kIsRotated = false;
  static constexpr float kLargest = 0x1p14f;  // a scale relative to the unit
  float unit = 1.0f;                          // grows

  __device__ __forceinline__ float factor(int) const { return unit; }

  template <class Shape>
  __device__ __forceinline__ void widen(Running<Shape>& running, float largest) {
    float const needed = largest_of_warp(largest) / kLargest, shrink = unit / needed;
#pragma unroll
    for (auto& sums : running.out[0]) sums[0] *= shrink, sums[1] *= shrink, sums[2] *= shrink, sums[3] *= shrink;
    unit = needed;
  }

  template <bool kPlain, class Shape>
  __device__ __forceinline__ void add(Running<Shape>& running, float const (&weight)[1][4], Seen<Shape> const& seen, int token,
                                      SlotTile const& tile, uint32_t table, int g, int t) {
    int const own = token_of(g);
    int const own_scales = kCodeBytes + tile.share * kGroups;
    GroupScales<kGroups> const scales[2] = {{tile.shared, tile.row(own) + own_scales}, {tile.shared, tile.row(own + 8) + own_scales}};
    float largest = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bool const counts = (kPlain || token + own + 8 * half < seen.length) && !scales[half].has_nan();
#pragma unroll
      for (int i = 0; i < kGroups; ++i) largest = fmaxf(largest, counts ? scales[half][i] : 0.0f);
    }
    if (__any_sync(0xFFFFFFFFu, largest > unit * kLargest)) widen(running, largest);
    float const of_one = __uint_as_float(0x7F000000u - __float_as_uint(unit));  // 1 / unit
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) inverse[half] = scales[half].has_nan() ? NAN : of_one;
    uint32_t p[kGroups][2];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      float const of_value[2] = {scales[0][i] * inverse[0], scales[1][i] * inverse[1]};
      uint32_t packed[1][2];
      pack_weights<kPlain>(packed, weight, of_value, seen, token, g);
      p[i][0] = packed[0][0], p[i][1] = packed[0][1];
    }
    this->add_centroids(running, p, tile, table, g, t);
  }
};

// The bytes of NaN among four e4m3, by their highest bit.
__device__ __forceinline__ uint32_t nan_of_four_e4m3(uint32_t word) { return (word & 0x7F7F7F7Fu) + 0x01010101u & 0x80808080u; }

// e4m3, whose scale of a head is for the sums. A NaN goes into its token's weights, and is 0 among the elements: rows that do not see
// the token multiply it by 0.
template <int kHeadDim>
struct E4m3Values {
  static_assert(kHeadDim == 128, "A warp has all of a vector.");
  static constexpr int kDim = kHeadDim, kTableBits = 0, kBytes = kHeadDim, kWords = kHeadDim / 8 / 4;  // of a lane
  static constexpr bool kHasZeros = false, kIsRotated = false, kIsScaled = true;

  static __device__ __forceinline__ int element(int g, int step) { return 4 * (step / 2 * 8 + g) + step % 2 * 2; }
  __device__ __forceinline__ float factor(int) const { return 1.0f; }

  template <bool kPlain, class Shape>
  __device__ __forceinline__ void add(Running<Shape>& running, float const (&weight)[1][4], Seen<Shape> const& seen, int token,
                                      SlotTile const& tile, uint32_t, int g, int t) {
    auto const word_at = [&](int row, int lane) { return *reinterpret_cast<uint32_t const*>(tile.shared + row + 4 * lane); };
    uint32_t words[4][kWords], nan = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int u = 0; u < kWords; ++u) {
        words[i][u] = word_at(LaneValues<kHeadDim, 4>::row_of_place(tile, t, i), 8 * u + g);
        nan |= nan_of_four_e4m3(words[i][u]);
      }
    }
    float of_value[2] = {1.0f, 1.0f};
    if (__any_sync(0xFFFFFFFFu, nan != 0)) {
#pragma unroll
      for (auto& of_token : words) {
#pragma unroll
        for (uint32_t& word : of_token) word &= ~(nan_of_four_e4m3(word) / 128 * 255);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t own = 0;
        for (int u = 0; u < kHeadDim / 16; ++u) own |= nan_of_four_e4m3(word_at(tile.row(token_of(g) + 8 * half), 4 * u + t));
        own |= __shfl_xor_sync(0xFFFFFFFFu, own, 1);
        own |= __shfl_xor_sync(0xFFFFFFFFu, own, 2);
        if (own != 0) of_value[half] = NAN;
      }
    }
    uint32_t p[1][2];
    pack_weights<kPlain>(p, weight, of_value, seen, token, g);
#pragma unroll
    for (int step = 0; step < kSlotSteps<kHeadDim>; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const byte = step % 2 * 2 + i % 2;
        a[i] = two_of_e4m3(__byte_perm(words[i / 2 * 2][step / 2], words[i / 2 * 2 + 1][step / 2], byte | (4 + byte) << 4) & 0xFFFF);
      }
      mma_16x8x16<__half>(running.out[0][step], a, p[0][0], p[0][1]);
    }
  }
};

}  // namespace gemmill::kv_cache
