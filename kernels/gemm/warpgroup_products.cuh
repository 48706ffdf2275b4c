// A group of 128 threads multiplies 64 rows of weights by the tokens of a tile, by WGMMA.
#pragma once

#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "gemm/pipeline.cuh"

namespace gemmill::blockscaled {

// Of a stage with `blocks` blocks along K, a group multiplies `each`. `grouped`: scales of tokens and bases of rows, which the stage has,
// multiply sums of a block, which then join f32 sums.
template <class Block_, int blocks, int each, int tile_m, int stages, bool grouped>
struct WarpgroupProducts {
  using Block = Block_;
  using Input = typename Block::Input;

  static constexpr int kThreads = 128;
  static constexpr int kParts = blocks, kBlocks = blocks, kEach = each, kTileM = tile_m, kStages = stages;
  static constexpr bool kGrouped = grouped;
  static constexpr bool kWide = tile_m * (grouped ? 2 : 1) > Block::kEvenTokens;

  static constexpr int kSpan = 32 / sizeof(Input);  // columns of a product
  using Op = decltype(cute::GMMA::rs_op_selector<Input, Input, float, cute::Shape<cute::_64, cute::Int<tile_m>, cute::Int<kSpan>>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}));
  using TokenLayout = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<Input>{},
                                                   cute::Shape<cute::Int<tile_m>, cute::Int<4 * kSpan * blocks>, cute::Int<stages>>{}));
  // Operand A for two products.
  using OfWord = cute::Int<4 / sizeof(Input)>;
  using Fragment = cute::Layout<cute::Shape<cute::Shape<OfWord, cute::_2, cute::_2>, cute::_1, cute::_2>,
                                cute::Stride<cute::Stride<cute::_1, OfWord, cute::Int<2 * OfWord{}>>, cute::_0, cute::Int<4 * OfWord{}>>>;

  // The sums of `count` stages, in the group's registers. `first_block` of each is its first. The ring of a persistent kernel is elsewhere.
  template <int turns, class Products, class Storage>
  __device__ static auto consume(Storage& storage, uint32_t told, PipelineState<stages> const&, int count, int row_group, int first_block, int) {
    static_assert(turns == 1, "groups of 128 threads multiply every stage");
    using namespace cute;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Input*>(&storage.tokens[0][0])), TokenLayout{});
    TiledMma mma;
    int const thread = threadIdx.x % kThreads;
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<tile_m>>{});
    clear(sums);
    // While the tensor core multiplies one, the group makes the other.
    auto left = make_tensor<Input>(Fragment{}), right = make_tensor<Input>(Fragment{});
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + (row_group * blocks + first_block) * Block::kBytes;

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
    for (int t = 0; t < count; ++t) {
      storage.filled[stage].wait(phase);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < each; ++b) {
        Block block;
        block.load(own + stage * sizeof(storage.weights[0]) + b * Block::kBytes, thread);
        block.template operand<0>(told, reinterpret_cast<uint32_t*>(&left(0)));
        if constexpr (grouped) {
          mma.accumulate_ = GMMA::ScaleOut::Zero;
          multiply(left, part, (first_block + b) * 4, stage);
          block.template operand<1>(told, reinterpret_cast<uint32_t*>(&right(0)));
          multiply(right, part, (first_block + b) * 4 + 2, stage);
          warpgroup_wait<0>();
          warpgroup_fence_operand(part);
          add_scaled(storage.factors[stage][first_block + b], row_group * 64, part, sums);
        } else {
          multiply(left, sums, (first_block + b) * 4, stage);
          if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
          block.template operand<1>(told, reinterpret_cast<uint32_t*>(&right(0)));
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
    auto places = TiledMma{}.get_thread_slice(threadIdx.x % kThreads).partition_C(make_identity_tensor(Shape<_64, Int<tile_m>>{}));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); ++i) {
      float const factor = factors[get<1>(places(i))] * factors[tile_m + row + get<0>(places(i))];
      sums(i) += part(i) * factor;
    }
  }

  // Some tokens to shared memory: eight of them are four sums of a thread, which has two of two rows.
  template <int tokens, int pitch, int chunk, class Sums>
  __device__ static void put_chunk(Sums const& sums, float* to) {
    int const lane = threadIdx.x % 32, row = threadIdx.x % kThreads / 32 * 16 + lane / 4;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < tokens / 2; ++i) {
      int const token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      to[token * pitch + row + i / 2 % 2 * 8] = sums(chunk * tokens / 2 + i);
    }
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
