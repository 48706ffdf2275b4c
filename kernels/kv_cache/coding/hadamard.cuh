// y = scale H x for rows of 64 to 512 elements of bf16 or f16. A warp takes eight rows (hadamard_tile.cuh).
//
// Memory sets the time: 1,048,576 rows of 128 are 537 MB, 128 us at 4.21 TB/s.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/shared/hadamard_tile.cuh"

namespace gemmill::kv_cache {

constexpr int kHadamardThreads = 256;
constexpr int kHadamardRowsOfWarp = 8;
constexpr int kHadamardRowsOfBlock = kHadamardThreads / 32 * kHadamardRowsOfWarp;

// `Variant` makes the kernel's name the variant's own. Aligned: rows begin at multiples of 16 bytes.
template <class Variant, class Element, int kColumns, bool kAligned>
__global__ void __launch_bounds__(kHadamardThreads) hadamard_rows(__grid_constant__ gemmill_hadamard_args const args) {
  using Tile = HadamardTile<Element, kColumns>;
  constexpr int kPiece = Tile::kPiece;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int64_t const first =
      static_cast<int64_t>(blockIdx.x) * kHadamardRowsOfBlock + threadIdx.x / 32 * kHadamardRowsOfWarp;
  Tile const tile(g, t);
  wait_for_predecessor();

  Piece<Element, kPiece> piece[4] = {};
  if (first + g < args.rows) {
    Element const* const row = static_cast<Element const*>(args.x) + (first + g) * args.x_stride;
#pragma unroll
    for (int c = 0; c < Tile::kLoaded; ++c) piece[c].template load<kAligned>(row + kPiece * (t + 4 * c));
  }
  float sum[4][kPiece];
  tile(sum, piece);

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int const place = g + 8 * (i / 2);
    int64_t const row = first + 2 * t + i % 2;
    if (row >= args.rows || place >= Tile::kPieces) continue;
    Piece<Element, kPiece> result;
#pragma unroll
    for (int j = 0; j < kPiece; j += 2) {
      result.words[j / 2] = two_elements<Element>(sum[i][j] * args.scale, sum[i][j + 1] * args.scale);
    }
    Element* const out = static_cast<Element*>(args.out) + row * args.out_stride;
    result.template store<kAligned>(out + kPiece * place);
  }
}

// Host code: a launch. Rows that would need 2^31 blocks do not fit into any memory.
template <class Variant, class Element, int kColumns>
int32_t hadamard(gemmill_hadamard_args args, gemmill_launch const& how) {
  if (args.rows == 0) return 0;
  uint64_t const places = reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.out) |
                          static_cast<uint64_t>(args.x_stride | args.out_stride) * sizeof(Element);
  int64_t const blocks = (args.rows + kHadamardRowsOfBlock - 1) / kHadamardRowsOfBlock;
  LaunchShape const shape{dim3(static_cast<unsigned>(blocks)), dim3(kHadamardThreads), dim3(1), 0};
  void* parameters[] = {&args};
  return places % 16 == 0 ? launch_kernel<hadamard_rows<Variant, Element, kColumns, true>>(shape, how, parameters)
                          : launch_kernel<hadamard_rows<Variant, Element, kColumns, false>>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
