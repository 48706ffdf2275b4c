// Operands of block-scaled codes, or of numbers, as a thread reads 32 elements of a row and makes bf16 or f16 of them.
//
// code * scale is exact in bf16 and f16 while it is a normal number: it has six significant bits at most. Packed weights have a base for
// each row, or for 128 columns of it, so that it is one.
#pragma once

#include <climits>
#include <cuda_fp8.h>
#include <type_traits>

#include "blockscaled/abi.h"
#include "core/launch.cuh"
#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

inline constexpr int kPieceOfRow = 32;  // elements that a thread holds at a time

// The common type of both operands: pairs of numbers in 32 bits. kScaleBit and kScaleBias make a power of two of its byte of ue8m0.
struct Bf16 {
  using Element = cutlass::bfloat16_t;
  static constexpr int kMantissa = 7, kBias = 127;
  static constexpr uint32_t kNan = 0x7FC0;

  // Each half on its own. Subnormal numbers count.
  __device__ static uint32_t multiply(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
  }
  // Two numbers of e4m3, in the low 16 bits. NaN stays NaN.
  __device__ static uint32_t widen_e4m3(uint32_t codes) {
    __half2_raw const halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
    float2 const both = __half22float2(__half2(halves));
    uint32_t z;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(both.y), "f"(both.x));
    return z;
  }
  __device__ static uint32_t widen_ue8m0(uint32_t byte) { return byte == 0 ? 0x0040 : byte == 255 ? kNan : byte << kMantissa; }
};

struct F16 {  // for scales of packed weights: normal numbers of f16
  using Element = cutlass::half_t;
  static constexpr int kMantissa = 10, kBias = 15;

  __device__ static uint32_t multiply(uint32_t x, uint32_t y) {
    uint32_t z;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
  }
  __device__ static uint32_t widen_e4m3(uint32_t codes) {
    __half2_raw const halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
    return halves.x | uint32_t{halves.y} << 16;
  }
  __device__ static uint32_t widen_ue8m0(uint32_t byte) { return (byte - 127 + kBias) << kMantissa & 0x7FFF; }
};

__device__ inline uint32_t both_halves(uint32_t x) { return x | x << 16; }

// Scales of a byte, in both halves.
struct Ue4m3 {
  template <class X>
  __device__ static uint32_t widen(uint32_t byte) {
    return both_halves(X::widen_e4m3(byte) & 0xFFFF);
  }
};
struct Ue8m0 {  // 0 is 2^-127, which is subnormal in bf16; 255 is NaN
  template <class X>
  __device__ static uint32_t widen(uint32_t byte) {
    return both_halves(X::widen_ue8m0(byte));
  }
};

// Codes of `bits` bits as numbers that are too small by a power of two, which `raised` undoes: the exponent's bits lie at the wider
// type's lowest. Two at a time, the first in the low half.
template <int bits, int mantissa, int bias>
struct SmallCode {
  static constexpr int kBits = bits;

  template <class X>
  static constexpr uint32_t raised() {
    return static_cast<uint32_t>(2 * X::kBias - bias) << X::kMantissa | static_cast<uint32_t>(2 * X::kBias - bias) << X::kMantissa << 16;
  }
  template <class X, int pair>
  __device__ static uint32_t small(uint32_t const* words) {
    constexpr int bit = pair * 2 * bits, word = bit / 32, shift = X::kMantissa - mantissa;
    constexpr uint32_t code = (1u << bits) - 1, magnitude = code >> 1;
    uint32_t const x = __funnelshift_r(words[word], bit % 32 > 32 - 2 * bits ? words[word + 1] : 0u, bit % 32);
    uint32_t const codes = (x & code) | x << (16 - bits);  // each at the low end of a half, and bits outside of all masks
    return (codes << (16 - bits) & 0x80008000u) | (codes << shift & (magnitude << shift) * 0x10001u);
  }
};
using E2m1 = SmallCode<4, 1, 1>;
using E3m2 = SmallCode<6, 2, 3>;
struct E4m3 {
  static constexpr int kBits = 8;
  template <class X>
  static constexpr uint32_t raised() {
    return static_cast<uint32_t>(X::kBias) << X::kMantissa | static_cast<uint32_t>(X::kBias) << X::kMantissa << 16;
  }
  template <class X, int pair>
  __device__ static uint32_t small(uint32_t const* words) {
    return X::widen_e4m3(words[pair / 2] >> pair % 2 * 16 & 0xFFFFu);
  }
};

