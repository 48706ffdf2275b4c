// Block-scaled codes on Hopper, which multiplies none: D[m, n] = alpha * sum over k of A[m, k] B[n, k] + bias[n], with both
// operands widened to bf16, or f16, on their way into shared memory. Nothing is written out in full, and there is no workspace.
//
// A CTA computes tile x tile of D, 64 columns of K a step. While the tensor core multiplies one step, each thread widens
// 32 codes of a row of A and 32 of a row of B for the next, whose bytes it asked for before. So operands need no TMA: rows
// begin at multiples of 8 bytes, and M, N and K are any.
//
// code * scale is exact in bf16 and f16 while it is a normal number: it has six significant bits at most. Weights that were packed
// have a base for each row, or for 128 columns of it, so that it is one.
#pragma once

#include <climits>
#include <cuda_fp8.h>
#include <type_traits>

#include "blockscaled/abi.h"
#include "core/launch.cuh"
#include "cute/arch/copy_sm90.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

inline constexpr int kPieceOfRow = 32;  // elements that a thread widens at a time

// What both operands become: pairs of numbers in 32 bits. kScaleBit and kScaleBias make a power of two of its byte of ue8m0.
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

// Codes of `bits` bits as numbers that are too small by a power of two, which `raised` undoes: the exponent's bits are where the
// wider type has its lowest. Two at a time, the first in the low half.
template <int bits, int mantissa, int bias>
struct SmallCode {
  static constexpr int kBits = bits;

