// New tokens' keys and values to pages of the layout heads, both in one launch: rotated, quantised, packed (eden and
// turboquant_mse, 2 to 4 bits, head dims 64, 128 and 256).
//
// A block takes a token: its vectors, keys of all heads and then values, eight lanes each. A lane has an eighth of the
// vector, elements that lie beside one another: stages of the transform below that distance and the packing of codes are
// its own, three stages and the norm cross lanes. A slot outside of the cache stores nothing.
#pragma once

#include <cmath>

#include "core/launch.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/elements.cuh"
#include "kv_cache/rotation.cuh"

namespace gemmill::kv_cache {

constexpr int kLanesOfVector = 8;
constexpr int kCompressThreads = 128;
constexpr int kVectorsOfBlock = kCompressThreads / kLanesOfVector;
constexpr int kNormBytes = 2;

// The upper half of a symmetric codebook for unit vectors, ascending.
template <int kBits>
struct Codebook {
  static constexpr int kLevels = 1 << (kBits - 1);
  float centroids[kLevels];
  float boundaries[kLevels - 1];  // between them; 0 lies below all
};

// How one side of the cache is stored.
template <int kBitsOfCode, bool kIsUnbiased>
struct Coded {
  static constexpr int kBits = kBitsOfCode;
  static constexpr bool kUnbiased = kIsUnbiased;  // eden's scale, not the norm
  Codebook<kBits> book;
};

template <int kHeadDim, class Keys, class Values>
struct CompressParams {
  gemmill_kv_compress_args args;
  Signs<kHeadDim> signs;
  Keys keys;
  Values values;
};

template <int kBytes>
__device__ __forceinline__ void store_words(uint8_t* to, uint32_t const* words) {
  if constexpr (kBytes % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) reinterpret_cast<uint32_t*>(to)[i] = words[i];
  } else if constexpr (kBytes % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 2; ++i) reinterpret_cast<uint16_t*>(to)[i] = words[i / 2] >> (16 * (i % 2));
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; ++i) to[i] = words[i / 4] >> (8 * (i % 4));
  }
}

// Codes of a lane's elements to their place, and its part of <c[codes], unit>, which is at least 0.
template <class Side, int kOwn>
__device__ __forceinline__ float store_codes(Side const& side, float const (&unit)[kOwn], bool is_finite, uint8_t* codes) {
  constexpr int kBits = Side::kBits, kBytes = kOwn * kBits / 8, kLevels = 1 << (kBits - 1);
  uint32_t words[(kOwn * kBits + 31) / 32] = {};
  float product = 0.0f;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    float const magnitude = fabsf(unit[i]);
    float centroid = side.book.centroids[0];
    uint32_t rank = kLevels;
#pragma unroll
    for (int level = 1; level < kLevels; ++level) {
      if (magnitude >= side.book.boundaries[level - 1]) rank = kLevels + level, centroid = side.book.centroids[level];
    }
    product += magnitude * centroid;
    uint32_t const code = unit[i] < 0.0f ? 2 * kLevels - 1 - rank : rank;
    constexpr int kWord = 32;
    int const bit = i * kBits;
    words[bit / kWord] |= code << (bit % kWord);
    if (bit % kWord + kBits > kWord) words[bit / kWord + 1] |= code >> (kWord - bit % kWord);
  }
#pragma unroll
  for (uint32_t& word : words) word = is_finite ? word : 0;
  store_words<kBytes>(codes + kBytes * (threadIdx.x % kLanesOfVector), words);
  return product;
}

// A lane's elements in f32.
template <bool kAligned, class Element, int kOwn>
__device__ __forceinline__ void load_vector(float (&x)[kOwn], Element const* from) {
  Element elements[kOwn];
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kOwn / 8; ++i) {
      uint4 const piece = __ldcs(reinterpret_cast<uint4 const*>(from) + i);
      memcpy(elements + 8 * i, &piece, sizeof piece);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) elements[i] = from[i];
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) x[i] = to_float(elements[i]);
}

__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int distance = 1; distance < kLanesOfVector; distance *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
  return x;
}

