// `mma.sync` of sm_120f in device code: kinds f8f6f4 and mxf8f6f4 (m16n8k32), mxf4 and mxf4nvf4 (m16n8k64). Fragments and
// scales lie as PTX ISA 9.1 says in "Matrix Fragments for mma.m16n8k32", "... m16n8k64" and "Block Scaling for mma.sync".
//
// Products, scales and sums are of double precision, rounded to f32 once: the ISA leaves the order and precision of an
// accumulation open, and sums that f32 holds are exact here. In kinds of 8-bit containers, a code of 6 bits has two bits of
// padding above it, and a code of 4 bits two above and two below; a bit set in the padding makes the element NaN.
#pragma once

#include "emulation/warp.cuh"

namespace gemmill::emulation {

// Element types, by the bits of exponent and mantissa. kPadding: bits below the code in its container of 8 bits.
template <int kExponent_, int kMantissa_, int kPadding_ = 0>
struct Element {
  static constexpr int kExponent = kExponent_, kMantissa = kMantissa_, kPadding = kPadding_;
  static constexpr int kBits = 1 + kExponent + kMantissa;
};
using E4M3 = Element<4, 3>;
using E5M2 = Element<5, 2>;
using E3M2 = Element<3, 2>;
using E2M3 = Element<2, 3>;
using E2M1 = Element<2, 1, 2>;

constexpr uint64_t kNan = 0x7FF8000000000000u;

// The value of a code in the low bits.
template <class T>
GEMMILL_EMULATED_INLINE double value_of(uint32_t code) {
  constexpr int kBias = (1 << (T::kExponent - 1)) - 1;
  uint32_t const magnitude = code & ((1u << (T::kBits - 1)) - 1);
  uint64_t const sign = static_cast<uint64_t>(code >> (T::kBits - 1) & 1) << 63;
  if constexpr (T::kExponent == 5) {
    if (magnitude > 0x7C) return double_of(kNan);
    if (magnitude == 0x7C) return double_of(sign | 0x7FF0000000000000u);
  }
  if constexpr (T::kExponent == 4) {
    if (magnitude == 0x7F) return double_of(kNan);
  }
  // A code's bits on top of a double's mantissa have the value but for the bias, subnormal codes included.
  double const scale = double_of(static_cast<uint64_t>(1023 + 1023 - kBias) << 52);
  return double_of(sign | static_cast<uint64_t>(magnitude) << (52 - T::kMantissa)) * scale;
}

// Element i of a register of 8-bit containers.
template <class T>
GEMMILL_EMULATED_INLINE double contained(uint32_t word, int i) {
  uint32_t const byte = word >> (8 * i) & 0xFF;
  constexpr uint32_t kMask = ((1u << T::kBits) - 1) << T::kPadding;
  if constexpr (kMask != 0xFF) {
    if (byte & ~kMask) return double_of(kNan);
  }
  return value_of<T>(byte >> T::kPadding);
}

// Scale i of a register, ue8m0 or ue4m3.
GEMMILL_EMULATED_INLINE double ue8m0(uint32_t word, int i) {
  uint32_t const byte = word >> (8 * i) & 0xFF;
  return double_of(byte == 0xFF ? kNan : static_cast<uint64_t>(byte - 127 + 1023) << 52);
}
GEMMILL_EMULATED_INLINE double ue4m3(uint32_t word, int i) {
  uint32_t const byte = word >> (8 * i) & 0xFF;
  return byte & 0x80 ? double_of(kNan) : value_of<E4M3>(byte);
}

struct Sums {
  float d[4];
};

// Lane l has rows l / 4 and l / 4 + 8 of C and D, each at columns l % 4 * 2 and the next one.
struct Place {
  int row, column;
};
GEMMILL_EMULATED_INLINE Place own_place() { return {lane_of_warp() / 4, lane_of_warp() % 4 * 2}; }

// A of 8-bit containers: register r of the thread q of group g has row g + 8 * (r % 2), columns 4 * q + 16 * (r / 2) and three more.
// B: register r of it has column g of B, the same four rows.
struct Operands {
  uint32_t a[4], b[2];
};

// Sums of products over a register's columns, for the four sums that a lane has.
template <class A, class B, int kElements, class Read>
GEMMILL_EMULATED_INLINE void add_products(double (&sum)[4], uint32_t const (&a)[2], uint32_t const (&b)[2], Read read) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    double const x[2] = {read(A{}, a[0], i), read(A{}, a[1], i)}, y[2] = {read(B{}, b[0], i), read(B{}, b[1], i)};
    sum[0] += x[0] * y[0];
    sum[1] += x[0] * y[1];
    sum[2] += x[1] * y[0];
    sum[3] += x[1] * y[1];
  }
}

struct Contained {
  template <class T>
  GEMMILL_EMULATED_INLINE double operator()(T, uint32_t word, int i) const { return contained<T>(word, i); }
};
struct Nibbles {
  template <class T>
  GEMMILL_EMULATED_INLINE double operator()(T, uint32_t word, int i) const { return value_of<T>(word >> (4 * i) & 0xF); }
};