  template <class X>
  static constexpr uint32_t raised() {
    return static_cast<uint32_t>(2 * X::kBias - bias) << X::kMantissa | static_cast<uint32_t>(2 * X::kBias - bias) << X::kMantissa << 16;
  }
  template <class X, int pair>
  __device__ static uint32_t small(uint32_t const* words) {
    constexpr int bit = pair * 2 * bits, word = bit / 32;
    constexpr uint32_t code = (1u << bits) - 1, sign = 1u << (bits - 1), magnitude = sign - 1;
    uint32_t const x = __funnelshift_r(words[word], bit % 32 > 32 - 2 * bits ? words[word + 1] : 0u, bit % 32);
    uint32_t const codes = (x & code) | (x & code << bits) << (16 - bits);
    return (codes & sign * 0x10001u) << (16 - bits) | (codes & magnitude * 0x10001u) << (X::kMantissa - mantissa);
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

// An operand that is what both become already.
struct Plain {
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

// By what sums are multiplied: alpha; a base of B's row and alpha, or a scale of A's row; or such for each 128 columns, in f32.
enum class Factors { OfTensor, OfRows, OfGroups };

template <class A_, class B_, class Wide, class Output_, int tile, Factors factors>
struct WidenedMm {
  using A = A_;
  using B = B_;
  using Output = Output_;
  using X = typename Wide::Element;

  static constexpr int kTile = tile;
  static constexpr int kStep = 2 * kPieceOfRow;  // columns: rows of 128 bytes, which is what the tensor core's swizzle takes
  static constexpr int kThreads = 2 * tile;      // two for a row of each operand; 128 multiply 64 rows of A
  static constexpr int kStages = 2;
  static constexpr int kOperandBytes = tile * kStep * 2;
  static constexpr int kSharedBytes = kStages * 2 * kOperandBytes + 1024;  // room to align the base
  static constexpr bool kInGroups = factors == Factors::OfGroups;
  static constexpr int kStepsOfGroup = 128 / kStep;
  static constexpr int kCtas = (tile <= 64 ? 4 : 2) / (kInGroups ? 2 : 1);  // on a multiprocessor

  static_assert(tile == 64 || tile == 128, "a group of 128 threads multiplies 64 rows and widens 64 rows of each operand");

  using Op = decltype(cute::GMMA::ss_op_selector<X, X, float, cute::Shape<cute::_64, cute::Int<tile>, cute::_16>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}, cute::Layout<cute::Shape<cute::Int<tile / 64>, cute::_1, cute::_1>>{}));
  using OperandLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<X>{},
                                                     cute::Shape<cute::Int<tile>, cute::Int<kStep>, cute::Int<kStages>>{}));

  struct Params {
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
  };

  __device__ static void run(Params const& params, char* shared) {
    using namespace cute;
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    auto base = reinterpret_cast<uintptr_t>(shared);
    char* const operand_a = reinterpret_cast<char*>((base + 1023) & ~uintptr_t(1023));
    char* const operand_b = operand_a + kStages * kOperandBytes;
    unsigned const tiles_m = (static_cast<unsigned>(params.m) - 1) / tile + 1;  // neighbours share weights
    int const m0 = static_cast<int>(blockIdx.x % tiles_m) * tile, n0 = static_cast<int>(blockIdx.x / tiles_m) * tile;
    int const row = threadIdx.x / 2, column = threadIdx.x % 2 * kPieceOfRow;
    bool const has_a = row < params.m - m0, has_b = row < params.n - n0;

    A piece_a;
    B piece_b;
    auto load = [&](int k0) {
      int const first = k0 + column, inside = first < params.k ? params.k - first : 0;
      piece_a.load(params.a, params.a_sf, params.lda, m0 + row, first, params.k, has_a ? inside : 0);
      piece_b.load(params.b, params.b_sf, params.ldb, n0 + row, first, params.k, has_b ? inside : 0);
    };
    auto keep = [&](int stage) {
      store(piece_a, operand_a + stage * kOperandBytes, row, column);
      store(piece_b, operand_b + stage * kOperandBytes, row, column);
      cutlass::arch::fence_view_async_shared();
    };

    auto shared_a = make_tensor(make_smem_ptr(reinterpret_cast<X*>(operand_a)), OperandLayout{});
    auto shared_b = make_tensor(make_smem_ptr(reinterpret_cast<X*>(operand_b)), OperandLayout{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_a = thread_mma.make_fragment_A(thread_mma.partition_A(shared_a));
    auto fragment_b = thread_mma.make_fragment_B(thread_mma.partition_B(shared_b));
    auto sums = partition_fragment_C(mma, Shape<Int<tile>, Int<tile>>{});
    clear(sums);
    auto total = make_fragment_like(sums);  // of groups
    clear(total);
    auto const places = thread_mma.partition_C(make_identity_tensor(Shape<Int<tile>, Int<tile>>{}));

    int const steps = static_cast<int>((int64_t{params.k} + kStep - 1) / kStep);
    if (steps > 0) load(0), keep(0);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
      int const stage = step % kStages;
      bool const more = step + 1 < steps;
      if (more) load((step + 1) * kStep);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment_a(_, _, _, stage), fragment_b(_, _, _, stage), sums);
      warpgroup_commit_batch();
      if (more) keep(1 - stage);  // whose last product every thread has waited for
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      if (kInGroups && (step % kStepsOfGroup == kStepsOfGroup - 1 || !more)) {
        add_group(params, places, sums, total, step / kStepsOfGroup, m0, n0);
        clear(sums);
      }
      __syncthreads();
    }
    store_tile(params, places, kInGroups ? total : sums, m0, n0);
  }

  // Sums of 128 columns by the scale and the base that these have.
  template <class Places, class Sums>
  __device__ static void add_group(Params const& params, Places const& places, Sums const& sums, Sums& total, int group, int m0, int n0) {
    using namespace cute;
    int64_t const groups = (int64_t{params.k} + 127) / 128;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); ++i) {
      int const m = get<0>(places(i)), n = get<1>(places(i));
      if (m >= params.m - m0 || n >= params.n - n0) continue;
      total(i) += sums(i) * (params.scales[(m0 + m) * groups + group] * params.base[(n0 + n) * groups + group]);
    }
  }

  // A piece of a row, 8 elements at a time: 16 bytes, which the swizzle of 128-byte rows keeps together.
  template <class Piece>
  __device__ static void store(Piece const& piece, char* operand, int row, int column) {
    store_eight<0>(piece, operand, row, column);
    store_eight<1>(piece, operand, row, column);
    store_eight<2>(piece, operand, row, column);
    store_eight<3>(piece, operand, row, column);
  }

  template <int eight, class Piece>
  __device__ static void store_eight(Piece const& piece, char* operand, int row, int column) {
    uint4 const values = make_uint4(piece.template widened<Wide, 4 * eight>(), piece.template widened<Wide, 4 * eight + 1>(),
                                    piece.template widened<Wide, 4 * eight + 2>(), piece.template widened<Wide, 4 * eight + 3>());
    *reinterpret_cast<uint4*>(operand + row * 128 + (((column / 8 + eight) ^ (row & 7)) << 4)) = values;
  }

  template <class Places, class Sums>
  __device__ static void store_tile(Params const& params, Places const& places, Sums const& sums, int m0, int n0) {
    using namespace cute;
    float const alpha = params.alpha == nullptr ? 1.0f : *params.alpha;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); ++i) {
      int const m = get<0>(places(i)), n = get<1>(places(i));
      if (m >= params.m - m0 || n >= params.n - n0) continue;
      float scaled = sums(i);
      if constexpr (factors == Factors::OfRows) scaled *= params.base[n0 + n];
      scaled *= factors == Factors::OfRows && params.scales != nullptr ? params.scales[m0 + m] : alpha;
      float const shift = params.bias == nullptr ? 0.0f : static_cast<float>(params.bias[n0 + n]);
      params.d[(m0 + m) * params.ldd + n0 + n] = Output(params.bias == nullptr ? scaled : scaled + shift);
    }
  }
};

// Host code: a launch.
template <class Kernel, auto entry>
int32_t launch_widened_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  using Output = typename Kernel::Output;
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  int64_t const tiles = ((int64_t{x.m} - 1) / Kernel::kTile + 1) * ((int64_t{x.n} - 1) / Kernel::kTile + 1);
  if (tiles > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  typename Kernel::Params params{static_cast<char const*>(x.a),       static_cast<char const*>(x.b),
                                 static_cast<uint8_t const*>(x.a_sf), static_cast<uint8_t const*>(x.b_sf),
                                 static_cast<float const*>(x.a_sf),   static_cast<float const*>(x.b_sf),
                                 x.alpha,                             static_cast<Output const*>(x.bias),
                                 static_cast<Output*>(x.d),           x.lda, x.ldb, x.ldd, x.m, x.n, x.k};
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(static_cast<unsigned>(tiles)), dim3(Kernel::kThreads), dim3(1), Kernel::kSharedBytes};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::blockscaled
