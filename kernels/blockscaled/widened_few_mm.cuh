// Both operands of 4-bit codes with block scales, on Hopper, few rows of A: D[m, n] = alpha * sum over k of A[m, k] B[n, k] +
// bias[n], with both widened to bf16 in registers.
//
// A warp multiplies 64 rows of weights, by mma.sync, by the few rows of A of a tile. Codes are read where they lie: a sum over
// K may be taken in any order, so the four lanes that share a row take 32 columns each, which are 16 bytes, and both operands
// agree on which columns make a step. Nothing lies in shared memory and no warp waits for another, until the partial sums
// of a CTA's warps meet there, and then those of a cluster, in the order of their parts.
#pragma once

#include <climits>

#include "blockscaled/abi.h"
#include "blockscaled/partial_sums.cuh"
#include "blockscaled/warp_products.cuh"
#include "core/launch.cuh"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/array.h"

namespace gemmill::blockscaled {

__device__ inline uint32_t multiply_bf16(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

// Eight codes of a word as four pairs of bf16 that are code * 2^-126: codes 0 and 4, 1 and 5, 2 and 6, 3 and 7.
__device__ inline void widen_word(uint32_t word, uint32_t (&x)[4]) {
  constexpr uint32_t kMagnitude = 0x01C001C0u, kSign = 0x80008000u;
  x[0] = (word << 6 & kMagnitude) | (word << 12 & kSign);
  x[1] = (word << 2 & kMagnitude) | (word << 8 & kSign);
  x[2] = (word >> 2 & kMagnitude) | (word << 4 & kSign);
  x[3] = (word >> 6 & kMagnitude) | (word & kSign);
}

// Two scales of ue4m3 for 32 columns. Byte 127, which is no number, counts as 480.
struct NvFp4Words {
  using Bytes = uint16_t;
  static constexpr int kGroup = 16;
  static constexpr float kShort = 128.0f;  // 2^126 of the code, less 2^119 of the scale

  template <int half>
  __device__ static uint32_t factor(Bytes bytes) {  // its bits as bf16 are scale * 2^-120, subnormal ones too
    uint32_t const bits = (static_cast<uint32_t>(bytes) >> 8 * half & 0x7Fu) * 0x00100010u;
    return multiply_bf16(multiply_bf16(bits, 0x7B807B80u), 0x7B007B00u);
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

// What a lane has of a row: 32 columns.
template <class Format>
struct PieceOfRow {
  uint4 codes;
  typename Format::Bytes scales;

  // Scales lie in the swizzled layout (docs/formats.md).
  __device__ void load(char const* data, uint8_t const* sf, int64_t stride, int row, int k0, int tiles) {
    int const group = k0 / Format::kGroup;
    codes = __ldg(reinterpret_cast<uint4 const*>(data + row * stride + k0 / 2));
    int64_t const tile = static_cast<int64_t>(row / 128) * tiles + group / 4;
    scales = __ldg(reinterpret_cast<typename Format::Bytes const*>(sf + tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4));
  }
  __device__ void clear() { codes = uint4{}, scales = 0; }

  // Eight columns as four pairs.
  template <int word>
  __device__ void widen(uint32_t factor, uint32_t (&x)[4]) const {
    uint32_t const words[4] = {codes.x, codes.y, codes.z, codes.w};
    widen_word(words[word], x);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = Format::scaled(x[i], factor);
  }
};

// `warps` divide the columns of K that a CTA has.
template <class Format_, class Output_, int tile_m, int warps>
struct WidenedFewMm {
  using Format = Format_;
  using Output = Output_;
  using Piece = PieceOfRow<Format>;

  static constexpr int kTileM = tile_m, kRows = 64;
  static constexpr int kThreads = 32 * warps;
  static constexpr int kStep = 128;           // columns that the four lanes of a row take together
  static constexpr int kEights = tile_m / 8;  // of rows of A
  static constexpr int kPitch = kRows + 4;
  static constexpr int kSharedBytes = warps * tile_m * kPitch * 4;
  static constexpr int kCtas = 512 / kThreads;  // on a multiprocessor: 128 registers for a thread

  static_assert(tile_m % 8 == 0 && tile_m <= 32, "sums of more rows of A do not fit beside the codes that are on their way");

  struct Params {
    char const* a;
    char const* b;
    uint8_t const* a_sf;
    uint8_t const* b_sf;
    float const* alpha;  // one value, or null for 1
    Output const* bias;  // [n], or null for none
    Output* d;
    int64_t lda, ldb, ldd;
    int32_t m, n, k, tiles;  // tiles of scales along K
    bool constant_weights;
  };
  using Sums = float[4][kEights][4];  // 16 rows of B each

  __device__ static void run(Params const& params, char* shared) {
    int const rank = cute::block_rank_in_cluster(), splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (static_cast<unsigned>(params.m) - 1) / tile_m + 1;  // neighbours share weights
    int const m0 = static_cast<int>(tile % tiles_m) * tile_m, n0 = static_cast<int>(tile / tiles_m) * kRows;
    int const steps = (params.k - 1) / kStep + 1;
    int const first = static_cast<int>(int64_t{steps} * rank / splits), end = static_cast<int>(int64_t{steps} * (rank + 1) / splits);
    int const warp = threadIdx.x / 32;

    cutlass::arch::launch_dependent_grids();
    Piece weights[8];
    if (params.constant_weights && first + warp < end) load_weights(params, weights, first + warp, n0);
    cutlass::arch::wait_on_dependent_grids();
    Sums sums{};
    for (int step = first + warp; step < end; step += warps) {
      if (!params.constant_weights || step != first + warp) load_weights(params, weights, step, n0);
      Piece rows[kEights];
      load_rows(params, rows, step, m0);
      multiply<0>(sums, weights, rows);
      multiply<1>(sums, weights, rows);
    }
    auto* const buffer = reinterpret_cast<float*>(shared);
    put_sums<kPitch>(sums, buffer + warp * tile_m * kPitch);
    store(params, buffer, rank, splits, n0, m0);
  }

  // Lane 4 r + c has columns 32 c to 32 c + 31 of rows r, r + 8, r + 16 and so on. Rows beyond the last are the last again, and not stored.
  __device__ static void load_weights(Params const& params, Piece (&weights)[8], int step, int n0) {
    int const lane = threadIdx.x % 32, k0 = step * kStep + lane % 4 * 32;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) {
      int const row = min(n0 + i * 8 + lane / 4, params.n - 1);
      if (k0 < params.k) {
        weights[i].load(params.b, params.b_sf, params.ldb, row, k0, params.tiles);
      } else {
        weights[i].clear();
      }
    }
  }
  __device__ static void load_rows(Params const& params, Piece (&rows)[kEights], int step, int m0) {
    int const lane = threadIdx.x % 32, k0 = step * kStep + lane % 4 * 32;
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) {
      int const row = m0 + e * 8 + lane / 4;
      if (row < params.m && k0 < params.k) {
        rows[e].load(params.a, params.a_sf, params.lda, row, k0, params.tiles);
      } else {
        rows[e].clear();
      }
    }
  }

  // Columns that share a scale, or half of them: two words of each piece.
  template <int half>
  __device__ static void multiply(Sums& sums, Piece const (&weights)[8], Piece const (&rows)[kEights]) {
    uint32_t of_weights[8], of_rows[kEights];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) of_weights[i] = Format::template factor<half>(weights[i].scales);
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) of_rows[e] = Format::template factor<half>(rows[e].scales);
    multiply_word<2 * half>(sums, weights, rows, of_weights, of_rows);
    multiply_word<2 * half + 1>(sums, weights, rows, of_weights, of_rows);
  }

