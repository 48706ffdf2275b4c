// y = scale H x for rows of 64, 128 or 256 elements of bf16 or f16, H being Sylvester's matrix.
//
// H of 16 p is H of 16 times H of p: element p i + j meets the first by i and the second by j. A warp takes eight rows. The
// sum over i runs on the tensor core, whose products by 1 and -1 are exact; the one over j is butterflies in f32
// registers. A lane loads and stores whole pieces of p elements, so nothing goes through shared memory and no lane
// asks another.
//
// Memory sets the time: 1,048,576 rows of 128 are 537 MB, 128 us at 4.21 TB/s.
#pragma once

#include "core/launch.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/mma.cuh"

namespace gemmill::kv_cache {

constexpr int kHadamardThreads = 256;
constexpr int kHadamardRowsOfWarp = 8;
constexpr int kHadamardRowsOfBlock = kHadamardThreads / 32 * kHadamardRowsOfWarp;

// Two entries of H of 16 in a row: 1 or -1 by the parity of the common bits.
template <class Element>
__device__ __forceinline__ uint32_t two_signs(int row, int first, int second) {
  constexpr uint32_t kOne = std::is_same_v<Element, __half> ? 0x3C00u : 0x3F80u;
  uint32_t const low = kOne | ((__popc(row & first) & 1) << 15);
  uint32_t const high = kOne | ((__popc(row & second) & 1) << 15);
  return low | (high << 16);
}

// H of so many registers.
template <int kCount>
__device__ __forceinline__ void butterflies(float (&x)[kCount]) {
#pragma unroll
  for (int distance = 1; distance < kCount; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i & distance) continue;
      float const low = x[i], high = x[i + distance];
      x[i] = low + high;
      x[i + distance] = low - high;
    }
  }
}

// Elements beside one another in memory, two in a word. They are read and written once, so they need not stay in L2.
template <class Element, int kElements>
struct Piece {
  uint32_t words[kElements / 2];

  template <bool kAligned>
  __device__ __forceinline__ void load(Element const* from) {
    if constexpr (!kAligned) {
      uint16_t const* const bits = reinterpret_cast<uint16_t const*>(from);
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i) words[i] = bits[2 * i] | static_cast<uint32_t>(bits[2 * i + 1]) << 16;
    } else if constexpr (kElements == 4) {
      uint2 const two = __ldcs(reinterpret_cast<uint2 const*>(from));
      words[0] = two.x, words[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint4 const four = __ldcs(reinterpret_cast<uint4 const*>(from) + i);
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
      }
    }
  }

  template <bool kAligned>
  __device__ __forceinline__ void store(Element* to) const {
    if constexpr (!kAligned) {
      uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i) bits[2 * i] = words[i] & 0xFFFF, bits[2 * i + 1] = words[i] >> 16;
    } else if constexpr (kElements == 4) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
    } else {
#pragma unroll
      for (int i = 0; i < kElements / 8; ++i) {
        uint4 const four = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        __stcs(reinterpret_cast<uint4*>(to) + i, four);
      }
    }
  }
};

// `Variant` makes the kernel's name the variant's own. Aligned: rows begin at multiples of 16 bytes.
template <class Variant, class Element, int kColumns, bool kAligned>
__global__ void __launch_bounds__(kHadamardThreads) hadamard_rows(__grid_constant__ gemmill_hadamard_args const args) {
  constexpr int kPiece = kColumns / 16;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int64_t const first =
      static_cast<int64_t>(blockIdx.x) * kHadamardRowsOfBlock + threadIdx.x / 32 * kHadamardRowsOfWarp;
  // Summed place 2t, 2t + 1, 2t + 8, 2t + 9 is piece t, t + 4, t + 8, t + 12 of a row: four lanes load side by side.
  uint32_t const signs[4] = {two_signs<Element>(g, t, t + 4), two_signs<Element>(g + 8, t, t + 4),
                             two_signs<Element>(g, t + 8, t + 12), two_signs<Element>(g + 8, t + 8, t + 12)};

  Piece<Element, kPiece> piece[4] = {};
  if (first + g < args.rows) {
    Element const* const row = static_cast<Element const*>(args.x) + (first + g) * args.x_stride;
#pragma unroll
    for (int c = 0; c < 4; ++c) piece[c].template load<kAligned>(row + kPiece * (t + 4 * c));
  }

  float sum[4][kPiece];  // of d0 to d3 of the instruction, for each j
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    uint32_t const select = j % 2 ? 0x7632 : 0x5410;
    float d[4] = {};
    mma_16x8x16<Element>(d, signs, __byte_perm(piece[0].words[j / 2], piece[1].words[j / 2], select),
                         __byte_perm(piece[2].words[j / 2], piece[3].words[j / 2], select));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i][j] = d[i];
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    butterflies(sum[i]);
    int64_t const row = first + 2 * t + i % 2;
    if (row >= args.rows) continue;
    Piece<Element, kPiece> result;
#pragma unroll
    for (int j = 0; j < kPiece; j += 2) {
      result.words[j / 2] = two_elements<Element>(sum[i][j] * args.scale, sum[i][j + 1] * args.scale);
    }
    Element* const out = static_cast<Element*>(args.out) + row * args.out_stride;
    result.template store<kAligned>(out + kPiece * (g + 8 * (i / 2)));
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
