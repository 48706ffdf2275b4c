// Both operands of 4-bit codes with block scales, on Hopper, large M, K a multiple of 64: the computation of large_mm.cuh.
//
// Codes have a prefetch distance of two steps, by turns into two sets of registers, so none is moved. nvfp4 becomes f16, whose scales one
// conversion makes. Shared memory is written by its own addresses. With three stages a product is still under way when threads meet.
#pragma once

#include "blockscaled/many_rows/large_mm.cuh"
#include "blockscaled/shared/shared_pieces.cuh"

namespace gemmill::blockscaled {

// The columns of the tensor core's step, their type there, and where a row's scales of step t lie behind those of step 0.
template <class Format>
struct PrefetchOf;
template <>
struct PrefetchOf<NvFp4Words> {
  using Piece = NvFp4Piece<false>;
  __device__ static int place(int step) { return step * 512 + threadIdx.x % 2 * 2; }
};
template <>
struct PrefetchOf<MxFp4Words> {
  using Piece = MxFp4Piece<Bf16>;
  __device__ static int place(int step) { return step / 2 * 512 + step % 2 * 2 + threadIdx.x % 2; }
};

// The rest after the last product is LargeMm's.
template <class Format, class Output_, int tile_m, int tile_n, int stages>
struct LargePrefetchMm : LargeMm<Format, Output_, tile_m, tile_n> {
  using Base = LargeMm<Format, Output_, tile_m, tile_n>;
  using typename Base::Params;
  using Base::kAbove, Base::kBeside, Base::kBytesA, Base::kBytesB, Base::kOfA, Base::kOfB, Base::kPitch, Base::kStep, Base::kThreads;
  using Piece = typename PrefetchOf<Format>::Piece;
  using X = typename Piece::X::Element;

  static constexpr int kStages = stages;
  static constexpr int kStageBytes = kStages * (kBytesA + kBytesB);
  static constexpr bool kSliced = tile_m * kPitch * 4 <= kStageBytes;
  static constexpr int kSharedBytes = kStageBytes + 1024;
  static constexpr int kColumnMultiple = kStep;  // of K

  static_assert(stages >= 2, "a stage is written while another is multiplied");

