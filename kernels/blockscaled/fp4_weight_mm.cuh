// Few rows of bf16 against many weights of 4 bits, on Hopper: D[m, n] = alpha * sum over k of A[m, k] W[n, k] + bias[n], computed
// as D^T = W A^T.
//
// Weights fill the tensor core's 64 rows and come to it from registers, where codes and scales have become bf16, exactly.
// Activations are its columns, read from shared memory. A cluster of CTAs shares one output tile: each takes a slice of K,
// and the partial sums meet in distributed shared memory in a fixed order: no workspace, no second kernel, and a result
// that does not depend on timing.
//
// Time goes to reading the weights, and next to making bf16 of them, which is work for the logic unit. So what a thread
// reads lies together in 16 bytes, the bits of a code lie where few instructions find them, and while the tensor core
// multiplies one half of a block, the other is made.
//
// Before the kernel ahead of this one has ended only weights are read, and those only if the caller has said that they are
// constant: then every stage of them is loaded early.
#pragma once

#include <climits>
#include <cuda.h>

#include "blockscaled/abi.h"
#include "blockscaled/widen_e2m1.cuh"
#include "core/launch.cuh"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/array.h"

namespace gemmill::blockscaled {

inline constexpr int64_t kStageColumns = 256;  // to a multiple of which K is padded where weights are packed

// row_groups times k_groups groups of 128 threads multiply: 64 rows of weights each, and `each` blocks of 64 columns of a stage.
template <class Format, int row_groups, int k_groups, int each, int tile_m, int stages>
struct Fp4WeightMm {
  using X = cutlass::bfloat16_t;
  using Block = Fp4Block<Format>;
  using Filled = cutlass::arch::ClusterTransactionBarrier;
  using Freed = cutlass::arch::ClusterBarrier;

  static constexpr uint32_t kSpread = Format::kSpread;
  static constexpr int kRows = 64 * row_groups;  // columns of D
  static constexpr int kTileM = tile_m;
  static constexpr int kBlocks = each * k_groups;
  static constexpr int kTileK = 64 * kBlocks;
  static constexpr int kGroupBytes = kBlocks * Block::kBytes;  // of 64 rows in a stage
  static constexpr int kWeightBytes = row_groups * kGroupBytes;
  static constexpr int kBoxBytes = tile_m * 128;  // of activations: 64 columns
  static constexpr int kTokenBytes = kBlocks * kBoxBytes;
  static constexpr int kConsumers = 128 * row_groups * k_groups;
  static constexpr int kThreads = kConsumers + 32;  // and the warp that loads
  static constexpr int kPitch = kRows + 4;          // of a row of partial sums: 16-byte rows, banks apart

  static_assert(tile_m % 8 == 0 && tile_m <= 256, "the tensor core takes 8 to 256 columns in steps of 8");
  static_assert(kGroupBytes % 16 == 0, "a bulk copy is whole pieces of 16 bytes");