// Grid: tokens. Aligned: vectors begin at multiples of 16 bytes.
template <class Variant, class Element, int kHeadDim, class Keys, class Values, bool kAligned>
__global__ void __launch_bounds__(kCompressThreads) compress_tokens(
    __grid_constant__ CompressParams<kHeadDim, Keys, Values> const params) {
  constexpr int kOwn = kHeadDim / kLanesOfVector;
  constexpr int kKeyBytes = kHeadDim * Keys::kBits / 8, kValueBytes = kHeadDim * Values::kBits / 8;
  constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * kNormBytes;
  auto const& args = params.args;
  int64_t const token = blockIdx.x, slot = args.slots[token];
  if (slot < 0 || slot >= args.pages * args.page_size) return;
  int64_t const page = slot / args.page_size, place = slot % args.page_size;
  int const first = kOwn * (threadIdx.x % kLanesOfVector);

  int const count = static_cast<int>(2 * args.kv_heads);
  for (int begin = 0; begin < count; begin += kVectorsOfBlock) {
    int const vector = begin + threadIdx.x / kLanesOfVector;
    bool const exists = vector < count, is_value = vector >= args.kv_heads;
    int64_t const head = is_value ? vector - args.kv_heads : vector;
    float y[kOwn] = {};
    if (exists) {
      Element const* const vectors = static_cast<Element const*>(is_value ? args.values : args.keys);
      int64_t const of_token = is_value ? args.value_token_stride : args.key_token_stride;
      int64_t const of_head = is_value ? args.value_head_stride : args.key_head_stride;
      load_vector<kAligned>(y, vectors + token * of_token + head * of_head + first);
    }
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) square += y[i] * y[i];
    float const norm = sqrtf(sum_of_lanes(square));
    bool const is_finite = norm < INFINITY, is_usable = is_finite && norm > 0.0f;
    float const inverse = is_usable ? kInverseRoot<kHeadDim> / norm : 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) y[i] = params.signs(first + i) ? -y[i] : y[i];
    hadamard_across<kLanesOfVector>(y);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) y[i] *= inverse;

    uint8_t* const piece = args.cache + page * args.page_stride + head * args.page_size * kTokenBytes;
    uint8_t* const side = piece + (is_value ? args.page_size * (kKeyBytes + kNormBytes) : 0);
    float product = 0.0f;
    if (exists && !is_value) product = store_codes(params.keys, y, is_finite, side + place * kKeyBytes);
    if (exists && is_value) product = store_codes(params.values, y, is_finite, side + place * kValueBytes);
    product = sum_of_lanes(product);
    bool const is_unbiased = is_value ? Values::kUnbiased : Keys::kUnbiased;
    __half const scale = __float2half_rn(is_unbiased && is_usable ? norm / product : norm);
    if (exists && first == 0) {
      reinterpret_cast<__half*>(side + args.page_size * (is_value ? kValueBytes : kKeyBytes))[place] = scale;
    }
  }
}

// Host code: a launch.
template <class Variant, class Element, int kHeadDim, class Keys, class Values>
int32_t compress(gemmill_kv_compress_args const& args, gemmill_launch const& how, Keys const& keys, Values const& values) {
  if (args.tokens == 0 || args.kv_heads == 0) return 0;
  CompressParams<kHeadDim, Keys, Values> params{args, signs_of<kHeadDim>(static_cast<uint64_t>(args.seed)), keys, values};
  uint64_t const strides = args.key_token_stride | args.key_head_stride | args.value_token_stride | args.value_head_stride;
  uint64_t const places =
      reinterpret_cast<uintptr_t>(args.keys) | reinterpret_cast<uintptr_t>(args.values) | strides * sizeof(Element);
  LaunchShape const shape{dim3(static_cast<unsigned>(args.tokens)), dim3(kCompressThreads), dim3(1), 0};
  void* parameters[] = {&params};
  return places % 16 == 0
             ? launch_kernel<compress_tokens<Variant, Element, kHeadDim, Keys, Values, true>>(shape, how, parameters)
             : launch_kernel<compress_tokens<Variant, Element, kHeadDim, Keys, Values, false>>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
