// Packed nvfp4 weights (gemmill/formats/fp4_blocks.py) to rows of bf16. A CTA has 64 rows and 256 columns, four blocks. A warp has 16 rows
// of each: it decodes them as the GEMM of packed weights does, and exchanges pairs in shared memory of its own, so that 8 lanes store
// 128 bytes of a row together. Values are exact.
#pragma once

#include "coding/memory.cuh"
#include "gemm/widen_e2m1.cuh"
#include "quant/launch.cuh"

namespace gemmill::quant {

using PackedBlock = blockscaled::Fp4Block<blockscaled::NvFp4>;

inline constexpr int kPackedSide = 64;    // rows and columns of a block
inline constexpr int kBlocksOfCta = 4;    // K is padded to whole ones of it
inline constexpr int kRowsOfWarp = 16;
inline constexpr int kPackedThreads = 128;
inline constexpr int kRowChunks = kPackedSide * 2 / 16;  // of 16 bytes

struct WeightDequantParams {
  uint8_t const* in;
  __nv_bfloat16* out;
  int64_t out_stride;
  uint32_t rows, hidden;
  FastDivision ctas_along_k;
};

// A thread's codes, and the scales of its two rows.
__device__ __forceinline__ void load_block(uint8_t const* block, int thread, PackedBlock& x) {
  uint4 const codes = load_stream(block + thread * 16);
  x.codes[0] = codes.x, x.codes[1] = codes.y, x.codes[2] = codes.z, x.codes[3] = codes.w;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(x.scales.above), "=r"(x.scales.below)
               : "l"(block + PackedBlock::kCodeBytes + thread / 4 * 8)
               : "memory");
}

// Two steps of 16 columns into a warp's rows. Chunks of a row change places by its number, so that banks differ.
template <int half>
__device__ __forceinline__ void put_steps(PackedBlock const& x, int lane, uint32_t (&rows)[kRowsOfWarp][kRowChunks * 4]) {
  constexpr uint32_t kMissing = 0x43004300u;  // a pair of PackedBlock::kShort
  static_assert(PackedBlock::kShort == 128.0f, "the pair above is 128 in bf16");
  uint32_t pairs[8];
  x.template operand<half>(PackedBlock::kSpread, pairs);
  int const row = lane / 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // of step i / 4: the first 8 columns of the upper row, of the lower one, the last 8
    int const chunk = half * 4 + i / 4 * 2 + i % 4 / 2;
    rows[row + i % 2 * 8][(chunk ^ row) * 4 + lane % 4] = multiply_pair(pairs[i], kMissing, __nv_bfloat16{});
  }
}

template <class Variant, bool kAligned>
__global__ void __launch_bounds__(kPackedThreads) weight_dequant_kernel(__grid_constant__ WeightDequantParams const p) {
  __shared__ __align__(16) uint32_t shared[kPackedThreads / 32][kRowsOfWarp][kRowChunks * 4];
  wait_for_predecessor();
  int const thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  uint32_t const tile = p.ctas_along_k(blockIdx.x), part = blockIdx.x - tile * p.ctas_along_k.divisor;
  uint8_t const* const in = p.in + static_cast<int64_t>(blockIdx.x) * kBlocksOfCta * PackedBlock::kBytes;
  PackedBlock blocks[kBlocksOfCta];
#pragma unroll
  for (int i = 0; i < kBlocksOfCta; ++i) load_block(in + i * PackedBlock::kBytes, thread, blocks[i]);
#pragma unroll
  for (int i = 0; i < kBlocksOfCta; ++i) {
    put_steps<0>(blocks[i], lane, shared[warp]);
    put_steps<1>(blocks[i], lane, shared[warp]);
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < kRowsOfWarp / 4; ++turn) {
      int const of_warp = turn * 4 + lane / kRowChunks, chunk = lane % kRowChunks;
      uint4 const values = *reinterpret_cast<uint4 const*>(&shared[warp][of_warp][(chunk ^ of_warp % 8) * 4]);
      uint32_t const row = tile * kPackedSide + warp * kRowsOfWarp + of_warp;
      uint32_t const column = (part * kBlocksOfCta + i) * kPackedSide + chunk * 8;
      if (row < p.rows && column < p.hidden) store_chunk<kAligned>(p.out + row * p.out_stride, column, p.hidden, values);
    }
    __syncwarp();
  }
}

// Host code: launches one kernel for all blocks.
template <class Variant>
int32_t weight_dequant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  int64_t const along_k = ceil_divide(x.hidden, kPackedSide * kBlocksOfCta), ctas = ceil_divide(x.rows, kPackedSide) * along_k;
  if (x.hidden % 16 != 0 || !is_aligned(x.in, 16) || ctas > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  WeightDequantParams const p{
      static_cast<uint8_t const*>(x.in), static_cast<__nv_bfloat16*>(x.out), x.out_stride,
      static_cast<uint32_t>(x.rows), static_cast<uint32_t>(x.hidden), FastDivision(static_cast<uint32_t>(along_k)),
  };
  bool const aligned = x.out_stride % 8 == 0 && is_aligned(x.out, 16);
  return aligned ? launch<&weight_dequant_kernel<Variant, true>>(p, ctas, kPackedThreads, how)
                 : launch<&weight_dequant_kernel<Variant, false>>(p, ctas, kPackedThreads, how);
}

}  // namespace gemmill::quant