  using Op = decltype(cute::GMMA::rs_op_selector<X, X, float, cute::Shape<cute::_64, cute::Int<tile_m>, cute::_16>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}));
  using TokenLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<X>{},
                                                   cute::Shape<cute::Int<tile_m>, cute::Int<kTileK>, cute::Int<stages>>{}));

  struct Params {
    CUtensorMap tokens;   // boxes of tile_m rows and 64 columns, swizzled by 128 bytes
    char const* weights;  // blocks of 64 rows and 64 columns, along K first
    float const* alpha;  // one value, or null for 1
    float const* base;   // [n]
    X const* bias;       // [n], or null for none
    X* d;
    int64_t ldd;
    int32_t m, n;
    int32_t blocks;   // of weights along K, a multiple of kBlocks
    uint32_t spread;  // Format::kSpread, of which the compiler must know nothing: it would multiply by it in the logic unit
    bool constant_weights;
    bool whole_quads;  // whether rows of D begin at multiples of 8 bytes
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[stages][kTokenBytes];
    alignas(128) char weights[stages][kWeightBytes];
    Filled filled[stages];
    Freed freed[stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;       // room to align the base
  static constexpr int kCtas = kSharedBytes <= 113 * 1024 ? 2 : 1;        // on a multiprocessor
  static_assert(k_groups * tile_m * kPitch * 4 <= stages * (kWeightBytes + kTokenBytes), "partial sums reuse the stages");

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
      for (auto& barrier : storage.filled) barrier.init(1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    cutlass::arch::launch_dependent_grids();

    if (threadIdx.x >= kConsumers) {
      if (threadIdx.x == kConsumers) produce(params, storage, slice, n0, m0);
      __syncwarp();
      if (splits > 1) {  // the two meetings of the cluster in `store`
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
      }
      return;
    }
    store(params, storage, consume(params, storage, slice), rank, splits, n0, m0);
  }

  __device__ static void produce(Params const& params, SharedStorage& storage, Slice const& slice, int n0, int m0) {
    int const early = params.constant_weights ? min(slice.count, stages) : 0;
    for (int t = 0; t < early; ++t) load_weights(params, storage, slice.first, t, n0);
    cutlass::arch::wait_on_dependent_grids();
    for (int t = 0; t < slice.count; ++t) {
      int const stage = t % stages;
      if (t >= early) {
        storage.freed[stage].wait(((t / stages) & 1) ^ 1);
        load_weights(params, storage, slice.first, t, n0);
      }
      for (int b = 0; b < kBlocks; ++b) {
        cute::SM90_TMA_LOAD_2D::copy(&params.tokens, reinterpret_cast<uint64_t*>(&storage.filled[stage]),
                                     static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST), storage.tokens[stage] + b * kBoxBytes,
                                     (slice.first + t) * kTileK + b * 64, m0);
      }
    }
  }

  // Announces all bytes of a stage, and loads its weights. Rows beyond the last 64 are that 64's again, and not stored.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, int first, int t, int n0) {
    int const stage = t % stages, last = (params.n + 63) / 64 - 1;
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(kWeightBytes + kTokenBytes);
    for (int g = 0; g < row_groups; ++g) {
      int64_t const row = min(n0 / 64 + g, last);
      char const* from = params.weights + (row * params.blocks + (first + t) * kBlocks) * Block::kBytes;
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                   ::"r"(cute::cast_smem_ptr_to_uint(storage.weights[stage] + g * kGroupBytes)), "l"(from), "r"(kGroupBytes),
                     "r"(cute::cast_smem_ptr_to_uint(&filled)), "l"(static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST))
                   : "memory");
    }
  }

  // The sums of this CTA's slice of K, in the registers of the consumers: each group of 128 threads has those of its rows
  // and of its part of K.
  __device__ static auto consume(Params const& params, SharedStorage& storage, Slice const& slice) {
    using namespace cute;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<X*>(&storage.tokens[0][0])), TokenLayout{});
    TiledMma mma;
    int const thread = threadIdx.x % 128, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<tile_m>>{});
    clear(sums);
    // Operand A for two steps of 16 columns: while one is multiplied, the other is made.
    using Fragment = Layout<Shape<Shape<_2, _2, _2>, _1, _2>, Stride<Stride<_1, _2, _4>, _0, _8>>;
    auto left = make_tensor<X>(Fragment{}), right = make_tensor<X>(Fragment{});
    int const first_block = group / row_groups * each;
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + group % row_groups * kGroupBytes + first_block * Block::kBytes;

    auto multiply = [&](auto& fragment, int step, int stage) {
      warpgroup_fence_operand(fragment);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment(_, _, 0), fragment_t(_, _, step, stage), sums);
      gemm(mma, fragment(_, _, 1), fragment_t(_, _, step + 1, stage), sums);
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the other fragment is free again
    };
    int stage = 0, phase = 0, before = 0;
    for (int t = 0; t < slice.count; ++t) {
      storage.filled[stage].wait(phase);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < each; ++b) {
        Block block;
        block.load(own + stage * kWeightBytes + b * Block::kBytes, thread);
        block.template operand<0>(params.spread, reinterpret_cast<uint32_t*>(&left(0)));
        multiply(left, (first_block + b) * 4, stage);
        if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
        block.template operand<1>(params.spread, reinterpret_cast<uint32_t*>(&right(0)));
        multiply(right, (first_block + b) * 4 + 2, stage);
      }
      before = stage;
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    return sums;
  }

  // Partial sums go to this CTA's shared memory, token by token; then the cluster's CTAs divide the tile among them, add up
  // all parts in order of K, and store rows of D along n.
  template <class Sums>
  __device__ static void store(Params const& params, SharedStorage& storage, Sums const& sums, int rank, int splits, int n0, int m0) {
    using namespace cute;
    auto* buffer = reinterpret_cast<float*>(&storage);
    int const group = threadIdx.x / 128;
    auto* own = buffer + group / row_groups * tile_m * kPitch + group % row_groups * 64;
    auto const layout = make_layout(Shape<_64, Int<tile_m>>{}, Stride<_1, Int<kPitch>>{});
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // every group has read the stages that this overwrites
    copy(sums, TiledMma{}.get_thread_slice(threadIdx.x % 128).partition_C(make_tensor(make_smem_ptr(own), layout)));
    if (splits > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      cutlass::arch::NamedBarrier::sync(kConsumers, 1);
    }

    float const alpha = (params.alpha == nullptr ? 1.0f : *params.alpha) * Format::kShort;
    constexpr int kQuads = tile_m * kRows / 4;
    for (int i = rank * kConsumers + threadIdx.x; i < kQuads; i += splits * kConsumers) {
      int const m = i / (kRows / 4);
      int const n = i % (kRows / 4) * 4;
      if (m0 + m >= params.m || n0 + n >= params.n) continue;
      float quad[4] = {};
      uint32_t const address = cast_smem_ptr_to_uint(buffer + m * kPitch + n);
      for (int s = 0; s < splits; ++s) {
        CUTLASS_PRAGMA_UNROLL
        for (int g = 0; g < k_groups; ++g) add_remote(quad, address + g * tile_m * kPitch * 4, s);
      }
      store_quad(params, quad, alpha, m0 + m, n0 + n);
    }
    if (splits > 1) {
      cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cluster_wait();
    }
  }

  __device__ static X finish(Params const& params, float sum, float alpha, int n) {
    sum *= params.base[n];
    sum *= alpha;
    return X(params.bias == nullptr ? sum : sum + static_cast<float>(params.bias[n]));
  }

  __device__ static void store_quad(Params const& params, float const (&quad)[4], float alpha, int m, int n) {
    X* row = params.d + m * params.ldd + n;
    if (n + 4 <= params.n && params.whole_quads) {
      cutlass::AlignedArray<X, 4> values;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) values[i] = finish(params, quad[i], alpha, n + i);
      *reinterpret_cast<cutlass::AlignedArray<X, 4>*>(row) = values;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i < params.n) row[i] = finish(params, quad[i], alpha, n + i);
      }
    }
  }

  __device__ static void add_remote(float (&quad)[4], uint32_t address, int rank) {
    uint32_t remote, bits[4];
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "r"(remote)
                 : "memory");
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) quad[i] += __uint_as_float(bits[i]);
  }
};

