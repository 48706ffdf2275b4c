// Packed 4-bit weights on Hopper: D[m, n] = alpha * base[n] * scale[m] * sum over k of A[m, k] W[n, k] + bias[n], computed as
// D^T = W A^T. A is of bf16, or of e4m3 with a scale for each row, or for each 128 columns of it.
//
// Weights fill the tensor core's rows and come to it from registers, where codes and scales have become numbers of its type.
// Activations are its columns, read from shared memory. A cluster of CTAs shares one output tile: each takes a slice of K,
// and the partial sums meet in distributed shared memory in a fixed order: no workspace, no second kernel, and a result
// that does not depend on timing.
//
// Time goes to reading the weights, and next to making numbers of them, which is work for the logic unit. So a thread's data lie together
// in 16 bytes, the bits of a code lie where few instructions find them, and while the tensor core multiplies one half of a block, threads
// make the other.
//
// Before the kernel ahead of this one has ended it reads only weights, and those only if the caller has said that they are constant: then
// it loads every stage of them early.
#pragma once

#include <algorithm>
#include <climits>
#include <cuda.h>

#include "gemm/fold_e2m1.cuh"
#include "gemm/partial_sums.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/warp_products.cuh"
#include "gemm/warpgroup_products.cuh"
#include "gemm/widen_e2m1.cuh"
#include "core/launch.cuh"
#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/array.h"

namespace gemmill::blockscaled {

inline constexpr int64_t kStageColumns = 256;  // K is padded to a multiple of it in packed weights
inline constexpr int kGroupColumns = 128;      // that share a scale of activations and a base

// row_groups times k_groups groups of threads multiply: 64 rows of weights each, and a part of the columns of a stage. More than
// divide a stage take stages in turns. Who a group is and how it multiplies is `Products`'s: a warp for few tokens, four for more.
template <class Products, class Output_, int row_groups, int k_groups>
struct PackedMm {
  using Output = Output_;
  using Input = typename Products::Input;
  using Block = typename Products::Block;

  static constexpr bool kPersistent = false;  // else a CTA has a tile
  static constexpr bool kGrouped = Products::kGrouped;
  static constexpr bool kScaled = sizeof(Input) == 1;  // whether tokens have scales
  static constexpr uint32_t kSpread = Block::kSpread;
  static constexpr int kRows = 64 * row_groups;  // columns of D
  static constexpr int kTileM = Products::kTileM, kBlocks = Products::kBlocks, kStages = Products::kStages;
  static constexpr int kColumns = 128 / sizeof(Input);  // of a block
  static constexpr int kTileK = kColumns * kBlocks;
  static constexpr int kGroupBytes = kBlocks * Block::kBytes;  // of 64 rows in a stage
  static constexpr int kWeightBytes = row_groups * kGroupBytes;
  static constexpr int kBoxBytes = kTileM * 128;  // of activations: the columns of a block
  static constexpr int kTokenBytes = kBlocks * kBoxBytes;
  static constexpr int kConsumers = Products::kThreads * row_groups * k_groups;
  static constexpr int kTurns = Products::kEach * k_groups / Products::kParts, kTogether = k_groups / kTurns;
  static constexpr bool kWide = Products::kWide;  // sums take registers that threads next to them give away, which only 128 together can
  static constexpr int kThreads = kConsumers + (kWide ? 128 : 32);  // and the warp that loads
  static constexpr int kPitch = kRows + 4;                          // of a row of partial sums: 16-byte rows, banks apart
  static constexpr int kFactors = kTileM + kRows;                   // of a block: of tokens, then of rows

  // The first steps of all threads, and their roles. More than these together would be waited for forever.
  static constexpr int kEvenRegisters = 65536 / kThreads / 8 * 8, kLoaderRegisters = kGrouped ? 40 : 24;
  static constexpr int kSumRegisters = std::min((kEvenRegisters * kThreads - kLoaderRegisters * 128) / kConsumers / 8 * 8, 240);

  static_assert(kTileM % 8 == 0 && kTileM <= 256, "the tensor core takes 8 to 256 columns in steps of 8");
  static_assert(kGroupBytes % 16 == 0, "a bulk copy is whole pieces of 16 bytes");
  static_assert(kTurns >= 1 && Products::kParts * kTurns == Products::kEach * k_groups, "groups divide the parts of a stage evenly");
  static_assert(kStageColumns % kTileK == 0, "a stage divides what K is padded to");
  static_assert(kTileM * (kGrouped ? 2 : 1) <= 256 / k_groups * (256 / Products::kThreads), "sums fit the registers of so many threads");

