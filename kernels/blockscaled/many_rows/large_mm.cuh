// Both operands of 4-bit codes with block scales, on Hopper, large M: D[m, n] = alpha * sum over k of A[m, k] B[n, k] +
// bias[n], with both upcast to bf16 on their way into shared memory.
//
// While the tensor core multiplies 64 columns, threads upcast the next 64, whose codes they loaded a step before. A word of
// eight codes becomes four pairs in an order of its own, which is that of both operands: sums do not see it.
#pragma once

#include "blockscaled/shared/operands.cuh"
#include "gemm/partial_sums.cuh"
#include "cute/arch/copy_sm90.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

// Two groups of 128 threads lie one above the other where a tile has 128 rows of A, else side by side.
template <class Format_, class Output_, int tile_m, int tile_n>
struct LargeMm {
  using Format = Format_;
  using Output = Output_;
  using X = cutlass::bfloat16_t;
  using Piece = PieceOfRow<Format>;

  static constexpr int kTileM = tile_m, kTileN = tile_n;
  static constexpr int kThreads = 256, kStages = 2;
  static constexpr int kStep = 64;  // columns: rows of 128 bytes, the span of the tensor core's swizzle
  static constexpr int kColumnMultiple = 32;  // of K
  static constexpr int kPiecesA = tile_m * 2, kPiecesB = tile_n * 2;
  static constexpr int kOfA = (kPiecesA + kThreads - 1) / kThreads, kOfB = kPiecesB / kThreads;  // of a thread
  static constexpr int kBytesA = tile_m * kStep * 2, kBytesB = tile_n * kStep * 2;
  static constexpr int kPitch = tile_n + 8;  // of a row of partial sums
  static constexpr int kStageBytes = kStages * (kBytesA + kBytesB);
  static constexpr bool kSliced = tile_m * kPitch * 4 <= kStageBytes;  // whether K may be: partial sums lie where the stages were
  static constexpr int kSharedBytes = kStageBytes + 1024;              // room to align the base
  static constexpr int kCtas = tile_m * tile_n > 128 * 128 ? 1 : 2;
  static constexpr int kAbove = tile_m / 64, kBeside = 2 / kAbove;

  static_assert(tile_m == 64 || tile_m == 128, "two groups of threads have 64 rows each, or the same");
  static_assert(kPiecesB % kThreads == 0, "each thread widens as many rows of B");

