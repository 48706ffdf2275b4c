// Codes of e2m1 to e4m3 as fold_e2m1.cuh makes them, a block at a time and with fewer instructions: where weights of few rows are read as fast as
// memory gives them, the logic unit binds.
#pragma once

#include "gemm/fold_e2m1.cuh"

namespace gemmill::fused_moe {

// `Block`: a FoldedBlock.
template <class Block>
struct QuickBlock : Block {
  using Format = decltype(Block::scales);
  static constexpr uint32_t kSpread = 1 << 16;

  // Operands of a block's two halves. `spread`: kSpread, of which the compiler must know nothing: it would shift in the logic unit.
  __device__ void operands(uint32_t tables, uint32_t spread, uint32_t* first, uint32_t* last) const {
    if constexpr (std::is_same_v<Format, blockscaled::MxFp4Folded>) {
      if ((this->scales.above & Format::kListed) == 0) return fold_linear(spread, first, last);
    }
    this->template operand<0>(tables, first);
    this->template operand<1>(tables, last);
  }

  // That of one half.
  template <int half>
  __device__ void half_of(uint32_t tables, uint32_t spread, uint32_t* out) const {
    if constexpr (std::is_same_v<Format, blockscaled::MxFp4Folded>) {
      if ((this->scales.above & Format::kListed) == 0) return fold_linear_half<half>(spread, out);
    }
    this->template operand<half>(tables, out);
  }

 private:
  // Of blocks without a table in shared memory.
  __device__ void fold_linear(uint32_t spread, uint32_t* first, uint32_t* last) const {
    fold_linear_half<0>(spread, first);
    fold_linear_half<1>(spread, last);
  }
  template <int half>
  __device__ void fold_linear_half(uint32_t spread, uint32_t* out) const {
    constexpr uint32_t kLow = 0x3C383000u - 64 * 0x01010100u, kHigh = 0x4C484440u - 64 * 0x01010101u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t const byte = blockscaled::byte_of(i % 2 == 0 ? this->scales.above : this->scales.below, 2 * half + i / 2);
      uint32_t* const to = out + i / 2 * 4 + i % 2;
      fold(this->codes[2 * half + i / 2][i % 2], byte * 0x01010100u + kLow, byte * 0x01010101u + kHigh, spread, to[0], to[2]);
    }
  }

  // As blockscaled::fold. Of __byte_perm nvcc 13.0 masks selectors once more.
  __device__ static void fold(uint32_t codes, uint32_t few, uint32_t more, uint32_t spread, uint32_t& low, uint32_t& high) {
    constexpr uint32_t kSigns = 0x80808080u;
    uint32_t places, above;
    asm("and.b32 %0, %1, 0x77777777;" : "=r"(places) : "r"(codes));
    asm("{.reg .u64 t; .reg .u32 u; mul.wide.u32 t, %1, %2; mov.b64 {u, %0}, t;}" : "=r"(above) : "r"(places), "r"(spread));
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(low) : "r"(few), "r"(more), "r"(places));
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(few), "r"(more), "r"(above));
    low = blockscaled::with_bits(low, codes, kSigns);
    high = blockscaled::with_bits(high, codes * 16, kSigns);
  }
};

}  // namespace gemmill::fused_moe
