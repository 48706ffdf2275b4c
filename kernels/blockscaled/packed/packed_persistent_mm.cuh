// Packed 4-bit weights on Hopper as in packed_mm.cuh, for a large M, by persistent CTAs: as many as multiprocessors take tiles in turns.
// Sums pass through the last two stages of a tile, 64 tokens in each at a time, while the loader fills the others with the next tile's
// first stages. K comes in one slice.
#pragma once

#include "blockscaled/packed/packed_launch.cuh"
#include "gemm/packed_mm.cuh"

namespace gemmill::blockscaled {

template <class Products, class Output_, int row_groups, int k_groups>
struct PackedPersistentMm : PackedMm<Products, Output_, row_groups, k_groups> {
  using Base = PackedMm<Products, Output_, row_groups, k_groups>;
  using typename Base::Block, typename Base::Ends, typename Base::Output, typename Base::Params, typename Base::SharedStorage, typename Base::Input;
  using Base::kConsumers, Base::kLoaderRegisters, Base::kRows, Base::kSumRegisters, Base::kThreads, Base::kTileM, Base::kStages, Base::kBlocks, Base::kTileK,
      Base::kGroupBytes, Base::kWeightBytes, Base::kTokenBytes;

  static constexpr bool kPersistent = true;

  static_assert(k_groups == 1 && row_groups == 2 && kTileM == 256, "two groups of 128 threads have the sums of a tile");
  static_assert(Base::kWide && !Base::kGrouped, "sums are multiplied by scales of rows, at the end");
  static_assert(kBlocks == 1 && kTokenBytes == 64 * kRows * 4 && kStages > 2, "a stage has room for the sums of 64 tokens");

  // Of those in order: tiles of activations come first, so that neighbours share weights.
  struct Tile {
    int n0, m0;

