// The storage of one vector as a run-time argument: every method of generator/gemmill/families/kv_cache/formats.py but the split
// layout's.
//
// A packed vector is its fields, one after the other: codes (little-endian, code j of b bits is bits j b to (j + 1) b), signs,
// then float16 scalars or ue8m0 scales. It may begin at any byte.
#pragma once

#include <cmath>

#include "kv_cache/shared/elements.cuh"
#include "kv_cache/shared/rotation.cuh"

namespace gemmill::kv_cache {

enum Method : int { kEden, kTurboquantMse, kTurboquantProd, kUnitCentroids, kUniform, kE2m1, kE4m3 };
enum Rotation : int { kNone, kHadamardOnly, kHadamardOfSigns };

constexpr int kE2m1Group = 32;
constexpr int kUe8m0Bias = 127, kUe8m0Nan = 255;
constexpr float kUniformLeastScale = 1e-8f, kUnitNormFloor = 1e-8f, kUnitSquareFloor = 1e-16f;
constexpr float kE2m1ShareOfLargest = 0.156f;

// Centroids of up to 16 codes, ascending, and the boundaries between them; no code reads entries behind the last.
struct Book {
  float centroids[16];
  float boundaries[15];
};
constexpr int kCentroidsBytes = 16 * 4;

// Of 1 to 4 bits, then vLLM's of 3 and 4.
struct Books {
  Book own[4];
  Book vllm[2];
};

struct VectorCoding {
  int method, rotation;
  int bits;        // of a code
  int code_bytes;  // then signs, if it has some
  int scalars;     // where they begin
  Book book;

