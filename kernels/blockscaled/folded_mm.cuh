// e4m3 activations against 4-bit weights on Hopper: D[m, n] = base[n] a_scale[m] * sum over k of A[m, k] W[n, k] + bias[n], computed as
// D^T = W A^T on the FP8 tensor core.
//
// Weights fill the tensor core's 64 rows and come to it from registers, where code and scale have become one e4m3 number by a
// table. A base for each row, a power of two, and the token's scale are factors of the epilogue. With scales of 128 columns each a sum
// of those is multiplied by both and added to another in f32. A cluster of CTAs shares one output tile, each with a slice of K.
//
// Before the kernel ahead of this one has ended only weights are read, and those only if the caller has said that they are
// constant.
#pragma once

#include <climits>
#include <cuda.h>

#include "blockscaled/abi.h"
#include "blockscaled/cluster_sums.cuh"
#include "blockscaled/fold_e2m1.cuh"
#include "core/launch.cuh"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/array.h"

namespace gemmill::blockscaled {

inline constexpr int64_t kFoldedColumns = 256;  // to a multiple of which K is padded where weights are packed
inline constexpr int kBlockColumns = 128;       // of a block, and of those that share a scale of activations

// k_groups groups of 2 x 128 threads multiply: 64 rows of weights for each 128, and `each` blocks of 128 columns of a stage.
template <class Format, class Output_, int k_groups, int each, int tile_m, int stages, bool grouped>
struct FoldedMm {
  using X = cutlass::float_e4m3_t;
  using Output = Output_;
  using Block = FoldedBlock<Format>;
  using Filled = cutlass::arch::ClusterTransactionBarrier;
  using Freed = cutlass::arch::ClusterBarrier;
  static constexpr int kRowGroups = 2;
  static constexpr int kRows = 64 * kRowGroups;  // columns of D
  using Meeting = ClusterSums<kRows, tile_m, k_groups>;

  static constexpr int kTileM = tile_m;
  static constexpr int kBlocks = each * k_groups;
  static constexpr int kTileK = kBlockColumns * kBlocks;
  static constexpr int kGroupBytes = kBlocks * Block::kBytes;  // of 64 rows in a stage
  static constexpr int kWeightBytes = kRowGroups * kGroupBytes;
  static constexpr int kBoxBytes = tile_m * kBlockColumns;
  static constexpr int kTokenBytes = kBlocks * kBoxBytes;
  static constexpr int kConsumers = 128 * kRowGroups * k_groups;
  // Sums for which threads that load give their registers away.
  static constexpr bool kWide = tile_m * (grouped ? 2 : 1) > 64;
  static constexpr int kLoaderRegisters = k_groups == 1 ? 40 : 24, kSumRegisters = k_groups == 1 ? 232 : 112;
  static constexpr int kEvenRegisters = k_groups == 1 ? 168 : 96;  // that all threads begin with: more than these have together is waited for forever
  static constexpr int kThreads = kConsumers + (kWide ? 128 : 32);      // and the warp that loads
  static constexpr int kFactors = grouped ? kBlocks * (tile_m + kRows) : 1;  // of a stage: of tokens, then of rows, for each block

  static_assert(tile_m % 8 == 0 && tile_m <= 256, "the tensor core takes 8 to 256 columns in steps of 8");
  static_assert(Meeting::kThreads == kConsumers, "every group of threads keeps its sums");
  static_assert(!kWide || kSumRegisters * kConsumers + kLoaderRegisters * 128 <= kEvenRegisters * kThreads, "nobody waits for registers");
  static_assert(tile_m * (grouped ? 2 : 1) <= 256 / k_groups, "sums fit the registers of so many threads");