  struct Params {
    CUtensorMap tokens;   // boxes of tile_m rows of 128 bytes, swizzled by as many
    char const* weights;  // blocks of 64 rows, along K first
    float const* alpha;   // one value, or null for 1
    float const* base;    // [n], or [n, groups]
    float const* scales;  // [m], or [m, groups]; null where tokens have none
    Output const* bias;   // [n], or null for none
    Output* d;
    int64_t ldd;
    int32_t m, n;
    int32_t blocks;   // of weights along K, a multiple of kBlocks
    int32_t groups;   // of 128 columns
    uint32_t spread;  // Block::kSpread, of which the compiler must know nothing: it would multiply by it in the logic unit
    bool constant_weights;
    bool whole_quads;  // whether rows of D begin at multiples of 8 bytes
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[kStages][kTokenBytes];
    alignas(128) char weights[kStages][kWeightBytes];
    alignas(16) float factors[kGrouped ? kStages : 1][kGrouped ? kBlocks : 1][kGrouped ? kFactors : 1];
    alignas(16) uint2 tables[std::max(Block::kEntries, 1)];
    Filled filled[kStages];
    Freed freed[kStages];
    static constexpr bool kPersistent = false;
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static constexpr int kCtas = !kWide && kSharedBytes <= 113 * 1024 ? 2 : 1;  // on a multiprocessor
  static_assert(k_groups * kTileM * kPitch * 4 <= kStages * (kWeightBytes + kTokenBytes), "partial sums reuse the stages");

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
    unsigned const tiles_m = (params.m + kTileM - 1) / kTileM;
    int const n0 = static_cast<int>(tile / tiles_m) * kRows;
    int const m0 = static_cast<int>(tile % tiles_m) * kTileM;
    Slice const slice(params.blocks, rank, splits);

    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.tokens);
      for (auto& barrier : storage.filled) barrier.init(kGrouped ? 33 : 1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32 / kTurns);
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (Block::kEntries > 0) {
      for (int i = threadIdx.x; i < Block::kEntries; i += kThreads) storage.tables[i] = Block::table(i);
    }
    __syncthreads();
    cutlass::arch::launch_dependent_grids();

    if (threadIdx.x >= kConsumers) {
      if constexpr (kWide) cutlass::arch::warpgroup_reg_dealloc<kLoaderRegisters>();
      if (threadIdx.x == kConsumers || (kGrouped && threadIdx.x < kConsumers + 32)) {
        produce(params, storage, slice, n0, m0);
      } else {
        prefetch_ends(params, n0);
      }
      __syncwarp();
      if (splits > 1) {  // the two meetings of the cluster in `store`
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
      }
      return;
    }
    if constexpr (kWide) cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
    int const group = __shfl_sync(~0u, threadIdx.x / Products::kThreads, 0), row_group = group % row_groups, part = group / row_groups;
    uint32_t const told = Block::kEntries > 0 ? cute::cast_smem_ptr_to_uint(storage.tables) : params.spread;
    int const first_part = part % kTogether * Products::kEach;
    PipelineState<kStages> ring{part / kTogether, 0};
    auto const sums = Products::template consume<kTurns, Products>(storage, told, ring, slice.count, row_group, first_part, part / kTogether);
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // every group has read the stages that this overwrites
    auto* const buffer = reinterpret_cast<float*>(&storage);
    Products::template put<kPitch>(sums, buffer + part * kTileM * kPitch + row_group * 64);
    store(params, buffer, rank, splits, n0, m0);
  }

  __device__ static void produce(Params const& params, SharedStorage& storage, Slice const& slice, int n0, int m0) {
    int const lane = kGrouped ? threadIdx.x % 32 : 0;
    int const early = params.constant_weights ? min(slice.count, kStages) : 0;
    for (int t = 0; t < early && lane == 0; ++t) load_weights(params, storage, slice.first, t, n0);
    cutlass::arch::wait_on_dependent_grids();
    for (int t = 0; t < slice.count; ++t) {
      int const stage = t % kStages;
      if (t >= early) {
        storage.freed[stage].wait(((t / kStages) & 1) ^ 1);
        if (lane == 0) load_weights(params, storage, slice.first, t, n0);
      }
      if constexpr (kGrouped) load_factors(params, storage, (slice.first + t) * kBlocks, stage, n0, m0, lane);
      if (lane != 0) continue;
      for (int b = 0; b < kBlocks; ++b) {
        load_box(params.tokens, storage.filled[stage], storage.tokens[stage] + b * kBoxBytes, (slice.first + t) * kTileK + b * kColumns, m0);
      }
    }
  }

  // Rows beyond the last 64 are that 64's again, and not stored.
  __device__ static char const* weights_of(Params const& params, int tile, int n0, int block) {
    int64_t const row = min(n0 / 64 + block, (params.n + 63) / 64 - 1);
    return params.weights + (row * params.blocks + tile * kBlocks) * Block::kBytes;
  }