  __host__ __device__ bool has_signs() const { return method == kTurboquantProd; }
  __host__ __device__ bool has_centroids() const { return method <= kUnitCentroids; }
};

// On the host: by its place in the list of formats of keys or of values (KEY_FORMATS and VALUE_FORMATS of packed.py).
template <int kHeadDim>
VectorCoding coding_of(int64_t format, bool of_values, Books const& books) {
  VectorCoding coding{};
  int const place = static_cast<int>(format);
  if (place < 9) {
    coding.method = place / 3, coding.bits = 2 + place % 3 - (coding.has_signs() ? 1 : 0), coding.rotation = kHadamardOfSigns;
    coding.book = books.own[coding.bits - 1];
  } else if (place < 11) {
    coding.method = of_values ? kUniform : kUnitCentroids, coding.bits = place - 6;
    coding.rotation = of_values ? kNone : kHadamardOnly, coding.book = books.vllm[place - 9];
  } else {
    coding.method = place == 11 ? kE2m1 : kE4m3, coding.bits = place == 11 ? 4 : 8;
    coding.rotation = place == 11 && !of_values ? kHadamardOnly : kNone;
  }
  coding.code_bytes = kHeadDim * coding.bits / 8;
  coding.scalars = coding.code_bytes + (coding.has_signs() ? kHeadDim / 8 : 0);
  return coding;
}

// On the host: the rotation's signs, none where it has none.
template <int kHeadDim>
Signs<kHeadDim> signs_of(VectorCoding const& coding, int64_t seed) {
  return coding.rotation == kHadamardOfSigns && seed >= 0 ? signs_of<kHeadDim>(static_cast<uint64_t>(seed)) : Signs<kHeadDim>{};
}

// A float16 scalar at any byte.
__device__ __forceinline__ float scalar_at(uint8_t const* bytes) {
  uint16_t const bits = static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
  __half value;
  memcpy(&value, &bits, sizeof value);
  return to_float(value);
}

// By a warp whose lanes all have it: a lane writes a byte. Of bits that came by memcpy from a __half, nvcc 13.0 took the number's
// integer part for the low byte (F2I.U8.F16 in its SASS): so they come from an instruction that yields bits.
__device__ __forceinline__ void put_scalar(uint8_t* bytes, float x) {
  int const lane = threadIdx.x % 32;
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
  __half const value = __float2half_rn(x);
  uint16_t bits;
  memcpy(&bits, &value, sizeof bits);
#endif
  if (lane < 2) bytes[lane] = static_cast<uint8_t>(bits >> 8 * lane);
}

__device__ __forceinline__ uint32_t code_at(uint8_t const* codes, int bits, int element) {
  int const bit = element * bits, begin = bit / 8, shift = bit % 8;
  uint32_t word = codes[begin];
  if (shift + bits > 8) word |= codes[begin + 1] << 8;
  return word >> shift & ((1u << bits) - 1);
}

// e2m1: a sign and 0, 1/2, 1, 3/2, 2, 3, 4 or 6.
__device__ __forceinline__ float of_e2m1(uint32_t code) {
  uint32_t const exponent = code >> 1 & 3, mantissa = code & 1;
  float const magnitude = exponent == 0 ? 0.5f * mantissa : (1.0f + 0.5f * mantissa) * static_cast<float>(1 << exponent) * 0.5f;
  return code & 8 ? -magnitude : magnitude;
}

// 2^(byte - 127); 0 is zero and 255 NaN.
__device__ __forceinline__ float of_ue8m0(uint32_t byte) {
  return byte == kUe8m0Nan ? NAN : __uint_as_float(byte << 23);
}

// e4m3 as bits of f16 that stand for its 256th; NaN stays.
__device__ __forceinline__ uint16_t half_of_e4m3(uint32_t byte) {
  uint32_t const magnitude = byte & 0x7F;
  return static_cast<uint16_t>((byte & 0x80) << 8 | (magnitude == 0x7F ? 0x7FFF : magnitude << 7));
}
constexpr float kE4m3Factor = 256.0f;

__device__ __forceinline__ float of_e4m3(uint32_t byte) {
  uint16_t const bits = half_of_e4m3(byte);
  __half value;
  memcpy(&value, &bits, sizeof value);
  return kE4m3Factor * to_float(value);
}

__device__ __forceinline__ bool is_nan_of_e4m3(uint32_t byte) { return (byte & 0x7F) == 0x7F; }

// The factor of a head's elements of e4m3, which the vectors do not store.
__device__ __forceinline__ float scale_of_head(float const* scales, int64_t head) { return scales == nullptr ? 1.0f : scales[head]; }

// Nearest, ties to even, saturated at 448; NaN is 0x7f.
__device__ __forceinline__ uint32_t to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  float const magnitude = fminf(fabsf(x), 448.0f);
  uint32_t const sign = std::signbit(x) ? 0x80 : 0;
  if (magnitude < 0.015625f) return sign | static_cast<uint32_t>(rintf(magnitude * 512.0f));  // multiples of 2^-9
  uint32_t const bits = __float_as_uint(magnitude);
  uint32_t const rounded = bits + 0x7FFFF + (bits >> 20 & 1);
  return sign | ((rounded >> 20) - (120 << 3));
}

// R x of a vector of a warp, not scaled by d^-1/2.
template <int kHeadDim>
__device__ __forceinline__ void turn(float (&y)[kHeadDim / 32], int rotation, Signs<kHeadDim> const& signs) {
  if (rotation == kNone) return;
#pragma unroll
  for (int k = 0; k < kHeadDim / 32; ++k) y[k] = signs(32 * k + threadIdx.x % 32) ? -y[k] : y[k];
  hadamard_of_warp<kHeadDim>(y);
}

// And back. H is symmetric.
template <int kHeadDim>
__device__ __forceinline__ void turn_back(float (&y)[kHeadDim / 32], int rotation, Signs<kHeadDim> const& signs) {
  if (rotation == kNone) return;
  hadamard_of_warp<kHeadDim>(y);
#pragma unroll
  for (int k = 0; k < kHeadDim / 32; ++k) {
    y[k] *= signs(32 * k + threadIdx.x % 32) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
  }
}

}  // namespace gemmill::kv_cache
