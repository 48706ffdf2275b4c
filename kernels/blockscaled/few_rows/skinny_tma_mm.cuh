// Packed rows of block-scaled weights on Hopper with a small M of 16-bit numbers: the computation of skinny_cp_async_mm.cuh, with loads by TMA.
//
// Codes, scales and rows of A come by tensor maps into stages of each warp, so that one lane asks for 64 rows at a time. A stage has 256
// columns of 4-bit codes, else 128. TMA swizzles codes of 128 bytes a row and rows of A by as many; 96 bytes a row need no swizzle.
#pragma once

#include "blockscaled/few_rows/skinny_cp_async_mm.cuh"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "gemm/tensor_map.h"

namespace gemmill::blockscaled {

// Codes of mxfp4 behind which scales lie, in the order of A's numbers.
struct MxFp4InOrder : MxFp4Piece<F16> {
  static constexpr bool kBehind = true;

  template <int i>
  __device__ void eight(uint32_t (&x)[4]) const {
    uint32_t const words[4] = {codes.x, codes.y, codes.z, codes.w};
    spread_e2m1<X, true>(words[i], x);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) x[j] = X::multiply(X::multiply(x[j], E2m1::raised<X>()), twice<0>(scale));
  }
};

// Where a lane's 32 columns of a row lie: `codes` its row, `scales` the row's scales of the stage; `half` of 128 columns.
template <class B>
__device__ void take_row(B& piece, uint32_t codes, uint32_t scales, int row, int half) {
  int const place = threadIdx.x % 4;
  if constexpr (B::kCodeBits == 4) {
    uint32_t const at = codes + (((4 * half + place) ^ row) << 4);
    piece.take(load_shared_16(at), B::kGroup == 16 ? load_shared_2(scales + half * 8 + place * 2) : load_shared_1(scales + half * 4 + place));
  } else if constexpr (B::kCodeBits == 8) {
    piece.codes[0] = load_shared_16(codes + ((place ^ row) << 4)), piece.codes[1] = load_shared_16(codes + (((4 + place) ^ row) << 4));
    using X = typename B::X;
    piece.scales = X::widen_ue8m0(load_shared_1(scales + place / 2)) | X::widen_ue8m0(load_shared_1(scales + place / 2 + 2)) << 16;
  } else {
    uint32_t const at = codes + place * 24;
    uint2 const p = load_shared_8(at), q = load_shared_8(at + 8), r = load_shared_8(at + 16);
    using X = typename B::X;
    spread_e3m2<X>(p.x, p.y, q.x, piece.pairs);
    spread_e3m2<X>(q.y, r.x, r.y, piece.pairs + 8);
    piece.scale = X::widen_ue8m0(load_shared_1(scales + place));
  }
}

template <class B, class Output_, int tile_m, int warps, int stages, int ctas>
struct SkinnyTmaMm : SkinnyCpAsyncMm<Plain, B, Output_, tile_m, warps, 2, Factors::OfRows, ctas> {
  using Ring = SkinnyCpAsyncMm<Plain, B, Output_, tile_m, warps, 2, Factors::OfRows, ctas>;
  using Base = typename Ring::Base;
  using typename Ring::Sums, typename Ring::X;
  using Ring::kEights, Ring::kPitch, Ring::kRows;
  using Filled = cutlass::arch::ClusterTransactionBarrier;

  static constexpr int kColumns = B::kCodeBits == 4 ? 256 : 128, kHalves = kColumns / 128;  // of a stage
  static constexpr int kColumnMultiple = kColumns;
  static constexpr int kCodeRow = kColumns * B::kCodeBits / 8, kScaleRow = 16;  // bytes of a row in a stage
  static constexpr bool kSwizzled = kCodeRow == 128;
  static constexpr int kCodes = kRows * kCodeRow, kScales = kRows * kScaleRow;
  static constexpr int kBoxColumns = 64, kBox = tile_m * 128, kBoxes = kColumns / kBoxColumns;  // of A
  static constexpr int kStage = kCodes + kScales + kBoxes * kBox;
  static constexpr int kRingBytes = warps * stages * kStage;
  static constexpr int kSharedBytes = kRingBytes + 1024 + warps * stages * 8;  // room to align the base, and barriers

  static_assert(kStage % 1024 == 0, "boxes that are swizzled begin at multiples of 1024 bytes");
  static_assert(kRingBytes >= Base::kSharedBytes, "partial sums reuse the stages");
  static_assert(B::kBehind, "scales lie behind the codes of their row");

  struct Params {
    CUtensorMap codes, scales, tokens;
    typename Base::Params base;

    // Boxes of rows of codes, of 16 bytes that have their scales, and of A.
    friend bool describe(Params& params, gemmill_blockscaled_args const& x, gemmill_launch const& how) {
      constexpr auto kBytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
      constexpr auto kNumbers = std::is_same_v<X, cutlass::half_t> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
      params.base = upcast_params<typename Base::Output>(x, how);
      int64_t const of_codes = int64_t{x.k} * B::kCodeBits / 8, of_row = of_codes + x.k / B::kGroup;
      auto const map = [](CUtensorMap& to, CUtensorMapDataType type, void const* data, int64_t row, int64_t rows, int64_t stride, int columns,
                          int box_rows, bool swizzled) {
        int64_t const any = (2 * row + 15) / 16 * 16;  // where there is one row
        return encode_tensor_map<2>(to, type, data, {static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(rows)},
                                    {static_cast<cuuint64_t>(rows == 1 ? any : stride)},
                                    {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(box_rows)}, swizzled);
      };
      return map(params.codes, kBytes, x.b, of_codes, x.n, x.ldb, kCodeRow, kRows, kSwizzled) &&
             map(params.scales, kBytes, x.b, of_row, x.n, x.ldb, kScaleRow, kRows, false) &&
             map(params.tokens, kNumbers, x.a, x.k, x.m, x.lda * 2, kBoxColumns, tile_m, true);
    }
  };

