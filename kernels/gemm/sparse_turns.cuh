// How a group of 128 threads takes stages of 2:4 sparse weights (packed_grouped_mm.cuh has that of dense ones): the sparse tensor core
// multiplies 32 columns at a time, of which 16 are kept.
#pragma once

#include "gemm/sparse_e2m1.cuh"
#include "gemm/packed_grouped_mm.cuh"

namespace gemmill::moe {

template <class Block, int blocks, int each, int tile_m, int stages, bool grouped, int k_groups>
struct WarpgroupTurns<blockscaled::SparseWarpgroupProducts<Block, blocks, each, tile_m, stages, grouped>, k_groups>
    : WarpgroupTurns<blockscaled::WarpgroupProducts<Block, blocks, each, tile_m, stages, grouped>, k_groups> {
  using Products = blockscaled::WarpgroupProducts<Block, blocks, each, tile_m, stages, grouped>;

  // A thread's part of a block during its product.
  struct Made {
    uint32_t operands[8], places;

    __device__ void make(uint32_t address, uint32_t told, int thread) {
      Block block;
      block.load(address, thread);
      block.operands(told, operands);
      places = block.places;
    }
    __device__ void fence() {
      CUTLASS_PRAGMA_UNROLL
      for (uint32_t& word : operands) cute::warpgroup_fence_operand(word);
      cute::warpgroup_fence_operand(places);
    }
  };

  // The sums of `count` stages from the ring's place on. While the tensor core multiplies one block, the group makes the next.
  template <class Storage>
  __device__ static auto consume(Storage& storage, uint32_t told, Ring<Products::kStages>& ring, int count, int row_group, int) {
    using namespace cute;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<typename Products::Input*>(&storage.tokens[0][0])), typename Products::TokenLayout{});
    typename Products::TiledMma mma;
    int const thread = threadIdx.x % Products::kThreads;
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<Products::kTileM>>{});
    clear(sums);
    Made left, right;
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * Products::kBlocks * Block::kBytes;

    // Steps of a dense product are 16 columns, and a descriptor says where columns begin.
    auto multiply = [&](Made& made, int step, int stage) {
      made.fence();
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      multiply_half<GMMA::SparseSel::Zero>(sums, made.operands, *fragment_t(_, _, step, stage).data(), made.places);
      multiply_half<GMMA::SparseSel::One>(sums, made.operands + 4, *fragment_t(_, _, step + 2, stage).data(), made.places);
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the other block's registers are free again
    };
    int before = 0;
    for (int t = 0; t < count; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      storage.show_to_tensor_core();
      uint32_t const at = own + ring.stage * sizeof(storage.weights[0]);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < Products::kBlocks; b += 2) {
        left.make(at + b * Block::kBytes, told, thread);
        multiply(left, b * 4, ring.stage);
        if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
        right.make(at + (b + 1) * Block::kBytes, told, thread);
        multiply(right, b * 4 + 4, ring.stage);
      }
      before = ring.stage;
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    if (count > 0 && thread % 32 == 0) storage.freed[before].arrive();
    return sums;
  }

 private:
  template <cute::GMMA::SparseSel selector, class Sums>
  __device__ static void multiply_half(Sums& sums, uint32_t const* operands, uint64_t tokens, uint32_t places) {
    multiply_by<blockscaled::SparseWgmma<tile_m, selector>>(sums, operands, tokens, places, cute::make_int_sequence<tile_m / 2>{});
  }
  template <class Op, class Sums, int... i>
  __device__ static void multiply_by(Sums& sums, uint32_t const* a, uint64_t tokens, uint32_t places, cute::int_sequence<i...>) {
    Op::fma(a[0], a[1], a[2], a[3], tokens, sums(i)..., places);
  }
};

}  // namespace gemmill::moe