  using Op = decltype(cute::GMMA::rs_op_selector<X, X, float, cute::Shape<cute::_64, cute::Int<tile_m>, cute::_32>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}));
  using TokenLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<X>{},
                                                   cute::Shape<cute::Int<tile_m>, cute::Int<kTileK>, cute::Int<stages>>{}));

  struct Params {
    CUtensorMap tokens;   // boxes of tile_m rows and 128 columns, swizzled by 128 bytes
    char const* weights;  // blocks of 64 rows and 128 columns, along K first
    float const* base;    // [n], or [n, groups]
    float const* scales;  // [m], or [m, groups]
    Output const* bias;   // [n], or null for none
    Output* d;
    int64_t ldd;
    int32_t m, n;
    int32_t blocks;  // of weights along K, a multiple of kBlocks
    int32_t groups;  // of 128 columns
    bool constant_weights;
    bool whole_quads;  // whether rows of D begin at multiples of 8 bytes
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[stages][kTokenBytes];
    alignas(128) char weights[stages][kWeightBytes];
    alignas(16) float factors[stages][kFactors];
    alignas(16) uint2 tables[Format::kEntries];
    Filled filled[stages];
    Freed freed[stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static constexpr int kCtas = !kWide && kSharedBytes <= 113 * 1024 ? 2 : 1;  // on a multiprocessor
  static_assert(Meeting::kBytes <= stages * (kWeightBytes + kTokenBytes), "partial sums reuse the stages");

  // The K tiles of this CTA.
  struct Slice {
    int first, count;
    __device__ Slice(unsigned blocks, unsigned rank, unsigned splits) {
      unsigned const tiles = blocks / kBlocks;
      first = static_cast<int>(tiles * rank / splits);
      count = static_cast<int>(tiles * (rank + 1) / splits) - first;
    }
  };

  // The work of one CTA. Clusters divide K; tiles of activations come first in the grid, so that neighbours share weights.
  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    int const rank = cute::block_rank_in_cluster();
    int const splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (params.m + tile_m - 1) / tile_m;
    int const n0 = static_cast<int>(tile / tiles_m) * kRows;
    int const m0 = static_cast<int>(tile % tiles_m) * tile_m;
    Slice const slice(params.blocks, rank, splits);

    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.tokens);
      for (auto& barrier : storage.filled) barrier.init(grouped ? 33 : 1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      cutlass::arch::fence_barrier_init();
    }
    for (int i = threadIdx.x; i < Format::kEntries; i += kThreads) storage.tables[i] = magnitudes(Format::scale(i));
    __syncthreads();
    cutlass::arch::launch_dependent_grids();

    if (threadIdx.x >= kConsumers) {
      if constexpr (kWide) cutlass::arch::warpgroup_reg_dealloc<kLoaderRegisters>();
      if (threadIdx.x < kConsumers + 32) produce(params, storage, slice, n0, m0);
      __syncwarp();
      Meeting::stand_by(splits);
      return;
    }
    if constexpr (kWide) cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
    store(params, storage, consume(storage, slice), rank, splits, n0, m0);
  }

  __device__ static void produce(Params const& params, SharedStorage& storage, Slice const& slice, int n0, int m0) {
    int const lane = threadIdx.x % 32;
    if (!grouped && lane != 0) return;
    int const early = params.constant_weights ? min(slice.count, stages) : 0;
    for (int t = 0; t < early && lane == 0; ++t) load_weights(params, storage, slice.first, t, n0);
    cutlass::arch::wait_on_dependent_grids();
    for (int t = 0; t < slice.count; ++t) {
      int const stage = t % stages;
      if (t >= early) {
        storage.freed[stage].wait(((t / stages) & 1) ^ 1);
        if (lane == 0) load_weights(params, storage, slice.first, t, n0);
      }
      if constexpr (grouped) load_factors(params, storage, (slice.first + t) * kBlocks, stage, n0, m0, lane);
      if (lane != 0) continue;
      for (int b = 0; b < kBlocks; ++b) {
        cute::SM90_TMA_LOAD_2D::copy(&params.tokens, reinterpret_cast<uint64_t*>(&storage.filled[stage]),
                                     static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST), storage.tokens[stage] + b * kBoxBytes,
                                     (slice.first + t) * kTileK + b * kBlockColumns, m0);
      }
    }
  }

  // Announces all bytes of a stage, and loads its weights. Rows beyond the last 64 are that 64's again, and not stored.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, int first, int t, int n0) {
    int const stage = t % stages, last = (params.n + 63) / 64 - 1;
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(kWeightBytes + kTokenBytes);
    for (int g = 0; g < kRowGroups; ++g) {
      int64_t const row = min(n0 / 64 + g, last);
      char const* from = params.weights + (row * params.blocks + (first + t) * kBlocks) * Block::kBytes;
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                   ::"r"(cute::cast_smem_ptr_to_uint(storage.weights[stage] + g * kGroupBytes)), "l"(from), "r"(kGroupBytes),
                     "r"(cute::cast_smem_ptr_to_uint(&filled)), "l"(static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST))
                   : "memory");
    }
  }

  // Scales of tokens and bases of rows for each block of a stage; zeros where there is none.
  __device__ static void load_factors(Params const& params, SharedStorage& storage, int block, int stage, int n0, int m0, int lane) {
    for (int b = 0; b < kBlocks; ++b) {
      for (int i = lane; i < tile_m + kRows; i += 32) {
        bool const of_token = i < tile_m;
        int const row = of_token ? m0 + i : n0 + i - tile_m, rows = of_token ? params.m : params.n;
        bool const inside = row < rows && block + b < params.groups;
        float const* from = (of_token ? params.scales : params.base) + (inside ? int64_t{row} * params.groups + block + b : 0);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     ::"r"(cute::cast_smem_ptr_to_uint(&storage.factors[stage][b * (tile_m + kRows) + i])), "l"(from), "r"(inside ? 4 : 0)
                     : "memory");
      }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 ::"r"(cute::cast_smem_ptr_to_uint(&storage.filled[stage])) : "memory");
  }

  // The sums of this CTA's slice of K, in the registers of the consumers: each group of 128 threads has those of its rows
  // and of its part of K.
  __device__ static auto consume(SharedStorage& storage, Slice const& slice) {
    using namespace cute;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<X*>(&storage.tokens[0][0])), TokenLayout{});
    TiledMma mma;
    int const thread = threadIdx.x % 128, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<tile_m>>{});
    clear(sums);
    // Operand A for two steps of 32 columns: while one is multiplied, the other is made.
    using Fragment = Layout<Shape<Shape<_4, _2, _2>, _1, _2>, Stride<Stride<_1, _4, _8>, _0, _16>>;
    auto left = make_tensor<X>(Fragment{}), right = make_tensor<X>(Fragment{});
    int const first_block = group / kRowGroups * each;
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + group % kRowGroups * kGroupBytes + first_block * Block::kBytes;
    uint32_t const tables = cast_smem_ptr_to_uint(&storage.tables[0]);

    auto multiply = [&](auto& fragment, auto& into, int step, int stage) {
      warpgroup_fence_operand(fragment);
      warpgroup_fence_operand(into);
      warpgroup_arrive();
      gemm(mma, fragment(_, _, 0), fragment_t(_, _, step, stage), into);
      if constexpr (grouped) mma.accumulate_ = GMMA::ScaleOut::One;
      gemm(mma, fragment(_, _, 1), fragment_t(_, _, step + 1, stage), into);
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the other fragment is free again
    };
    auto part = [&] {
      if constexpr (grouped) return make_fragment_like(sums);
      else return 0;
    }();
    int stage = 0, phase = 0, before = 0;
    for (int t = 0; t < slice.count; ++t) {
      storage.filled[stage].wait(phase);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < each; ++b) {
        Block block;
        block.load(own + stage * kWeightBytes + b * Block::kBytes, thread);
        block.template operand<0>(tables, reinterpret_cast<uint32_t*>(&left(0)));
        if constexpr (grouped) {
          mma.accumulate_ = GMMA::ScaleOut::Zero;
          multiply(left, part, (first_block + b) * 4, stage);
          block.template operand<1>(tables, reinterpret_cast<uint32_t*>(&right(0)));
          multiply(right, part, (first_block + b) * 4 + 2, stage);
          warpgroup_wait<0>();
          warpgroup_fence_operand(part);
          add_scaled(storage.factors[stage] + (first_block + b) * (tile_m + kRows), group % kRowGroups * 64, part, sums);
        } else {
          multiply(left, sums, (first_block + b) * 4, stage);
          if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
          block.template operand<1>(tables, reinterpret_cast<uint32_t*>(&right(0)));
          multiply(right, sums, (first_block + b) * 4 + 2, stage);
        }
      }
      if constexpr (grouped) {
        __syncwarp();
        if (thread % 32 == 0) storage.freed[stage].arrive();
      }
      before = stage;
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    return sums;
  }

  // A block's sums by the scale of its tokens and the base of its rows.
  template <class Part, class Sums>
  __device__ static void add_scaled(float const* factors, int row, Part const& part, Sums& sums) {
    using namespace cute;
    auto places = TiledMma{}.get_thread_slice(threadIdx.x % 128).partition_C(make_identity_tensor(Shape<_64, Int<tile_m>>{}));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); ++i) {
      float const factor = factors[get<1>(places(i))] * factors[tile_m + row + get<0>(places(i))];
      sums(i) += part(i) * factor;
    }
  }

  template <class Sums>
  __device__ static void store(Params const& params, SharedStorage& storage, Sums const& sums, int rank, int splits, int n0, int m0) {
    auto* buffer = reinterpret_cast<float*>(&storage);
    Meeting::template keep<TiledMma>(buffer, sums);
    cutlass::arch::wait_on_dependent_grids();  // scales of tokens come from the kernel ahead
    auto const inside = [&](int m, int n) { return m0 + m < params.m && n0 + n < params.n; };
    Meeting::add(buffer, rank, splits, inside, [&](int m, int n, float const(&quad)[4]) { store_quad(params, quad, m0 + m, n0 + n); });
  }

  __device__ static Output finish(Params const& params, float sum, float scale, int n) {
    if constexpr (!grouped) sum = sum * params.base[n] * scale;
    return Output(params.bias == nullptr ? sum : sum + static_cast<float>(params.bias[n]));
  }

  __device__ static void store_quad(Params const& params, float const (&quad)[4], int m, int n) {
    float const scale = grouped ? 1.0f : params.scales[m];
    Output* row = params.d + m * params.ldd + n;
    if (n + 4 <= params.n && params.whole_quads) {
      cutlass::AlignedArray<Output, 4> values;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) values[i] = finish(params, quad[i], scale, n + i);
      *reinterpret_cast<cutlass::AlignedArray<Output, 4>*>(row) = values;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i < params.n) row[i] = finish(params, quad[i], scale, n + i);
      }
    }
  }
};