    __device__ Tile(Params const& params, unsigned tile) {
      unsigned const tiles_m = (params.m + kTileM - 1) / kTileM;
      n0 = static_cast<int>(tile / tiles_m) * kRows, m0 = static_cast<int>(tile % tiles_m) * kTileM;
    }
  };
  __device__ static unsigned tiles_of(Params const& params) {
    return static_cast<unsigned>((params.m + kTileM - 1) / kTileM) * static_cast<unsigned>((params.n + kRows - 1) / kRows);
  }

  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
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
    int const count = params.blocks / kBlocks;
    unsigned const tiles = tiles_of(params);
    if (threadIdx.x >= kConsumers) {
      cutlass::arch::warpgroup_reg_dealloc<kLoaderRegisters>();
      if (threadIdx.x == kConsumers) {
        cutlass::arch::wait_on_dependent_grids();
        int stage = 0, phase = 1;
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
          Tile const at(params, tile);
          for (int t = 0; t < count; ++t) {
            storage.freed[stage].wait(phase);
            load(params, storage, stage, t, at);
            if (++stage == kStages) stage = 0, phase ^= 1;
          }
        }
      }
      return;
    }
    cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
    cutlass::arch::wait_on_dependent_grids();
    int const row_group = __shfl_sync(~0u, threadIdx.x / Products::kThreads, 0);
    uint32_t const told = Block::kEntries > 0 ? cute::cast_smem_ptr_to_uint(storage.tables) : params.spread;
    multiply(params, storage, told, count, row_group, tiles);
  }

  // Weights and activations of a step.
  __device__ static void load(Params const& params, SharedStorage& storage, int stage, int t, Tile const& at) {
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(kWeightBytes + kTokenBytes);
    for (int g = 0; g < row_groups; ++g) {
      load_bulk(cute::cast_smem_ptr_to_uint(storage.weights[stage] + g * kGroupBytes), Base::weights_of(params, t, at.n0, g), kGroupBytes, filled);
    }
    load_box(params.tokens, filled, storage.tokens[stage], t * kTileK, at.m0);
  }

  // All tiles of this CTA, as WarpgroupProducts multiplies one.
  __device__ static void multiply(Params const& params, SharedStorage& storage, uint32_t told, int count, int row_group, unsigned tiles) {
    using namespace cute;
    using TiledMma = typename Products::TiledMma;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Input*>(&storage.tokens[0][0])), typename Products::TokenLayout{});
    TiledMma mma;
    int const thread = threadIdx.x % 128;
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<kTileM>>{});
    auto left = make_tensor<Input>(typename Products::Fragment{}), right = make_tensor<Input>(typename Products::Fragment{});
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * Block::kBytes;
    auto product = [&](auto& fragment, int step, int stage) {
      warpgroup_fence_operand(fragment);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment(_, _, 0), fragment_t(_, _, step, stage), sums);
      gemm(mma, fragment(_, _, 1), fragment_t(_, _, step + 1, stage), sums);
      warpgroup_commit_batch();
      warpgroup_wait<1>();
    };
    int stage = 0, phase = 0;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      clear(sums);
      int before = stage, last[2] = {stage, stage};
      for (int t = 0; t < count; ++t) {
        storage.filled[stage].wait(phase);
        Block block;
        block.load(own + stage * sizeof(storage.weights[0]), thread);
        block.template operand<0>(told, reinterpret_cast<uint32_t*>(&left(0)));
        product(left, 0, stage);
        if (t > 0 && t < count - 1 && thread % 32 == 0) storage.freed[before].arrive();  // the last but one is kept
        block.template operand<1>(told, reinterpret_cast<uint32_t*>(&right(0)));
        product(right, 2, stage);
        last[0] = before, last[1] = stage;
        before = stage;
        if (++stage == kStages) stage = 0, phase ^= 1;
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      store(params, storage, sums, last, row_group, Tile(params, tile));
    }
  }

  // A lane's four columns of a token lie apart from those of its neighbours, and pairs of tokens exchange places, so that no banks
  // conflict.
  template <class Sums>
  __device__ static void store(Params const& params, SharedStorage& storage, Sums const& sums, int const (&last)[2], int row_group, Tile const& at) {
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = row_group * 64 + warp % 4 * 16 + lane / 4, pair = lane % 4;
    Ends const ends(params, at.n0);
    int const column = lane * 4;
    CUTLASS_PRAGMA_UNROLL
    for (int round = 0; round < 2; ++round) {
      cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // every group has read the bytes that this overwrites
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 16; ++j) {  // eights of tokens
        auto* const to = reinterpret_cast<float*>(storage.tokens[last[j / 8]]);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          int const token = j % 8 * 8 + pair * 2 + i % 2;
          to[token * 128 + ((row + i / 2 * 8) ^ (pair * 8))] = sums(round * 64 + j * 4 + i);
        }
      }
      cutlass::arch::NamedBarrier::sync(kConsumers, 1);
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        float4 quads[8];
        float scales[8];
        auto const* const from = reinterpret_cast<float const*>(storage.tokens[last[half]]);
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 8; ++j) {
          int const token = j * 8 + warp, m = at.m0 + round * 128 + half * 64 + token;
          quads[j] = *reinterpret_cast<float4 const*>(from + token * 128 + (column ^ (token / 2 % 4 * 8)));
          scales[j] = Base::kScaled ? params.scales[min(m, params.m - 1)] : 1.0f;
        }
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 8; ++j) {
          int const m = at.m0 + round * 128 + half * 64 + j * 8 + warp, n = at.n0 + column;
          float const quad[4] = {quads[j].x, quads[j].y, quads[j].z, quads[j].w};
          if (m < params.m && n < params.n) Base::store_quad(params, quad, ends, [&] { return scales[j]; }, m, n);
        }
      }
    }
    cutlass::arch::fence_view_async_shared();  // TMA writes these stages next
    __syncwarp();
    if (lane == 0) storage.freed[last[0]].arrive(), storage.freed[last[1]].arrive();
  }
};

}  // namespace gemmill::blockscaled