  // Announces all bytes of a stage, and loads its weights.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, int first, int t, int n0) {
    int const stage = t % kStages;
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(kWeightBytes + kTokenBytes);
    for (int g = 0; g < row_groups; ++g) {
      load_bulk(cute::cast_smem_ptr_to_uint(storage.weights[stage] + g * kGroupBytes), weights_of(params, first + t, n0, g), kGroupBytes, filled);
    }
  }

  // Scales of tokens and bases of rows for each block of a stage; zeros where there is none.
  __device__ static void load_factors(Params const& params, SharedStorage& storage, int block, int stage, int n0, int m0, int lane) {
    static_assert(!kGrouped || kColumns == kGroupColumns, "a block's columns share a scale");
    for (int b = 0; b < kBlocks; ++b) {
      for (int i = lane; i < kFactors; i += 32) {
        bool const of_token = i < kTileM;
        int const row = of_token ? m0 + i : n0 + i - kTileM, rows = of_token ? params.m : params.n;
        bool const inside = row < rows && block + b < params.groups;
        float const* from = (of_token ? params.scales : params.base) + (inside ? int64_t{row} * params.groups + block + b : 0);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     ::"r"(cute::cast_smem_ptr_to_uint(&storage.factors[stage][b][i])), "l"(from), "r"(inside ? 4 : 0)
                     : "memory");
      }
    }
    arrive_after_copies(storage.filled[stage]);
  }

  // The factors and addends of the sums of a thread's four columns. Threads fetch them long before: the end of a short kernel is no place
  // to wait for memory. Loads before the last meeting made ptxas serialise products (C7515).
  struct Ends {
    float alpha, base[4];
    Output bias[4];

    __device__ Ends(Params const& params, int n0) {
      int const n = n0 + threadIdx.x % (kRows / 4) * 4, last = params.n - 1;
      alpha = (params.alpha == nullptr ? 1.0f : *params.alpha) * Block::kShort;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) base[i] = kGrouped ? 1.0f : params.base[min(n + i, last)];
      if (params.bias == nullptr) return;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) bias[i] = params.bias[min(n + i, last)];
    }
  };

  // Into L2, where all writes meet: so it need not wait for the kernel ahead.
  __device__ static void prefetch_ends(Params const& params, int n0) {
    int const line = threadIdx.x - kConsumers - 1;  // of 128 bytes
    if (line == 0 && params.alpha != nullptr) prefetch_to_l2(params.alpha);
    if (!kGrouped && line < kRows / 32 && n0 + line * 32 < params.n) prefetch_to_l2(params.base + n0 + line * 32);
    if (line < kRows / 64 && n0 + line * 64 < params.n && params.bias != nullptr) prefetch_to_l2(params.bias + n0 + line * 64);
  }

  // Partial sums lie in this CTA's shared memory, token by token. The cluster's CTAs divide the tile among them, add up all
  // parts in order of K, and store rows of D along n.
  __device__ static void store(Params const& params, float* buffer, int rank, int splits, int n0, int m0) {
    using namespace cute;
    if constexpr (kScaled) cutlass::arch::wait_on_dependent_grids();  // scales of tokens come from the kernel ahead
    if (splits > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      cutlass::arch::NamedBarrier::sync(kConsumers, 1);
    }
    Ends const ends(params, n0);
    add_up<k_groups, kTileM, kRows, kPitch, kConsumers>(buffer, rank, splits, [&](int token, int row, float const(&quad)[4]) {
      int const m = m0 + token;
      if (m < params.m && n0 + row < params.n) store_quad(params, quad, ends, [&] { return params.scales[m]; }, m, n0 + row);
    });
    if (splits > 1) {
      cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cluster_wait();
    }
  }

  // `scale_of` returns the token's scale.
  template <class Scale>
  __device__ static void store_quad(Params const& params, float const (&quad)[4], Ends const& ends, Scale const& scale_of, int m, int n) {
    Output* row = params.d + m * params.ldd + n;
    float factor = ends.alpha;
    if constexpr (kScaled && !kGrouped) factor *= scale_of();
    cutlass::AlignedArray<Output, 4> values;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float const scaled = quad[i] * ends.base[i] * factor;
      values[i] = Output(params.bias == nullptr ? scaled : scaled + static_cast<float>(ends.bias[i]));
    }
    if (n + 4 <= params.n && params.whole_quads) {
      *reinterpret_cast<cutlass::AlignedArray<Output, 4>*>(row) = values;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i < params.n) row[i] = values[i];
      }
    }
  }
};

}  // namespace gemmill::blockscaled