  using Op = decltype(cute::GMMA::ss_op_selector<X, X, float, cute::Shape<cute::_64, cute::Int<tile_n / kBeside>, cute::_16>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}, cute::Layout<cute::Shape<cute::Int<kAbove>, cute::Int<kBeside>, cute::_1>>{}));
  template <int rows>
  using OperandLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<X>{},
                                                     cute::Shape<cute::Int<rows>, cute::Int<kStep>, cute::Int<kStages>>{}));

  // Of a thread: 32 columns of a row, as they come.
  struct Raw {
    uint4 codes;
    uint32_t scales;
  };
  struct Raws {
    Raw a[kOfA], b[kOfB];
  };
  struct Source {
    char const* codes;
    uint8_t const* scales;
  };
  struct Sources {
    Source a[kOfA], b[kOfB];
    bool inside;  // of A
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
    int const all = params.k / kStep;
    int const first = static_cast<int>(int64_t{all} * rank / splits), end = static_cast<int>(int64_t{all} * (rank + 1) / splits);

    auto shared_a = make_tensor(make_smem_ptr(reinterpret_cast<X*>(operand_a)), OperandLayout<tile_m>{});
    auto shared_b = make_tensor(make_smem_ptr(reinterpret_cast<X*>(operand_b)), OperandLayout<tile_n>{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_a = thread_mma.make_fragment_A(thread_mma.partition_A(shared_a));
    auto fragment_b = thread_mma.make_fragment_B(thread_mma.partition_B(shared_b));
    auto sums = partition_fragment_C(mma, Shape<Int<tile_m>, Int<tile_n>>{});
    clear(sums);

    Sources const from = sources(params, m0, n0);
    uint32_t const to_a = cast_smem_ptr_to_uint(operand_a), to_b = to_a + kStages * kBytesA;
    Raws even, odd;
    load(from, even, first, end);
    load(from, odd, first + 1, end);
    keep(even, to_a, to_b);
    load(from, even, first + 2, end);
    __syncthreads();
    int stage = 0;
    auto turn = [&](int step, Raws& ahead) {  // `ahead` has the next step
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment_a(_, _, _, stage), fragment_b(_, _, _, stage), sums);
      warpgroup_commit_batch();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (step + 1 < end) {  // into the stage whose last product every thread has waited for
        keep(ahead, to_a + stage * kBytesA, to_b + stage * kBytesB);
        load(from, ahead, step + 3, end);
      }
      warpgroup_wait<kStages - 2>();
      warpgroup_fence_operand(sums);
      __syncthreads();
    };
    for (int step = first; step < end; step += 2) {
      turn(step, odd);
      if (step + 1 < end) turn(step + 1, even);
    }
    if constexpr (kStages > 2) {
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      __syncthreads();
    }
    if (splits == 1) {
      Base::store_tile(params, thread_mma, sums, m0, n0);
    } else if constexpr (kSliced) {
      auto* const buffer = reinterpret_cast<float*>(operand_a);
      copy(sums, thread_mma.partition_C(make_tensor(make_smem_ptr(buffer), Shape<Int<tile_m>, Int<tile_n>>{}, Stride<Int<kPitch>, _1>{})));
      Base::store_parts(params, buffer, rank, splits, m0, n0);
    }
  }

  // Two threads have a row. Rows of A beyond the last are zeros; rows of B beyond the last are that one again, and not stored.
  __device__ static Sources sources(Params const& params, int m0, int n0) {
    int const row = threadIdx.x / 2;
    Sources x;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfA; ++i) x.a[i] = source(params.a, params.a_sf, params.lda, min(m0 + row, params.m - 1), params.k);
    x.inside = row < tile_m && m0 + row < params.m;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfB; ++i) {
      x.b[i] = source(params.b, params.b_sf, params.ldb, min(n0 + row + i * (kThreads / 2), params.n - 1), params.k);
    }
    return x;
  }
  __device__ static Source source(char const* data, uint8_t const* sf, int64_t stride, int row, int k) {
    int64_t const atom = row / 128 * ((k / Format::kGroup + 3) / 4);
    return {data + row * stride + threadIdx.x % 2 * 16, sf + atom * 512 + row % 32 * 16 + row % 128 / 32 * 4};
  }

  __device__ static void load(Sources const& from, Raws& raws, int step, int end) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfA; ++i) load_raw(from.a[i], raws.a[i], step, step < end && from.inside);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfB; ++i) load_raw(from.b[i], raws.b[i], step, step < end);
  }
  __device__ static void load_raw(Source const& from, Raw& raw, int step, bool inside) {
    raw.codes = uint4{}, raw.scales = 0;
    if (!inside) return;
    raw.codes = __ldg(reinterpret_cast<uint4 const*>(from.codes + int64_t{step} * 32));
    raw.scales = __ldg(reinterpret_cast<typename Format::Bytes const*>(from.scales + PrefetchOf<Format>::place(step)));
  }

  __device__ static void keep(Raws const& raws, uint32_t operand_a, uint32_t operand_b) {
    int const row = threadIdx.x / 2;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfA; ++i) {
      if (row < tile_m) keep_raw(raws.a[i], operand_a, row);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfB; ++i) keep_raw(raws.b[i], operand_b, row + i * (kThreads / 2));
    cutlass::arch::fence_view_async_shared();
  }
  __device__ static void keep_raw(Raw const& raw, uint32_t operand, int row) {
    Piece piece;
    piece.take(raw.codes, raw.scales);
    keep_word<0>(piece, operand, row);
    keep_word<1>(piece, operand, row);
    keep_word<2>(piece, operand, row);
    keep_word<3>(piece, operand, row);
  }
  template <int word>
  __device__ static void keep_word(Piece const& piece, uint32_t operand, int row) {
    uint32_t x[4];
    piece.template eight<word>(x);
    int const at = (threadIdx.x % 2 * 4 + word) ^ (row & 7);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(operand + row * 128 + (at << 4)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]));
  }
};

}  // namespace gemmill::blockscaled