// Host code: a launch. Rows of activations for boxes of 64 columns.
inline CUresult describe_tokens(CUtensorMap& map, gemmill_blockscaled_args const& x, int tile_m) {
  cuuint64_t const dims[2] = {static_cast<cuuint64_t>(x.k), static_cast<cuuint64_t>(x.m)};
  cuuint64_t const strides[1] = {static_cast<cuuint64_t>(x.lda) * 2};
  cuuint32_t const box[2] = {64, static_cast<cuuint32_t>(tile_m)}, steps[2] = {1, 1};
  return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(x.a), dims, strides, box, steps,
                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <class Kernel, auto entry>
int32_t launch_fp4_weight_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  using X = typename Kernel::X;
  int64_t const blocks = (x.k + kStageColumns - 1) / kStageColumns * (kStageColumns / 64);
  static_assert(kStageColumns % Kernel::kTileK == 0, "a stage divides what K is padded to");
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{};
  if (describe_tokens(params.tokens, x, Kernel::kTileM) != CUDA_SUCCESS) return GEMMILL_CANNOT_IMPLEMENT;
  params.weights = static_cast<char const*>(x.b);
  params.alpha = x.alpha;
  params.base = static_cast<float const*>(x.b_sf);
  params.bias = static_cast<X const*>(x.bias);
  params.d = static_cast<X*>(x.d);
  params.ldd = x.ldd;
  params.m = x.m, params.n = x.n;
  params.blocks = static_cast<int32_t>(blocks);
  params.spread = Kernel::kSpread;
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
