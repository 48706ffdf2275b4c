// A group of 128 threads multiplies 64 rows of weights by the tokens of a tile, by WGMMA.
#pragma once

#include "blockscaled/widen_e2m1.cuh"
#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"

namespace gemmill::blockscaled {

// Of a stage with `blocks` blocks of 64 columns along K, a group multiplies `each`.
template <class Format_, int blocks, int each, int tile_m, int stages>
struct WarpgroupProducts {
  using X = cutlass::bfloat16_t;
  using Format = Format_;
  using Block = Fp4Block<Format>;

  static constexpr int kThreads = 128;
  static constexpr int kBlocks = blocks, kEach = each, kTileM = tile_m, kStages = stages;

  using Op = decltype(cute::GMMA::rs_op_selector<X, X, float, cute::Shape<cute::_64, cute::Int<tile_m>, cute::_16>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}));
  using TokenLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<X>{},
                                                   cute::Shape<cute::Int<tile_m>, cute::Int<64 * blocks>, cute::Int<stages>>{}));

  // The sums of `count` stages, in the group's registers. `first_block` of each is its first.
  template <class Storage>
  __device__ static auto consume(Storage& storage, uint32_t spread, int count, int row_group, int first_block) {
    using namespace cute;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<X*>(&storage.tokens[0][0])), TokenLayout{});
    TiledMma mma;
    int const thread = threadIdx.x % kThreads;
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<tile_m>>{});
    clear(sums);
    // Operand A for two steps of 16 columns: while one is multiplied, the other is made.
    using Fragment = Layout<Shape<Shape<_2, _2, _2>, _1, _2>, Stride<Stride<_1, _2, _4>, _0, _8>>;
    auto left = make_tensor<X>(Fragment{}), right = make_tensor<X>(Fragment{});
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + (row_group * blocks + first_block) * Block::kBytes;

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
    for (int t = 0; t < count; ++t) {
      storage.filled[stage].wait(phase);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < each; ++b) {
        Block block;
        block.load(own + stage * sizeof(storage.weights[0]) + b * Block::kBytes, thread);
        block.template operand<0>(spread, reinterpret_cast<uint32_t*>(&left(0)));
        multiply(left, (first_block + b) * 4, stage);
        if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
        block.template operand<1>(spread, reinterpret_cast<uint32_t*>(&right(0)));
        multiply(right, (first_block + b) * 4 + 2, stage);
      }
      before = stage;
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    return sums;
  }

  // To shared memory, token by token: rows of `pitch` sums, of which this group has 64.
  template <int pitch, class Sums>
  __device__ static void put(Sums const& sums, float* to) {
    using namespace cute;
    auto const layout = make_layout(Shape<_64, Int<tile_m>>{}, Stride<_1, Int<pitch>>{});
    copy(sums, TiledMma{}.get_thread_slice(threadIdx.x % kThreads).partition_C(make_tensor(make_smem_ptr(to), layout)));
  }
};

}  // namespace gemmill::blockscaled