// The registers of K's half `half` that thread `thread` of each quad has: of A for this lane's two rows, of B for its two columns.
GEMMILL_EMULATED_INLINE void fetch(Operands const& own, int half, int thread, uint32_t (&a)[2], uint32_t (&b)[2]) {
  Place const at = own_place();
  a[0] = of_lane(half ? own.a[2] : own.a[0], 4 * at.row + thread);
  a[1] = of_lane(half ? own.a[3] : own.a[1], 4 * at.row + thread);
  uint32_t const word = half ? own.b[1] : own.b[0];
  b[0] = of_lane(word, 4 * at.column + thread);
  b[1] = of_lane(word, 4 * (at.column + 1) + thread);
}

// Scales are in the registers of the pair `thread-id-a` of each quad, whose threads have rows g and g + 8, and in that of the thread
// `thread-id-b` of each quad, for column g.
struct Scales {
  uint32_t a[2], b[2];
};
GEMMILL_EMULATED_INLINE Scales fetch_scales(uint32_t a, int thread_id_a, uint32_t b, int thread_id_b) {
  Place const at = own_place();
  return {{of_lane(a, 4 * at.row + 2 * thread_id_a), of_lane(a, 4 * at.row + 2 * thread_id_a + 1)},
          {of_lane(b, 4 * at.column + thread_id_b), of_lane(b, 4 * (at.column + 1) + thread_id_b)}};
}

GEMMILL_EMULATED_INLINE Sums rounded(double const (&sum)[4], Sums const& c) {
  Sums result;
#pragma unroll
  for (int i = 0; i < 4; ++i) result.d[i] = static_cast<float>(sum[i] + static_cast<double>(c.d[i]));
  return result;
}

// mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.A.B.f32
template <class A, class B>
GEMMILL_EMULATED Sums mma_f8f6f4(Operands own, Sums c) {
  double sum[4] = {};
#pragma unroll 1
  for (int part = 0; part < 8; ++part) {
    uint32_t a[2], b[2];
    fetch(own, part / 4, part % 4, a, b);
    add_products<A, B, 4>(sum, a, b, Contained{});
  }
  return rounded(sum, c);
}

// mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.A.B.f32.ue8m0
template <class A, class B>
GEMMILL_EMULATED Sums mma_mxf8f6f4(Operands own, Sums c, uint32_t scale_a, uint32_t scale_b, int byte_id_a = 0, int thread_id_a = 0,
                                   int byte_id_b = 0, int thread_id_b = 0) {
  Scales const scales = fetch_scales(scale_a, thread_id_a, scale_b, thread_id_b);
  double sum[4] = {};
#pragma unroll 1
  for (int part = 0; part < 8; ++part) {
    uint32_t a[2], b[2];
    fetch(own, part / 4, part % 4, a, b);
    add_products<A, B, 4>(sum, a, b, Contained{});
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] *= ue8m0(scales.a[i / 2], byte_id_a) * ue8m0(scales.b[i % 2], byte_id_b);
  return rounded(sum, c);
}

// mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::{2X, 4X}.m16n8k64.row.col.f32.e2m1.e2m1.f32.{ue8m0, ue4m3}; with 2X and ue8m0 it
// is also kind::mxf4. Codes come packed, eight to a register: register r of the thread q has columns 8 * q + 32 * (r / 2) and seven more
// of A. So a scale of 32 columns belongs to a register of each thread of a quad, one of 16 to those of two.
template <int kVectors, bool kUe4m3>
GEMMILL_EMULATED Sums mma_mxf4nvf4(Operands own, Sums c, uint32_t scale_a, uint32_t scale_b, int byte_id_a = 0, int thread_id_a = 0,
                                   int byte_id_b = 0, int thread_id_b = 0) {
  static_assert(kVectors == 4 || (kVectors == 2 && !kUe4m3));
  Scales const scales = fetch_scales(scale_a, thread_id_a, scale_b, thread_id_b);
  constexpr int kThreads = 8 / kVectors;  // of a quad, that share a scale
  double sum[4] = {};
#pragma unroll 1
  for (int vector = 0; vector < kVectors; ++vector) {
    double block[4] = {};
#pragma unroll 1
    for (int i = 0; i < kThreads; ++i) {
      int const part = vector * kThreads + i;
      uint32_t a[2], b[2];
      fetch(own, part / 4, part % 4, a, b);
      add_products<E2M1, E2M1, 8>(block, a, b, Nibbles{});
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t const x = scales.a[i / 2], y = scales.b[i % 2];
      if constexpr (kUe4m3) {
        sum[i] += block[i] * (ue4m3(x, vector) * ue4m3(y, vector));
      } else {
        sum[i] += block[i] * (ue8m0(x, byte_id_a + vector) * ue8m0(y, byte_id_b + vector));
      }
    }
  }
  return rounded(sum, c);
}

}  // namespace gemmill::emulation