  // Two steps of the tensor core, 16 columns each: of a lane's eight four.
  template <int word>
  __device__ static void multiply_word(Sums& sums, Piece const (&weights)[8], Piece const (&rows)[kEights], uint32_t const (&of_weights)[8],
                                       uint32_t const (&of_rows)[kEights]) {
    uint32_t b[kEights][4];
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) rows[e].template widen<word>(of_rows[e], b[e]);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t upper[4], lower[4];
      weights[2 * i].template widen<word>(of_weights[2 * i], upper);
      weights[2 * i + 1].template widen<word>(of_weights[2 * i + 1], lower);
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2; ++step) {
        uint32_t const a[4] = {upper[2 * step], lower[2 * step], upper[2 * step + 1], lower[2 * step + 1]};
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < kEights; ++e) multiply_warp(sums[i][e], a, b[e][2 * step], b[e][2 * step + 1]);
      }
    }
  }

  __device__ static void store(Params const& params, float const* buffer, int rank, int splits, int n0, int m0) {
    if (splits > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }
    float const alpha = (params.alpha == nullptr ? 1.0f : *params.alpha) * (Format::kShort * Format::kShort);
    add_up<warps, tile_m, kRows, kPitch, kThreads>(buffer, rank, splits, [&](int row, int column, float const(&quad)[4]) {
      int const m = m0 + row, n = n0 + column;
      if (m >= params.m) return;
      Output* const to = params.d + m * params.ldd + n;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i >= params.n) return;
        float const scaled = quad[i] * alpha;
        to[i] = Output(params.bias == nullptr ? scaled : scaled + static_cast<float>(params.bias[n + i]));
      }
    });
    if (splits > 1) {
      cute::cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cute::cluster_wait();
    }
  }
};

// Host code: a launch.
template <class Kernel>
typename Kernel::Params widened_params(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  using Output = typename Kernel::Output;
  typename Kernel::Params params{};
  params.a = static_cast<char const*>(x.a), params.b = static_cast<char const*>(x.b);
  params.a_sf = static_cast<uint8_t const*>(x.a_sf), params.b_sf = static_cast<uint8_t const*>(x.b_sf);
  params.alpha = x.alpha, params.bias = static_cast<Output const*>(x.bias), params.d = static_cast<Output*>(x.d);
  params.lda = x.lda, params.ldb = x.ldb, params.ldd = x.ldd;
  params.m = x.m, params.n = x.n, params.k = x.k;
  params.tiles = (x.k / Kernel::Format::kGroup + 3) / 4;
  params.constant_weights = how.constant_weights != 0;
  return params;
}

template <class Kernel, auto entry>
int32_t launch_widened_few_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  int64_t const tiles = ((int64_t{x.m} - 1) / Kernel::kTileM + 1) * ((int64_t{x.n} - 1) / Kernel::kRows + 1);
  if (tiles * x.splits > INT_MAX || x.k % 32 != 0) return GEMMILL_CANNOT_IMPLEMENT;
  typename Kernel::Params params = widened_params<Kernel>(x, how);
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(static_cast<unsigned>(tiles * x.splits)), dim3(Kernel::kThreads), dim3(static_cast<unsigned>(x.splits)),
                          Kernel::kSharedBytes};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::blockscaled
