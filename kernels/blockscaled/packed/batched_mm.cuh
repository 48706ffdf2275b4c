// Packed 4-bit weights on Hopper as in packed_mm.cuh, with another end: a thread asks for eight quads of partial sums, from its own
// CTA and from others, and for the scales of their tokens, before it adds up any. One after another they cost a tile of 256 tokens 16
// waits for shared memory, and as many for memory. The order of sums is the same.
#pragma once

#include "blockscaled/packed/packed_launch.cuh"
#include "gemm/packed_mm.cuh"

namespace gemmill::blockscaled {

inline constexpr int kQuadsAtOnce = 8;

__device__ inline void load_remote(float (&quad)[4], uint32_t address, int rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(quad[0]), "=f"(quad[1]), "=f"(quad[2]), "=f"(quad[3]) : "r"(remote));
}

// As `add_up`. `before(token)` makes the argument of `take` for it.
template <int tokens, int rows, int pitch, int threads, class Before, class Take>
__device__ void add_up_together(float const* buffer, int rank, int splits, Before const& before, Take const& take) {
  static_assert(threads % (rows / 4) == 0, "a thread has the same four columns of every row");
  constexpr int kQuads = tokens * rows / 4;
  int const stride = splits * threads;
  for (int begin = rank * threads + threadIdx.x; begin < kQuads; begin += kQuadsAtOnce * stride) {
    float sums[kQuadsAtOnce][4] = {};
    uint32_t address[kQuadsAtOnce];
    decltype(before(0)) handed[kQuadsAtOnce];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kQuadsAtOnce; ++j) {
      int const i = min(begin + j * stride, kQuads - 1), token = i / (rows / 4), row = i % (rows / 4) * 4;
      address[j] = cute::cast_smem_ptr_to_uint(buffer + token * pitch + row);
      handed[j] = before(token);
    }
    for (int s = 0; s < splits; s += 2) {
      float first[kQuadsAtOnce][4], second[kQuadsAtOnce][4];
      bool const both = s + 1 < splits;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kQuadsAtOnce; ++j) load_remote(first[j], address[j], s);
      if (both) {
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kQuadsAtOnce; ++j) load_remote(second[j], address[j], s + 1);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kQuadsAtOnce; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < 4; ++e) {
          sums[j][e] += first[j][e];
          if (both) sums[j][e] += second[j][e];
        }
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kQuadsAtOnce; ++j) {
      int const i = begin + j * stride;
      if (i < kQuads) take(i / (rows / 4), i % (rows / 4) * 4, sums[j], handed[j]);
    }
  }
}

// Groups of 128 threads, one along K, and scales of rows.
template <class Products, class Output_, int row_groups, int k_groups>
struct BatchedMm : PackedMm<Products, Output_, row_groups, k_groups> {
  using Base = PackedMm<Products, Output_, row_groups, k_groups>;
  using typename Base::Block, typename Base::Ends, typename Base::Output, typename Base::Params, typename Base::SharedStorage, typename Base::Slice;
  using Base::kConsumers, Base::kLoaderRegisters, Base::kPitch, Base::kRows, Base::kSumRegisters, Base::kThreads, Base::kTileM;

  static_assert(k_groups == 1 && Base::kWide && Base::kScaled && !Base::kGrouped, "sums of many tokens, each with a scale");

  // PackedMm's, up to the cluster reduction: tuned shapes depend on that text.
  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    int const rank = cute::block_rank_in_cluster(), splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits), tiles_m = (params.m + kTileM - 1) / kTileM;
    int const n0 = static_cast<int>(tile / tiles_m) * kRows, m0 = static_cast<int>(tile % tiles_m) * kTileM;
    Slice const slice(params.blocks, rank, splits);

    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.tokens);
      for (auto& barrier : storage.filled) barrier.init(1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (Block::kEntries > 0) {
      for (int i = threadIdx.x; i < Block::kEntries; i += kThreads) storage.tables[i] = Block::table(i);
    }
    __syncthreads();
    cutlass::arch::launch_dependent_grids();

    if (threadIdx.x >= kConsumers) {
      cutlass::arch::warpgroup_reg_dealloc<kLoaderRegisters>();
      threadIdx.x == kConsumers ? Base::produce(params, storage, slice, n0, m0) : Base::prefetch_ends(params, n0);
      __syncwarp();
      if (splits > 1) {  // the two meetings of the cluster in `store`
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
      }
      return;
    }
    cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
    int const row_group = __shfl_sync(~0u, threadIdx.x / Products::kThreads, 0);
    uint32_t const told = Block::kEntries > 0 ? cute::cast_smem_ptr_to_uint(storage.tables) : params.spread;
    PipelineState<Base::kStages> ring;
    auto const sums = Products::template consume<1, Products>(storage, told, ring, slice.count, row_group, 0, 0);
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // every group has read the stages that this overwrites
    auto* const buffer = reinterpret_cast<float*>(&storage);
    Products::template put<kPitch>(sums, buffer + row_group * 64);
    store(params, buffer, rank, splits, n0, m0);
  }

  __device__ static void store(Params const& params, float* buffer, int rank, int splits, int n0, int m0) {
    cutlass::arch::wait_on_dependent_grids();  // scales of tokens come from the kernel ahead
    if (splits > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    } else {
      cutlass::arch::NamedBarrier::sync(kConsumers, 1);
    }
    Ends const ends(params, n0);
    auto scale_of = [&](int token) { return params.scales[min(m0 + token, params.m - 1)]; };
    add_up_together<kTileM, kRows, kPitch, kConsumers>(buffer, rank, splits, scale_of, [&](int token, int row, float const(&quad)[4], float scale) {
      if (m0 + token < params.m && n0 + row < params.n) Base::store_quad(params, quad, ends, [=] { return scale; }, m0 + token, n0 + row);
    });
    if (splits > 1) {
      cute::cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cute::cluster_wait();
    }
  }
};

}  // namespace gemmill::blockscaled