// Where scales lie: in the swizzled layout (docs/formats.md), in rows, or behind the codes of their row, which has `stride` bytes.
struct Swizzled {
  __device__ static int64_t offset(int64_t row, int64_t group, int64_t groups, int64_t, int64_t) {
    return (row / 128 * ((groups + 3) / 4) + group / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4;
  }
};
struct InRows {
  __device__ static int64_t offset(int64_t row, int64_t group, int64_t groups, int64_t, int64_t) { return row * groups + group; }
};
struct BehindCodes {
  __device__ static int64_t offset(int64_t row, int64_t group, int64_t, int64_t stride, int64_t code_bytes) {
    return row * stride + code_bytes + group;
  }
};

// One operand: codes with a scale for each `group` of them.
template <class Code, class Scale, int group, class Layout>
struct Scaled {
  static constexpr bool kOwnScales = !std::is_same_v<Layout, BehindCodes>;
  static constexpr int kBytes = kPieceOfRow * Code::kBits / 8;
  static constexpr int kScales = kPieceOfRow / group;
  static constexpr float kShort = 1.0f;  // the factor that products lack

  uint64_t bytes[kBytes / 8];
  uint8_t scales[kScales];

  // `inside`: elements of the piece that the row has, none for a row beyond the last.
  __device__ void load(char const* data, uint8_t const* sf, int64_t stride, int row, int k0, int k, int inside) {
    char const* from = data + row * stride + static_cast<int64_t>(k0) * Code::kBits / 8;
    auto const* scales_from = kOwnScales ? sf : reinterpret_cast<uint8_t const*>(data);
    int64_t const code_bytes = static_cast<int64_t>(k) * Code::kBits / 8;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBytes / 8; ++i) {
      bytes[i] = i * 64 / Code::kBits < inside ? *reinterpret_cast<uint64_t const*>(from + i * 8) : 0;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kScales; ++i) {
      scales[i] = i * group < inside ? scales_from[Layout::offset(row, k0 / group + i, k / group, stride, code_bytes)] : 0;
    }
  }

  template <class X, int pair>
  __device__ uint32_t widened() const {
    auto const* words = reinterpret_cast<uint32_t const*>(bytes);
    uint32_t const code = X::multiply(Code::template small<X, pair>(words), Code::template raised<X>());
    return X::multiply(code, Scale::template widen<X>(scales[pair * 2 / group]));
  }
};

// Numbers of e4m3 to which no block scales belong.
struct Numbers {
  static constexpr float kShort = 1.0f;

  uint64_t bytes[kPieceOfRow / 8];

  __device__ void load(char const* data, uint8_t const*, int64_t stride, int row, int k0, int, int inside) {
    char const* from = data + row * stride + k0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPieceOfRow / 8; ++i) bytes[i] = i * 8 < inside ? *reinterpret_cast<uint64_t const*>(from + i * 8) : 0;
  }

  template <class X, int pair>
  __device__ uint32_t widened() const {
    return E4m3::small<X, pair>(reinterpret_cast<uint32_t const*>(bytes));
  }
};

// An operand that has the common type already.
struct Plain {
  static constexpr float kShort = 1.0f;

  uint64_t bytes[kPieceOfRow * 2 / 8];

  __device__ void load(char const* data, uint8_t const*, int64_t stride, int row, int k0, int, int inside) {
    char const* from = data + (row * stride + k0) * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kPieceOfRow / 4; ++i) bytes[i] = i * 4 < inside ? *reinterpret_cast<uint64_t const*>(from + i * 8) : 0;
  }

  template <class X, int pair>
  __device__ uint32_t widened() const {
    return reinterpret_cast<uint32_t const*>(bytes)[pair];
  }
};

template <class Layout>
using NvFp4Codes = Scaled<E2m1, Ue4m3, 16, Layout>;
template <class Layout>
using MxFp4Codes = Scaled<E2m1, Ue8m0, 32, Layout>;
template <class Layout>
using MxFp6Codes = Scaled<E3m2, Ue8m0, 32, Layout>;
template <class Layout>
using MxFp8Codes = Scaled<E4m3, Ue8m0, 32, Layout>;

// The factors of sums: alpha; a base of B's row and alpha, or a scale of A's row; or such for each 128 columns, in f32.
enum class Factors { OfTensor, OfRows, OfGroups };