  __device__ static void run(Params const& params, char* shared) {
    int const rank = cute::block_rank_in_cluster(), splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (static_cast<unsigned>(params.base.m) - 1) / tile_m + 1;  // neighbours share weights
    int const m0 = static_cast<int>(tile % tiles_m) * tile_m, n0 = static_cast<int>(tile / tiles_m) * kRows;
    int const steps = params.base.k / kColumns;
    int const first = static_cast<int>(int64_t{steps} * rank / splits), end = static_cast<int>(int64_t{steps} * (rank + 1) / splits);
    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    char* const base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(shared) + 1023) & ~uintptr_t{1023});
    auto* const filled = reinterpret_cast<Filled*>(base + kRingBytes) + warp * stages;
    if (lane == 0) {
      for (int s = 0; s < stages; ++s) filled[s].init(1);
      cutlass::arch::fence_barrier_init();
    }
    __syncwarp();

    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    char* const own = base + warp * stages * kStage;
    int const begin = first + warp;
    if (lane == 0) {
      for (int s = 0; s < stages && begin + s * warps < end; ++s) ask(params, own + s * kStage, filled[s], n0, m0, begin + s * warps);
    }
    Sums sums{};
    int now = 0, phase = 0;
    for (int step = begin; step < end; step += warps) {
      filled[now].wait(phase);
      multiply(sums, cute::cast_smem_ptr_to_uint(own + now * kStage), first_scale(step));
      __syncwarp();  // all lanes have read the stage
      int const next = step + stages * warps;
      if (lane == 0 && next < end) ask(params, own + now * kStage, filled[now], n0, m0, next);
      if (++now == stages) now = 0, phase ^= 1;
    }
    __syncthreads();  // sums lie where stages were
    auto* const buffer = reinterpret_cast<float*>(base);
    put(sums, buffer + warp * tile_m * kPitch);
    Base::store(params.base, buffer, rank, splits, n0, m0);
  }

  // A box begins at a multiple of 16 bytes: its scales are of 512 columns or fewer, of which a stage has some.
  static constexpr int kScalesOfStage = kColumns / B::kGroup;
  __device__ static int first_scale(int step) { return step * kScalesOfStage % kScaleRow; }

  __device__ static void ask(Params const& params, char* stage, Filled& filled, int n0, int m0, int step) {
    filled.arrive_and_expect_tx(kStage);
    auto* const bar = reinterpret_cast<uint64_t*>(&filled);
    auto const once = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    auto const again = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
    int const scales = params.base.k / 8 * B::kCodeBits + step * kScalesOfStage / kScaleRow * kScaleRow;
    cute::SM90_TMA_LOAD_2D::copy(&params.codes, bar, once, stage, step * kCodeRow, n0);
    cute::SM90_TMA_LOAD_2D::copy(&params.scales, bar, once, stage + kCodes, scales, n0);
    CUTLASS_PRAGMA_UNROLL
    for (int b = 0; b < kBoxes; ++b) {
      cute::SM90_TMA_LOAD_2D::copy(&params.tokens, bar, again, stage + kCodes + kScales + b * kBox, step * kColumns + b * kBoxColumns, m0);
    }
  }

  // The row of eight that a lane has: two whose loads go together lie at places of the swizzle, or at banks, that differ.
  __device__ static int row_of_lane() {
    int const r = threadIdx.x % 32 / 4;
    return kSwizzled ? r % 2 * 4 + r / 2 : r;
  }

  __device__ static void put(Sums const& sums, float* to) {
    int const row = row_of_lane(), token = threadIdx.x % 4 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int rows = 0; rows < 4; ++rows) {
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) to[(e * 8 + token + i % 2) * kPitch + rows * 16 + row + i / 2 * 8] = sums[rows][e][i];
      }
    }
  }

  __device__ static void load_tokens(uint32_t (&x)[16], uint32_t tokens, int e, int half) {
    int const lane = threadIdx.x % 32, place = lane % 4, row = lane / 4;
    uint32_t const at = tokens + (e * 8 + row) * 128;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int const box = B::kSixteens ? i / 2 : 2 * half + place / 2, chunk = B::kSixteens ? 2 * place + i % 2 : place % 2 * 4 + i;
      uint4 const part = load_shared_16(at + box * kBox + ((chunk ^ row) << 4));
      x[4 * i] = part.x, x[4 * i + 1] = part.y, x[4 * i + 2] = part.z, x[4 * i + 3] = part.w;
    }
  }

  __device__ static void multiply(Sums& sums, uint32_t stage, int first_scale) {
    int const row = row_of_lane();
    uint32_t const codes = stage + row * kCodeRow, scales = stage + kCodes + row * kScaleRow + first_scale;
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      uint32_t rows[kEights][16];
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) load_tokens(rows[e], stage + kCodes + kScales, e, half);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        B upper, lower;
        take_row(upper, codes + 16 * i * kCodeRow, scales + 16 * i * kScaleRow, row, half);
        take_row(lower, codes + (16 * i + 8) * kCodeRow, scales + (16 * i + 8) * kScaleRow, row, half);
        Ring::template multiply_eight<0>(sums[i], upper, lower, rows);
        Ring::template multiply_eight<1>(sums[i], upper, lower, rows);
        Ring::template multiply_eight<2>(sums[i], upper, lower, rows);
        Ring::template multiply_eight<3>(sums[i], upper, lower, rows);
      }
    }
  }
};

}  // namespace gemmill::blockscaled