  using Op = decltype(cute::GMMA::ss_op_selector<X, X, float, cute::Shape<cute::_64, cute::Int<tile_n / kBeside>, cute::_16>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}, cute::Layout<cute::Shape<cute::Int<kAbove>, cute::Int<kBeside>, cute::_1>>{}));
  template <int rows>
  using OperandLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<X>{},
                                                     cute::Shape<cute::Int<rows>, cute::Int<kStep>, cute::Int<kStages>>{}));
  using Params = UpcastParams<Output>;

  struct Pieces {
    Piece a[kOfA], b[kOfB];
  };

  __device__ static void run(Params const& params, char* shared) {
    using namespace cute;
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    auto base = reinterpret_cast<uintptr_t>(shared);
    char* const operand_a = reinterpret_cast<char*>((base + 1023) & ~uintptr_t(1023));
    char* const operand_b = operand_a + kStages * kBytesA;
    int const rank = block_rank_in_cluster(), splits = cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (static_cast<unsigned>(params.m) - 1) / tile_m + 1;  // neighbours share weights
    int const m0 = static_cast<int>(tile % tiles_m) * tile_m, n0 = static_cast<int>(tile / tiles_m) * tile_n;
    int const all = (params.k - 1) / kStep + 1;
    int const first = static_cast<int>(int64_t{all} * rank / splits), end = static_cast<int>(int64_t{all} * (rank + 1) / splits);

    auto shared_a = make_tensor(make_smem_ptr(reinterpret_cast<X*>(operand_a)), OperandLayout<tile_m>{});
    auto shared_b = make_tensor(make_smem_ptr(reinterpret_cast<X*>(operand_b)), OperandLayout<tile_n>{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_a = thread_mma.make_fragment_A(thread_mma.partition_A(shared_a));
    auto fragment_b = thread_mma.make_fragment_B(thread_mma.partition_B(shared_b));
    auto sums = partition_fragment_C(mma, Shape<Int<tile_m>, Int<tile_n>>{});
    clear(sums);

    Pieces now, next;
    load(params, now, first, m0, n0);
    load(params, next, first + 1, m0, n0);
    keep(now, operand_a, operand_b);
    now = next;
    __syncthreads();
    for (int step = first; step < end; ++step) {
      int const stage = (step - first) % kStages;
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment_a(_, _, _, stage), fragment_b(_, _, _, stage), sums);
      warpgroup_commit_batch();
      if (step + 1 < end) {  // into the stage whose last product every thread has waited for
        load(params, next, step + 2, m0, n0);
        keep(now, operand_a + (1 - stage) * kBytesA, operand_b + (1 - stage) * kBytesB);
        now = next;
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      __syncthreads();
    }
    if (splits == 1) {
      store_tile(params, thread_mma, sums, m0, n0);
    } else if constexpr (kSliced) {
      auto* const buffer = reinterpret_cast<float*>(operand_a);
      copy(sums, thread_mma.partition_C(make_tensor(make_smem_ptr(buffer), Shape<Int<tile_m>, Int<tile_n>>{}, Stride<Int<kPitch>, _1>{})));
      store_parts(params, buffer, rank, splits, m0, n0);
    }
  }

  // Columns from the last on, and rows of A beyond the last, are zeros. Rows of B beyond the last are that one again, and not stored.
  __device__ static void load(Params const& params, Pieces& pieces, int step, int m0, int n0) {
    int const k0 = step * kStep + threadIdx.x % 2 * 32, row = threadIdx.x / 2;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfA; ++i) {
      bool const inside = row < tile_m && m0 + row < params.m;
      pieces.a[i].load(params.a, params.a_sf, params.lda, m0 + row, k0, params.k, inside ? params.k - k0 : 0);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfB; ++i) {
      int const of_b = min(n0 + row + i * (kThreads / 2), params.n - 1);
      pieces.b[i].load(params.b, params.b_sf, params.ldb, of_b, k0, params.k, params.k - k0);
    }
  }

  __device__ static void keep(Pieces const& pieces, char* operand_a, char* operand_b) {
    int const row = threadIdx.x / 2;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfA; ++i) {
      if (row < tile_m) keep_piece(pieces.a[i], operand_a, row);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfB; ++i) keep_piece(pieces.b[i], operand_b, row + i * (kThreads / 2));
    cutlass::arch::fence_view_async_shared();
  }

  __device__ static void keep_piece(Piece const& piece, char* operand, int row) {
    keep_word<0>(piece, operand, row);
    keep_word<1>(piece, operand, row);
    keep_word<2>(piece, operand, row);
    keep_word<3>(piece, operand, row);
  }

  template <int word>
  __device__ static void keep_word(Piece const& piece, char* operand, int row) {
    uint32_t x[4];
    piece.template widen<void, word>(x);
    int const at = (threadIdx.x % 2 * 4 + word) ^ (row & 7);
    *reinterpret_cast<uint4*>(operand + row * 128 + (at << 4)) = make_uint4(x[0], x[1], x[2], x[3]);
  }

  __device__ static float alpha_of(Params const& params) {
    return (params.alpha == nullptr ? 1.0f : *params.alpha) * (Format::kShort * Format::kShort);
  }
  __device__ static void store_one(Params const& params, float sum, float alpha, int m, int n) {
    if (m >= params.m || n >= params.n) return;
    float const scaled = sum * alpha;
    params.d[m * params.ldd + n] = Output(params.bias == nullptr ? scaled : scaled + static_cast<float>(params.bias[n]));
  }

  template <class ThreadMma, class Sums>
  __device__ static void store_tile(Params const& params, ThreadMma const& thread_mma, Sums const& sums, int m0, int n0) {
    using namespace cute;
    auto places = thread_mma.partition_C(make_identity_tensor(Shape<Int<tile_m>, Int<tile_n>>{}));
    float const alpha = alpha_of(params);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); ++i) store_one(params, sums(i), alpha, m0 + get<0>(places(i)), n0 + get<1>(places(i)));
  }

  __device__ static void store_parts(Params const& params, float const* buffer, int rank, int splits, int m0, int n0) {
    cute::cluster_arrive();
    cute::cluster_wait();
    float const alpha = alpha_of(params);
    add_up<1, tile_m, tile_n, kPitch, kThreads>(buffer, rank, splits, [&](int row, int column, float const(&quad)[4]) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) store_one(params, quad[i], alpha, m0 + row, n0 + column + i);
    });
    cute::cluster_arrive_relaxed();  // nobody leaves while others still read its sums
    cute::cluster_wait();
  }
};

}  // namespace gemmill::blockscaled
