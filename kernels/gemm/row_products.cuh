// Four warps multiply 64 rows of weights by the few tokens of a tile, by mma.sync: 16 rows each, along all of K. Where warps divide the columns
// of a stage (warp_products.cuh) a row's sums are four; here they are one, in the order in which WGMMA adds them.
#pragma once

#include "gemm/packed_grouped_mm.cuh"
#include "gemm/sparse_e2m1.cuh"

namespace gemmill::blockscaled {

// Adds the products of a warp's 16 rows of a block and the tokens of a tile, four sums of each eight: two halves of two steps of 16 columns.
template <int eights, class Part>
__device__ __forceinline__ void multiply_rows(float* sums, uint32_t told, Part const& part, uint32_t const (&tokens)[eights][4][2]) {
  auto const half = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
    uint32_t operands[8];
    part.template operand<kHalf>(told, operands);
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 2; ++step) {
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < eights; ++e) mma_bf16(sums + 4 * e, operands + 4 * step, tokens[e][2 * kHalf + step]);
    }
  };
  half(std::integral_constant<int, 0>{});
  half(std::integral_constant<int, 1>{});
}

// The same of sparse weights: two instructions of 32 columns.
template <int eights, int group>
__device__ __forceinline__ void multiply_rows(float* sums, uint32_t told, SparseFp4Block<group> const& part, uint32_t const (&tokens)[eights][4][2]) {
  uint32_t operands[8];
  part.operands(told, operands);
  CUTLASS_PRAGMA_UNROLL
  for (int e = 0; e < eights; ++e) {
    auto& d = *reinterpret_cast<float (*)[4]>(sums + 4 * e);
    multiply_sparse<0>(d, operands, tokens[e][0], tokens[e][1], part.places);
    multiply_sparse<1>(d, operands + 4, tokens[e][2], tokens[e][3], part.places);
  }
}

// Four warps multiply 16 rows of weights each by the few tokens of a tile, along all of K: in the order of WGMMA and of larger tiles. All of
// a stage is in registers before its first product.
template <class Part, int parts, int each, int tile_m, int stages, bool grouped>
struct RowWarpProducts {
  using Block = Part;
  using Input = typename Part::Input;
  using Few = WarpProducts<Part, parts, each, tile_m, stages, grouped>;

  static constexpr int kThreads = 128;
  static constexpr int kParts = parts, kBlocks = parts, kEach = each, kTileM = tile_m, kStages = stages, kEights = Few::kEights;
  static constexpr bool kGrouped = grouped, kWide = false;
  static_assert(!grouped && each == parts && Part::kOfBlock == 1, "a warp multiplies all blocks of a stage, of tokens without scales");

  struct Sums {
    float of[kEights][4];
  };

  template <class Storage>
  __device__ static Sums consume(Storage& storage, uint32_t told, PipelineState<stages>& ring, int count, int row_group) {
    Sums sums{};
    int const thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    uint32_t const weights = cute::cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * kBlocks * Part::kBytes;
    uint32_t const tokens = cute::cast_smem_ptr_to_uint(&storage.tokens[0][0]) + lane % 8 * 128;
    for (int t = 0; t < count; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      Part blocks[parts];
      typename Few::Tokens of_blocks[parts];
      CUTLASS_PRAGMA_UNROLL
      for (int p = 0; p < parts; ++p) {
        blocks[p].load(weights + ring.stage * sizeof(storage.weights[0]) + p * Part::kBytes, thread);
        Few::load_tokens(of_blocks[p], tokens + ring.stage * sizeof(storage.tokens[0]) + p * tile_m * 128, 0, lane);
      }
      __syncwarp();
      if (lane == 0) storage.freed[ring.stage].arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int p = 0; p < parts; ++p) multiply_rows(&sums.of[0][0], told, blocks[p], of_blocks[p]);
    }
    return sums;
  }

  // To shared memory, token by token: rows of `pitch` sums.
  template <int tokens, int pitch, int chunk>
  __device__ static void put_chunk(Sums const& sums, float* to) {
    int const row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, token = threadIdx.x % 4 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < tokens / 8; ++e) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) to[(e * 8 + token + i % 2) * pitch + row + i / 2 * 8] = sums.of[chunk * tokens / 8 + e][i];
    }
  }
};

}  // namespace gemmill::blockscaled

namespace gemmill::moe {

template <class Part, int parts, int each, int tile_m, int stages, bool grouped>
inline constexpr bool kByRows<blockscaled::RowWarpProducts<Part, parts, each, tile_m, stages, grouped>> = true;

}  // namespace gemmill::moe
