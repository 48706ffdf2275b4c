// Block-scaled codes on Hopper, which multiplies none: D[m, n] = alpha * sum over k of A[m, k] B[n, k] + bias[n], with both
// operands upcast to bf16, or f16, on their way into shared memory. Nothing is written out in full, and there is no workspace.
//
// A CTA computes tile x tile of D, 64 columns of K a step. While the tensor core multiplies one step, each thread upcasts
// 32 codes of a row of A and 32 of a row of B for the next, whose bytes it loaded before. So operands need no TMA: rows
// begin at multiples of 8 bytes, and M, N and K are any.
#pragma once

#include "blockscaled/shared/operands.cuh"
#include "cute/arch/copy_sm90.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

template <class A_, class B_, class Wide, class Output_, int tile, Factors factors>
struct GeneralMm {
  using A = A_;
  using B = B_;
  using Output = Output_;
  using X = typename Wide::Element;

  static constexpr int kTileM = tile, kTileN = tile, kColumnMultiple = 1;  // of K
  static constexpr bool kSliced = false;
  static constexpr int kStep = 2 * kPieceOfRow;  // columns: rows of 128 bytes, the span of the tensor core's swizzle
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

  using Params = UpcastParams<Output>;

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

}  // namespace gemmill::blockscaled