__device__ inline uint32_t multiply_bf16(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

// Eight codes of a word as four pairs of bf16 code * 2^-126: codes 0 and 4, 1 and 5, 2 and 6, 3 and 7.
__device__ inline void widen_word(uint32_t word, uint32_t (&x)[4]) {
  constexpr uint32_t kMagnitude = 0x01C001C0u, kSign = 0x80008000u;
  x[0] = (word << 6 & kMagnitude) | (word << 12 & kSign);
  x[1] = (word << 2 & kMagnitude) | (word << 8 & kSign);
  x[2] = (word >> 2 & kMagnitude) | (word << 4 & kSign);
  x[3] = (word >> 6 & kMagnitude) | (word & kSign);
}

// Two scales of ue4m3 for 32 columns. Byte 127 is NaN.
struct NvFp4Words {
  using Bytes = uint16_t;
  static constexpr int kGroup = 16;
  static constexpr float kShort = 128.0f;  // 2^126 of the code, less 2^119 of the scale

  template <int half>
  __device__ static uint32_t factor(Bytes bytes) {  // one conversion for both, and NaN becomes NaN
    uint32_t const scales = multiply_bf16(Bf16::widen_e4m3(bytes), 0x7B007B00u);
    return __byte_perm(scales, 0, half == 0 ? 0x1010 : 0x3232);
  }
  __device__ static uint32_t scaled(uint32_t pair, uint32_t factor) { return multiply_bf16(pair, factor); }
};

// One of ue8m0. 0 is 2^-127, which is subnormal; 255 is NaN.
struct MxFp4Words {
  using Bytes = uint8_t;
  static constexpr int kGroup = 32;
  static constexpr float kShort = 1.0f;

  template <int>
  __device__ static uint32_t factor(Bytes byte) {
    uint32_t const bits = byte == 0 ? 0x0040u : byte == 255 ? 0x7FC0u : static_cast<uint32_t>(byte) << 7;
    return bits * 0x10001u;
  }
  __device__ static uint32_t scaled(uint32_t pair, uint32_t factor) { return multiply_bf16(multiply_bf16(pair, 0x7E807E80u), factor); }
};

// A lane's part of a row of 4-bit codes, where both operands are such: eight columns of a word, in an order of its own.
template <class Format>
struct PieceOfRow {
  static constexpr float kShort = Format::kShort;
  static constexpr int kColumnMultiple = 32;

  uint4 codes;
  typename Format::Bytes scales;

  // Scales lie in the swizzled layout (docs/formats.md).
  __device__ void load(char const* data, uint8_t const* sf, int64_t stride, int row, int k0, int k, int inside) {
    if (inside <= 0) {
      codes = uint4{}, scales = 0;
      return;
    }
    int const group = k0 / Format::kGroup;
    codes = __ldg(reinterpret_cast<uint4 const*>(data + row * stride + k0 / 2));
    int64_t const tile = static_cast<int64_t>(row / 128) * ((k / Format::kGroup + 3) / 4) + group / 4;
    scales = __ldg(reinterpret_cast<typename Format::Bytes const*>(sf + tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4));
  }

  template <class, int eight>
  __device__ void widen(uint32_t (&x)[4]) const {
    uint32_t const words[4] = {codes.x, codes.y, codes.z, codes.w}, factor = Format::template factor<eight / 2>(scales);
    widen_word(words[eight], x);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = Format::scaled(x[i], factor);
  }
};

// Eight columns of any other operand, as four pairs in their order.
template <class Operand>
struct InOrder : Operand {
  static constexpr int kColumnMultiple = 1;

  template <class Wide, int eight>
  __device__ void widen(uint32_t (&x)[4]) const {
    x[0] = this->template widened<Wide, 4 * eight>(), x[1] = this->template widened<Wide, 4 * eight + 1>();
    x[2] = this->template widened<Wide, 4 * eight + 2>(), x[3] = this->template widened<Wide, 4 * eight + 3>();
  }
};

// The parameters of kernels that upcast codes.
template <class Output>
struct UpcastParams {
  char const* a;
  char const* b;
  uint8_t const* a_sf;
  uint8_t const* b_sf;
  float const* scales;  // of A's rows [m], or [m, groups]; null for none
  float const* base;    // of B's rows [n], or [n, groups]
  float const* alpha;   // one value, or null for 1
  Output const* bias;   // [n], or null for none
  Output* d;
  int64_t lda, ldb, ldd;
  int32_t m, n, k;
  bool constant_weights;
};

// Host code: the arguments of a call. A kernel with tensor maps describes these, too.
template <class Output>
UpcastParams<Output> upcast_params(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  return {static_cast<char const*>(x.a),
          static_cast<char const*>(x.b),
          static_cast<uint8_t const*>(x.a_sf),
          static_cast<uint8_t const*>(x.b_sf),
          static_cast<float const*>(x.a_sf),
          static_cast<float const*>(x.b_sf),
          x.alpha,
          static_cast<Output const*>(x.bias),
          static_cast<Output*>(x.d),
          x.lda,
          x.ldb,
          x.ldd,
          x.m,
          x.n,
          x.k,
          how.constant_weights != 0};
}

template <class Output>
bool describe(UpcastParams<Output>& params, gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  params = upcast_params<Output>(x, how);
  return true;
}

// A launch, of a CTA for each tile and slice of K.
template <class Kernel, auto entry>
int32_t launch_upcast_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  int64_t const tiles = ((int64_t{x.m} - 1) / Kernel::kTileM + 1) * ((int64_t{x.n} - 1) / Kernel::kTileN + 1);
  if (tiles * x.splits > INT_MAX || x.k % Kernel::kColumnMultiple != 0 || (x.splits > 1 && !Kernel::kSliced)) return GEMMILL_CANNOT_IMPLEMENT;
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{};
  if (!describe(params, x, how)) return GEMMILL_CANNOT_IMPLEMENT;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(static_cast<unsigned>(tiles * x.splits)), dim3(Kernel::kThreads), dim3(static_cast<unsigned>(x.splits)),
                          Kernel::kSharedBytes};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::blockscaled