// Host code: a launch. Rows of activations for boxes of 128 columns.
inline CUresult describe_folded_tokens(CUtensorMap& map, gemmill_blockscaled_args const& x, int tile_m) {
  cuuint64_t const dims[2] = {static_cast<cuuint64_t>(x.k), static_cast<cuuint64_t>(x.m)};
  cuuint64_t const strides[1] = {static_cast<cuuint64_t>(x.lda)};
  cuuint32_t const box[2] = {kBlockColumns, static_cast<cuuint32_t>(tile_m)}, steps[2] = {1, 1};
  return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(x.a), dims, strides, box, steps,
                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <class Kernel, auto entry>
int32_t launch_folded_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  using Output = typename Kernel::Output;
  int64_t const blocks = (x.k + kFoldedColumns - 1) / kFoldedColumns * (kFoldedColumns / kBlockColumns);
  static_assert(kFoldedColumns % Kernel::kTileK == 0, "a stage divides what K is padded to");
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{};
  if (describe_folded_tokens(params.tokens, x, Kernel::kTileM) != CUDA_SUCCESS) return GEMMILL_CANNOT_IMPLEMENT;
  params.weights = static_cast<char const*>(x.b);
  params.base = static_cast<float const*>(x.b_sf);
  params.scales = static_cast<float const*>(x.a_sf);
  params.bias = static_cast<Output const*>(x.bias);
  params.d = static_cast<Output*>(x.d);
  params.ldd = x.ldd;
  params.m = x.m, params.n = x.n;
  params.blocks = static_cast<int32_t>(blocks);
  params.groups = (x.k + kBlockColumns - 1) / kBlockColumns;
  params.constant_weights = how.constant_weights != 0;
  params.whole_quads = x.ldd % 4 == 0 && reinterpret_cast<uintptr_t>(x.d) % 8 == 0;
  int64_t const tiles_m = (int64_t{x.m} + Kernel::kTileM - 1) / Kernel::kTileM;
  int64_t const ctas = (int64_t{x.n} + Kernel::kRows - 1) / Kernel::kRows * tiles_m * x.splits;
  if (ctas > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  LaunchShape const shape{dim3(static_cast<unsigned>(ctas)), dim3(Kernel::kThreads), dim3(static_cast<unsigned>(x.splits)),
                          Kernel::kSharedBytes};
  void* parameters[] = {&params};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::blockscaled
