// The product of 2:4 sparse weights and rows in boxes (persistent_upcast.cuh): an instruction takes 32 columns, and 16 kept codes.
#pragma once

#include "fused_experts/persistent_upcast.cuh"

namespace gemmill::fused_moe {

// The last word has places.
template <int group>
struct UpcastProducts<blockscaled::SparseFp4Block<group>> {
  using Block = blockscaled::SparseFp4Block<group>;
  static constexpr int kWords = 9;

  __device__ static void make(Block const& block, uint32_t told, uint32_t (&words)[kWords]) {
    block.operands(told, words);
    words[8] = block.places;
  }
  template <int rows>
  __device__ static void multiply_many(float (&sums)[32], uint32_t const (&words)[kWords], uint64_t at) {
    SparseWgmma<rows, 0>::add(sums, words, at, words[8]);
    SparseWgmma<rows, 1>::add(sums, words + 4, at + 4, words[8]);
  }
};

}  // namespace gemmill::fused_moe
